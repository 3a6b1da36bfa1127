//! The first bytes of a direction, as this end has seen them on TCP.
//!
//! Must not know what they are for ([`crate::attach::fingerprint`]). Entry point: [`Prefix`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes of each direction that are remembered.
pub const SEEN: usize = 128;
/// In the length: nothing is added any more, since bytes went by that this library did not see.
const FROZEN: u32 = 1 << 31;

/// The first bytes of one direction, in memory that processes share. Relaxed but for the length:
/// two threads that send at the same time may leave nonsense, which is a digest that does not
/// match.
#[repr(C)]
#[derive(Default)]
pub struct Prefix {
    len: AtomicU32,
    _pad: AtomicU32,
    bytes: [AtomicU64; SEEN / 8],
}

impl Prefix {
    /// Whether more bytes are to be remembered.
    #[inline]
    pub fn wants(&self) -> bool {
        (self.len.load(Ordering::Relaxed) as usize) < SEEN
    }

    /// The next bytes of the direction.
    pub fn add(&self, bytes: &[u8]) {
        let mut len = self.len.load(Ordering::Relaxed) as usize;
        for byte in bytes.iter().take(SEEN.saturating_sub(len)) {
            if let Some(word) = self.bytes.get(len / 8) {
                let shift = (len % 8) * 8;
                let kept = word.load(Ordering::Relaxed) & !(0xff << shift);
                word.store(kept | u64::from(*byte) << shift, Ordering::Relaxed);
            }
            len += 1;
        }
        // Release: pairs with the acquire in copy().
        self.len.store(len as u32, Ordering::Release);
    }

    /// Bytes went by that were not seen: what comes after them is not remembered.
    pub fn freeze(&self) {
        self.len.fetch_or(FROZEN, Ordering::Relaxed);
    }

    /// Bytes that are remembered.
    pub fn len(&self) -> usize {
        (self.len.load(Ordering::Acquire) & !FROZEN) as usize
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets them.
    pub fn reset(&self) {
        self.len.store(0, Ordering::Relaxed);
    }

    /// The first of them, in order.
    pub(crate) fn copy(&self, into: &mut [u8]) {
        for (i, byte) in into.iter_mut().enumerate() {
            let word = self.bytes.get(i / 8).map_or(0, |w| w.load(Ordering::Relaxed));
            *byte = (word >> ((i % 8) * 8)) as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_after_a_gap_is_not_remembered() {
        let p = Prefix::default();
        p.add(b"before");
        p.freeze();
        assert!(!p.wants());
        assert_eq!(p.len(), 6);
        p.reset();
        assert!(p.is_empty() && p.wants());
    }
}
