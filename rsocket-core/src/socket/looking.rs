//! Whether a program waits by looking: it calls again and again, and sleeps nowhere.
//!
//! Of a program that waits by system calls of its own, the library sees only that its calls find
//! nothing now and then. They do so about once before each wait, and whenever something else has
//! woken it. A program that waits by looking calls much more often. The question is asked on TCP
//! only, and only while no wait was seen ([`flag::WAITED`]). Must not know who is asked. Entry
//! points: [`in_vain`], [`found`].

use std::sync::atomic::Ordering;

use crate::conn::slot::{Slot, flag};
use crate::failure::Failure;
use crate::sys;

/// So many calls that found nothing are a wait.
const LOOKS: u32 = 256;

/// So many of them does one call that found bytes outweigh.
const LOOKS_PER_FIND: u32 = 2;

/// Within this time, in nanoseconds: a program that a timer wakes between two calls takes longer.
const QUICK_NS: u64 = 50_000_000;

/// A receiving call that does not wait may have found nothing, on TCP.
#[cold]
pub(super) fn in_vain(s: &Slot) {
    if Failure::last() != Failure::Blocked || s.has(flag::WAITED) {
        return;
    }
    // Relaxed, here and below: a guess, and a race of two threads loses a few looks of theirs.
    let looks = s.looks.load(Ordering::Relaxed);
    let now = sys::now_ns();
    if looks == 0 {
        s.looks_began.store(now, Ordering::Relaxed);
    }
    if looks < LOOKS {
        s.looks.store(looks + 1, Ordering::Relaxed);
    } else if now.saturating_sub(s.looks_began.load(Ordering::Relaxed)) <= QUICK_NS {
        s.waits_seen();
    } else {
        s.looks.store(0, Ordering::Relaxed);
    }
}

/// A receiving call has found bytes, on TCP, and no wait was seen yet.
#[cold]
pub(super) fn found(s: &Slot) {
    let looks = s.looks.load(Ordering::Relaxed);
    s.looks.store(looks.saturating_sub(LOOKS_PER_FIND), Ordering::Relaxed);
}
