//! Poll back-off: whether the CPU that a thread is about to spin on is its own.
//!
//! A spin or a yield is worth its while only where no other thread wants the CPU. Beside a busy
//! program the scheduler takes the CPU away for a whole slice, some milliseconds. A yield gives it
//! away for as long (since Linux 6.18, and 6.12.63: "sched/fair: Forfeit vruntime on yield"). A
//! sleeper is woken in microseconds, since it may preempt a thread that has run for long. No call
//! says whether other threads want the CPU, but it shows. A look, or the return from a yield, is
//! then *late*: long after the one before. From then on waits on this CPU sleep at once, for a
//! time; then it is found out again.
//!
//! That time is a multiple of what was lost, so that what others take costs a bounded share of all
//! time. A machine that is itself held up now and then, as a virtual one is, therefore spins all
//! the same. Where it shows again soon the time grows fast, since to find out costs a slice each
//! time.
//!
//! Each process learns this for each CPU: threads move, and what wants one CPU leaves the others
//! alone. The words are written when something was late and when the time is over, and only read by
//! all others.
//!
//! Must not know what is waited for. Entry points: [`of`], [`Backoff::holds`] before a wait,
//! [`Backoff::was_late`] after a look or a yield; [`yield_now`] for a caller that only yields.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rsocket_host::{sys, thread};

/// A millisecond in ticks of [`rsocket_host::sys::ticks`], about.
const MS: u64 = 3_000_000;

/// What takes longer than this is late. The limit is longer than a wake-up takes on a machine with
/// work to do (measured: up to 0.2 ms). It is shorter than the slice of a thread that keeps the CPU
/// busy. That slice is 0.7 ms on one processor, 1.4 on two, 2.8 on eight and more. The slice is
/// never less than the scheduler's tick lets it be. A thread that ran for a shorter time was a
/// guest.
pub const LATE: u64 = MS / 2;

/// How many times as long as what was lost the first time is. Others then cost a fifth of all time
/// at most, if it does not show again soon.
const SHARE: u64 = 4;

/// How many times as long as before where it shows again soon.
const GROWTH: u64 = 4;

/// How many times as long as what was lost at most: to find out costs a slice, and so a 64th of all
/// time. Longer would be cheaper beside a busy loop, and dearer beside work that comes and goes.
const MOST: u64 = 64;

/// The longest time of all.
const LONGEST: u64 = 1000 * MS;

/// What one process knows of one CPU, all times in ticks. All zero: nothing was late.
#[derive(Default)]
pub struct Backoff {
    /// Until then waits sleep at once; 0: they may spin.
    until: AtomicU64,
    /// Until when they did so last.
    ended: AtomicU64,
    /// For how long.
    length: AtomicU64,
}

// Relaxed, all of them: hints, which threads may mix up.
impl Backoff {
    /// Nothing was late.
    #[must_use]
    pub const fn new() -> Self {
        Self { until: AtomicU64::new(0), ended: AtomicU64::new(0), length: AtomicU64::new(0) }
    }

    /// Whether others want this CPU, so that a wait is to sleep at once. The clock is read only
    /// where they did lately.
    #[inline]
    pub fn holds(&self, ticks: impl FnOnce() -> u64) -> bool {
        let until = self.until.load(Relaxed);
        until != 0 && self.still_holds(until, ticks())
    }

    #[cold]
    fn still_holds(&self, until: u64, now: u64) -> bool {
        // A clock that went back by more than any length says nothing.
        if now < until && until - now <= LONGEST {
            return true;
        }
        self.ended.store(until, Relaxed);
        self.until.store(0, Relaxed);
        false
    }

    /// Whether the look or the return at `now` came late, where the one before was at `before`. If
    /// so, waits on this CPU sleep for a while. (Clocks of two CPUs may differ: time that runs
    /// backwards is not late.)
    #[inline]
    pub fn was_late(&self, before: u64, now: u64) -> bool {
        let lost = now.saturating_sub(before);
        let late = lost > LATE;
        if late {
            self.back_off(lost, now);
        }
        late
    }

    /// So much was lost to others.
    #[cold]
    pub(crate) fn back_off(&self, lost: u64, now: u64) {
        let until = self.until.load(Relaxed);
        if until > now && until - now <= LONGEST {
            // Another thread has seen the same.
            return;
        }
        let last = self.length.load(Relaxed);
        let ended = until.max(self.ended.load(Relaxed));
        let goes_on = last != 0 && now.saturating_sub(ended) <= last.saturating_add(lost);
        let most = lost.saturating_mul(MOST);
        let again = if goes_on { last.saturating_mul(GROWTH).min(most) } else { 0 };
        let length = lost.saturating_mul(SHARE).max(again).min(LONGEST);
        self.length.store(length, Relaxed);
        self.until.store(now.saturating_add(length), Relaxed);
    }
}

/// CPUs beyond this number share what is known.
const CPUS: usize = 64;

static ALL: [Backoff; CPUS] = [const { Backoff::new() }; CPUS];

/// What this process knows of the CPU with this [number](rsocket_host::thread::cpu).
#[must_use]
#[inline]
pub fn of(cpu: u32) -> &'static Backoff {
    static NOWHERE: Backoff = Backoff::new();
    ALL.get(cpu as usize % CPUS).unwrap_or(&NOWHERE)
}

/// Gives the CPU to another thread that wants it, unless that is known to take long.
pub(crate) fn yield_now() {
    let (here, began) = (of(thread::cpu()), sys::ticks());
    if !here.holds(|| began) {
        thread::yield_now();
        here.was_late(began, sys::ticks());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `ms` milliseconds of a thread that looks each time it may. Every `every` ms others take
    /// the CPU for `lost` ms. Returns the share of the time in which the thread did not spin, in
    /// per mille.
    fn share(ms: u64, every: u64, lost: u64) -> u64 {
        let b = Backoff::new();
        let (mut rested, step) = (0, MS / 10);
        let (mut now, mut before) = (MS, MS);
        let mut next = now + every * MS;
        while now < ms * MS {
            now += step;
            if now >= next {
                now += lost * MS;
                next = now + every * MS;
            }
            if b.holds(|| now) {
                rested += now - before;
            } else {
                b.was_late(before, now);
            }
            before = now;
        }
        rested * 1000 / (ms * MS)
    }

    #[test]
    fn the_clock_is_read_only_where_something_was_late() {
        let b = Backoff::new();
        assert!(!b.holds(|| unreachable!()));
        assert!(
            !b.was_late(5, 5 + LATE) && !b.was_late(9 * LATE, 0),
            "in time, or clocks that differ"
        );
        assert!(!b.holds(|| unreachable!()));
        assert!(b.was_late(MS, 5 * MS));
        assert!(b.holds(|| 5 * MS) && b.holds(|| 5 * MS + 4 * SHARE * MS - 1));
        assert!(!b.holds(|| 5 * MS + 4 * SHARE * MS));
        assert!(!b.holds(|| unreachable!()), "it is found out again");
    }

    #[test]
    fn it_grows_while_that_goes_on_and_not_for_ever() {
        let b = Backoff::new();
        let (mut now, mut last) = (MS, 0);
        for _ in 0..20 {
            assert!(b.was_late(now, now + 4 * MS));
            now += 4 * MS;
            let until = b.until.load(Relaxed);
            let length = until - now;
            assert!(
                length == last * GROWTH || last == 0 || length == 4 * MOST * MS,
                "{last} {length}"
            );
            last = length;
            now = until;
            assert!(!b.holds(|| now), "it is found out again");
        }
        assert_eq!(last, 4 * MOST * MS);
        // After a while without it begins small.
        now += 2 * LONGEST;
        assert!(b.was_late(now, now + 4 * MS));
        assert_eq!(b.length.load(Relaxed), 4 * SHARE * MS);
        b.back_off(1000 * LONGEST, now + LONGEST);
        assert_eq!(b.length.load(Relaxed), LONGEST);
    }

    #[test]
    fn several_threads_that_see_the_same_count_as_one() {
        let b = Backoff::new();
        assert!(b.was_late(MS, 5 * MS) && b.was_late(MS, 5 * MS) && b.was_late(2 * MS, 6 * MS));
        assert_eq!(b.until.load(Relaxed), 5 * MS + 4 * SHARE * MS);
    }

    #[test]
    fn a_machine_that_is_held_up_now_and_then_spins_nearly_all_the_time() {
        assert_eq!(share(10_000, 20_000, 0), 0, "an idle one always");
        for (every, lost) in [(1000, 1), (1000, 5), (300, 2), (5000, 90)] {
            let most = (SHARE + 1) * lost * 1000 / every + 20;
            let share = share(60_000, every, lost);
            assert!(share > 0 && share <= most, "{every} {lost}: {share} of {most}");
        }
    }

    #[test]
    fn beside_a_busy_loop_it_sleeps_nearly_all_the_time() {
        for (every, lost) in [(4, 4), (3, 12), (10, 90)] {
            let share = share(60_000, every, lost);
            assert!(share > 900, "{every} {lost}: {share}");
        }
    }

    #[test]
    fn a_clock_that_is_set_back_ends_it() {
        let b = Backoff::new();
        assert!(b.was_late(10_000 * MS, 10_004 * MS));
        assert!(!b.holds(|| MS));
        assert!(b.was_late(MS, 5 * MS) && b.holds(|| 5 * MS));
    }
}
