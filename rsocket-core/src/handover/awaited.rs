//! Bytes that the peer is to send again by TCP, before their reader becomes a program that knows
//! nothing of this library.
//!
//! A peer that sleeps in a call of the library answers at once. A peer that computes answers later,
//! which is no fault, so the wait is short. But a peer that has ended meanwhile will never answer,
//! and must be told from one that had nothing more to say.
//!
//! Entry point: [`comes`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::RawFd;

use crate::failure::Failure;
use crate::host::counters;
use crate::sys;

/// How long the peer is waited for, in nanoseconds.
const PATIENCE_NS: u64 = 100_000_000;
/// Between two looks.
const LOOK_EVERY: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 500_000 };
/// Of many residual bytes, no more than this fits into a receive buffer that no reader empties.
const ENOUGH: u64 = 16 * 1024;

/// Waits, a tenth of a second at most, until TCP has brought `all` bytes of the stream. Of those
/// that are left, as many as can wait unread are enough. False when the stream has ended without
/// them.
#[must_use]
pub fn comes(fd: RawFd, all: u64) -> bool {
    let end = sys::now_ns().saturating_add(PATIENCE_NS);
    loop {
        match counters::taken(fd) {
            Ok(t) if t.bytes.saturating_add(t.waiting) >= all => return true,
            Ok(t) if t.fin => return false,
            Ok(t) if t.waiting >= ENOUGH => return true,
            // A reset speaks for itself.
            Err(e) if e != Failure::Blocked => return true,
            Ok(_) | Err(_) => {}
        }
        if sys::now_ns() >= end {
            return true;
        }
        let _ = sys::wait(&mut [], Some(&LOOK_EVERY), core::ptr::null());
    }
}
