//! Addresses whose end was looked for in the directory, and did not come: most likely those of
//! other hosts, or of programs without the library. They are looked for seldom, so that a
//! connection to them costs what it did.
//!
//! A small table, by a digest of the address; where two have one place, the later one has it. Must
//! not know connections. Entry points: [`key`], [`may_come`], [`came`], [`did_not_come`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::fnv;

/// Addresses that are remembered.
const PLACES: usize = 128;
/// So many looks for an address in vain may come at once. After them the address is left alone for
/// so many nanoseconds, and for twice as long each time after that.
const FREE: u32 = 2;
const FIRST_NS: u64 = 1_000_000_000;
const DOUBLINGS: u32 = 9;

struct Place {
    key: AtomicU64,
    /// In vain, one after the other.
    times: AtomicU32,
    until: AtomicU64,
}

/// Relaxed throughout: words that stand for themselves. Two threads that mix theirs up make one
/// look too many, or too few.
static TABLE: [Place; PLACES] = [const {
    Place { key: AtomicU64::new(0), times: AtomicU32::new(0), until: AtomicU64::new(0) }
}; PLACES];

/// Of the other end's address, as this end sees it.
#[must_use]
pub fn key(family: u8, address: &[u8; 16]) -> u64 {
    fnv::hash(fnv::hash(fnv::EMPTY, [family]), *address) | 1
}

fn place(key: u64) -> Option<&'static Place> {
    TABLE.get((key >> 32) as usize % PLACES)
}

fn known(key: u64) -> Option<&'static Place> {
    place(key).filter(|p| p.key.load(Ordering::Relaxed) == key)
}

/// Whether it is worth looking, at this time (of CLOCK_MONOTONIC, in nanoseconds).
#[must_use]
pub fn may_come(key: u64, now: u64) -> bool {
    known(key).is_none_or(|p| {
        p.times.load(Ordering::Relaxed) < FREE || now >= p.until.load(Ordering::Relaxed)
    })
}

/// A visitor came for this address.
pub fn came(key: u64) {
    if let Some(p) = known(key) {
        p.times.store(0, Ordering::Relaxed);
    }
}

/// No visitor came.
pub fn did_not_come(key: u64, now: u64) {
    let Some(p) = place(key) else { return };
    if p.key.swap(key, Ordering::Relaxed) != key {
        p.times.store(0, Ordering::Relaxed);
    }
    // Connections that were looking at the same time are one look.
    if p.times.load(Ordering::Relaxed) > FREE && now < p.until.load(Ordering::Relaxed) {
        return;
    }
    let before = p.times.fetch_add(1, Ordering::Relaxed);
    let doublings = before.saturating_sub(FREE - 1).min(DOUBLINGS);
    p.until.store(now.saturating_add(FIRST_NS << doublings), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_absent_are_left_alone_longer_and_longer() {
        let key = key(4, &[9; 16]);
        let mut now = 5;
        assert!(may_come(key, now));
        for _ in 0..FREE {
            assert!(may_come(key, now));
            did_not_come(key, now);
        }
        let mut last = 0;
        for _ in 0..20 {
            assert!(!may_come(key, now));
            let first = (0..60).map(|n| 1_u64 << n).find(|n| may_come(key, now + n)).unwrap();
            assert!(first >= last);
            last = first;
            did_not_come(key, now);
            now += 2 * first;
            did_not_come(key, now);
        }
        assert!(last <= FIRST_NS << (DOUBLINGS + 1));
        came(key);
        assert!(may_come(key, now));
    }

    #[test]
    fn each_address_has_its_own() {
        assert_ne!(key(4, &[1; 16]), key(6, &[1; 16]));
        assert_ne!(key(4, &[1; 16]), key(4, &[2; 16]));
    }
}
