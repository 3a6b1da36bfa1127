//! Where others bring rings that they want to write into: an abstract datagram socket of the UNIX
//! family with a random name, which the invited are told. Anybody may bring anything; what counts
//! is the token beside it.
//!
//! Knows nothing of rings or peers. Entry points: [`Letterbox::open`], [`deliver`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::mem::MaybeUninit;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd, RawFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::device::shm::random;
use crate::failure::Failure;
use crate::sys;
use crate::wire::datagram::Invitation;

const PREFIX: &[u8] = b"rsockets-box/";
const NAME: usize = PREFIX.len() + 16;
/// Bytes of a letter: the token.
const LETTER: usize = 16;

fn address(name: u64) -> Result<SocketAddrUnix, Failure> {
    let digit = |shift: u32| {
        let d = (name >> shift & 15) as u8;
        if d < 10 { b'0' + d } else { b'a' - 10 + d }
    };
    let mut text = [0; NAME];
    let digits = (0..16).rev().map(|i| digit(i * 4));
    for (to, from) in text.iter_mut().zip(PREFIX.iter().copied().chain(digits)) {
        *to = from;
    }
    Ok(SocketAddrUnix::new_abstract_name(&text)?)
}

fn socket() -> Result<OwnedFd, Failure> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?)
}

/// One's own letterbox. No destructor: it is closed by hand.
pub(super) struct Letterbox {
    pub(super) fd: RawFd,
    pub(super) name: u64,
}

impl Letterbox {
    pub(super) fn open() -> Result<Self, Failure> {
        let name = random::bits()? as u64;
        let to = address(name)?;
        let socket = socket()?;
        if let Err(e) = rustix::net::bind(&socket, &to) {
            sys::discard(socket);
            return Err(e.into());
        }
        Ok(Self { fd: sys::make_private(socket)?, name })
    }

    /// The next letter that has the shape of one: the token, and what came with it. `Err` when
    /// there is none left; `Ok(None)` for one that is no letter.
    pub(super) fn next(&self) -> Result<Option<(u128, OwnedFd)>, Failure> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; LETTER];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let got = rustix::net::recvmsg(sys::borrow(self.fd), &mut parts, &mut control, flags)?;
        let mut brought: Option<OwnedFd> = None;
        for part in control.drain() {
            let RecvAncillaryMessage::ScmRights(list) = part else { continue };
            for fd in list {
                if let Some(surplus) = brought.replace(fd) {
                    sys::discard(surplus);
                }
            }
        }
        let whole =
            got.bytes == LETTER && !got.flags.intersects(ReturnFlags::CTRUNC | ReturnFlags::TRUNC);
        match brought {
            Some(fd) if whole => Ok(Some((u128::from_be_bytes(bytes), fd))),
            Some(fd) => {
                sys::discard(fd);
                Ok(None)
            }
            None => Ok(None),
        }
    }

    pub(super) fn close(&self) {
        sys::close_private(self.fd);
    }
}

/// Brings a descriptor to where an invitation says.
pub(super) fn deliver(to: &Invitation, what: impl AsFd) -> Result<(), Failure> {
    let address = address(to.name)?;
    let socket = socket()?;
    let fds = [what.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let pushed = control.push(SendAncillaryMessage::ScmRights(&fds));
    let letter = to.token.to_be_bytes();
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent =
        rustix::net::sendmsg_addr(&socket, &address, &[IoSlice::new(&letter)], &mut control, flags);
    sys::discard(socket);
    if !pushed {
        return Err(Failure::NoMemory);
    }
    sent?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_arrive_and_anything_else_is_thrown_away() {
        let letterbox = Letterbox::open().unwrap();
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        let invitation = Invitation { name: letterbox.name, token: 77 };
        assert_eq!(letterbox.next().err(), Some(Failure::Blocked));
        assert_eq!(deliver(&invitation, &reader), Ok(()));
        assert_eq!(letterbox.next().unwrap().map(|(token, _)| token), Some(77));
        // Without a descriptor, and of another length.
        let stranger = socket().unwrap();
        let to = address(letterbox.name).unwrap();
        for text in [&b"0123456789abcdef"[..], b"short", b"much longer than a letter is"] {
            rustix::net::sendto(&stranger, text, SendFlags::empty(), &to).unwrap();
            assert!(letterbox.next().unwrap().is_none());
        }
        letterbox.close();
        assert_eq!(deliver(&invitation, &reader), Err(Failure::Refused));
    }
}
