//! What the timestamp of a SYN must have been, as the end that sent it knows.
//!
//! `TCP_TIMESTAMP` says what a timestamp of the connection would be now; the SYN's is earlier by
//! the time since `connect`, which was noted. The result is bounds, not a number, for three
//! reasons. The clock was read before and after each of the two calls. The kernel says neither the
//! lowest bit nor what is below a millisecond. Where the process has a clock of its own (a time
//! namespace), the milliseconds of the two begin at different moments. Must not know slots. Entry
//! point: [`bounds`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

/// A span of CLOCK_MONOTONIC in which something happened, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Not before.
    pub from: u64,
    /// Not after.
    pub to: u64,
}

/// The timestamps that the SYN may have had: `first` and `more` after it. They wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The lowest.
    pub first: u32,
    /// How many more.
    pub more: u32,
}

impl Bounds {
    /// Whether it is one of them.
    #[must_use]
    pub const fn hold(self, timestamp: u32) -> bool {
        timestamp.wrapping_sub(self.first) <= self.more
    }

    /// The one of them that gives this hint; `None` where none does.
    #[must_use]
    pub fn hinted(self, said: u32) -> Option<u32> {
        // There is no more than one: a hint tells as many apart as there can be.
        (0..=self.more.min(WIDEST)).map(|n| self.first.wrapping_add(n)).find(|t| hint(*t) == said)
    }
}

/// In what `TCP_TIMESTAMP` says: this connection's clock counts microseconds (Linux 6.7).
const MICROSECONDS: u32 = 1;
/// Bounds are no wider than this. Where `connect` took longer, it has waited for its handshake, or
/// for a processor after that: the SYN was sent in its first moments.
pub const WIDEST: u32 = HINTS;
/// Where it took longer than this, in milliseconds, a SYN may have been lost, whose successor has a
/// timestamp of its own.
const LONGEST: u64 = 900;

const MS: u64 = 1_000_000;

/// Where the timestamp of a SYN that was sent during `sent` lies, given `now`, what the kernel said
/// during `asked`. `None` where the spans are too long to say anything, or the two are in
/// no order, or the clock is not of milliseconds. (Kernels before 6.7 say the lowest bit, and half
/// of the time this takes them for such a clock.)
#[must_use]
pub fn bounds(sent: Span, now: u32, asked: Span) -> Option<Bounds> {
    if now & MICROSECONDS != 0 {
        return None;
    }
    let least = asked.from.checked_sub(sent.to)? / MS;
    let most = asked.to.checked_sub(sent.from)?.div_ceil(MS);
    let apart = most.checked_sub(least).filter(|ms| *ms <= LONGEST)?;
    // The bit that is not said makes it one more, at most.
    let more = u32::try_from(apart).ok()?.saturating_add(1).min(WIDEST);
    // Timestamps wrap every 49 days, and so may the difference.
    Some(Bounds { first: now.wrapping_sub(most as u32), more })
}

/// How many timestamps one hint tells apart: as many as the other end's bounds can hold
/// ([`WIDEST`]).
pub const HINTS: u32 = 63;

pub(crate) const HINT: u32 = HINTS + 1;

/// The lowest bits of a timestamp, for the end that knows the rest.
#[must_use]
pub const fn hint(stamp: u32) -> u32 {
    stamp & HINTS | HINT
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(from: u64, to: u64) -> Span {
        Span { from, to }
    }

    #[test]
    fn some_milliseconds() {
        let b =
            bounds(span(10 * MS, 10 * MS + 50_000), 1000, span(20 * MS, 20 * MS + 1000)).unwrap();
        assert_eq!(b, Bounds { first: 989, more: 3 });
        assert!(b.hold(990) && b.hold(992) && !b.hold(988) && !b.hold(993));
        // Across the wrap.
        let b = bounds(span(10 * MS, 10 * MS), 4, span(20 * MS, 20 * MS)).unwrap();
        assert!(
            b.hold(4_294_967_290) && b.hold(4_294_967_291) && !b.hold(4_294_967_289) && !b.hold(4)
        );
    }

    #[test]
    fn one_that_waited_sent_its_syn_first() {
        let b = bounds(span(0, 500 * MS), 1000, span(600 * MS, 600 * MS)).unwrap();
        assert_eq!(b, Bounds { first: 400, more: WIDEST });
    }

    #[test]
    fn a_hint_leaves_one() {
        for first in [0, 9, u32::MAX - 7] {
            let bounds = Bounds { first, more: WIDEST };
            for n in 0..=WIDEST {
                let stamp = first.wrapping_add(n);
                assert_eq!(bounds.hinted(hint(stamp)), Some(stamp));
            }
            let narrow = Bounds { first, more: 1 };
            assert_eq!(narrow.hinted(hint(first.wrapping_add(2))), None);
            assert_eq!(narrow.hinted(0), None);
        }
    }

    #[test]
    fn what_says_nothing() {
        assert_eq!(bounds(span(0, 1), 1001, span(2, 3)), None, "microseconds");
        assert_eq!(
            bounds(span(0, 1000 * MS), 2000, span(1001 * MS, 1001 * MS)),
            None,
            "a SYN may have been lost"
        );
        assert_eq!(bounds(span(0, 5), 1000, span(3, 9)), None, "asked before it was sent");
        assert_eq!(bounds(span(0, u64::MAX), 1000, span(u64::MAX, u64::MAX)), None);
    }

    proptest! {
        /// A kernel's clock beside the process's, whose nanoseconds differ by `shift`.
        #[test]
        fn the_truth_is_within(
            shift in 0u64..1 << 50,
            offset in any::<u32>(),
            sent in 0u64..1 << 50,
            later in 0u64..1 << 50,
            slack in proptest::array::uniform4(0u64..4 * MS),
        ) {
            let [before, after, early, late] = slack;
            let at = sent + before;
            let asked = at + after + early + later;
            let stamp = |time: u64| (((time + shift) / MS) as u32).wrapping_add(offset);
            let found = bounds(span(sent, at + after), stamp(asked) & !MICROSECONDS, span(asked - early, asked + late));
            let found = found.filter(|_| asked - early >= at + after);
            // All four moments are as near as that.
            if let Some(found) = found {
                prop_assert!(found.hold(stamp(at)));
            }
        }
    }
}
