//! What the threads of a process share and change under a lock.
//!
//! Private memory: what processes share, and repair after each other, is [`super::guarded`]'s. Must
//! not know what it means. Entry point: [`Mutex`].

use core::cell::UnsafeCell;

use super::lock::{Holding, OwnedLock};

/// A value that is reached under its lock alone.
#[derive(Debug, Default)]
pub struct Mutex<T> {
    lock: OwnedLock,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is only reached through a `MutexGuard`, of which there is one at a time, and so
// by one thread after another.
unsafe impl<T: Send> Sync for Mutex<T> {}

/// The value of a [`Mutex`] whose lock this thread has. Dropped, it gives it back.
#[must_use]
pub struct MutexGuard<'a, T> {
    _held: Holding<'a>,
    value: &'a UnsafeCell<T>,
}

impl<T> Mutex<T> {
    /// With a free lock.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self { lock: OwnedLock::new(), value: UnsafeCell::new(value) }
    }

    /// Waits for its turn. `None` in a signal handler that interrupted the section of its own
    /// thread.
    #[inline]
    pub fn hold(&self) -> Option<MutexGuard<'_, T>> {
        self.lock.hold().map(|held| self.guard(held))
    }

    /// As [`Self::hold`]; `None` also while another thread has it.
    #[inline]
    pub fn try_hold(&self) -> Option<MutexGuard<'_, T>> {
        self.lock.try_hold().map(|held| self.guard(held))
    }

    /// Works on the value, as [`Self::hold`] finds it.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.hold().map(|mut guard| f(guard.get()))
    }

    #[inline(always)]
    const fn guard<'a>(&'a self, held: Holding<'a>) -> MutexGuard<'a, T> {
        MutexGuard { _held: held, value: &self.value }
    }

    /// Makes the lock free: for the child of a fork, where the threads that had it are not.
    pub fn forked(&self) {
        self.lock.reset();
    }
}

impl<T> MutexGuard<'_, T> {
    /// The value.
    #[inline(always)]
    pub fn get(&mut self) -> &mut T {
        // SAFETY: the lock is held as long as this guard lives. The value is reached only through
        // the one guard that there is then, and the reference borrows that guard.
        unsafe { &mut *self.value.get() }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time() {
        let counted = Mutex::new(0_u32);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..5000).for_each(|_| counted.with(|n| *n += 1).unwrap()));
            }
        });
        assert_eq!(counted.with(|n| *n), Some(20_000));
    }

    #[test]
    fn a_thread_does_not_wait_for_itself() {
        let value = Mutex::new(1);
        let mut held = value.hold().unwrap();
        *held.get() += 1;
        assert!(value.hold().is_none() && value.try_hold().is_none());
        assert!(value.with(|_| ()).is_none());
        drop(held);
        assert_eq!(value.try_hold().map(|mut held| *held.get()), Some(2));
    }
}
