//! Which thread is calling, and where it is, cheaply. This gives its kernel id, its CPU, and
//! whether it is inside a section: it holds one of our locks, or changes what only it may. A signal
//! that finds it there waits for the section's end ([`super::signals`]).
//!
//! What a thread knows of itself ([`super::own`]) is zero at first and has no destructor. So a hook
//! may touch it in a signal handler and in a thread that is being torn down. The cached id survives
//! a fork, where it is wrong: the child calls [`forked`] first of all.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicU64, compiler_fence};

use super::own::{self, Own};
use super::signals;

/// The kernel's id of this thread; never 0.
#[must_use]
#[inline]
pub fn tid() -> u32 {
    let cached = own::with(|t| t.tid.get());
    if cached != 0 { cached } else { ask_tid() }
}

#[cold]
fn ask_tid() -> u32 {
    let tid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    own::with(|t| t.tid.set(tid));
    tid
}

/// Runs `f` in a vfork child, whose thread and memory are its parent's: nothing stays there of what
/// the child is or opens.
pub fn as_guest<R>(f: impl FnOnce() -> R) -> R {
    let tid = own::with(|t| {
        t.guest.set(true);
        t.tid.get()
    });
    let r = f();
    own::with(|t| {
        t.tid.set(tid);
        t.guest.set(false);
    });
    r
}

/// Whether this is inside [`as_guest`].
#[must_use]
pub fn is_guest() -> bool {
    own::with(|t| t.guest.get())
}

/// For the child of a fork, before anything else of ours. Its thread has another id and holds no
/// lock. Locks in shared memory that the parent's thread held belong to the parent still.
pub fn forked() {
    let due = own::with(|t| {
        t.tid.set(0);
        t.held.set(0);
        t.entered.set(0);
        t.due.replace(0)
    });
    signals::forked(due);
}

/// This thread goes to a stack of the library's own, which is a section of its own kind; false if
/// it is on one.
pub(super) fn deepen() -> bool {
    let already = own::with(|t| t.deep.replace(true));
    compiler_fence(SeqCst);
    !already
}

/// It comes back.
pub(super) fn surface() {
    compiler_fence(SeqCst);
    own::with(|t| {
        t.deep.set(false);
        at_the_end(t);
    });
}

/// How many of our locks this thread holds, or is in the middle of taking or giving back.
#[must_use]
#[inline]
pub fn held() -> u32 {
    own::with(|t| t.held.get())
}

// In all four: a handler that runs on this thread must see the count before the lock word changes,
// and the word before the count. The compiler is the only thing that could reorder the two on one
// thread.

/// This thread is about to take a lock, which counts among [`held`].
#[inline(always)]
pub fn held_add() {
    own::with(|t| t.held.set(t.held.get().wrapping_add(1)));
    compiler_fence(SeqCst);
}

/// It has given that back, or has not got it.
#[inline(always)]
pub fn held_sub() {
    compiler_fence(SeqCst);
    own::with(|t| {
        t.held.set(t.held.get().saturating_sub(1));
        at_the_end(t);
    });
}

/// This thread is about to take a lock that is not an `OwnedLock`. Called before the word can
/// change.
#[inline]
pub fn enter() {
    own::with(|t| t.entered.set(t.entered.get().wrapping_add(1)));
    compiler_fence(SeqCst);
}

/// It has given that back, or has not got it.
#[inline]
pub fn leave() {
    compiler_fence(SeqCst);
    own::with(|t| {
        t.entered.set(t.entered.get().saturating_sub(1));
        at_the_end(t);
    });
}

/// Whether this thread is between [`enter`] and [`leave`].
#[inline]
pub fn entered() -> bool {
    own::with(|t| t.entered.get()) != 0
}

/// After a count went down.
#[inline(always)]
fn at_the_end(t: &Own) {
    // A signal that comes before the count went down is seen here; a signal that comes later finds
    // no section.
    compiler_fence(SeqCst);
    if t.due.get() != 0 && t.held.get() | t.entered.get() == 0 && !t.deep.get() {
        signals::section_over();
    }
}

/// The CPU this thread runs on, plus one, so that 0 can mean "unknown" in shared memory. The C
/// library answer comes from the vDSO: a few nanoseconds and no system call.
#[must_use]
#[inline]
pub fn cpu() -> u32 {
    (rustix::thread::sched_getcpu() as u32).wrapping_add(1)
}

/// Gives the CPU away once, to another thread that wants it.
pub fn yield_now() {
    rustix::thread::sched_yield();
}

/// Whether this process's threads have one CPU to run on and no other; as it was at some time
/// within about the last second.
#[must_use]
pub fn has_one_cpu() -> bool {
    has_one_cpu_at(crate::sys::ticks())
}

/// When it was asked, in ticks; the lowest bit is the answer. 0: never.
static ONE_CPU: AtomicU64 = AtomicU64::new(0);

/// What [`has_one_cpu`] said last, however long ago; for hints whose takers ask it before they act
/// on them.
#[must_use]
#[inline]
pub fn had_one_cpu() -> bool {
    // Relaxed: as in has_one_cpu_at().
    ONE_CPU.load(Relaxed) & 1 != 0
}

/// As [`has_one_cpu`], for a caller that has the time, in ticks of [`crate::sys::ticks`].
#[must_use]
#[inline]
pub fn has_one_cpu_at(now: u64) -> bool {
    const A_SECOND: u64 = 3_000_000_000;
    // Relaxed: a number of its own, and the threads of a process seldom differ.
    let known = ONE_CPU.load(Relaxed);
    if known != 0 && now.wrapping_sub(known) < A_SECOND {
        return known & 1 != 0;
    }
    ask_cpus(now)
}

#[cold]
fn ask_cpus(now: u64) -> bool {
    let one = rustix::thread::sched_getaffinity(None).is_ok_and(|cpus| cpus.count() == 1);
    ONE_CPU.store(now & !1 | u64::from(one), Relaxed);
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_itself() {
        assert_eq!(tid(), tid());
        assert!(tid() > 0);
        assert!(cpu() > 0);
    }
}
