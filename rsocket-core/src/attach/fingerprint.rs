//! What both ends of a TCP connection have seen of its bytes, by which they know each other
//! elsewhere.
//!
//! A connection to another host has no kernel that could say which process is at its other end. But
//! both ends have seen the same first bytes in each direction. The end that asks sends a digest of
//! them; the end that answers sends another digest of the same bytes. A process that has not seen
//! the bytes can make neither (`life-of-a-connection §2`). Must not know devices. Entry point:
//! [`Proof`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use sha2::{Digest, Sha256};

use crate::conn::prefix::{Prefix, SEEN};

/// The fewest bytes, of both directions together, that make two ends know each other.
pub const ENOUGH: usize = 16;

/// Which of the two says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The end that connected.
    Asks,
    /// The end that accepted.
    Answers,
}

/// Says that an end has seen so many bytes of each direction, counted from the end that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// Bytes from the end that asks, and to it.
    pub seen: [u8; 2],
    /// The digest.
    pub digest: [u8; 8],
}

impl Proof {
    /// Of the first `seen` bytes from the end that asks, and to it. `None` when so many were not
    /// seen here, or too few to prove anything.
    #[must_use]
    pub fn of(who: Who, seen: [u8; 2], from: &Prefix, to: &Prefix) -> Option<Self> {
        let [a, b] = seen.map(usize::from);
        if a > from.len() || b > to.len() || a + b < ENOUGH || a > SEEN || b > SEEN {
            return None;
        }
        let mut bytes = [0; SEEN];
        let mut hash = Sha256::new();
        hash.update(if who == Who::Asks {
            b"rsockets attach: asks   "
        } else {
            b"rsockets attach: answers"
        });
        hash.update(seen);
        for (prefix, n) in [(from, a), (to, b)] {
            let part = bytes.get_mut(..n)?;
            prefix.copy(part);
            hash.update(part);
        }
        let whole = hash.finalize();
        let mut digest = [0; 8];
        digest.copy_from_slice(whole.get(..8)?);
        Some(Self { seen, digest })
    }

    /// As many bytes as are known here.
    #[must_use]
    pub fn most(who: Who, from: &Prefix, to: &Prefix) -> Option<Self> {
        Self::of(who, [from.len().min(SEEN) as u8, to.len().min(SEEN) as u8], from, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(bytes: &[u8]) -> Prefix {
        let p = Prefix::default();
        for piece in bytes.chunks(7) {
            p.add(piece);
        }
        p
    }

    #[test]
    fn both_ends_find_the_same() {
        let (out, back) = (prefix(&[7; 300]), prefix(b"a short answer"));
        assert_eq!((out.len(), back.len(), out.wants(), back.wants()), (SEEN, 14, false, true));
        let asked = Proof::most(Who::Asks, &out, &back).unwrap();
        assert_eq!(asked.seen, [SEEN as u8, 14]);
        // The other end has seen more of one direction by now.
        back.add(b" and more");
        assert_eq!(Proof::of(Who::Asks, asked.seen, &out, &back), Some(asked));
        let answered = Proof::of(Who::Answers, asked.seen, &out, &back).unwrap();
        assert_ne!(answered.digest, asked.digest);
        // Another byte, other digests.
        let other = prefix(b"a short answeR and more");
        assert_ne!(Proof::of(Who::Asks, asked.seen, &out, &other), Some(asked));
    }

    #[test]
    fn too_little_proves_nothing() {
        let (out, back) = (prefix(b"fifteen bytes.."), prefix(b""));
        assert_eq!(Proof::most(Who::Asks, &out, &back), None);
        out.add(b"!");
        assert!(Proof::most(Who::Asks, &out, &back).is_some());
        assert_eq!(Proof::of(Who::Asks, [17, 0], &out, &back), None, "not seen here");
        assert_eq!(Proof::of(Who::Asks, [255, 255], &out, &back), None);
    }
}
