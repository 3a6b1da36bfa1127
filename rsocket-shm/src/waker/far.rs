//! Wakers of other network namespaces.
//!
//! The kernel looks for an abstract name in the namespace of the socket that asks. So a peer hands
//! over a datagram socket of its own namespace, and its wakers are woken by that. It has no name,
//! and is connected to nothing. Whatever the peer does to it, a ring does not block, and says eight
//! bytes to the socket that has the waker's name there. (A peer can make a write to its eventfd
//! block. Such a peer may be any process, so it is not woken by [`super::front`]'s.) Must not know
//! who sleeps. Entry points: [`accept`], [`wake`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use rustix::net::{AddressFamily, SendFlags, SocketType, sockopt};

use super::super::netns;
use super::super::waiter_slot::WAKER;
use super::address;
use super::ways::{RING, Woke, answer, close, send_by};
use rsocket_host::sys;

/// What a peer has handed over, if it is such a socket, and of another namespace than ours: there
/// the shorter way is as good.
#[must_use]
pub fn accept(socket: OwnedFd) -> Option<OwnedFd> {
    let is_one = is_way(&socket);
    let theirs = sys::network_namespace(socket.as_raw_fd());
    let ours = netns::socket().and_then(sys::network_namespace);
    if is_one && (theirs.is_none() || theirs != ours) {
        return Some(socket);
    }
    close(socket);
    None
}

/// Whether it is a socket by which wakers can be woken.
#[must_use]
pub fn is_way(fd: impl AsFd) -> bool {
    sockopt::socket_domain(&fd) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(&fd) == Ok(SocketType::DGRAM)
}

/// Signals the waker `id` in the namespace of the socket `there`. Does not block.
#[must_use]
pub fn wake(id: u64, there: RawFd) -> Woke {
    let Ok(address) = address(id) else { return Woke::Failed };
    if id & WAKER == 0 {
        return Woke::Gone;
    }
    // Its flags are the peer's to change.
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    answer(send_by(|| rustix::net::sendto(sys::borrow(there), RING, flags, &address)))
}

/// As [`super::try_wake`], of a waker that may be of another network namespace, of which `there` is
/// a socket ([`netns::envoy`]).
pub fn try_wake(id: u64, there: RawFd) -> Woke {
    match wake(id, there) {
        Woke::Yes => Woke::Yes,
        // One of our own is woken by the same words.
        _ => super::try_wake(id),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::{borrow, forget};
    use super::*;

    #[test]
    fn by_a_socket_of_the_wakers_namespace() {
        let waker = borrow().unwrap();
        let there = netns::envoy().unwrap();
        assert_eq!((wake(waker.id(), there.as_raw_fd()), waker.drain()), (Woke::Yes, true));
        let woke = try_wake(waker.id(), there.as_raw_fd());
        assert_eq!((woke, waker.drain()), (Woke::Yes, true));
        // Whatever its owner does to it: our own wakers are woken all the same, and no call blocks.
        rustix::net::shutdown(&there, rustix::net::Shutdown::Both).unwrap();
        assert_eq!(wake(waker.id(), there.as_raw_fd()), Woke::Gone);
        let woke = try_wake(waker.id(), there.as_raw_fd());
        assert_eq!((woke, waker.drain()), (Woke::Yes, true));
        let id = waker.id();
        forget(waker);
        assert_eq!(try_wake(id, there.as_raw_fd()), Woke::Gone);
    }

    #[test]
    fn what_is_no_way() {
        // One of our own namespace is not needed.
        assert!(accept(netns::envoy().unwrap()).is_none());
        let file = rustix::fs::memfd_create(c"x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert!(accept(file).is_none());
        let tcp = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        assert!(accept(tcp.into()).is_none());
    }
}
