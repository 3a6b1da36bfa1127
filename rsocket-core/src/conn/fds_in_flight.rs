//! The descriptors of a fork group that are on their way in messages (`SCM_RIGHTS`), as a table.
//!
//! Must not know who sends and receives them ([`crate::handover::fds_in_flight`]). Entry point:
//! [`Table`].
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::id::SlotId;
use crate::sync::lock::OwnedLock;

/// Connections that may be on their way at one time.
pub(crate) const PLACES: usize = 64;

/// A connection of which copies are on their way. Changed under the table's lock; read without it
/// only by [`Table::holds`]. All zero is free.
#[repr(C)]
pub struct FdInFlight {
    /// The kernel's name for the socket.
    pub(crate) cookie: AtomicU64,
    /// Which connection.
    pub(crate) slot: AtomicU32,
    /// How many copies are on their way.
    pub(crate) copies: AtomicU32,
}

/// All of them, in the fork group's memory.
#[repr(C)]
pub struct Table {
    lock: OwnedLock,
    /// The place that is used next.
    pub(crate) next: AtomicU32,
    /// Nonzero once anything was ever sent: before, nothing that comes is a sibling's.
    pub(crate) used: AtomicU32,
    /// The places.
    pub(crate) fds_in_flight: [FdInFlight; PLACES],
}

impl Table {
    /// Whether copies of the slot's descriptor are on their way, as far as is remembered. Acquire:
    /// pairs with the release of the thread that puts the slot there.
    pub fn holds(&self, slot: SlotId) -> bool {
        self.fds_in_flight.iter().any(|p| {
            p.copies.load(Ordering::Acquire) != 0 && p.slot.load(Ordering::Relaxed) == slot.raw()
        })
    }

    /// The place of the slot, if it has one.
    pub(crate) fn of(&self, slot: SlotId) -> Option<&FdInFlight> {
        let here = |p: &&FdInFlight| {
            p.copies.load(Ordering::Relaxed) != 0 && p.slot.load(Ordering::Relaxed) == slot.raw()
        };
        self.fds_in_flight.iter().find(here)
    }

    /// False in a signal handler that interrupted a holder of the lock.
    pub(crate) fn locked<R>(&self, f: impl FnOnce(&Self) -> R) -> Option<R> {
        let _held = self.lock.hold()?;
        Some(f(self))
    }
}
