//! A small lock that knows its owner. A signal handler (or a call from inside) that finds its own
//! thread holding it gets `None` instead of a deadlock. The lock is held for copies and
//! non-blocking system calls only, never across a sleep. It must not know what it guards.
//!
//! Entry point: [`Guarded::with`].

use core::cell::{Cell, UnsafeCell};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::sync::thread;
use crate::sys::on_word;
use crate::sys::settle::Settle;

/// No thread holds it.
const FREE: u32 = 0;
/// A thread holds it.
const HELD: u32 = 1;
/// A thread holds it, and another one may sleep for it.
const AWAITED: u32 = 2;
/// Looks at a held lock before sleeping: sections are well below a microsecond.
const LOOKS: u32 = 100;

/// A value that is not 0, and differs between the threads that are alive. The forking thread keeps
/// its own in the child.
fn me() -> usize {
    thread_local!(static MARK: Cell<u8> = const { Cell::new(0) });
    MARK.with(|mark| core::ptr::from_ref(mark).addr())
}

/// Whether this thread holds any of these locks: then it must not wait for another one.
pub(crate) fn inside_any() -> bool {
    thread::entered()
}

/// The lock alone.
pub(crate) struct Lock {
    word: AtomicU32,
    owner: AtomicUsize,
}

impl Lock {
    pub(crate) const fn new() -> Self {
        Self { word: AtomicU32::new(FREE), owner: AtomicUsize::new(0) }
    }

    /// True when the lock is now ours, false when this thread held it already.
    pub(crate) fn take(&self) -> bool {
        let me = me();
        // Relaxed: only this thread ever stores its own mark, and it takes it away before it
        // releases.
        if self.owner.load(Ordering::Relaxed) == me {
            return false;
        }
        thread::enter();
        // Acquire here and below: pairs with the Release in `release`, so that the section before
        // is seen.
        if self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.take_slowly();
        }
        self.owner.store(me, Ordering::Relaxed);
        true
    }

    /// As [`Self::take`], without waiting: false also when another thread holds it.
    pub(crate) fn try_take(&self) -> bool {
        let me = me();
        if self.owner.load(Ordering::Relaxed) == me {
            return false;
        }
        thread::enter();
        if self.word.compare_exchange(FREE, HELD, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            thread::leave();
            return false;
        }
        self.owner.store(me, Ordering::Relaxed);
        true
    }

    #[cold]
    fn take_slowly(&self) {
        for _ in 0..LOOKS {
            core::hint::spin_loop();
            if self.word.load(Ordering::Relaxed) == FREE
                && self
                    .word
                    .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return;
            }
        }
        while self.word.swap(AWAITED, Ordering::Acquire) != FREE {
            on_word::sleep_in_process(&self.word, AWAITED, None);
        }
    }

    pub(crate) fn release(&self) {
        self.owner.store(0, Ordering::Relaxed);
        // Release: pairs with the Acquires of `take`; SeqCst: with `try_take`, whose caller has
        // left work behind that we look for next (Registry::catch_up).
        if self.word.swap(FREE, Ordering::SeqCst) == AWAITED {
            on_word::wake_one_in_process(&self.word);
        }
        thread::leave();
    }

    /// In a forked child, where no other thread exists.
    pub(crate) fn reset(&self) {
        self.owner.settle(0);
        self.word.settle(FREE);
    }
}

/// What a thread does that finds another one inside: it waits, or goes on without.
#[derive(Clone, Copy)]
enum Busy {
    Waits,
    GoesOn,
}

/// A value and its lock.
pub(crate) struct Guarded<T> {
    pub(crate) lock: Lock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through `with`, one thread at a time.
unsafe impl<T: Send> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { lock: Lock::new(), value: UnsafeCell::new(value) }
    }

    /// As [`Self::with`], but `None` also when another thread is inside.
    #[inline]
    pub(crate) fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.run(Busy::GoesOn, f)
    }

    /// Runs `f` under the lock; `None` when this thread is inside already. `f` must not sleep.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.run(Busy::Waits, f)
    }

    #[inline(always)]
    fn run<R>(&self, busy: Busy, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let taken = match busy {
            Busy::Waits => self.lock.take(),
            Busy::GoesOn => self.lock.try_take(),
        };
        if !taken {
            return None;
        }
        // SAFETY: the lock is this thread's alone, and is refused to this thread a second time. So
        // this is the only reference until `release`.
        let result = f(unsafe { &mut *self.value.get() });
        self.lock.release();
        Some(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excludes_and_refuses_itself() {
        static COUNT: Guarded<u64> = Guarded::new(0);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(|| {
                    for _ in 0..10_000 {
                        COUNT.with(|n| *n += 1);
                    }
                })
            })
            .collect();
        for t in threads {
            t.join().unwrap();
        }
        assert_eq!(COUNT.with(|n| (*n, COUNT.with(|_| ()))), Some((40_000, None)));
    }
}
