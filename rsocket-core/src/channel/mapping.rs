//! Where this process has the arenas of its fork group mapped: each process's own business.
//!
//! Every call on a connection reads it without a lock. Another thread may be mapping another arena
//! meanwhile, in place of one that is no more. A holder of the [`ArenasGuard`] changes it. What was
//! mapped before is [`super::retired`]'s.
//!
//! Must not know what an arena's record says but its generation. Entry points: [`mapping`],
//! [`Mapping::arena`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::os::fd::RawFd;

use super::arenas_lock::ArenasGuard;
use super::retired;
use crate::conn::arena_record::MAX_ARENAS;
use crate::device::shm::arena::Arena;
use crate::device::shm::layout;
use crate::sys;

/// Where this process has one arena.
pub(super) struct Mapping {
    /// Address; 0 when not mapped.
    base: AtomicUsize,
    channels: AtomicU32,
    /// Which of the arenas that its record has been for, one after the other.
    generation: AtomicU32,
    /// 1 if this very process has made the arena, or opened it for its peer; a sibling has another
    /// of them. Its owner's number alone does not tell: numbers of processes are used again.
    own: AtomicU32,
    /// A socket of the peer's network namespace, plus one, if that namespace is another one than
    /// ours. It is a private descriptor of this process. Else 0, as all of an empty place is.
    there: AtomicI32,
}

static MAPPINGS: [Mapping; MAX_ARENAS] = [const { Mapping::none() }; MAX_ARENAS];

/// One more than the highest record this process has mapped.
static HIGH: AtomicUsize = AtomicUsize::new(0);

/// An `exec` has begun, which is to leave the arenas open. Other threads attach on until it ends
/// them. Relaxed throughout: the lock orders it.
static EXEC_BEGUN: AtomicBool = AtomicBool::new(false);

/// Says so, or that it has failed.
pub(super) fn exec_begins(_held: &ArenasGuard, begins: bool) {
    EXEC_BEGUN.store(begins, Ordering::Relaxed);
}

/// A private descriptor is an arena's from now on: the next program has it as it has the others.
pub(super) fn keep_with_arenas(_held: &ArenasGuard, fd: RawFd) {
    if EXEC_BEGUN.load(Ordering::Relaxed) {
        sys::keep_across_exec(fd, true);
    }
}

/// Where the arena of that record is.
#[inline]
pub(super) fn mapping(index: u32) -> Option<&'static Mapping> {
    MAPPINGS.get(index as usize)
}

/// The records that may be mapped here.
pub(super) fn indices() -> core::ops::Range<u32> {
    0..HIGH.load(Ordering::Acquire) as u32
}

/// The arena of the record is mapped here from now on.
pub(super) fn put(held: &ArenasGuard, index: u32, generation: u32, arena: Arena) {
    let Some(m) = mapping(index) else { return };
    let (base, channels, _) = arena.into_parts();
    let old = m.take(held);
    m.channels.store(channels, Ordering::Relaxed);
    // Release, after the old address was taken away: pairs with the acquire in arena().
    m.generation.store(generation, Ordering::Release);
    // Release: pairs with the acquire of the address in arena(); the number of channels is there.
    m.base.store(base, Ordering::Release);
    HIGH.fetch_max(index as usize + 1, Ordering::AcqRel);
    if let Some(old) = old {
        // SAFETY: the record was freed since, which happens only when no connection uses the arena.
        unsafe { retired::retire(held, old) };
    }
}

impl Mapping {
    const fn none() -> Self {
        Self {
            base: AtomicUsize::new(0),
            channels: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            own: AtomicU32::new(0),
            there: AtomicI32::new(0),
        }
    }

    /// A socket of the peer's network namespace, if that is another one.
    #[inline]
    pub(super) fn there(&self) -> Option<RawFd> {
        // Acquire: pairs with the release in bring().
        self.there.load(Ordering::Acquire).checked_sub(1).filter(|fd| *fd >= 0)
    }

    /// This one is, a private descriptor. The first that comes is kept, and said; others are
    /// closed.
    pub(super) fn bring(&self, held: &ArenasGuard, there: RawFd) -> RawFd {
        if let Some(kept) = self.there() {
            sys::close_private(there);
            return kept;
        }
        keep_with_arenas(held, there);
        // Release: pairs with the acquire in there().
        self.there.store(there.wrapping_add(1), Ordering::Release);
        there
    }

    /// The arena of that generation; `None` if it is not mapped here, or another one is. The caller
    /// has a connection in it, or holds the lock, or looks for a moment only (`retired`).
    #[inline]
    pub(super) fn arena(&self, generation: u32) -> Option<Arena> {
        // In this order: a thread that finds the new generation does not find the old address any
        // more. Acquire, both: pair with the releases in put().
        if self.generation.load(Ordering::Acquire) != generation {
            return None;
        }
        self.at(self.base.load(Ordering::Acquire))
    }

    /// The arena at an address that was just found here.
    #[inline]
    fn at(&self, base: usize) -> Option<Arena> {
        // SAFETY: address and channels belong together, by the order in put(). The arena stays
        // mapped while our caller uses it, or until the thread that takes it out has retired it.
        unsafe { Arena::from_parts(base, self.channels.load(Ordering::Relaxed), [0; 2]) }
    }

    /// Its address and length, if anything is mapped.
    pub(super) fn range(&self) -> Option<(usize, usize)> {
        // Acquire: as in arena().
        let base = self.base.load(Ordering::Acquire);
        let length = layout::arena_len(self.channels.load(Ordering::Relaxed))?;
        (base != 0).then_some((base, length))
    }

    /// What is mapped is not to be found any more, nor is the way to the peer, which is closed.
    pub(super) fn take(&self, _held: &ArenasGuard) -> Option<Arena> {
        let base = self.base.swap(0, Ordering::AcqRel);
        let there = self.there.swap(0, Ordering::AcqRel);
        if there > 0 {
            sys::close_private(there - 1);
        }
        self.at(base)
    }

    /// Whether this process has made the arena or opened it for its peer.
    pub(super) fn is_own(&self) -> bool {
        self.own.load(Ordering::Relaxed) == 1
    }

    /// Says so.
    pub(super) fn set_own(&self, own: bool) {
        self.own.store(u32::from(own), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::arenas_lock;
    use super::*;

    /// A thread that looks while another one maps arena after arena under one record: it never
    /// finds an old one under a new generation. (The arenas here are numbers, and no thread looks
    /// into them.)
    #[test]
    fn a_new_generation_never_has_an_old_address() {
        static RECORD: AtomicU32 = AtomicU32::new(1);
        static DONE: AtomicU32 = AtomicU32::new(0);
        let m: &'static Mapping = Box::leak(Box::new(Mapping::none()));
        let address = |generation: u32| generation as usize * 4096;
        let looker = std::thread::spawn(move || {
            let mut found = 0;
            while DONE.load(Ordering::Acquire) == 0 || found == 0 {
                let now = RECORD.load(Ordering::Acquire);
                if let Some(arena) = m.arena(now) {
                    assert!(arena.into_parts().0 >= address(now));
                    found += 1;
                }
            }
        });
        let held = arenas_lock::lock();
        for generation in 1..=300_000 {
            // As put(), after the record was given to another arena.
            RECORD.store(generation, Ordering::Release);
            let _ = m.take(&held).map(Arena::into_parts);
            m.channels.store(1, Ordering::Relaxed);
            m.generation.store(generation, Ordering::Release);
            m.base.store(address(generation), Ordering::Release);
        }
        DONE.store(1, Ordering::Release);
        looker.join().unwrap();
    }
}
