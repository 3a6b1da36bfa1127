//! Arenas' descriptors that are in use without the arenas' lock, since they are about to be sent.
//!
//! Must not know whose they are. Entry points: [`Loan`], [`any`].
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU32, Ordering};

use super::arenas_lock::ArenasGuard;
use crate::sys::settle::Settle;

/// How many descriptors are about to be sent. Relaxed: the lock orders it with [`any`]; a caller
/// that sees one too many waits for another time.
static LENT: AtomicU32 = AtomicU32::new(0);

/// An arena's descriptor is in use without the lock.
pub(super) struct Loan(());

impl Loan {
    /// The descriptor was found under the lock, and stays open without it.
    pub(super) fn new(_held: &ArenasGuard) -> Self {
        LENT.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        LENT.fetch_sub(1, Ordering::Release);
    }
}

/// In the child of a fork, whose one thread has lent nothing.
pub(super) fn forked() {
    LENT.settle(0);
}

/// Whether any is in use. With the guard none is lent meanwhile.
pub(super) fn any(_held: &ArenasGuard) -> bool {
    // Acquire: pairs with the release in Loan's end, after which no thread uses the number.
    LENT.load(Ordering::Acquire) != 0
}
