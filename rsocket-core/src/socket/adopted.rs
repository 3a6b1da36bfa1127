//! TCP sockets that this process has, and that it did not make: a program that it descends from, or
//! a message, brought them.
//!
//! A socket that listens is as good as one that was made here, since what it gives is made by
//! `accept`. A connection is not: nobody knows who else has it. Must not know where a descriptor
//! stands in the table. Entry points: [`tcp_domain`], [`listener`], [`came`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::RawFd;

use super::slot::SlotId;
use super::{inq, kernel, life, low_water, stamps};
use crate::attach::remote;
use crate::succession::parcels;

/// What a TCP socket is that came in a message; see [`parcels::receive`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Came {
    /// A socket that listens, whoever sent it: as if made here.
    Listener(SlotId),
    /// A relative's connection.
    Connection(SlotId),
    /// The kernel's business.
    Stranger,
}

/// The address family of a TCP socket; `None` for any other descriptor. One or two system calls.
#[must_use]
pub fn tcp_domain(fd: RawFd) -> Option<i32> {
    let of = |option| kernel::integer(fd, libc::SOL_SOCKET, option);
    (of(libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)).then(|| of(libc::SO_DOMAIN)).flatten()
}

/// A place for a TCP socket that listens, with what was asked of it elsewhere. `None` if it does not
/// listen, or there is no place left.
#[must_use]
pub fn listener(fd: RawFd) -> Option<SlotId> {
    if !listens(fd) {
        return None;
    }
    let id = life::created(fd)?;
    // What it gives has these options, too.
    low_water(id, fd);
    stamps::changed(id, fd);
    inq::changed(id, fd);
    Some(id)
}

fn listens(fd: RawFd) -> bool {
    kernel::integer(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Some(1)
}

/// A TCP socket came in a message, which is still there if it was only `peeked` at.
#[must_use]
pub fn came(fd: RawFd, peeked: bool) -> Came {
    if listens(fd) {
        // A relative's, to which relays knock ([`super::passing_listener`]), or as good as a new one.
        let known = parcels::receive(fd, peeked);
        return known.or_else(|| listener(fd)).map_or(Came::Stranger, Came::Listener);
    }
    let Some(id) = parcels::receive(fd, peeked) else { return Came::Stranger };
    // Its first bytes are remembered from here on, should this process be the first of its family that
    // could need them.
    remote::find_out();
    Came::Connection(id)
}
