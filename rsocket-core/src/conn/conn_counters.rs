//! Bytes and messages that a connection has moved, where no record shows it.
//!
//! Must not know what is counted ([`crate::live_segment::conn_counters`]). Entry point:
//! [`ConnCounters`].
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU64, Ordering};

/// Bytes and messages of one direction over one transport.
#[repr(C)]
#[derive(Default)]
pub struct ConnCounters {
    bytes: AtomicU64,
    messages: AtomicU64,
}

impl ConnCounters {
    /// One message more.
    #[inline]
    pub(crate) fn add(&self, n: usize) {
        self.bytes
            .store(self.bytes.load(Ordering::Relaxed).wrapping_add(n as u64), Ordering::Relaxed);
        self.messages
            .store(self.messages.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// What it is now.
    pub fn now(&self) -> (u64, u64) {
        (self.bytes.load(Ordering::Relaxed), self.messages.load(Ordering::Relaxed))
    }

    /// What it is now, and nothing from now on.
    pub(crate) fn take(&self) -> (u64, u64) {
        (self.bytes.swap(0, Ordering::Relaxed), self.messages.swap(0, Ordering::Relaxed))
    }
}
