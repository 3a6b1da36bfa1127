//! A connection whose pairing lock this thread holds.
//!
//! A function that takes a step of the pairing takes the guard in place of the slot. Must not know
//! which steps there are. Entry points: [`PairingGuard::take`], [`PairingGuard::try_take`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::ops::Deref;
use std::os::fd::RawFd;

use super::pairing_state::Held;
use super::slot::Slot;

/// See the module. Dropped, it gives the lock back.
#[must_use]
pub struct PairingGuard<'a> {
    s: &'a Slot,
    held: Held<'a>,
}

impl<'a> PairingGuard<'a> {
    /// Takes the lock; blocks only for another thread's step in progress. `None` in a signal
    /// handler that interrupted a step of its own thread.
    #[inline]
    pub fn take(s: &'a Slot) -> Option<Self> {
        Some(Self { s, held: s.pairing.hold()? })
    }

    /// As [`Self::take`], without waiting: `None` also when another thread holds it.
    #[inline]
    pub fn try_take(s: &'a Slot) -> Option<Self> {
        Some(Self { s, held: s.pairing.try_hold()? })
    }

    /// The phase holds `fd` open, for process `pid`.
    pub(crate) fn keep(&self, fd: RawFd, pid: u32) {
        self.held.keep(fd, pid);
    }

    /// Takes away what the phase holds open, to be closed; -1 for nothing.
    pub(crate) fn take_fd(&self) -> RawFd {
        self.held.take_fd()
    }
}

impl Deref for PairingGuard<'_> {
    type Target = Slot;

    #[inline]
    fn deref(&self) -> &Slot {
        self.s
    }
}
