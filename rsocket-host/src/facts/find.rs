//! Where two bytes stand one behind the other, in much text: as fast as memory is read. Must not
//! know what they mean. Entry point: [`pairs`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing))]

use core::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8,
};

/// Bytes that are compared at once.
const WIDTH: usize = size_of::<__m128i>();

/// The places of `pair` in `text` from `from` on, in order.
pub(crate) fn pairs(text: &[u8], from: usize, pair: [u8; 2]) -> Pairs<'_> {
    Pairs { text, pair, at: from, base: from, found: 0 }
}

/// See [`pairs`].
pub(crate) struct Pairs<'a> {
    text: &'a [u8],
    pair: [u8; 2],
    /// What was not compared yet begins here.
    at: usize,
    /// The place of the lowest bit of `found`, which are places that were not given yet.
    base: usize,
    found: u32,
}

impl Iterator for Pairs<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        while self.found == 0 {
            self.base = self.at;
            // One more byte than is compared, since the second of a pair is.
            match self.text.get(self.at..)?.first_chunk::<{ WIDTH + 1 }>() {
                Some(bytes) => {
                    self.found = both(bytes, self.pair);
                    self.at += WIDTH;
                }
                None => {
                    self.found = u32::from(self.text.get(self.at..self.at + 2)? == self.pair);
                    self.at += 1;
                }
            }
        }
        let bit = self.found.trailing_zeros();
        self.found &= self.found - 1;
        Some(self.base + bit as usize)
    }
}

/// A bit for each place where the first byte stands before the second.
fn both(bytes: &[u8; WIDTH + 1], [first, second]: [u8; 2]) -> u32 {
    let start = bytes.as_ptr().cast::<__m128i>();
    // SAFETY: every x86-64 has SSE2; loads need no alignment, and read WIDTH bytes from the first
    // and from the second byte of WIDTH + 1.
    unsafe {
        let a = _mm_cmpeq_epi8(_mm_loadu_si128(start), _mm_set1_epi8(first.cast_signed()));
        let next = start.byte_add(1);
        let b = _mm_cmpeq_epi8(_mm_loadu_si128(next), _mm_set1_epi8(second.cast_signed()));
        _mm_movemask_epi8(_mm_and_si128(a, b)).cast_unsigned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_as_by_looking_at_each() {
        let text: Vec<u8> =
            (0..5000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 29) as u8).collect();
        for end in (0..70).chain([5000]) {
            for from in [0, 1, 16, 17, 40] {
                let slow =
                    (from..end).filter(|at| text[..end].get(*at..at + 2) == Some(&[3, 5][..]));
                let fast: Vec<_> = pairs(&text[..end], from, [3, 5]).collect();
                assert_eq!(fast, slow.collect::<Vec<_>>(), "{from}..{end}");
            }
        }
    }
}
