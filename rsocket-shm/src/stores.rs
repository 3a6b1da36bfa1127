//! Whether streaming stores pay, which is found out while bytes flow.
//!
//! Between two processors of one machine, streaming stores are up to seven times as fast as
//! ordinary stores. Between those of another they are half as fast. The speed depends on the caches
//! between the processors. A virtual machine is told nothing of these caches, or something else. So
//! a process tries both on what it sends, some megabytes each, and goes on with the faster. It
//! tries the other again from time to time: a virtual processor may be somewhere else by then. What
//! is compared is the time from one end of a phase to the next, so that the receiver's part is in
//! it. Where bytes do not flow as fast as they can, a phase says nothing, and nothing changes.
//!
//! Must not know how bytes are copied, or for whom. Entry points: [`streams`] before a long copy to
//! another processor, and [`copied`] after it.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::indexing_slicing))]

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use rsocket_host::sys;

/// Bytes of a phase: a few times what may be under way, which was stored the other way.
const PHASE: u64 = 4 << 20;
/// A phase that takes longer, in nanoseconds, had to wait for the program: less than a gigabyte a
/// second.
const LONGEST: u64 = 4_000_000;
/// Phases at the beginning, which go both ways in turns.
const TRIAL: u32 = 6;
/// One phase of so many goes the other way: what is seven times as slow costs three in a hundred.
const TRIED_AGAIN: u32 = 256;

/// What the long copies of this process have shown.
static STORES: Stores = Stores::new();

/// Whether the next long copy to another processor is to be made with streaming stores.
#[inline]
pub(super) fn streams() -> bool {
    !STORES.ordinary.load(Relaxed)
}

/// So many bytes were copied that way.
#[inline]
pub(super) fn copied(len: usize) {
    if STORES.count(len as u64) {
        STORES.judge(sys::now_ns());
    }
}

/// One way of storing.
struct Way {
    /// Nanoseconds of a phase; 0 is unknown. The best of late: what takes longer was disturbed, as
    /// a rule.
    cost: AtomicU64,
}

impl Way {
    const fn new() -> Self {
        Self { cost: AtomicU64::new(0) }
    }

    fn took(&self, ns: u64) {
        let before = self.cost.load(Relaxed);
        let most = if before == 0 { u64::MAX } else { before + before / 8 };
        self.cost.store(ns.min(most), Relaxed);
    }

    /// Whether this one is faster than the other, and by more than chance.
    fn beats(&self, other: &Self) -> bool {
        let (mine, theirs) = (self.cost.load(Relaxed), other.cost.load(Relaxed));
        mine + mine / 4 < theirs
    }
}

/// All of it is a hint, written by one thread at a time: that which ended a phase, until it begins
/// the next. Should it be killed in between, or a child of a fork find it so, the choice stays as
/// it is.
struct Stores {
    /// Bytes of this phase; [`PHASE`] and more: it is being judged.
    bytes: AtomicU64,
    /// When it began.
    since: AtomicU64,
    /// Its way.
    ordinary: AtomicBool,
    /// The way of the phases that are no trial.
    ordinary_is_better: AtomicBool,
    /// How many there were, after the trial; during it those that have said anything.
    phases: AtomicU32,
    by_streaming: Way,
    by_ordinary: Way,
}

impl Stores {
    const fn new() -> Self {
        Self {
            bytes: AtomicU64::new(0),
            since: AtomicU64::new(0),
            ordinary: AtomicBool::new(false),
            ordinary_is_better: AtomicBool::new(false),
            phases: AtomicU32::new(0),
            by_streaming: Way::new(),
            by_ordinary: Way::new(),
        }
    }

    /// Counts bytes; true for the thread that has ended the phase, and is to judge it.
    #[inline]
    fn count(&self, len: u64) -> bool {
        let before = self.bytes.fetch_add(len, Relaxed);
        before < PHASE && before + len >= PHASE
    }

    #[cold]
    fn judge(&self, now: u64) {
        let took = now.saturating_sub(self.since.load(Relaxed));
        let phases = self.phases.load(Relaxed);
        if took <= LONGEST {
            let way =
                if self.ordinary.load(Relaxed) { &self.by_ordinary } else { &self.by_streaming };
            way.took(took.max(1));
        }
        // The trial is over when each has said something; after it no program is kept on the slower
        // way until that says something.
        if took <= LONGEST || phases >= TRIAL {
            self.phases.store(phases.wrapping_add(1).max(phases.min(TRIAL)), Relaxed);
        }
        self.ordinary.store(self.next(), Relaxed);
        self.since.store(now, Relaxed);
        self.bytes.store(0, Relaxed);
    }

    /// Whether the next phase goes the ordinary way.
    fn next(&self) -> bool {
        let phases = self.phases.load(Relaxed);
        if phases < TRIAL {
            return phases % 2 == 1;
        }
        let mut better = self.ordinary_is_better.load(Relaxed);
        let (this, other) = if better {
            (&self.by_ordinary, &self.by_streaming)
        } else {
            (&self.by_streaming, &self.by_ordinary)
        };
        if other.beats(this) {
            better = !better;
            self.ordinary_is_better.store(better, Relaxed);
        }
        better != phases.is_multiple_of(TRIED_AGAIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that sends without end on a machine where a phase takes so long either way; how
    /// many of them went the ordinary way. Some are disturbed.
    fn run(stores: &Stores, phases: u32, [streaming, ordinary]: [u64; 2], now: &mut u64) -> u32 {
        let mut ordinary_ones = 0;
        for i in 0..phases {
            let way = stores.ordinary.load(Relaxed);
            ordinary_ones += u32::from(way);
            *now +=
                if way { ordinary } else { streaming } + if i % 37 == 5 { 2_000_000 } else { 0 };
            for piece in 0..PHASE >> 16 {
                assert_eq!(stores.count(1 << 16), piece == (PHASE >> 16) - 1);
            }
            assert!(!stores.count(1 << 16), "another thread's, meanwhile");
            stores.judge(*now);
        }
        ordinary_ones
    }

    #[test]
    fn goes_on_with_the_faster() {
        let stores = Stores::new();
        let mut now = 1 << 40;
        assert!(!stores.ordinary.load(Relaxed), "as long as nothing is known");
        let n = run(&stores, 1000, [200_000, 1_400_000], &mut now);
        assert!((4..12).contains(&n), "{n} of 1000 were slow");
        // The machine has moved its processors.
        run(&stores, 600, [450_000, 180_000], &mut now);
        let n = run(&stores, 1000, [450_000, 180_000], &mut now);
        assert!((988..=996).contains(&n), "{n} of 1000 were fast");
    }

    #[test]
    fn stays_where_it_makes_no_difference() {
        let stores = Stores::new();
        let n = run(&stores, 1000, [300_000, 290_000], &mut (1 << 40));
        assert!(n < 12, "{n} of 1000");
    }

    /// A process that waits for its program learns nothing.
    #[test]
    fn a_slow_program_changes_nothing() {
        let stores = Stores::new();
        assert_eq!(run(&stores, 1000, [LONGEST + 1, LONGEST + 1], &mut (1 << 40)), 0);
        assert_eq!(stores.phases.load(Relaxed), 0);
    }
}
