//! The lock of this process's arenas: of records, of mappings, and of what waits to be unmapped.
//!
//! What changes one of these takes an [`ArenasGuard`]. Readers take none: what they find is checked
//! by the record's generation ([`super::mapping`]). Must not know what the lock protects. Entry
//! points: [`lock`]; [`alone`] where an interrupted change must not be met half done.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use crate::sync::lock::{Holding, OwnedLock};

/// Never held across a sleep.
static LOCK: OwnedLock = OwnedLock::new();

/// No other thread changes the arenas while this lives.
///
/// Nothing is repaired after a holder that died: a record that it was at stays BUSY.
#[must_use]
pub(crate) struct ArenasGuard {
    /// `None` in a signal handler above a section of its own thread, which has the lock.
    _held: Option<Holding<'static>>,
}

/// Takes the lock. A signal handler that interrupted a section of its own thread goes through
/// without it. It gets here by attaching alone, and finds the record of the section marked BUSY.
pub(crate) fn lock() -> ArenasGuard {
    ArenasGuard { _held: LOCK.hold() }
}

/// As [`lock`]; `None` in a handler that interrupted a section of its own thread.
pub(crate) fn alone() -> Option<ArenasGuard> {
    Some(ArenasGuard { _held: Some(LOCK.hold()?) })
}

/// In the child of a fork, whose one thread holds nothing.
pub(super) fn forked() {
    LOCK.reset();
}
