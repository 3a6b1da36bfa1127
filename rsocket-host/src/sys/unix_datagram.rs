//! Datagrams of the UNIX family that bring one descriptor each.
//!
//! Nothing here waits. Must not know what is brought, nor to whom. Entry points: [`bound`],
//! [`bring`], [`take`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::mem::MaybeUninit;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd, RawFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType,
};

use super::{borrow, discard, sockets};
use crate::failure::Failure;

fn socket() -> Result<OwnedFd, Failure> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::DGRAM);
    Ok(rustix::net::socket_with(family, kind, sockets::OURS, None)?)
}

/// A socket of that name.
///
/// # Errors
/// As socket(2) and bind(2).
pub fn bound(name: &SocketAddrUnix) -> Result<OwnedFd, Failure> {
    let socket = socket()?;
    match sockets::bind(&socket, name) {
        Ok(()) => Ok(socket),
        Err(e) => {
            discard(socket);
            Err(e)
        }
    }
}

/// Sends a datagram and a copy of a descriptor to a socket of that name.
///
/// # Errors
/// As sendmsg(2).
pub fn bring(to: &SocketAddrUnix, bytes: &[u8], what: impl AsFd) -> Result<(), Failure> {
    let socket = socket()?;
    let fds = [what.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let pushed = control.push(SendAncillaryMessage::ScmRights(&fds));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = rustix::net::sendmsg_addr(&socket, to, &[IoSlice::new(bytes)], &mut control, flags);
    discard(socket);
    if !pushed {
        return Err(Failure::NoMemory);
    }
    sent?;
    Ok(())
}

/// What came with a datagram that fills all of `into`; `Ok(None)` for any other datagram, which is
/// gone with what it brought.
///
/// # Errors
/// As recvmsg(2); `EAGAIN` where there is none.
pub fn take(socket: RawFd, into: &mut [u8]) -> Result<Option<OwnedFd>, Failure> {
    let wanted = into.len();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let mut parts = [IoSliceMut::new(into)];
    let got = rustix::net::recvmsg(borrow(socket), &mut parts, &mut control, flags)?;
    let mut brought: Option<OwnedFd> = None;
    for part in control.drain() {
        let RecvAncillaryMessage::ScmRights(list) = part else { continue };
        for fd in list {
            if let Some(surplus) = brought.replace(fd) {
                discard(surplus);
            }
        }
    }
    let whole =
        got.bytes == wanted && !got.flags.intersects(ReturnFlags::CTRUNC | ReturnFlags::TRUNC);
    if !whole && let Some(fd) = brought.take() {
        discard(fd);
    }
    Ok(brought)
}
