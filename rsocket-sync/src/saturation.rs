//! Saturation: whether every CPU has work without the thread that is about to spin.
//!
//! A spin pays where its CPU would be idle meanwhile. Where threads wait for a CPU, each
//! microsecond of a spin is the turn of one of them. Thirty-two servers of one client on two CPUs
//! lost a fifth of their transactions by it. [`super::backoff`] learns from a CPU that was taken
//! away for long. Threads that sleep soon, as servers do, take none away for long; so they are
//! counted. A machine is saturated where more threads wait than run. Fewer may be two ends that
//! spin for each other, or busy loops, beside which a long spin is worth its while. The kernel is
//! asked after a spin in vain, and seldom.
//!
//! Must not know what is waited for. Entry points: [`machine`], [`Saturation::holds`] before a
//! spin, [`Saturation::in_vain`] after one.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use rsocket_host::facts::runnable;
use rsocket_host::sys::sandbox;

/// A millisecond in ticks of [`rsocket_host::sys::ticks`], about.
const MS: u64 = 3_000_000;

/// From one question to the next, at least.
const EVERY: u64 = 2 * MS;

/// How long the answer holds: many waits, and a short time where other work was a moment's.
const LASTS: u64 = 50 * MS;

/// So long before its end it is asked anew.
const RENEWED: u64 = 5 * MS;

/// What one process knows of the machine, all times in ticks. All zero: it was not asked.
#[derive(Default)]
pub struct Saturation {
    /// Until then it is saturated; 0: it is not.
    until: AtomicU64,
    asked: AtomicU64,
    /// What the last answer was. Only two in a row count: any machine has a moment's work.
    last: AtomicBool,
}

// Relaxed, all of them: hints, which threads may mix up.
impl Saturation {
    /// Nothing is known.
    #[must_use]
    pub const fn new() -> Self {
        Self { until: AtomicU64::new(0), asked: AtomicU64::new(0), last: AtomicBool::new(false) }
    }

    /// Whether every CPU has other work. The clock is read only where it had lately.
    #[inline]
    pub fn holds(&self, ticks: impl FnOnce() -> u64) -> bool {
        let until = self.until.load(Relaxed);
        until != 0 && self.still_holds(until, ticks())
    }

    #[cold]
    fn still_holds(&self, until: u64, now: u64) -> bool {
        // A clock that went back by more than that says nothing.
        let holds = now < until && until - now <= LASTS;
        if !holds {
            self.until.store(0, Relaxed);
        }
        holds
    }

    /// A spin was in vain, and it is `now`: the kernel is asked, if it was not lately.
    #[cold]
    pub(crate) fn in_vain(&self, now: u64, ask: impl FnOnce() -> bool) {
        let ends = self.until.load(Relaxed).saturating_sub(now);
        let is_known = (RENEWED..=LASTS).contains(&ends);
        if is_known || now.wrapping_sub(self.asked.load(Relaxed)) < EVERY {
            return;
        }
        self.asked.store(now, Relaxed);
        let saturated = ask();
        if saturated && self.last.load(Relaxed) {
            self.until.store(now.saturating_add(LASTS), Relaxed);
        }
        self.last.store(saturated, Relaxed);
    }
}

/// This machine.
static MACHINE: Saturation = Saturation::new();

/// What this process knows of the machine.
#[must_use]
#[inline]
pub fn machine() -> &'static Saturation {
    &MACHINE
}

/// Whether more threads wait for a CPU now than run. In a sandbox the kernel is not asked.
pub(crate) fn asked() -> bool {
    !sandbox::entered() && runnable::most_wait() == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_two_answers_in_a_row_count_and_not_for_long() {
        let s = Saturation::new();
        let mut now = 10 * MS;
        for answer in [true, false, true] {
            s.in_vain(now, || answer);
            assert!(!s.holds(|| unreachable!("the clock is not read for it")));
            now += EVERY;
        }
        s.in_vain(now, || true);
        assert!(s.holds(|| now) && s.holds(|| now + LASTS - 1));
        assert!(!s.holds(|| now + LASTS));
        assert!(!s.holds(|| unreachable!("it was forgotten")));
    }

    #[test]
    fn the_kernel_is_asked_seldom() {
        let s = Saturation::new();
        let mut asked = 0_u64;
        let second = (1..=10_000).map(|i| i * MS / 10);
        second.clone().for_each(|now| {
            s.in_vain(now, || {
                asked += 1;
                false
            });
        });
        assert!((300..=500).contains(&asked), "{asked}");
        asked = 0;
        second.for_each(|now| {
            s.in_vain(now + 1000 * MS, || {
                asked += 1;
                true
            });
        });
        assert!(asked < 30, "{asked}");
        assert!(s.holds(|| 2000 * MS), "and it is asked anew in time");
    }

    #[test]
    fn a_clock_that_is_set_back_ends_it() {
        let s = Saturation::new();
        [1000 * MS, 1010 * MS].iter().for_each(|now| s.in_vain(*now, || true));
        assert!(s.holds(|| 1011 * MS) && !s.holds(|| MS));
    }
}
