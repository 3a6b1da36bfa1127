//! Arenas that no connection uses any more, until no thread of this process can be late.
//!
//! A thread that looks at a connection finds its arena without a lock. It may be held up between
//! finding the arena and looking, while another thread closes the last connection there. So the
//! memory goes at once, but its addresses stay for a while. A late thread reads zeroes there, as in
//! a channel that no connection has used, and no other process sees what it writes.
//!
//! Must not know which arenas are in use. Entry points: [`retire`], [`let_go`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::arenas_lock::ArenasGuard;
use crate::device::shm::arena::Arena;
use crate::sys;

/// How long a thread may be held up, in nanoseconds.
const LATEST: u64 = 1_000_000_000;

/// How many wait at a time; one more, and the oldest waits no longer.
const PLACES: usize = 64;

/// One that waits. Relaxed, all of it: only holders of the guard get here.
struct Place {
    /// Its address; 0 where the place is free.
    base: AtomicUsize,
    channels: AtomicU32,
    since: AtomicU64,
}

static WAITING: [Place; PLACES] = [const {
    Place { base: AtomicUsize::new(0), channels: AtomicU32::new(0), since: AtomicU64::new(0) }
}; PLACES];

/// How many there are, so that most calls need not look.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// The place whose turn it is.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Gives back the arena's memory now, and its addresses later.
///
/// # Safety
/// No connection uses the arena, or will. A thread that still looks there does so for a moment
/// only, and does not mind what it finds.
pub(super) unsafe fn retire(held: &ArenasGuard, arena: Arena) {
    let turn = NEXT.fetch_add(1, Ordering::Relaxed) as usize % PLACES;
    let Some(place) = WAITING.get(turn) else { return };
    free(held, place);
    if !arena.hollow() {
        // SAFETY: the caller's promise, as well as can be: there is no memory for a better one.
        unsafe { arena.unmap() };
        return;
    }
    let (base, channels, _) = arena.into_parts();
    place.channels.store(channels, Ordering::Relaxed);
    place.since.store(sys::now_ns(), Ordering::Relaxed);
    place.base.store(base, Ordering::Relaxed);
    COUNT.fetch_add(1, Ordering::Relaxed);
}

/// Gives back the addresses of those that have waited for long enough.
pub(super) fn let_go(held: &ArenasGuard) {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    let now = sys::now_ns();
    for place in &WAITING {
        if now.saturating_sub(place.since.load(Ordering::Relaxed)) > LATEST {
            free(held, place);
        }
    }
}

fn free(_held: &ArenasGuard, place: &Place) {
    let base = place.base.swap(0, Ordering::Relaxed);
    let channels = place.channels.load(Ordering::Relaxed);
    // SAFETY: the parts are those of an arena that retire() was given, which is hollow and this
    // place's alone.
    if let Some(arena) = unsafe { Arena::from_parts(base, channels, [0; 2]) } {
        COUNT.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: no thread can be that late (LATEST), or so many arenas have come after it.
        unsafe { arena.unmap() };
    }
}

#[cfg(test)]
mod tests {
    use super::super::{arenas_lock, handover_state};
    use super::*;

    /// Whether anything is mapped at that address.
    fn in_use(address: usize) -> bool {
        std::fs::read_to_string("/proc/self/maps").unwrap().lines().any(|line| {
            let (first, rest) = line.split_once('-').unwrap();
            let (last, _) = rest.split_once(' ').unwrap();
            (usize::from_str_radix(first, 16).unwrap()..usize::from_str_radix(last, 16).unwrap())
                .contains(&address)
        })
    }

    #[test]
    fn who_is_late_finds_nothing_and_the_addresses_go_in_the_end() {
        let held = arenas_lock::lock();
        let (arena, _) = Arena::create(16).unwrap();
        let direction = arena.channel(3).unwrap().direction(0);
        handover_state::acknowledge(&direction);
        assert!(handover_state::acknowledged(&direction));
        let base = arena.into_parts();
        // SAFETY: the parts were just taken, and no connection uses the arena.
        unsafe { retire(&held, Arena::from_parts(base.0, base.1, base.2).unwrap()) };
        let_go(&held);
        assert!(!handover_state::acknowledged(&direction), "as if nobody had used it");
        handover_state::acknowledge(&direction);
        let place = WAITING.iter().find(|p| p.base.load(Ordering::Relaxed) == base.0).unwrap();
        place.since.store(0, Ordering::Relaxed);
        assert!(in_use(base.0));
        let_go(&held);
        assert!(!in_use(base.0));
    }

    #[test]
    fn the_oldest_of_many_waits_no_longer() {
        let held = arenas_lock::lock();
        let bases: Vec<usize> = (0..=PLACES)
            .map(|_| {
                let (arena, _) = Arena::create(1).unwrap();
                let parts = arena.into_parts();
                // SAFETY: as above.
                unsafe { retire(&held, Arena::from_parts(parts.0, parts.1, parts.2).unwrap()) };
                parts.0
            })
            .collect();
        let waits = |base: usize| WAITING.iter().any(|p| p.base.load(Ordering::Relaxed) == base);
        assert!(!waits(bases[0]) && bases[1..].iter().all(|b| waits(*b)));
        assert_eq!(COUNT.load(Ordering::Relaxed) as usize, PLACES);
    }
}
