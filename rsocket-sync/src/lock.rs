//! A lock that lives in shared memory and survives the death of its holder.
//!
//! The lock is one word, and 0 is free. Else bits 0 to 30 are the holder's kernel thread id, and
//! bit 31 is set when a thread may sleep on the word. The lock is held only to copy a state and
//! publish it, for well under a microsecond, so a taker spins first. A taker that has waited long
//! enough looks whether the holder still exists, and if not takes the lock over and is told so
//! ([`Taken::Broken`]). A robust pthread mutex does not serve here: it deadlocks a signal handler
//! and refuses a child that unlocks for its parent.
//!
//! Limits:
//!
//! - A holder is named by its id in *its* pid namespace, so holders must share one.
//! - When a dead holder's id has gone to a new thread of another process, takers wait for that
//!   thread's end.
//! - When the id has gone to the taker itself, and the taker holds another of our locks just then,
//!   the taker is told [`Taken::Own`].
//!
//! Entry point: [`OwnedLock`]. The algorithm is [`acquire`] and [`release`], generic for the
//! models.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{AtomicU32, Ordering};

use rsocket_host::sys::on_word;
use rsocket_host::{living, thread};

use super::atom::Word32;

/// A thread may sleep on the word.
const CONTENDED: u32 = 1 << 31;

/// Looks at the word before giving the CPU away, and times that before sleeping.
#[cfg(not(shuttle))]
const SPINS: u32 = 200;
#[cfg(not(shuttle))]
const YIELDS: u32 = 4;
// Every look is a step of the model: few are enough to have them all.
#[cfg(shuttle)]
const SPINS: u32 = 1;
#[cfg(shuttle)]
const YIELDS: u32 = 1;

/// How the lock was taken, or that it was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Taken; the last holder gave it back.
    Clean,
    /// Taken from a holder that died inside: roll its state forward or back before anything else.
    Broken,
    /// Not taken: this very thread holds it, so we run in a signal handler that interrupted the
    /// section.
    Own,
}

/// What the algorithm needs from outside; the kernel in the library, a scheduler in a model.
pub trait Os<W> {
    /// This thread is about to take a lock. Called before the word can change.
    fn entering(&self);
    /// This thread has given a lock back, or has not got it. Called after the word changed.
    fn left(&self);
    /// How many locks this thread is inside of, the present attempt included.
    fn inside(&self) -> u32;
    /// A short pause in a spin.
    fn pause(&self);
    /// Gives the CPU away once.
    fn yield_now(&self);
    /// Sleeps while the word is `expected`, a short while at most. True when it was the time that
    /// ended it.
    fn sleep(&self, word: &W, expected: u32) -> bool;
    /// Wakes one sleeper.
    fn wake(&self, word: &W);
    /// Whether the thread still runs.
    fn alive(&self, tid: u32) -> bool;
}

/// Takes the lock, waiting as long as a living holder makes us.
#[inline]
pub fn acquire<W: Word32, O: Os<W>>(word: &W, tid: u32, os: &O) -> Taken {
    os.entering();
    // Acquire: pairs with the Release in `release`, and brings the state that the last holder
    // published.
    match word.compare_exchange(0, tid, Ordering::Acquire, Ordering::Relaxed) {
        Ok(_) => Taken::Clean,
        Err(seen) => acquire_slowly(word, tid, os, seen),
    }
}

#[cold]
fn acquire_slowly<W: Word32, O: Os<W>>(word: &W, tid: u32, os: &O, mut seen: u32) -> Taken {
    // What we put into the word: once we have slept, others may be asleep too, and the bit must
    // stay.
    let mut mine = tid;
    let mut looks = 0;
    loop {
        if seen & !CONTENDED == tid {
            if os.inside() > 1 {
                os.left();
                return Taken::Own;
            }
            // Our id but not our doing: a dead thread's id came to us.
            if take_over(word, seen, tid, &mut seen) {
                return Taken::Broken;
            }
            continue;
        }
        if seen == 0 {
            // Acquire: as in `acquire`.
            match word.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Taken::Clean,
                Err(now) => seen = now,
            }
            continue;
        }
        looks += 1;
        if looks <= SPINS + YIELDS {
            if looks <= SPINS {
                os.pause()
            } else {
                os.yield_now()
            }
            // Relaxed: only a hint; the exchange decides.
            seen = word.load(Ordering::Relaxed);
            continue;
        }
        if sleep_on(word, tid, os, &mut seen, &mut mine) {
            return Taken::Broken;
        }
    }
}

/// Marks the word as slept on and sleeps until it changes; true when its holder has died
/// meanwhile, and `tid` has the lock.
fn sleep_on<W: Word32, O: Os<W>>(
    word: &W,
    tid: u32,
    os: &O,
    seen: &mut u32,
    mine: &mut u32,
) -> bool {
    let marked = *seen | CONTENDED;
    if *seen != marked {
        // Relaxed: the bit guards nothing but the wake-up, and the kernel compares the word again.
        if let Err(now) = word.compare_exchange(*seen, marked, Ordering::Relaxed, Ordering::Relaxed)
        {
            *seen = now;
            return false;
        }
    }
    *mine = tid | CONTENDED;
    let timed_out = os.sleep(word, marked);
    *seen = word.load(Ordering::Relaxed);
    timed_out
        && *seen == marked
        && !os.alive(marked & !CONTENDED)
        && take_over(word, marked, tid, seen)
}

/// Replaces a dead holder. Others may sleep on the word, so the bit is set.
fn take_over<W: Word32>(word: &W, dead: u32, tid: u32, seen: &mut u32) -> bool {
    // Acquire: a dead holder released nothing, but its stores are done; this keeps our loads after
    // it.
    match word.compare_exchange(dead, tid | CONTENDED, Ordering::Acquire, Ordering::Relaxed) {
        Ok(_) => true,
        Err(now) => {
            *seen = now;
            false
        }
    }
}

/// Takes the lock if that needs no waiting: `None` when another holds it.
#[inline]
pub fn try_acquire<W: Word32, O: Os<W>>(word: &W, tid: u32, os: &O) -> Option<Taken> {
    os.entering();
    // Acquire: as in `acquire`.
    match word.compare_exchange(0, tid, Ordering::Acquire, Ordering::Relaxed) {
        Ok(_) => Some(Taken::Clean),
        Err(seen) if seen & !CONTENDED == tid => {
            if os.inside() == 1 && take_over(word, seen, tid, &mut 0) {
                return Some(Taken::Broken);
            }
            os.left();
            Some(Taken::Own)
        }
        Err(_) => {
            os.left();
            None
        }
    }
}

/// Gives the lock back. Does nothing to a lock that this thread does not hold. That happens to the
/// child of a fork inside a signal handler that interrupted the section.
#[inline]
pub fn release<W: Word32, O: Os<W>>(word: &W, tid: u32, os: &O) {
    free(word, tid, os);
    os.left();
}

/// The same, but for the end of the section.
#[inline(always)]
fn free<W: Word32, O: Os<W>>(word: &W, tid: u32, os: &O) {
    // Release: pairs with the Acquire of the next taker; the state is published before the lock is
    // free.
    match word.compare_exchange(tid, 0, Ordering::Release, Ordering::Relaxed) {
        Ok(_) => {}
        Err(seen) if seen == tid | CONTENDED => {
            // Release: as above. Only the holder changes a contended word of a living holder.
            word.swap(0, Ordering::Release);
            os.wake(word);
        }
        Err(_) => {}
    }
}

/// The kernel, for real locks.
#[derive(Clone, Copy, Debug)]
pub struct Kernel;

/// How long a taker sleeps before it looks whether the holder lives.
const PATIENCE_NS: u32 = 10_000_000;

impl Os<AtomicU32> for Kernel {
    #[inline]
    fn entering(&self) {
        thread::held_add();
    }

    #[inline]
    fn left(&self) {
        thread::held_sub();
    }

    fn inside(&self) -> u32 {
        thread::held()
    }

    #[inline]
    fn pause(&self) {
        core::hint::spin_loop();
    }

    fn yield_now(&self) {
        super::backoff::yield_now();
    }

    fn sleep(&self, word: &AtomicU32, expected: u32) -> bool {
        if thread::held() == 1 {
            // Nothing is held yet: a handler need not wait for another thread's section.
            thread::held_sub();
            thread::held_add();
        }
        // A refusal counts as time, so that a dead holder is still found in a sandbox.
        on_word::sleep_at_lock(word, expected, PATIENCE_NS)
    }

    #[cold]
    fn wake(&self, word: &AtomicU32) {
        on_word::wake_one(word);
    }

    fn alive(&self, tid: u32) -> bool {
        living::thread(tid)
    }
}

/// A lock that this thread holds. Dropped, it gives it back. Never across a sleep.
#[must_use]
#[derive(Debug)]
pub struct Holding<'a> {
    lock: &'a OwnedLock,
    me: u32,
}

impl Drop for Holding<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lock.unlock(self.me);
    }
}

/// The lock. All zeroes is free, so it needs no set-up in fresh shared memory.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct OwnedLock(AtomicU32);

impl OwnedLock {
    /// A free lock.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Takes the lock; what its last holder left that died inside is as good as any state. `None`
    /// when this very thread holds it: we are in a signal handler that interrupted the section, and
    /// must not wait for ourselves.
    #[inline]
    pub fn hold(&self) -> Option<Holding<'_>> {
        let me = thread::tid();
        (self.lock(me) != Taken::Own).then(|| Holding { lock: self, me })
    }

    /// As [`Self::hold`], and `repair` looks after what a holder left that died inside.
    #[inline]
    pub fn hold_or(&self, repair: impl FnOnce()) -> Option<Holding<'_>> {
        let me = thread::tid();
        let taken = self.lock(me);
        if taken == Taken::Own {
            return None;
        }
        let held = Holding { lock: self, me };
        if taken == Taken::Broken {
            repair();
        }
        Some(held)
    }

    /// As [`Self::hold`]; `None` also when another holds it.
    #[inline]
    pub fn try_hold(&self) -> Option<Holding<'_>> {
        let me = thread::tid();
        let taken = self.try_lock(me)?;
        (taken != Taken::Own).then(|| Holding { lock: self, me })
    }

    /// Takes the lock for the thread `tid` ([`thread::tid`] of the caller).
    #[inline]
    #[must_use]
    pub fn lock(&self, tid: u32) -> Taken {
        acquire(&self.0, tid, &Kernel)
    }

    /// Takes the lock if it is free: `None` when another holds it.
    #[inline]
    #[must_use]
    pub fn try_lock(&self, tid: u32) -> Option<Taken> {
        try_acquire(&self.0, tid, &Kernel)
    }

    /// Gives the lock back. Not to be called after [`Taken::Own`].
    #[inline]
    pub fn unlock(&self, tid: u32) {
        release(&self.0, tid, &Kernel);
    }

    /// As [`Self::unlock`], and calls `then` before handlers run that came meanwhile. `then` does
    /// what must not be left out, such as waking the peer: a handler may jump out of the call.
    #[inline(always)]
    pub fn unlock_then<R>(&self, tid: u32, then: impl FnOnce() -> R) -> R {
        free(&self.0, tid, &Kernel);
        let r = then();
        Os::<AtomicU32>::left(&Kernel);
        r
    }

    /// The id of the holder, for diagnostics and for prepare-fork code; 0 where there is none.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.0.load(Ordering::Relaxed) & !CONTENDED
    }

    /// Makes it free, whichever thread held it. Only for memory that no other thread can reach,
    /// such as a private lock in the child of a fork.
    pub fn reset(&self) {
        // Mostly no thread held it, and a page that is not written is not copied.
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_given_back_once() {
        let lock = OwnedLock::new();
        let held = lock.hold();
        assert!(held.is_some() && lock.hold().is_none() && lock.try_hold().is_none());
        drop(held);
        assert_eq!(lock.owner(), 0);
        drop(lock.try_hold().unwrap());
        assert_eq!(lock.owner(), 0);
    }

    #[test]
    fn a_thread_meets_itself() {
        let lock = OwnedLock::new();
        let me = thread::tid();
        assert_eq!(lock.lock(me), Taken::Clean);
        assert_eq!(lock.lock(me), Taken::Own);
        assert_eq!(lock.try_lock(me), Some(Taken::Own));
        assert_eq!(lock.owner(), me);
        lock.unlock(me);
        assert_eq!(lock.owner(), 0);
        assert_eq!(thread::held(), 0);
    }

    #[test]
    fn counting_under_contention() {
        struct Shared(OwnedLock, AtomicU32);
        let shared = Shared(OwnedLock::new(), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for i in 0..5000 {
                        assert_eq!(shared.0.lock(thread::tid()), Taken::Clean);
                        let v = shared.1.load(Ordering::Relaxed);
                        if i % 100 == 0 {
                            std::thread::yield_now();
                        }
                        shared.1.store(v + 1, Ordering::Relaxed);
                        shared.0.unlock(thread::tid());
                    }
                });
            }
        });
        assert_eq!(shared.1.load(Ordering::Relaxed), 20_000);
        assert_eq!(shared.0.owner(), 0);
    }

    #[test]
    fn a_dead_holder_is_replaced() {
        let lock = OwnedLock::new();
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(lock.lock(thread::tid()), Taken::Clean));
        });
        assert_ne!(lock.owner(), 0);
        let me = thread::tid();
        assert_eq!(lock.try_lock(me), None);
        assert_eq!(lock.lock(me), Taken::Broken);
        lock.unlock(me);
        assert_eq!(lock.lock(me), Taken::Clean);
        lock.unlock(me);
    }

    #[test]
    fn an_inherited_id_is_not_me() {
        let lock = OwnedLock::new();
        let me = thread::tid();
        lock.0.store(me, Ordering::Relaxed);
        assert_eq!(lock.lock(me), Taken::Broken);
        lock.unlock(me);
        assert_eq!(lock.owner(), 0);
    }
}
