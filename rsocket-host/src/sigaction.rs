//! What libc's calls for signals take: sets of signals, and handlers.
//!
//! Must not know whose handlers those are. Entry points: [`Set::EMPTY`], [`Handler::new`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::ffi::c_int;

use libc::sigset_t;

/// What is called for a signal, or `SIG_DFL` and its kin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handler(usize);

impl Handler {
    /// # Safety
    /// `handler` is `SIG_DFL`, `SIG_IGN`, another of libc's numbers for `signal` and `sigset`, or a
    /// function that may be called for a signal.
    #[must_use]
    pub const unsafe fn new(handler: usize) -> Self {
        Self(handler)
    }

    /// As libc has it.
    #[must_use]
    pub const fn get(self) -> usize {
        self.0
    }
}

/// A set of signals.
#[derive(Clone, Copy)]
pub struct Set(sigset_t);

impl core::fmt::Debug for Set {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:#x}", self.kernels())
    }
}

impl Set {
    /// No signal.
    // SAFETY: integers, of which zeroes are a value.
    pub const EMPTY: Self = Self(unsafe { core::mem::zeroed() });

    /// Those of a set of libc's.
    #[must_use]
    pub const fn of(set: sigset_t) -> Self {
        Self(set)
    }

    /// As libc has it.
    #[must_use]
    pub const fn get(self) -> sigset_t {
        self.0
    }

    /// Those of a set as the kernel has it: bit 0 is signal 1.
    #[must_use]
    pub const fn of_kernels(word: u64) -> Self {
        let mut set = Self::EMPTY;
        // SAFETY: a set begins with the kernel's word, and is longer than that.
        unsafe { (&raw mut set.0).cast::<u64>().write(word) };
        set
    }

    /// As much of it as the kernel knows.
    #[must_use]
    pub const fn kernels(&self) -> u64 {
        // SAFETY: as in of_kernels(); integers.
        unsafe { (&raw const self.0).cast::<u64>().read() }
    }

    /// With one more. `None`, with `errno`, if there is no such signal.
    #[must_use]
    pub fn with(mut self, number: c_int) -> Option<Self> {
        // SAFETY: a set of our own.
        (unsafe { libc::sigaddset(&raw mut self.0, number) } == 0).then_some(self)
    }

    /// Whether the signal is in it.
    #[must_use]
    pub fn has(&self, number: c_int) -> bool {
        // SAFETY: a set of our own, which is only asked.
        unsafe { libc::sigismember(&raw const self.0, number) == 1 }
    }

    /// Blocks them for the calling thread; which were blocked.
    #[must_use]
    pub fn block(&self) -> Self {
        self.change(libc::SIG_BLOCK)
    }

    /// Lets them in on the calling thread, where handlers may run now; which were blocked.
    #[must_use]
    pub fn unblock(&self) -> Self {
        self.change(libc::SIG_UNBLOCK)
    }

    fn change(&self, how: c_int) -> Self {
        let mut was = Self::EMPTY;
        // SAFETY: two sets of our own.
        unsafe { libc::sigprocmask(how, &raw const self.0, &raw mut was.0) };
        was
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// What the thread has blocked.
    fn blocked() -> Set {
        let mut now = Set::EMPTY;
        // SAFETY: null, and a set of our own.
        unsafe { libc::sigprocmask(libc::SIG_BLOCK, core::ptr::null(), &raw mut now.0) };
        now
    }

    #[test]
    fn a_set_is_the_kernels_word() {
        let set = Set::EMPTY.with(1).unwrap().with(64).unwrap();
        assert_eq!(set.kernels(), 1 << 63 | 1);
        assert!(set.has(64) && !set.has(2) && !set.has(65));
        assert!(set.with(0).is_none() && set.with(65).is_none());
        assert_eq!(Set::of(Set::of_kernels(6).get()).kernels(), 6);
    }

    #[test]
    fn what_is_blocked_is_told() {
        let set = Set::EMPTY.with(libc::SIGUSR2).unwrap();
        assert!(!set.block().has(libc::SIGUSR2) && blocked().has(libc::SIGUSR2));
        assert!(set.unblock().has(libc::SIGUSR2) && !blocked().has(libc::SIGUSR2));
    }
}
