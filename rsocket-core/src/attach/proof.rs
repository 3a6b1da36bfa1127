//! What an end says to prove that it has the other end of the connection, where the kernel cannot
//! be asked. It is a message of its own, or stands behind a [`Hello`](super::hello::Hello) or
//! [`HelloAck`](super::hello::HelloAck).
//!
//! Fixed size, as those. Must not know how anything is proved ([`super::meet::pake`]). Entry
//! points: [`Proof::new`], [`Proof::parse`], [`split`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::meet::who::Who;
use super::{hello::Hello, hello::HelloError, hello::LAYOUT_VERSION, hello::check_head};
use super::{meet::pake::Element, meet::pake::Tag};

const PROOF: u32 = u32::from_be_bytes(*b"rsPf");
/// It has a tag.
const TAGGED: u16 = 1;
use crate::seqpacket::Channel;

/// The message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Proof {
    magic: u32,
    version: u16,
    flags: u16,
    /// The sender.
    pub who: Who,
    /// Its element.
    pub element: Element,
    tag: Tag,
}

/// Its length.
pub const PROOF_BYTES: usize = size_of::<Proof>();
const _: () = assert!(PROOF_BYTES == 96);

impl Proof {
    /// Who we are, our element, and our tag if it is known.
    #[must_use]
    pub fn new(who: Who, element: Element, tag: Option<Tag>) -> Self {
        let flags = if tag.is_some() { TAGGED } else { 0 };
        let (magic, version) = (PROOF, LAYOUT_VERSION);
        Self { magic, version, flags, who, element, tag: tag.unwrap_or_default() }
    }

    /// The tag, if there is one.
    #[must_use]
    pub fn tag(&self) -> Option<&Tag> {
        (self.flags & TAGGED != 0).then_some(&self.tag)
    }

    /// Reads a message.
    ///
    /// # Errors
    /// See [`HelloError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, HelloError> {
        check_head(bytes, PROOF)?;
        let m = Self::read_from_bytes(bytes).map_err(|_| HelloError::NotOurs)?;
        if m.flags & !TAGGED != 0 { Err(HelloError::Malformed) } else { Ok(m) }
    }

    /// The bytes to send.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

/// A message whose first part has a length of `head`, and the proof behind it, if there is one.
///
/// # Errors
/// Of the proof; see [`HelloError`].
pub fn split(bytes: &[u8], head: usize) -> Result<(&[u8], Option<Proof>), HelloError> {
    match bytes.split_at_checked(head) {
        Some((first, rest)) if !rest.is_empty() => Ok((first, Some(Proof::parse(rest)?))),
        _ => Ok((bytes, None)),
    }
}

/// The hint of the next message over the channel, which is left there, if that is a hello with a
/// proof.
pub(super) fn begins(channel: &Channel) -> Option<u32> {
    let mut bytes = [0; 256];
    let len = channel.glance(&mut bytes);
    let (knock, proof) = split(bytes.get(..len)?, size_of::<Hello>()).ok()?;
    proof.and(Hello::parse(knock).ok()).map(|knock| knock.hint)
}

/// A message and a proof behind it.
#[derive(Clone, Copy, Debug)]
pub struct Joined {
    bytes: [u8; 192],
    len: usize,
}

impl Joined {
    /// Both; only the first where there is no proof.
    #[must_use]
    pub fn new(first: &[u8], proof: Option<&Proof>) -> Self {
        let mut joined = Self { bytes: [0; 192], len: 0 };
        let all = first.iter().chain(proof.map_or(&[][..], Proof::bytes));
        for (to, from) in joined.bytes.iter_mut().zip(all) {
            *to = *from;
            joined.len += 1;
        }
        joined
    }

    /// The bytes to send.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn proof(tag: Option<Tag>) -> Proof {
        Proof::new(Who::new(1, 2, 3), [4; 32], tag)
    }

    #[test]
    fn a_proof_survives_the_journey() {
        for tag in [None, Some([7; 32])] {
            let p = proof(tag);
            assert_eq!(Proof::parse(p.bytes()), Ok(p));
            assert_eq!(p.tag(), tag.as_ref());
            let joined = Joined::new(b"1234", Some(&p));
            assert_eq!(split(joined.bytes(), 4), Ok((&b"1234"[..], Some(p))));
        }
        assert_eq!(split(b"1234", 4), Ok((&b"1234"[..], None)));
        assert_eq!(split(b"123", 4), Ok((&b"123"[..], None)));
        assert_eq!(Joined::new(b"12", None).bytes(), b"12");
    }

    #[test]
    fn what_is_no_proof() {
        let p = proof(None);
        for len in 0..PROOF_BYTES {
            assert_eq!(Proof::parse(&p.bytes()[..len]), Err(HelloError::NotOurs));
        }
        assert_eq!(split(b"12345", 4), Err(HelloError::NotOurs));
        let mut other = p.bytes().to_vec();
        other[6] = 2;
        assert_eq!(Proof::parse(&other), Err(HelloError::Malformed));
        other[4..6].copy_from_slice(&7u16.to_ne_bytes());
        assert_eq!(Proof::parse(&other), Err(HelloError::Version(7)));
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200), head in 0usize..100) {
            let _ = Proof::parse(&bytes);
            let _ = split(&bytes, head);
        }
    }
}
