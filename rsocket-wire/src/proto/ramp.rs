//! How large the messages of one send call are (`wire-protocol §5.2`).
//!
//! Small first, so that the peer starts working early, then doubling. Knows only sizes. Entry
//! point: [`Ramp::next_len`]; a new [`Ramp`] for each send call.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

/// The size that the next message may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ramp {
    now: u32,
    max: u32,
}

impl Ramp {
    /// Upstream's: 2048 doubling to 65536.
    pub const UPSTREAM: Self = Self::new(2048, 65536);
    /// No ramp: everything at once, as far as there is room.
    pub const FLAT: Self = Self::new(u32::MAX, u32::MAX);

    /// From `start` to `max`, by doubling. Neither is 0: that would send nothing, and counts as 1.
    #[must_use]
    pub const fn new(start: u32, max: u32) -> Self {
        let start = if start == 0 { 1 } else { start };
        Self { now: start, max: if max < start { start } else { max } }
    }

    /// The size of the next message: of `left` bytes to send, no more than the ramp and `room`
    /// allow. With room for nothing it is 0 and the ramp stays where it is.
    ///
    /// The ramp doubles when it was smaller than what is left, even if the room was smaller still.
    /// Upstream does that, and its observed sizes show it.
    #[must_use]
    #[inline]
    pub const fn next_len(&mut self, left: u32, room: u32) -> u32 {
        if room == 0 {
            return 0;
        }
        let mut len = left;
        if self.now < left {
            len = self.now;
            let doubled = self.now.saturating_mul(2);
            self.now = if doubled > self.max { self.max } else { doubled };
        }
        if len > room { room } else { len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_section_15() {
        let mut ramp = Ramp::UPSTREAM;
        let (mut left, mut sizes) = (131_062u32, Vec::new());
        for mut room in [65526u32, 65536] {
            while room > 0 && left > 0 {
                let len = ramp.next_len(left, room);
                sizes.push(len);
                left -= len;
                room -= len;
            }
        }
        assert_eq!(sizes, [2048, 4096, 8192, 16384, 32768, 2038, 65536]);
    }

    #[test]
    fn what_is_left_goes_at_once() {
        assert_eq!({ Ramp::UPSTREAM }.next_len(2048, 65536), 2048);
        assert_eq!({ Ramp::UPSTREAM }.next_len(2049, 65536), 2048);
        assert_eq!({ Ramp::FLAT }.next_len(1 << 20, 1 << 19), 1 << 19);
        let mut ramp = Ramp::UPSTREAM;
        assert_eq!(ramp.next_len(9999, 0), 0);
        assert_eq!(ramp, Ramp::UPSTREAM);
        assert_eq!(Ramp::new(0, 0).next_len(5, 5), 1);
    }
}
