//! When this process last told the kernel something that another socket of its own may have by now:
//! bytes, an end, a connection.
//!
//! A wait on an epoll set whose members on a device have something to report asks the kernel for
//! the others now and then. It finds at once what the program has just done itself, as on TCP. Must
//! not know who waits. Entry points: [`heed`], [`given`], [`last`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::sys;

/// Whether any epoll set wants to know. Relaxed, here and below: a thread that waits has given the
/// news itself, or was told of them by the thread that did.
static HEEDED: AtomicBool = AtomicBool::new(false);
/// When it was, on the clock of [`sys::ticks`].
static LAST: AtomicU64 = AtomicU64::new(0);

/// An epoll set has a member on a device, from now on.
pub fn heed() {
    if !HEEDED.load(Ordering::Relaxed) {
        HEEDED.store(true, Ordering::Relaxed);
    }
}

/// The kernel has been told something.
#[inline]
pub fn given() {
    if HEEDED.load(Ordering::Relaxed) {
        LAST.store(sys::ticks(), Ordering::Relaxed);
    }
}

/// When it was last told, on the clock of [`sys::ticks`]; 0 for not at all.
#[inline]
#[must_use]
pub fn last() -> u64 {
    LAST.load(Ordering::Relaxed)
}
