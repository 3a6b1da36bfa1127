//! The kernel's UDP socket: the few calls that are made on it, none of which blocks.
//!
//! Knows nothing of what the packets say. Straight to the kernel, past libc, whose functions may be
//! hooked.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

use crate::failure::Failure;
use crate::host::events::Events;
use crate::host::kernel;
use crate::sys::{self, sockets};

/// The most bytes that a UDP packet can have.
pub(super) const LARGEST: usize = 65_536;

/// Sends one packet, to where the socket is connected if no address is given.
pub(super) fn send(fd: RawFd, to: Option<&SocketAddr>, packet: &[u8]) -> Result<usize, Failure> {
    sockets::send_to(sys::borrow(fd), to, packet)
}

/// Waits until the kernel has room, a millisecond at most. Not a cancellation point: a lock may be
/// held.
pub(super) fn wait_for_room(fd: RawFd) {
    let _ = kernel::poll_within(fd, Events::OUT, 1_000_000);
}

/// Takes one packet, and who sent it.
pub(super) fn receive(fd: RawFd, into: &mut [u8]) -> Result<(usize, Option<SocketAddr>), Failure> {
    let (n, from) = sockets::receive_from(sys::borrow(fd), into)?;
    Ok((n, from.map(plain)))
}

/// An address as it is compared: without flow information.
pub(super) fn plain(mut addr: SocketAddr) -> SocketAddr {
    if let SocketAddr::V6(v6) = &mut addr {
        v6.set_flowinfo(0);
    }
    addr
}

/// The socket's own name.
pub(super) fn local(fd: RawFd) -> Result<SocketAddr, Failure> {
    sockets::own_name(sys::borrow(fd))
}

/// The address from which packets to `to` are sent (`wire-protocol §9.4`): the socket's own, or
/// what the kernel would choose where that is none in particular.
pub(super) fn source_towards(fd: RawFd, to: &SocketAddr) -> Option<IpAddr> {
    let own = local(fd).ok()?.ip().to_canonical();
    if !own.is_unspecified() && !own.is_loopback() {
        return Some(own);
    }
    sockets::source_towards(to)
}
