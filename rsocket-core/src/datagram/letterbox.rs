//! Where others bring rings that they want to write into: an abstract datagram socket of the UNIX
//! family. It has a random name, which the invited peers are told. Any process may bring anything;
//! what counts is the token beside it.
//!
//! Knows nothing of rings or peers. Entry points: [`Letterbox::open`], [`deliver`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::os::fd::{AsFd, OwnedFd, RawFd};

use rustix::net::SocketAddrUnix;

use crate::device::shm::random;
use crate::failure::Failure;
use crate::sys::{self, unix_datagram};
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

/// One's own letterbox. No destructor: it is closed by hand.
pub(super) struct Letterbox {
    pub(super) fd: RawFd,
    pub(super) name: u64,
}

impl Letterbox {
    pub(super) fn open() -> Result<Self, Failure> {
        let name = random::bits()? as u64;
        let socket = unix_datagram::bound(&address(name)?)?;
        Ok(Self { fd: sys::make_private(socket)?, name })
    }

    /// The next letter that has the shape of one: the token, and what came with it. `Err` when
    /// there is none left; `Ok(None)` for one that is no letter.
    pub(super) fn next(&self) -> Result<Option<(u128, OwnedFd)>, Failure> {
        let mut bytes = [0; LETTER];
        let brought = unix_datagram::take(self.fd, &mut bytes)?;
        Ok(brought.map(|fd| (u128::from_be_bytes(bytes), fd)))
    }

    pub(super) fn close(&self) {
        sys::close_private(self.fd);
    }
}

/// Brings a descriptor to where an invitation says.
pub(super) fn deliver(to: &Invitation, what: impl AsFd) -> Result<(), Failure> {
    unix_datagram::bring(&address(to.name)?, &to.token.to_be_bytes(), what)
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SendFlags, SocketType};

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
        let stranger = rustix::net::socket(AddressFamily::UNIX, SocketType::DGRAM, None).unwrap();
        let to = address(letterbox.name).unwrap();
        for text in [&b"0123456789abcdef"[..], b"short", b"much longer than a letter is"] {
            rustix::net::sendto(&stranger, text, SendFlags::empty(), &to).unwrap();
            assert!(letterbox.next().unwrap().is_none());
        }
        letterbox.close();
        assert_eq!(deliver(&invitation, &reader), Err(Failure::Refused));
    }
}
