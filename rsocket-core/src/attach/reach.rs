//! Whether this process could attach to a peer on another host.
//!
//! Must not know how it would. Entry points: [`find_out`], then [`possible`].

use core::sync::atomic::{AtomicU8, Ordering};

use crate::config::policy;
use crate::conn::watchers;
use crate::sys::files;

pub(super) const UNKNOWN: u8 = 0;

pub(super) const NO: u8 = 1;

pub(super) const YES: u8 = 2;

static POSSIBLE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Whether this process could attach to a peer on another host at all. One relaxed load; false
/// before [`find_out`].
#[inline]
#[must_use]
pub fn possible() -> bool {
    POSSIBLE.load(Ordering::Relaxed) == YES
}

/// Looks, once, whether there is RDMA here that policy allows beside TCP: a system call, no library
/// is loaded.
pub fn find_out() {
    if POSSIBLE.load(Ordering::Relaxed) != UNKNOWN {
        return;
    }
    let manager = || files::may_write("/dev/infiniband/rdma_cm");
    let yes = policy::rdma_allowed() && !policy::strict() && manager();
    if yes {
        watchers::watch(watchers::FINGERPRINT);
    }
    // Relaxed: every thread would find the same.
    POSSIBLE.store(if yes { YES } else { NO }, Ordering::Relaxed);
}
