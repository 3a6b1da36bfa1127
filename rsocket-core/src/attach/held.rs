//! The descriptors that the pairings of this program hold open, one bit each.
//!
//! The slots say so too. But when a child has come so far that it can look, its parent may have
//! changed them. After `exec` the slots speak of descriptors of the last program, which another
//! thread may have opened when the `exec` had begun. The process is the same, but other descriptors
//! have the numbers now. Must not know phases. Entry points: [`hold`], [`let_go`], [`any`], and
//! [`let_all_go`] after a fork.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::os::fd::RawFd;

use crate::sys::{self, MAX_FDS};

static HELD: [AtomicU64; MAX_FDS / 64] = [const { AtomicU64::new(0) }; MAX_FDS / 64];
/// How many there are.
static COUNT: AtomicU32 = AtomicU32::new(0);

// Relaxed throughout: a bit is changed under the lock of the pairing whose descriptor it is, or by
// the only thread of a child.
fn bit(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((HELD.get(fd / 64)?, 1 << (fd % 64)))
}

/// A pairing of this program has opened it.
pub(crate) fn hold(fd: RawFd) {
    if let Some((word, bit)) = bit(fd)
        && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
    {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether there may be any.
#[must_use]
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// Whether one holds it.
#[must_use]
pub(crate) fn is_held(fd: RawFd) -> bool {
    bit(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// Closes one that is held; false, and nothing done, if it is not.
pub(crate) fn let_go(fd: RawFd) -> bool {
    let ours =
        bit(fd).is_some_and(|(word, bit)| word.fetch_and(!bit, Ordering::Relaxed) & bit != 0);
    if ours {
        COUNT.fetch_sub(1, Ordering::Relaxed);
        sys::close_private(fd);
    }
    ours
}

/// Closes all of them.
pub(crate) fn let_all_go() {
    if !any() {
        return;
    }
    for (i, word) in HELD.iter().enumerate() {
        let mut bits = word.load(Ordering::Relaxed);
        while bits != 0 {
            let _ = let_go((i * 64) as RawFd + bits.trailing_zeros() as RawFd);
            bits &= bits - 1;
        }
    }
}
