//! TCP sockets that this process has, and that it did not make: a program that it descends from, or
//! a message, brought them.
//!
//! A socket that listens is as good as one that was made here, since what it gives is made by
//! `accept`. A connection is not: this process cannot know which other processes have it. Must not
//! know where a descriptor stands in the table. Entry points: [`tcp_domain`], [`listener`],
//! [`came`], [`each_socket`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU32, Ordering};
use std::os::fd::{AsFd, RawFd};

use super::{inq, life, low_water, options, stamps};
use crate::attach::{phase, reach};
use crate::conn::slot::SlotId;
use crate::conn::{cause, fork_group};
use crate::handover::fds_in_flight;
use crate::host::kernel;
use crate::reason::Reason;
use crate::sync::stack;
use crate::sys::files::{self, For};
use crate::sys::sockets;
use crate::{stats, sys};

/// What a TCP socket is that came in a message; see [`fds_in_flight::receive`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Came {
    /// A socket that listens, whichever process sent it: as if made here.
    Listener(SlotId),
    /// A sibling's connection.
    Connection(SlotId),
    /// The kernel's business.
    Stranger,
}

/// The address family of a TCP socket; `None` for any other descriptor. One or two system
/// calls.
#[must_use]
pub fn tcp_domain(fd: RawFd) -> Option<i32> {
    let of = |option| kernel::integer(fd, libc::SOL_SOCKET, option);
    (of(libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)).then(|| of(libc::SO_DOMAIN)).flatten()
}

/// A place for a TCP socket that listens, with what was asked of it elsewhere. `None` if it does
/// not listen, or there is no place left.
#[must_use]
pub fn listener(fd: RawFd) -> Option<SlotId> {
    if !listens(fd) {
        return None;
    }
    let id = life::created(fd)?;
    life::about_to_listen(id, fd);
    // What it gives has these options, too.
    low_water(id, fd);
    stamps::changed(id, fd);
    inq::changed(id, fd);
    if let Some((level, name)) = options::odd_one(fd)
        && let Some(s) = fork_group::slot(id)
    {
        cause::of_option(s, level, name);
        phase::refuse(s, Reason::OddOption);
    }
    Some(id)
}

fn listens(fd: RawFd) -> bool {
    kernel::integer(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Some(1)
}

/// A TCP socket came in a message, which is still there if it was only `peeked` at.
#[must_use]
pub fn came(fd: RawFd, peeked: bool) -> Came {
    if listens(fd) {
        // A sibling's, to which bridges knock ([`super::passing_listener`]), or as good as a new
        // one.
        let known = fds_in_flight::receive(fd, peeked);
        return known.or_else(|| listener(fd)).map_or(Came::Stranger, Came::Listener);
    }
    let Some(id) = fds_in_flight::receive(fd, peeked) else {
        if !peeked && is_connected(fd) {
            left_to_kernel();
        }
        return Came::Stranger;
    };
    // Its first bytes are remembered from here on, should this process be the first of its fork
    // group that could need them.
    reach::find_out();
    Came::Connection(id)
}

/// Whether a TCP socket is a connection. One system call.
#[must_use]
pub fn is_connected(fd: RawFd) -> bool {
    sockets::is_connected(sys::borrow(fd))
}

/// A connection is another program's, and this process does not know enough of it to take it from
/// TCP: that is counted.
pub fn left_to_kernel() {
    // Relaxed, here and below: only this process's own word counts for it.
    COUNTING.store(sys::pid(), Ordering::Relaxed);
    stats::fell_back(Reason::NotHandedOver);
}

/// The process that has counted one, which has something to report though it may track nothing.
static COUNTING: AtomicU32 = AtomicU32::new(0);

/// Whether this process has counted one.
#[must_use]
pub fn any_left() -> bool {
    match COUNTING.load(Ordering::Relaxed) {
        0 => false,
        pid => pid == sys::pid(),
    }
}

/// Calls `f` for each socket among the descriptors that this process has open.
pub fn each_socket(f: impl FnMut(RawFd)) {
    stack::on_own(|| list_sockets(f));
}

fn list_sockets(mut f: impl FnMut(RawFd)) {
    let Ok(directory) = files::open(c"/proc/self/fd", For::Listing) else { return };
    let mut space = [core::mem::MaybeUninit::uninit(); 2048];
    files::each_entry(directory.as_fd(), &mut space, |name, _| {
        let number = name.to_str().ok().and_then(|name| name.parse::<RawFd>().ok());
        if let Some(fd) = number
            && files::status_of(sys::borrow(fd)).is_ok_and(|s| s.is_socket())
        {
            f(fd);
        }
        ControlFlow::Continue(())
    });
    sys::discard(directory);
}
