//! The watchers: parts of the library that want to see the bytes of the program's calls.
//!
//! Must not know what they do with them. Entry points: [`watch`]; [`watching`] and [`tapped`].
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU8, Ordering};

/// One byte, so that a call looks once.
static WATCHERS: AtomicU8 = AtomicU8::new(0);

/// A peer on another host may have to know us by the first bytes.
pub(crate) const FINGERPRINT: u8 = 1;

/// The packet tap.
pub(crate) const TAP: u8 = 2;

/// The watcher `who` wants to see the bytes.
pub(crate) fn watch(who: u8) {
    WATCHERS.fetch_or(who, Ordering::Relaxed);
}

/// Whether bytes that libc's calls moved over TCP are to be shown to
/// [`crate::socket::fingerprint_bytes`].
#[inline]
#[must_use]
pub fn watching() -> bool {
    WATCHERS.load(Ordering::Relaxed) != 0
}

/// Whether every byte is wanted, however it travels.
#[inline]
#[must_use]
pub fn tapped() -> bool {
    WATCHERS.load(Ordering::Relaxed) & TAP != 0
}
