//! What a connection's owners share of its pairing: its lock, and what it holds open unfinished.
//!
//! Only with [`Held`] the descriptor changes; without it, it can be read, and may be closed a
//! moment later. Must not know the connection ([`super::pairing_lock`]). Entry point: [`Pairing`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::os::fd::RawFd;

use crate::sync::lock::{Holding, OwnedLock};

/// See the module.
#[repr(C)]
#[derive(Default)]
pub struct Pairing {
    /// Serialises pairing steps; steps are skipped, not waited for, when it is taken.
    lock: OwnedLock,
    /// Offered: the listening name. Greeted, HelloSent: the channel. Private fd of process `pid`.
    fd: AtomicI32,
    /// A thread found `lock` taken: its holder looks once more for what can be done.
    missed: AtomicU32,
    /// The process that `fd` belongs to.
    pid: AtomicU32,
}

// Relaxed where nothing else is said: the lock orders the words. A thread that reads them without
// the lock takes what it finds for a guess.
impl Pairing {
    /// As for a connection that has just begun. No other thread has the slot yet.
    pub(super) fn reset(&self) {
        self.fd.store(-1, Ordering::Relaxed);
        self.missed.store(0, Ordering::Relaxed);
        self.pid.store(0, Ordering::Relaxed);
        self.lock.reset();
    }

    /// What the phase holds open; -1 for nothing.
    pub fn fd(&self) -> RawFd {
        self.fd.load(Ordering::Relaxed)
    }

    /// The process that it belongs to.
    pub fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// After `exec`, of a descriptor of the last program: it was closed. Needs no lock, since
    /// siblings touch it only where the process has ended.
    pub(crate) fn was_closed(&self) {
        self.fd.store(-1, Ordering::Relaxed);
    }

    /// Leaves a note for the holder of the lock, which was found taken.
    pub(crate) fn miss(&self) {
        // SeqCst: pairs with was_missed(); the holder lets go and then looks for a note.
        self.missed.store(1, Ordering::SeqCst);
    }

    /// Whether there is such a note; takes it away.
    pub(crate) fn was_missed(&self) -> bool {
        // SeqCst: pairs with miss().
        self.missed.swap(0, Ordering::SeqCst) != 0
    }

    #[inline]
    pub(super) fn hold(&self) -> Option<Held<'_>> {
        Some(Held { pairing: self, _lock: self.lock.hold()? })
    }

    #[inline]
    pub(super) fn try_hold(&self) -> Option<Held<'_>> {
        Some(Held { pairing: self, _lock: self.lock.try_hold()? })
    }
}

/// The lock, held by this thread. Dropped, it gives it back.
///
/// Nothing is repaired after a holder that died: each step publishes its phase by one store. What
/// the step did before that is as good as any state.
#[must_use]
pub(super) struct Held<'a> {
    pairing: &'a Pairing,
    _lock: Holding<'a>,
}

impl Held<'_> {
    /// The phase holds `fd` open, for process `pid`.
    pub(super) fn keep(&self, fd: RawFd, pid: u32) {
        self.pairing.fd.store(fd, Ordering::Relaxed);
        self.pairing.pid.store(pid, Ordering::Relaxed);
    }

    /// Takes away what the phase holds open; -1 for nothing.
    pub(super) fn take_fd(&self) -> RawFd {
        // AcqRel: pairs with itself in another holder after this one's death.
        self.pairing.fd.swap(-1, Ordering::AcqRel)
    }
}
