//! The error that a connection has still to say.
//!
//! The kernel keeps one for each socket (`SO_ERROR`, socket(7)) and gives it away once. A call of
//! ours that has moved bytes when it takes that error reports the bytes, as TCP does. It leaves the
//! error here for the next call. A connection over RDMA leaves its own reasons here. Must not know
//! its callers. Entry points: [`note`], [`take`].
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use super::slot::{Slot, flag};
use crate::failure::Failure;

/// Whether an error says that the connection itself has ended, and not that one call could not be
/// served.
pub fn ends_connection(e: Failure) -> bool {
    matches!(
        e,
        Failure::Reset
            | Failure::TimedOut
            | Failure::Aborted
            | Failure::Refused
            | Failure::NetReset
            | Failure::NetDown
            | Failure::NetUnreachable
            | Failure::HostDown
            | Failure::Unreachable
            | Failure::Protocol
    )
}

/// A call found out how the connection ended, but had done a part, which it reports: the next one
/// says it.
pub fn note(s: &Slot, e: Failure) {
    if ends_connection(e) {
        // Release: pairs with `take`. The flag after it: it keeps later calls off the short way.
        s.pending_error.store(e.code(), Ordering::Release);
        if s.ends_with_tcp() {
            s.set(flag::PEER_GONE);
        }
    }
}

/// Before a connection that broke is marked as such: the next call says `e`. The error says that
/// the connection was reset (`ECONNRESET`, and behind the peer's end `EPIPE`). No caller may take
/// it for a peer that has closed. What is known better stays.
pub fn note_reset(s: &Slot, e: Failure) {
    // Release: pairs with `take`, behind the mark that the caller makes.
    let _ = s.pending_error.compare_exchange(0, e.code(), Ordering::Release, Ordering::Relaxed);
}

/// The error that is still to be said, which is said now; else `heard`, which is what the kernel or
/// a mark says.
#[must_use]
pub fn take(s: &Slot, heard: Failure) -> Failure {
    // Acquire: pairs with the release of the thread that noted it.
    match s.pending_error.swap(0, Ordering::AcqRel) {
        0 => heard,
        e => Failure::from_code(e),
    }
}

/// As [`take`], where nothing was heard.
///
/// # Errors
/// The error that was pending.
pub fn check(s: &Slot) -> Result<(), Failure> {
    if !exists(s) {
        return Ok(());
    }
    // Acquire: as in `take`.
    match s.pending_error.swap(0, Ordering::AcqRel) {
        0 => Ok(()),
        e => Err(Failure::from_code(e)),
    }
}

/// Whether there is one that the kernel has given away. What a bridge knows is said with the flag
/// that it sets behind it, when all that had come is in the channel.
#[inline]
#[must_use]
pub fn is_kernels(s: &Slot) -> bool {
    exists(s) && s.ends_with_tcp()
}

/// Whether there is one.
#[inline]
#[must_use]
pub fn exists(s: &Slot) -> bool {
    // Acquire: pairs with the release of the thread that noted it.
    s.pending_error.load(Ordering::Acquire) != 0
}
