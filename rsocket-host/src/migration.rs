//! A thread goes to another CPU, and may go anywhere again at once (`sched_setaffinity(2)`).
//!
//! The kernel has no call for that. So the thread is bound to the CPU for a moment, and then gets
//! back the set of CPUs that it had. The program's signal handlers wait meanwhile: a child that one
//! of them forks would be bound for ever. Nothing of it remains but where the thread is. Must not
//! know why it goes. Entry points: [`is_due`], [`go_to`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::{own, thread};

/// Waits of a thread from one migration to the next, at least.
const WAITS: u32 = 8;

/// Time between them, at least, in units of 2^21 ticks of [`crate::sys::ticks`] (0.7 ms): a busy
/// CPU lets the thread run after a slice of its own, up to 3 ms later.
const APART: u32 = 14;

/// The time stands in the word's upper 24 bits, the waits since then in the others.
const COUNTED: u32 = 0xff;

/// The kernel does not let this process do it (a filter, a security module).
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Counts a wait at `now`, in ticks. Whether the thread has waited often and long enough since its
/// last migration. If so, that is now.
#[must_use]
pub fn is_due(now: u64) -> bool {
    own::with(|t| {
        let (due, word) = counted(t.migrated.get(), (now >> 21) as u32);
        t.migrated.set(word);
        due
    })
}

/// The word after one more wait, and whether a migration is due.
const fn counted(word: u32, now: u32) -> (bool, u32) {
    let (since, waits) = (word >> 8, (word & COUNTED) + 1);
    let apart = now.wrapping_sub(since) & (u32::MAX >> 8);
    if waits >= WAITS && apart >= APART {
        return (true, now << 8);
    }
    let waits = if waits > COUNTED { COUNTED } else { waits };
    (false, since << 8 | waits)
}

/// Takes this thread to a CPU, by its [number](thread::cpu). False where it may not run there, may
/// run on no other one, or the kernel refuses. Blocks until that CPU lets the thread run, which may
/// take a slice of another one's. Not for a thread in a section.
#[must_use]
pub fn go_to(cpu: u32) -> bool {
    let Some(at) = usize::try_from(cpu).ok().and_then(|n| n.checked_sub(1)) else { return false };
    if at >= CpuSet::MAX_CPU || thread::is_guest() || REFUSED.load(Relaxed) {
        return false;
    }
    // Refused, too, where a machine has more CPUs than a set has room for.
    let Ok(usual) = sched_getaffinity(None) else { return refused() };
    if !usual.is_set(at) || usual.count() < 2 {
        return false;
    }
    let mut only = CpuSet::new();
    only.set(at);
    thread::enter();
    let gone = sched_setaffinity(None, &only);
    if gone.is_ok() {
        loosen(&usual);
    }
    thread::leave();
    match gone {
        Ok(()) => true,
        Err(Errno::PERM | Errno::ACCESS | Errno::NOSYS) => refused(),
        // The CPU may be off line for a while.
        Err(_) => false,
    }
}

/// Gives the thread back the CPUs that were its `usual` ones. One that was never bound by anybody
/// is to follow its control group's CPUs from here on, too. So all CPUs come first: the kernel
/// takes out what the group does not have, and remembers no binding. Where more are left than there
/// were, the thread had a set of its own.
fn loosen(usual: &CpuSet) {
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|at| all.set(at));
    let _ = sched_setaffinity(None, &all);
    if !sched_getaffinity(None).is_ok_and(|now| now == *usual) {
        let _ = sched_setaffinity(None, usual);
    }
}

#[cold]
fn refused() -> bool {
    // Relaxed: a hint that saves calls.
    REFUSED.store(true, Relaxed);
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn often_and_long_enough() {
        let (mut word, mut due) = (0, false);
        for now in 1000..1000 + WAITS {
            assert!(!due);
            (due, word) = counted(word, now);
        }
        assert!(due);
        // Often, but not for long.
        for _ in 0..10_000 {
            (due, word) = counted(word, 1000 + WAITS);
            assert!(!due);
        }
        let apart = 999 + WAITS + APART;
        assert!(counted(word, apart).0 && !counted(word, apart - 1).0);
        // Long ago, but not often. The time begins anew after some hours.
        (_, word) = counted(word, apart);
        assert!(!counted(word, apart + 100).0);
        let last = u32::MAX >> 8;
        let word = last << 8 | WAITS;
        assert!(!counted(word, last.wrapping_add(APART - 1)).0);
        assert!(counted(word, last.wrapping_add(APART)).0);
    }

    #[test]
    fn it_goes_and_is_bound_to_nothing() {
        let usual = sched_getaffinity(None).unwrap();
        assert!(!go_to(0) && !go_to(CpuSet::MAX_CPU as u32 + 1));
        let cpus = (0..CpuSet::MAX_CPU).filter(|at| usual.is_set(*at));
        for at in cpus.clone().take(4) {
            let cpu = at as u32 + 1;
            assert_eq!(go_to(cpu), usual.count() > 1);
            assert_eq!(sched_getaffinity(None).unwrap(), usual);
        }
        let Some((first, second)) = cpus.clone().next().zip(cpus.clone().nth(1)) else { return };
        // One that has a set of its own keeps it, and is not taken out of it.
        let mut own = CpuSet::new();
        own.set(first);
        sched_setaffinity(None, &own).unwrap();
        assert!(!go_to(second as u32 + 1) && !go_to(first as u32 + 1));
        assert_eq!(sched_getaffinity(None).unwrap(), own);
        if let Some(third) = cpus.clone().nth(2) {
            own.set(third);
            sched_setaffinity(None, &own).unwrap();
            assert!(go_to(third as u32 + 1));
            assert_eq!(sched_getaffinity(None).unwrap(), own);
        }
        sched_setaffinity(None, &usual).unwrap();
    }
}
