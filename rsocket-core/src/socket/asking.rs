//! How soon the kernel is asked again whether a connection has ended, while nothing arrives by its
//! device.
//!
//! Must not know what it answers. Entry points: [`kernel_due`], for who asks; [`ask_kernel_next`],
//! for who has heard that there is something to ask for.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;

use crate::conn::slot::Slot;
use crate::sys;

/// How often, at most, the kernel is asked whether a connection has ended while nothing arrives, in
/// ticks of [`sys::ticks`]: some tens of microseconds.
const ASK_EVERY: u64 = 60_000;

/// Whether it is time to ask the kernel if the connection has ended.
#[inline]
pub(crate) fn is_kernel_due(s: &Slot) -> bool {
    // Relaxed: a hint; asking once too often costs a system call, and whoever must ask stores 0.
    sys::ticks().wrapping_sub(s.asked_at.load(Ordering::Relaxed)) >= ASK_EVERY
}

/// The same; whoever is told so asks.
#[inline]
pub(crate) fn kernel_due(s: &Slot) -> bool {
    let due = is_kernel_due(s);
    if due {
        s.asked_at.store(sys::ticks(), Ordering::Relaxed);
    }
    due
}

/// The last sleep heard something from the kernel that nobody has asked it about yet.
#[inline]
pub(crate) fn kernel_was_heard(s: &Slot) -> bool {
    s.asked_at.load(Ordering::Relaxed) == 0
}

/// The next attempt to receive asks the kernel first.
pub(crate) fn ask_kernel_next(s: &Slot) {
    s.asked_at.store(0, Ordering::Relaxed);
}
