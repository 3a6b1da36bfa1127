//! Where the two ends of one TCP connection meet: an abstract UNIX name made from the connection's
//! four addresses. The connecting side offers (binds the name), the accepting side knocks (connects
//! to it), one message goes each way. Nothing here ever waits (`life-of-a-connection §3`).
//!
//! Any process in the network namespace may knock, or take the name first. That costs the
//! connection its chance to attach, no more: [`super::trust`] and [`super::hello`] settle which
//! process is really there.
//!
//! The handles are plain numbers with an explicit `close`, since they live in memory that processes
//! share. A forked child inherits the descriptors. An offer that the parent has closed stays open
//! until the child closes its own: that is for the child's fork handler to do. Must not know what
//! the messages say. Entry points: [`Offer::open`], [`knock`].

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::os::fd::{OwnedFd, RawFd};

use rustix::net::SocketAddrUnix;

use super::hello::LAYOUT_VERSION;
use crate::failure::Failure;
use crate::host::tuple::{TUPLE_BYTES, Tuple};
use crate::seqpacket::{self, Channel};
use crate::sys::{self, discard, sockets};

/// Processes that may have knocked and not been picked up: the one that is meant, and some
/// strangers.
const QUEUE: i32 = 4;

const PREFIX: &[u8] = b"rsockets/";
/// Prefix, four digits of the version, two digits for each byte of the tuple. The kernel's limit
/// is 107.
pub const NAME_LEN: usize = PREFIX.len() + 4 + 2 * TUPLE_BYTES;
const _: () = assert!(NAME_LEN <= 107);

/// The abstract name (without its leading zero byte) of a connection as its *connecting* side sees
/// it.
#[must_use]
pub fn name(connecting: &Tuple) -> [u8; NAME_LEN] {
    let hex = |b: u8| [b >> 4, b & 15].map(|d| if d < 10 { b'0' + d } else { b'a' - 10 + d });
    let digits =
        LAYOUT_VERSION.to_be_bytes().into_iter().chain(connecting.to_bytes()).flat_map(hex);
    let mut out = [0; NAME_LEN];
    for (to, from) in out.iter_mut().zip(PREFIX.iter().copied().chain(digits)) {
        *to = from;
    }
    out
}

fn address(connecting: &Tuple) -> Result<SocketAddrUnix, Failure> {
    Ok(SocketAddrUnix::new_abstract_name(&name(connecting))?)
}

/// Passes the error on and closes the socket that it concerns.
fn or_discard(result: Result<(), Failure>, socket: OwnedFd) -> Result<OwnedFd, Failure> {
    match result {
        Ok(()) => Ok(socket),
        Err(e) => {
            discard(socket);
            Err(e)
        }
    }
}

/// The connecting side's open offer to meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Offer {
    /// The listening socket, a private descriptor.
    pub fd: RawFd,
}

impl Offer {
    /// Offers to meet about the connection that this side, the connecting one, sees as `tuple`.
    ///
    /// # Errors
    /// `EADDRINUSE` when the name is taken already (by another holder of the same socket, or by a
    /// squatter); `EMFILE` and the like.
    pub fn open(tuple: &Tuple) -> Result<Self, Failure> {
        let address = address(tuple)?;
        let socket = seqpacket::socket()?;
        let ready = sockets::listen_at(&socket, &address, QUEUE);
        let fd = sys::make_private(or_discard(ready, socket)?)?;
        Ok(Self { fd })
    }

    /// Takes the next process that has knocked; nothing when none has. Ask again until nothing
    /// comes: a stranger may have been first.
    ///
    /// # Errors
    /// Those of `accept4`.
    pub fn pick_up(&self) -> Result<Option<Channel>, Failure> {
        match sockets::accept(sys::borrow(self.fd)) {
            Ok(fd) => Ok(Some(Channel { fd: sys::make_private(fd)? })),
            // What Linux's accept returns when no process has knocked, or when it has gone away
            // again.
            Err(Failure::Blocked | Failure::Aborted | Failure::Interrupted) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Withdraws the offer.
    pub fn close(self) {
        sys::close_private(self.fd);
    }
}

/// Knocks at the offer for the connection that this side, the accepting one, sees as `tuple`.
/// Nothing when there is no offer.
///
/// # Errors
/// - `EAGAIN` when too many have knocked already and were not picked up.
/// - `EPROTOTYPE` when a stranger's socket of another kind has the name.
/// - `EPERM` or `EACCES` where a security module forbids it.
/// - `EMFILE` and the like.
pub fn knock(tuple: &Tuple) -> Result<Option<Channel>, Failure> {
    let address = address(&tuple.reversed())?;
    let socket = seqpacket::socket()?;
    match or_discard(sockets::connect(&socket, &address), socket) {
        Ok(socket) => Ok(Some(Channel { fd: sys::make_private(socket)? })),
        Err(Failure::Refused) => Ok(None),
        Err(e) => Err(e),
    }
}

/// As [`knock`], for a caller that has something to say already. The socket has its number, which
/// takes a moment, before the other end sees it.
///
/// # Errors
/// As [`knock`].
pub fn knock_ready(tuple: &Tuple) -> Result<Option<Channel>, Failure> {
    let address = address(&tuple.reversed())?;
    let fd = sys::make_private(seqpacket::socket()?)?;
    match sockets::connect(sys::borrow(fd), &address) {
        Ok(()) => Ok(Some(Channel { fd })),
        Err(e) => {
            sys::close_private(fd);
            if e == Failure::Refused { Ok(None) } else { Err(e) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_readable_and_distinct() {
        let mut t = Tuple { family: 4, ..Tuple::default() };
        t.local.port = 0xabcd;
        let text = String::from_utf8(name(&t).to_vec()).unwrap();
        assert!(text.starts_with("rsockets/"), "{text}");
        assert!(text.ends_with("abcd0000"), "{text}");
        assert_eq!(text.len(), NAME_LEN);
        assert_ne!(name(&t), name(&t.reversed()));
    }
}
