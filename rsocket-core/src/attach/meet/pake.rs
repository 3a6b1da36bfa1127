//! How two ends find out that both know the same number, and say nothing of it to any other
//! process.
//!
//! A timestamp has 32 bits: whatever is computed from it alone, and said, gives it away to a
//! process that tries all of them. CPace (a balanced PAKE, here over ristretto255 with SHA-512) has
//! no such digest: each end sends an element that could be of any number. A process that does not
//! know the number has one guess for each run, and nothing to compute on afterwards. Both tags are
//! over the names of both ends ([`super::who`]), so that a process in between cannot pass them on.
//!
//! Needs some kilobytes of stack, and some tenths of a millisecond. Pure; must not know sockets.
//! Entry points: [`Run::begin`], then [`Run::agree`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use curve25519_dalek::ristretto::{CompressedRistretto, RistrettoPoint};
use curve25519_dalek::scalar::Scalar;
use curve25519_dalek::traits::IsIdentity;
use sha2::{Digest, Sha512};

use super::who::Who;

/// What is sent first: a point of the group.
pub type Element = [u8; 32];
/// What shows that its sender has come to the same key.
pub type Tag = [u8; 32];

const GENERATOR: &[u8] = b"rsockets CPace generator";
const KEY: &[u8] = b"rsockets CPace key";

/// The two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Called connect.
    Connecting,
    /// Called accept.
    Accepting,
}

impl Side {
    const fn other(self) -> Self {
        match self {
            Self::Connecting => Self::Accepting,
            Self::Accepting => Self::Connecting,
        }
    }

    /// The connecting end's first.
    const fn in_order<T: Copy>(self, ours: T, theirs: T) -> [T; 2] {
        match self {
            Self::Connecting => [ours, theirs],
            Self::Accepting => [theirs, ours],
        }
    }
}

/// One end's part of one run, as it is kept until the other one's element is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Secret.
    pub scalar: [u8; 32],
    /// To be sent.
    pub element: Element,
}

/// What an end says last, and what it must hear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tags {
    /// To be sent.
    pub ours: Tag,
    /// To be heard.
    pub theirs: Tag,
}

impl Run {
    /// Begins a run about `number`, at the place with this name, with bits that no other process
    /// knows.
    #[must_use]
    pub fn begin(number: u32, place: &[u8], random: &[u8; 64]) -> Self {
        let seed = Sha512::new()
            .chain_update(GENERATOR)
            .chain_update(number.to_be_bytes())
            .chain_update((place.len() as u64).to_be_bytes())
            .chain_update(place);
        let generator = RistrettoPoint::from_uniform_bytes(&seed.finalize().into());
        let scalar = Scalar::from_bytes_mod_order_wide(random);
        Self { scalar: scalar.to_bytes(), element: (generator * scalar).compress().to_bytes() }
    }

    /// The tags, given the other end's element and the names of both ends (ours first). `None`
    /// where the element is none that an end could have sent.
    #[must_use]
    pub fn agree(&self, side: Side, theirs: &Element, who: (&Who, &Who)) -> Option<Tags> {
        let point = CompressedRistretto(*theirs).decompress()?;
        // Reflected, it would show that its sender knows what we have sent.
        if point.is_identity() || *theirs == self.element {
            return None;
        }
        let shared = (point * Scalar::from_bytes_mod_order(self.scalar)).compress();
        let mut key = Sha512::new().chain_update(KEY).chain_update(shared.as_bytes());
        for element in side.in_order(&self.element, theirs) {
            key.update(element);
        }
        for who in side.in_order(who.0, who.1) {
            key.update(who.to_bytes());
        }
        let key: [u8; 64] = key.finalize().into();
        Some(Tags { ours: tag(&key, side), theirs: tag(&key, side.other()) })
    }
}

/// Half of a digest of a key that is used once, so that nothing can be added to it.
fn tag(key: &[u8; 64], side: Side) -> Tag {
    let name: &[u8] = match side {
        Side::Connecting => b"connecting",
        Side::Accepting => b"accepting",
    };
    let digest: [u8; 64] = Sha512::new().chain_update(key).chain_update(name).finalize().into();
    let mut half = Tag::default();
    half.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
    half
}

/// Whether two tags are the same, in a time that does not tell where they differ.
#[must_use]
pub fn same(a: &Tag, b: &Tag) -> bool {
    core::hint::black_box(a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b))) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn who(n: u64) -> Who {
        Who::new(n, 1, n as u32)
    }

    /// What both ends of one run come to: the connecting one's, then the accepting one's.
    fn run(
        numbers: [u32; 2],
        places: [&[u8]; 2],
        seeds: [u8; 2],
        seen: [[Who; 2]; 2],
    ) -> [Tags; 2] {
        let c = Run::begin(numbers[0], places[0], &[seeds[0]; 64]);
        let a = Run::begin(numbers[1], places[1], &[seeds[1]; 64]);
        let [[c_own, c_peer], [a_own, a_peer]] = seen;
        [
            c.agree(Side::Connecting, &a.element, (&c_own, &c_peer)).unwrap(),
            a.agree(Side::Accepting, &c.element, (&a_own, &a_peer)).unwrap(),
        ]
    }

    const HERE: [&[u8]; 2] = [b"here", b"here"];

    fn right() -> [[Who; 2]; 2] {
        [[who(1), who(2)], [who(2), who(1)]]
    }

    #[test]
    fn two_who_know_it_agree() {
        let [c, a] = run([7, 7], HERE, [1, 2], right());
        assert_eq!((c.ours, c.theirs), (a.theirs, a.ours));
        assert_ne!(c.ours, c.theirs);
        assert!(same(&c.ours, &a.theirs) && !same(&c.ours, &a.ours));
    }

    #[test]
    fn whoever_is_wrong_in_anything_does_not() {
        let differ = |[c, a]: [Tags; 2]| c.ours != a.theirs && a.ours != c.theirs;
        assert!(differ(run([7, 8], HERE, [1, 2], right())), "another number");
        assert!(differ(run([7, 7], [b"here", b"there"], [1, 2], right())), "another place");
        // Both ends see a process that stands in between.
        let bridged = [[who(1), who(3)], [who(2), who(3)]];
        assert!(differ(run([7, 7], HERE, [1, 2], bridged)));
        let other_space = Who::new(2, 2, 2);
        assert!(differ(run([7, 7], HERE, [1, 2], [[who(1), other_space], [who(2), who(1)]])));
    }

    #[test]
    fn what_was_said_once_does_not_do_again() {
        let [first, _] = run([7, 7], HERE, [1, 2], right());
        let [_, second] = run([7, 7], HERE, [1, 3], right());
        assert_ne!(first.ours, second.theirs);
    }

    #[test]
    fn elements_that_nobody_sends() {
        let run = Run::begin(7, b"here", &[1; 64]);
        let try_with = |e: &Element| run.agree(Side::Accepting, e, (&who(1), &who(2)));
        assert_eq!(try_with(&[0; 32]), None, "the identity");
        assert_eq!(try_with(&[0xff; 32]), None, "no point");
        assert_eq!(try_with(&run.element), None, "our own");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_bytes_are_an_answer(element in any::<[u8; 32]>(), number in any::<u32>()) {
            let run = Run::begin(number, b"", &[9; 64]);
            let _ = run.agree(Side::Connecting, &element, (&who(1), &who(2)));
        }
    }
}
