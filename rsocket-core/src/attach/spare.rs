//! Arenas' descriptors that can be spared: where they stand below the program's limit, and it has
//! none left, they are closed.
//!
//! An arena stays mapped without its descriptor. What is lost is that peers and relatives who do
//! not have it yet are shown it: no further connection gets a window in it, and before `exec` its
//! connections go back to TCP (`link::outlasts_exec`). So one that relatives might look for is put
//! into the vault first. Must not know when descriptors are needed. Entry points: [`give_way`],
//! [`Loan`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{AtomicU32, Ordering};

use super::arenas::{LOCK, close_descriptor, each_own, keep_for_relatives};
use super::vault;
use crate::conn::arena_record::ArenaRecord;
use crate::sys;
use crate::sys::settle::Settle;

/// How many descriptors are about to be sent. Relaxed: counted up under the arenas' lock, which
/// orders it with [`give_way`]; who sees one too many waits for another time.
static LENT: AtomicU32 = AtomicU32::new(0);

/// An arena's descriptor is in use without the lock.
pub struct Loan(());

impl Loan {
    /// To be made under the lock.
    pub(super) fn new() -> Self {
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

/// Closes what can be spared; how many there were.
pub fn give_way() -> usize {
    let Some(_held) = LOCK.hold() else { return 0 };
    let mut closed = 0;
    // Acquire: pairs with the release in Loan's end, after which nobody uses the number.
    if LENT.load(Ordering::Acquire) == 0 {
        each_own(|_, r| closed += usize::from(spared(r)));
    }
    closed
}

fn spared(r: &ArenaRecord) -> bool {
    let fd = r.fd.load(Ordering::Relaxed);
    if fd < 0 || !sys::is_below_limit(fd) {
        return false;
    }
    let has_relatives = vault::ends() != [-1, -1];
    if has_relatives && r.live.load(Ordering::Relaxed) != 0 {
        keep_for_relatives(r);
        if r.in_vault.load(Ordering::Relaxed) == 0 {
            return false;
        }
    }
    close_descriptor(r);
    true
}
