//! A value of one process with the lock that it is touched under.
//!
//! For what stays in the process: what processes share is [`super::guarded`]'s. Must not know what
//! the value means. Entry point: [`Exclusive::with`].

use core::cell::UnsafeCell;

use super::lock::OwnedLock;

/// The value and its lock.
#[derive(Debug, Default)]
pub struct Exclusive<T> {
    lock: OwnedLock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only touched by who holds the lock, one thread at a time.
unsafe impl<T: Send> Sync for Exclusive<T> {}

impl<T> Exclusive<T> {
    /// With this value.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self { lock: OwnedLock::new(), value: UnsafeCell::new(value) }
    }

    /// Runs `f` under the lock. `None` when this very thread is inside: it is in a signal handler
    /// that interrupted the section, and must not wait for itself.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let _held = self.lock.hold()?;
        // SAFETY: hold() gave the lock to this thread alone, and refuses it a second time, so that
        // this is the only reference until `_held` is dropped.
        Some(f(unsafe { &mut *self.value.get() }))
    }

    /// As [`Self::with`] in the child of a fork, whoever held the lock; it is free afterwards.
    ///
    /// # Safety
    /// The process has one thread, which is not inside.
    pub unsafe fn settle<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        self.lock.reset();
        // SAFETY: the caller's promise: who held the lock is not in this process.
        f(unsafe { &mut *self.value.get() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_no_thread_twice() {
        static COUNT: Exclusive<u32> = Exclusive::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| COUNT.with(|n| *n += 1).unwrap()));
            }
        });
        assert_eq!(COUNT.with(|n| (*n, COUNT.with(|_| ()))), Some((4000, None)));
        // SAFETY: no other thread knows it any more.
        unsafe { COUNT.settle(|n| *n = 7) };
        assert_eq!(COUNT.with(|n| *n), Some(7));
    }
}
