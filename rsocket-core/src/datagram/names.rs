//! The names of datagram sockets, and the peers that they are connected to. The kernel's UDP socket
//! has the names. The peer stands in the slot too, since the device does not know it.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::RawFd;

use rustix::net::Shutdown;

use super::peers::Peers;
use super::{ready, udp};
use crate::address::SockAddr;
use crate::conn::fork_group;
use crate::conn::slot::{SlotId, flag};
use crate::failure::Failure;
use crate::host::kernel;
use crate::sys::{self, sockets};

/// Gives the socket a name.
///
/// # Errors
/// As bind(2).
pub fn bind(fd: RawFd, name: &SockAddr) -> Result<(), Failure> {
    sockets::bind(sys::borrow(fd), &name.0)
}

/// From now on only this peer is heard, and is where datagrams without an address go. Sends
/// nothing.
///
/// # Errors
/// As connect(2).
pub fn connect(id: SlotId, fd: RawFd, to: &SockAddr) -> Result<(), Failure> {
    let s = fork_group::slot(id).ok_or(Failure::BadDescriptor)?;
    sockets::connect(sys::borrow(fd), &to.0)?;
    // The kernel's spelling: it knows which address of this host an unspecified one means.
    let peer = sockets::peer_name(sys::borrow(fd)).unwrap_or(to.0);
    let [_, place] = &s.names;
    place.set(Some(udp::plain(peer)));
    ready::changed(id);
    Ok(())
}

/// Every peer is heard again.
///
/// # Errors
/// As connect(2).
pub fn disconnect(id: SlotId, fd: RawFd) -> Result<(), Failure> {
    let s = fork_group::slot(id).ok_or(Failure::BadDescriptor)?;
    sockets::forget_peer(sys::borrow(fd))?;
    let [_, place] = &s.names;
    place.set(None);
    // A port that the program had not asked for is given back with the peer: others knew us by it.
    let _ = super::with(id, fd, |state| {
        state.port = 0;
        state.peers = Peers::default();
    });
    ready::changed(id);
    Ok(())
}

/// The pending error, which is cleared; 0 if there is none.
pub fn error(id: SlotId, fd: RawFd) -> i32 {
    let known = super::with(id, fd, |state| state.error.take()).ok().flatten();
    known.or_else(|| kernel::take_error(fd)).map_or(0, Failure::code)
}

/// Ends one direction or both, here only.
///
/// # Errors
/// As shutdown(2): `ENOTCONN` for a socket that is not connected.
pub fn shutdown(id: SlotId, fd: RawFd, how: i32) -> Result<(), Failure> {
    let s = fork_group::slot(id).ok_or(Failure::BadDescriptor)?;
    let (way, flags) = match how {
        libc::SHUT_RD => (Shutdown::Read, flag::READ_SHUT),
        libc::SHUT_WR => (Shutdown::Write, flag::WRITE_SHUT),
        libc::SHUT_RDWR => (Shutdown::Both, flag::READ_SHUT | flag::WRITE_SHUT),
        _ => return Err(Failure::Invalid),
    };
    sockets::shut(sys::borrow(fd), way)?;
    s.set(flags);
    ready::changed(id);
    Ok(())
}
