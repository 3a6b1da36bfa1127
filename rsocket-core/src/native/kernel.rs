//! Peers on this host, without an RDMA device. The two ends have a kernel TCP connection to the
//! real address. Beside it both ends attach shared memory, as where policy excludes TCP. The kernel
//! has the names, the accept queue, FIN and reset.
//!
//! A peer elsewhere cannot be met this way. Its address is refused before anything is sent to it,
//! and what comes from it is reset when it is accepted.

use core::time::Duration;
use std::os::fd::{IntoRawFd, RawFd};

use rustix::net::{Shutdown, SocketFlags};

use super::service;
use crate::address::SockAddr;
use crate::conn::fork_group;
use crate::conn::slot::SlotId;
use crate::failure::Failure;
use crate::host::kernel;
use crate::sync::signals;
use crate::sys::sockets;
use crate::{pairing, readiness, socket, sys};

pub(super) fn bind(fd: RawFd, name: &SockAddr) -> Result<(), Failure> {
    sockets::bind(sys::borrow(fd), &name.0)
}

pub(super) fn listen(fd: RawFd, backlog: i32) -> Result<(), Failure> {
    sockets::listen(sys::borrow(fd), backlog)
}

pub(super) fn local_name(fd: RawFd) -> Result<SockAddr, Failure> {
    sockets::own_name(sys::borrow(fd)).map(SockAddr)
}

pub(super) fn peer_name(fd: RawFd) -> Result<SockAddr, Failure> {
    sockets::peer_name(sys::borrow(fd)).map(SockAddr)
}

pub(super) fn shutdown(fd: RawFd, how: i32) -> Result<(), Failure> {
    let how = match how {
        libc::SHUT_RD => Shutdown::Read,
        libc::SHUT_WR => Shutdown::Write,
        _ => Shutdown::Both,
    };
    sockets::shut(sys::borrow(fd), how)
}

pub(super) fn connect(id: SlotId, fd: RawFd, to: &SockAddr) -> Result<(), Failure> {
    if !of_this_host(to)? {
        return Err(Failure::NoDevice);
    }
    socket::connecting(id, fd);
    let result = sockets::connect(sys::borrow(fd), &to.0);
    socket::connected(id, fd, result);
    if matches!(result, Ok(()) | Err(Failure::UnderWay | Failure::Interrupted)) {
        service::wanted();
    }
    result
}

pub(super) fn accept(
    listener: SlotId,
    fd: RawFd,
    flags: i32,
) -> Result<(SlotId, RawFd, SockAddr), Failure> {
    let mut deadline = AcceptDeadline::Unknown;
    loop {
        let (new, peer) = next(fd, flags, &mut deadline)?;
        if !of_this_host(&peer).unwrap_or(false) {
            crate::log_info!("a connection from another host was reset: no RDMA device");
            kernel::reset_on_close(new);
            close(new);
            continue;
        }
        let Some(id) = socket::accepted(new, listener) else {
            close(new);
            return Err(Failure::NoMemory);
        };
        if let Some(s) = fork_group::slot(id) {
            // The peer, which may be waiting to send, hears of us at once.
            pairing::advance(id, s, new);
        }
        service::wanted();
        return Ok((id, new, peer));
    }
}

/// The next connection that the kernel has, and where it came from.
pub(super) fn next(
    fd: RawFd,
    flags: i32,
    deadline: &mut AcceptDeadline,
) -> Result<(RawFd, SockAddr), Failure> {
    if !kernel::nonblocking(fd) {
        somebody(fd, deadline)?;
    }
    take(fd, flags)
}

fn take(fd: RawFd, flags: i32) -> Result<(RawFd, SockAddr), Failure> {
    let flags = SocketFlags::from_bits_truncate(flags.unsigned_abs());
    let (new, peer) = sockets::accept_from(sys::borrow(fd), flags)?;
    Ok((new.into_raw_fd(), SockAddr(peer)))
}

/// Not through `OwnedFd`, whose close is libc's.
pub(super) fn close(fd: RawFd) {
    sys::close(fd);
}

/// How long one accept may wait in all.
pub(super) enum AcceptDeadline {
    Unknown,
    Endless,
    Until(u64),
}

/// Waits until a connection can be taken, and goes on with the pairings of the process meanwhile.
/// (Should another thread take it first, the kernel's own accept waits for the next.)
fn somebody(fd: RawFd, deadline: &mut AcceptDeadline) -> Result<(), Failure> {
    if matches!(deadline, AcceptDeadline::Unknown) {
        *deadline = match kernel::timeout(fd, libc::SO_RCVTIMEO) {
            Some(ns) => AcceptDeadline::Until(sys::now_ns().saturating_add(ns)),
            None => AcceptDeadline::Endless,
        };
    }
    let seen = signals::seen();
    loop {
        let left = match deadline {
            AcceptDeadline::Until(end) => {
                Some(Duration::from_nanos(end.saturating_sub(sys::now_ns())))
            }
            _ => None,
        };
        let mut one = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
        let list = one.as_mut_slice().into();
        match readiness::poll::poll(list, left, core::ptr::null(), |_| None) {
            Ok(0) => return Err(Failure::Blocked),
            Ok(_) => return Ok(()),
            Err(Failure::Interrupted) if left.is_none() && signals::goes_on(seen) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Whether an address is one of this host's (of this network namespace's): then a socket can be
/// bound to it.
fn of_this_host(addr: &SockAddr) -> Result<bool, Failure> {
    if addr.is_loopback() {
        return Ok(true);
    }
    match sockets::can_have(&addr.0) {
        Ok(()) => Ok(true),
        Err(Failure::NoSuchName | Failure::NoDevice) => Ok(false),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_told_from_others() {
        for (text, here) in [
            ("127.0.0.1:1", true),
            ("127.9.9.9:1", true),
            ("0.0.0.0:7", true),
            // Addresses for documentation, which no host has.
            ("203.0.113.77:1", false),
            ("[2001:db8::1]:1", false),
            ("[::ffff:203.0.113.77]:1", false),
        ] {
            assert_eq!(of_this_host(&SockAddr(text.parse().unwrap())), Ok(here), "{text}");
        }
    }
}
