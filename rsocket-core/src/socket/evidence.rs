//! What the calls of a connection that is on TCP say about how long it is going to live. The
//! connection's position counts that, and times the attach ([`policy::MARK`]).
//!
//! Must not know what is done about it. Entry point: [`count`].
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU64, Ordering};

use crate::config::policy::{self, PER_CALL};
use crate::conn::slot::Slot;
use crate::sys::clock;

/// As much of an answer counts in full: of what the side that accepted sends, since the other one
/// last asked.
const ANSWER: u64 = 4 * 1024;
/// By how much less the rest of it counts.
const REST: u64 = 256;
/// Milliseconds of which one small call with more of an answer counts in full. As long as a tick of
/// many kernels.
const TICK: u64 = 4;

/// A call moved `n` bytes by TCP, away from the side that connected or towards it. Relaxed, and not
/// at once: a guess.
#[inline]
pub(super) fn count(s: &Slot, n: usize, request: bool) {
    let n = n as u64;
    let whole = n + PER_CALL;
    let before = s.answered.load(Ordering::Relaxed);
    // Where staying on TCP is a failure, or the attach is wanted at once, it is not there to save
    // time.
    let step = if request || policy::required() || policy::eager() {
        whole
    } else {
        answer(n, before, || is_news(&s.news_at, tick()))
    };
    let answered = if request { 0 } else { before.saturating_add(whole) };
    s.answered.store(answered, Ordering::Relaxed);
    s.position.fetch_add(step, Ordering::Relaxed);
}

/// What a call with `n` more bytes of an answer counts, after so much of it.
///
/// TCP has taken most or all of a body of megabytes before its reader has seen that it is long and
/// offers to meet. What is left is not worth the attach. A connection that goes on has its next
/// request to tell by, or `news`: small messages that come without a request, again and again. A
/// body in small pieces is none, since all of them come at once.
#[inline]
fn answer(n: u64, before: u64, news: impl FnOnce() -> bool) -> u64 {
    let whole = n + PER_CALL;
    let full = whole.min(ANSWER.saturating_sub(before));
    let rest = whole - full;
    if rest == 0 || n < PER_CALL && news() { whole } else { full + rest / REST }
}

/// Whether there was none yet in this tick. Two threads may both be told so.
fn is_news(last: &AtomicU64, tick: u64) -> bool {
    let first = last.load(Ordering::Relaxed) != tick;
    if first {
        last.store(tick, Ordering::Relaxed);
    }
    first
}

/// The clock that takes no time to read.
fn tick() -> u64 {
    clock::coarse_ms() / TICK
}

#[cfg(test)]
mod tests {
    use super::super::policy::MARK;
    use super::*;

    /// The position after one answer in so many calls, of which every `each`th is the first one in
    /// its tick.
    fn answered(bytes: u64, calls: u64, each: u64) -> u64 {
        let n = bytes / calls;
        (0..calls).map(|k| answer(n, k * (n + PER_CALL), || k % each == 0)).sum()
    }

    #[test]
    fn one_long_answer_is_not_worth_the_attach() {
        let request = 200 + PER_CALL;
        for calls in [1, 32, 128, 256, 1024] {
            assert!(request + answered(1 << 20, calls, 1) < MARK, "{calls} calls");
        }
        assert!(request + answered(512 << 10, 1024, 500) < MARK, "nor one in small pieces");
        for calls in [1, 32, 512] {
            assert!(answered(4 << 20, calls, 1) > MARK, "a stream without end is: {calls} calls");
        }
    }

    #[test]
    fn exchanges_are() {
        assert_eq!(answered(64, 1, 1), 64 + PER_CALL, "as before");
        assert_eq!(answered(3000, 1, 1), 3000 + PER_CALL);
        assert!(4 * (200 + PER_CALL + answered(16 << 10, 2, 1)) > MARK);
        assert!(2 * (200 + PER_CALL + answered(1 << 20, 32, 1)) > MARK, "the second request");
    }

    #[test]
    fn news_are() {
        for n in [1, 64, 1000] {
            assert!(answered(16 * n, 16, 1) > MARK, "{n} bytes now and then");
            assert!(answered(1600 * n, 1600, 100) > MARK, "{n} bytes all the time");
        }
    }

    #[test]
    fn a_tick_has_one_of_them() {
        let last = AtomicU64::new(0);
        assert!(is_news(&last, 7) && !is_news(&last, 7) && is_news(&last, 8));
        let now = tick();
        assert!(now > 0 && tick() - now < 60_000 / TICK);
    }
}
