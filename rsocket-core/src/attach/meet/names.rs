//! What an offer in the directory is called.
//!
//! The name says eight bits of the SYN's timestamp, above the six that a hint will tell, so that
//! few names have to be tried. It also says the port that the connection was made from, which most
//! address translation leaves alone. The rest is random: no process can take a name beforehand, and
//! nothing in it can be tried out. [`SECRET_BITS`] says what the name leaves to be guessed.
//!
//! Pure. Entry points: [`Name::new`], [`Name::parse`], [`Name::fits`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use crate::attach::hello::LAYOUT_VERSION;
use crate::conn::dialled::{Bounds, HINTS};

/// Bits of a timestamp that hints tell, and those above them that a name does.
const HINT_BITS: u32 = HINTS.count_ones();
const BUCKET_BITS: u32 = u8::BITS;
/// Bits of a timestamp that only the two ends know.
pub const SECRET_BITS: u32 = u32::BITS - HINT_BITS - BUCKET_BITS;
const _: () = assert!(SECRET_BITS >= 18);

const PREFIX: &[u8] = b"rs";
/// Prefix, version, bucket, port and random bits, all but the first in hexadecimal digits, with
/// marks between them.
pub const NAME_LEN: usize = PREFIX.len() + 4 + 1 + 2 + 1 + 4 + 1 + 16;
/// Behind the bucket: all that the timestamp may be lies in it, or the next one may be it as well.
const ALONE: u8 = b'.';
const STRADDLES: u8 = b'+';
const MARK: u8 = b'-';

/// What one says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    bucket: u8,
    straddles: bool,
    /// The connecting end's own port.
    pub port: u16,
    /// What tells names apart.
    pub random: u64,
}

const fn bucket(stamp: u32) -> u8 {
    (stamp >> HINT_BITS) as u8
}

impl Name {
    /// Of a connection whose timestamp lies within these bounds.
    #[must_use]
    pub const fn new(bounds: Bounds, port: u16, random: u64) -> Self {
        let first = bucket(bounds.first);
        let last = bucket(bounds.first.wrapping_add(bounds.more));
        Self { bucket: first, straddles: first != last, port, random }
    }

    /// Whether it may be that of the connection with this timestamp.
    #[must_use]
    pub const fn fits(&self, stamp: u32) -> bool {
        let own = bucket(stamp);
        own == self.bucket || self.straddles && own == self.bucket.wrapping_add(1)
    }

    /// As the file is called.
    #[must_use]
    pub fn text(&self) -> [u8; NAME_LEN] {
        let mark = if self.straddles { STRADDLES } else { ALONE };
        let mut text = [MARK; NAME_LEN];
        let mut rest = text.iter_mut();
        let mut put = |bytes: &mut dyn Iterator<Item = u8>| {
            for (from, to) in bytes.zip(rest.by_ref()) {
                *to = from;
            }
        };
        put(&mut PREFIX.iter().copied());
        put(&mut hex(u64::from(LAYOUT_VERSION), 4));
        put(&mut [MARK].into_iter());
        put(&mut hex(u64::from(self.bucket), 2));
        put(&mut [mark].into_iter());
        put(&mut hex(u64::from(self.port), 4));
        put(&mut [MARK].into_iter());
        put(&mut hex(self.random, 16));
        text
    }

    /// What a file's name says; `None` of one that is none of ours, or another version's.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let rest = text.strip_prefix(PREFIX)?;
        let (version, rest) = number(rest, 4)?;
        let (bucket, rest) = number(rest.strip_prefix(&[MARK])?, 2)?;
        let (mark, rest) = rest.split_first()?;
        let (port, rest) = number(rest, 4)?;
        let (random, rest) = number(rest.strip_prefix(&[MARK])?, 16)?;
        let ours = version == u64::from(LAYOUT_VERSION)
            && matches!(*mark, ALONE | STRADDLES)
            && rest.is_empty();
        ours.then_some(Self {
            bucket: bucket as u8,
            straddles: *mark == STRADDLES,
            port: port as u16,
            random,
        })
    }
}

fn hex(number: u64, digits: u32) -> impl Iterator<Item = u8> {
    (0..digits).rev().map(move |place| {
        let digit = (number >> (4 * place) & 15) as u8;
        if digit < 10 { b'0' + digit } else { b'a' + digit - 10 }
    })
}

fn number(text: &[u8], digits: usize) -> Option<(u64, &[u8])> {
    let (digits, rest) = text.split_at_checked(digits)?;
    let mut number = 0;
    for digit in digits {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        number = number << 4 | u64::from(value);
    }
    Some((number, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bounds(first: u32, more: u32) -> Bounds {
        Bounds { first, more }
    }

    #[test]
    fn a_name_is_what_it_says() {
        let name = Name::new(bounds(0x1234_5680, 3), 0xabcd, 0xfedc_ba98_7654_3210);
        let text = String::from_utf8(name.text().to_vec()).unwrap();
        let version = LAYOUT_VERSION;
        assert_eq!(text, format!("rs{version:04x}-5a.abcd-fedcba9876543210"));
        assert_eq!(Name::parse(text.as_bytes()), Some(name));
    }

    #[test]
    fn what_is_no_name() {
        let name = Name::new(bounds(64, 0), 1, 2).text();
        for len in 0..name.len() {
            assert_eq!(Name::parse(&name[..len]), None);
        }
        assert_eq!(Name::parse(&[&name[..], b"0"].concat()), None);
        for at in 0..name.len() {
            let mut other = name;
            other[at] = b'G';
            assert_eq!(Name::parse(&other), None, "{at}");
        }
        let mut other = name;
        other[5] ^= 1;
        assert_eq!(Name::parse(&other), None, "another version");
    }

    #[test]
    fn bounds_across_two_buckets() {
        let name = Name::new(bounds(u32::MAX - 1, 2), 0, 0);
        assert!(name.straddles && name.fits(u32::MAX) && name.fits(0));
        assert!(!name.fits(u32::MAX - 64) && !name.fits(64));
        let name = Name::new(bounds(128, 63), 0, 0);
        assert!(!name.straddles && name.fits(191) && !name.fits(192) && !name.fits(127));
    }

    proptest! {
        #[test]
        fn the_right_one_always_fits(first in any::<u32>(), more in 0u32..=63, at in 0u32..=63) {
            let name = Name::new(bounds(first, more), 5, 6);
            prop_assert!(name.fits(first.wrapping_add(at.min(more))));
            prop_assert_eq!(Name::parse(&name.text()), Some(name));
        }

        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = Name::parse(&bytes);
        }
    }
}
