//! The kernel's UDP socket: the few calls that are made on it, none of which blocks.
//!
//! Knows nothing of what the packets say. Straight to the kernel, past libc, whose functions may be
//! hooked.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use rustix::time::Timespec;

use crate::failure::Failure;
use crate::sys;

/// The most bytes that a UDP packet can have.
pub(super) const LARGEST: usize = 65_536;

/// Sends one packet, to where the socket is connected if no address is given.
pub(super) fn send(fd: RawFd, to: Option<&SocketAddr>, packet: &[u8]) -> Result<usize, Failure> {
    let (fd, flags) = (sys::borrow(fd), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    Ok(match to {
        None => rustix::net::send(fd, packet, flags),
        Some(to) => rustix::net::sendto(fd, packet, flags, to),
    }?)
}

/// Waits until the kernel has room, a millisecond at most. Not a cancellation point: a lock may be
/// held.
pub(super) fn wait_for_room(fd: RawFd) {
    let fd = sys::borrow(fd);
    let mut one = [PollFd::new(&fd, PollFlags::OUT)];
    let _ = rustix::event::poll(&mut one, Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 }));
}

/// Takes one packet, and who sent it.
pub(super) fn receive(fd: RawFd, into: &mut [u8]) -> Result<(usize, Option<SocketAddr>), Failure> {
    let (n, _, from) = rustix::net::recvfrom(sys::borrow(fd), into, RecvFlags::DONTWAIT)?;
    Ok((n, from.and_then(|from| SocketAddr::try_from(from).ok()).map(plain)))
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
    let name = rustix::net::getsockname(sys::borrow(fd))?;
    SocketAddr::try_from(name).map_err(|_| Failure::WrongFamily)
}

/// The address from which packets to `to` are sent (`wire-protocol §9.4`): the socket's own, or
/// what the kernel would choose where that is none in particular.
pub(super) fn source_towards(fd: RawFd, to: &SocketAddr) -> Option<IpAddr> {
    let own = local(fd).ok()?.ip().to_canonical();
    if !own.is_unspecified() && !own.is_loopback() {
        return Some(own);
    }
    let family = if to.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC;
    let probe = rustix::net::socket_with(family, SocketType::DGRAM, flags, None).ok()?;
    let name = rustix::net::connect(&probe, to).and_then(|()| rustix::net::getsockname(&probe));
    sys::discard(probe);
    Some(SocketAddr::try_from(name.ok()?).ok()?.ip().to_canonical())
}
