//! The two messages that are exchanged when two ends of a connection meet: [`Hello`] from the
//! accepting side, [`HelloAck`] from the connecting side. Fixed size, with a version, in the byte
//! order of the host, since both ends are on it.
//!
//! What a message says is a claim; the receiver compares it with what the kernel says
//! ([`super::trust`]). Must not know sockets. Entry points: [`Hello::new`], [`Hello::parse`],
//! [`HelloAck::new`], [`HelloAck::parse`].

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::channel::identity::Id;
use crate::conn::dialled::{HINT, HINTS, hint};

/// The version of everything that two processes share: these messages, the arena, its channels. To
/// be raised with any change to any of them; two versions that differ stay on TCP.
pub const LAYOUT_VERSION: u16 = 6;

const HELLO: u32 = u32::from_be_bytes(*b"rsKn");
const HELLO_ACK: u32 = u32::from_be_bytes(*b"rsWe");

/// The accepting side's message: who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Hello {
    magic: u32,
    version: u16,
    flags: u16,
    /// The sender.
    pub process: Id,
    /// Inode of its TCP socket.
    pub inode: u32,
    /// [`hint`] of its SYN's timestamp; 0 where it knows none.
    pub hint: u32,
    /// Cookie of its TCP socket.
    pub cookie: u64,
    /// The sender's front waker, or another one, 0 if it has none. The end that answers makes sure
    /// that it may wake the sender there. The sender has found out by knocking that it may wake the
    /// end that answers. The eventfd of the waker comes with the message, if it has one.
    pub waker: u64,
}

/// The connecting side's answer: who it is, and where in shared memory the connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HelloAck {
    magic: u32,
    version: u16,
    flags: u16,
    /// The sender.
    pub process: Id,
    /// The arena.
    pub arena: Id,
    /// The channel in it.
    pub channel: u32,
    /// Inode of the sender's TCP socket.
    pub inode: u32,
    /// Cookie of the sender's TCP socket.
    pub cookie: u64,
    /// As [`Hello::waker`]; the eventfd comes behind the arena.
    pub waker: u64,
}

const _: () = assert!(size_of::<Hello>() == 48 && size_of::<HelloAck>() == 64);

/// A buffer of this size holds either message, and shows when one is longer.
pub const MESSAGE_MAX: usize = 72;

/// The arena's descriptor comes with the message.
const WITH_ARENA: u16 = 1;
/// The last descriptor is a socket of the sender's network namespace, by which its wakers are
/// woken.
const WITH_ENVOY: u16 = 2;

/// Why a message is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloError {
    /// Too short, too long, or not ours at all.
    NotOurs,
    /// Another version of the library.
    Version(u16),
    /// A field holds what it cannot hold.
    Malformed,
}

/// Checks what both messages begin with. The version is looked at before the length, since another
/// version may well have another length.
pub(crate) fn check_head(bytes: &[u8], magic: u32) -> Result<(), HelloError> {
    let (found, rest) = u32::read_from_prefix(bytes).map_err(|_| HelloError::NotOurs)?;
    let (version, _) = u16::read_from_prefix(rest).map_err(|_| HelloError::NotOurs)?;
    match (found == magic, version) {
        (false, _) => Err(HelloError::NotOurs),
        (true, LAYOUT_VERSION) => Ok(()),
        (true, other) => Err(HelloError::Version(other)),
    }
}

/// An identity that cannot be: the kernel's numbers start above 0, and so do ours.
fn blank(process: Id, inode: u32, cookie: u64) -> bool {
    process.0.contains(&0) || inode == 0 || cookie == 0
}

/// What a message can say.
const fn is_hint(said: u32) -> bool {
    said == 0 || said & !HINTS == HINT
}

impl Hello {
    /// A message about the TCP socket with this identity ([`super::trust::own_identity`]).
    #[must_use]
    pub fn new(process: Id, (inode, cookie): (u32, u64), waker: u64) -> Self {
        Self {
            magic: HELLO,
            version: LAYOUT_VERSION,
            flags: 0,
            process,
            inode,
            hint: 0,
            cookie,
            waker,
        }
    }

    /// Says what the other end needs to know the timestamp exactly, if it is known here.
    #[must_use]
    pub fn with_stamp(self, stamp: Option<u32>) -> Self {
        Self { hint: stamp.map_or(0, hint), ..self }
    }

    /// Says that a socket of the sender's namespace comes along, if one does.
    #[must_use]
    pub const fn with_envoy(self, comes: bool) -> Self {
        Self { flags: if comes { WITH_ENVOY } else { 0 }, ..self }
    }

    /// One comes along.
    #[must_use]
    pub const fn has_envoy(&self) -> bool {
        self.flags & WITH_ENVOY != 0
    }

    /// Reads a message.
    ///
    /// # Errors
    /// See [`HelloError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, HelloError> {
        check_head(bytes, HELLO)?;
        let m = Self::read_from_bytes(bytes).map_err(|_| HelloError::NotOurs)?;
        if m.flags & !WITH_ENVOY != 0 || !is_hint(m.hint) || blank(m.process, m.inode, m.cookie) {
            return Err(HelloError::Malformed);
        }
        Ok(m)
    }

    /// The bytes to send.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl HelloAck {
    /// A message about the TCP socket with this identity, and the place where it goes on.
    #[must_use]
    pub fn new(
        process: Id,
        arena: Id,
        channel: u32,
        (inode, cookie): (u32, u64),
        with_arena: bool,
    ) -> Self {
        let flags = if with_arena { WITH_ARENA } else { 0 };
        let (magic, version) = (HELLO_ACK, LAYOUT_VERSION);
        Self { magic, version, flags, process, arena, channel, inode, cookie, waker: 0 }
    }

    /// Says which waker is the sender's.
    #[must_use]
    pub const fn with_waker(self, waker: u64) -> Self {
        Self { waker, ..self }
    }

    /// As [`Hello::with_envoy`].
    #[must_use]
    pub const fn with_envoy(self, comes: bool) -> Self {
        let flags = self.flags & !WITH_ENVOY | if comes { WITH_ENVOY } else { 0 };
        Self { flags, ..self }
    }

    /// As [`Hello::has_envoy`].
    #[must_use]
    pub const fn has_envoy(&self) -> bool {
        self.flags & WITH_ENVOY != 0
    }

    /// Reads a message. The channel's number is the arena's to check.
    ///
    /// # Errors
    /// See [`HelloError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, HelloError> {
        check_head(bytes, HELLO_ACK)?;
        let m = Self::read_from_bytes(bytes).map_err(|_| HelloError::NotOurs)?;
        if m.flags & !(WITH_ARENA | WITH_ENVOY) != 0
            || m.arena.0.contains(&0)
            || blank(m.process, m.inode, m.cookie)
        {
            return Err(HelloError::Malformed);
        }
        Ok(m)
    }

    /// The arena's descriptor comes with this message.
    #[must_use]
    pub const fn with_arena(&self) -> bool {
        self.flags & WITH_ARENA != 0
    }

    /// The bytes to send.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u64) -> Id {
        Id([n, n + 1])
    }

    #[test]
    fn messages_survive_the_journey() {
        let hello = Hello::new(id(1), (5, 6), 4);
        assert_eq!(Hello::parse(hello.bytes()), Ok(hello));
        let hello_ack = HelloAck::new(id(1), id(3), 9, (7, 8), true).with_waker(11);
        assert_eq!(HelloAck::parse(hello_ack.bytes()), Ok(hello_ack));
        assert!(hello_ack.with_arena() && hello_ack.bytes().len() <= MESSAGE_MAX);
        assert_eq!((hello.inode, hello.cookie, hello_ack.inode, hello_ack.cookie), (5, 6, 7, 8));
    }

    #[test]
    fn what_is_not_a_message() {
        let hello = Hello::new(id(1), (5, 6), 4);
        let hello_ack = HelloAck::new(id(1), id(3), 9, (7, 8), false);
        assert_eq!(Hello::parse(hello_ack.bytes()), Err(HelloError::NotOurs));
        assert_eq!(HelloAck::parse(hello.bytes()), Err(HelloError::NotOurs));
        for len in 0..hello.bytes().len() {
            assert_eq!(Hello::parse(&hello.bytes()[..len]), Err(HelloError::NotOurs));
        }
        let longer = [hello.bytes(), &[0]].concat();
        assert_eq!(Hello::parse(&longer), Err(HelloError::NotOurs));
        let mut other = hello.bytes().to_vec();
        other[4..6].copy_from_slice(&7u16.to_ne_bytes());
        assert_eq!(Hello::parse(&other), Err(HelloError::Version(7)));
        other.truncate(10);
        assert_eq!(Hello::parse(&other), Err(HelloError::Version(7)));
        assert_eq!(Hello::parse(Hello::new(id(1), (0, 6), 4).bytes()), Err(HelloError::Malformed));
        assert_eq!(
            Hello::parse(Hello::new(Id([0, 3]), (1, 6), 4).bytes()),
            Err(HelloError::Malformed)
        );
        let (hello, hello_ack) = (hello.with_envoy(true), hello_ack.with_envoy(true));
        assert!(Hello::parse(hello.bytes()).unwrap().has_envoy());
        assert!(HelloAck::parse(hello_ack.bytes()).unwrap().has_envoy() && !hello_ack.with_arena());
        let mut flags = hello_ack.bytes().to_vec();
        flags[6] = 4;
        assert_eq!(HelloAck::parse(&flags), Err(HelloError::Malformed));
    }
}
