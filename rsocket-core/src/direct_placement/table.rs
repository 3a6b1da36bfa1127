//! What this process has mapped, by connection.
//!
//! A connection's place here is never given back to the allocator, so that any thread may look at
//! it at any time. What is in it changes under its lock, which is held while bytes are put into
//! place. Once a thread has taken the lock, nothing is written into a mapping that is not in the
//! list. The lock may be taken under the receive lock, never the other way round, and is held while
//! the bridge's is taken.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::ANY;
use crate::channel::link::Ends;
use crate::conn::fork_group::MAX_SLOTS;
use crate::conn::slot::{Slot, SlotId};
use crate::failure::Failure;
use crate::sync::mutex::Mutex;
use crate::sync::published::Published;
use crate::sys;
use crate::sys::settle::Settle;

/// What the peer calls a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Mapped memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Map {
    /// Its address.
    pub(crate) at: usize,
    pub(crate) len: u32,
    pub(crate) offset: u64,
    /// `None` for memory that the peer may not write.
    pub(crate) entry: Option<Entry>,
}

/// What a connection's owner has mapped. Made here alone and reached by [`Place::with`] alone: a
/// thread that has a reference is under the place's lock.
#[derive(Debug)]
pub(crate) struct Maps {
    pub(crate) list: Vec<Map>,
    /// The connection is this process's to look after.
    pub(crate) held: bool,
}

impl Maps {
    const fn none() -> Self {
        Self { list: Vec::new(), held: false }
    }

    /// The offset at which `len` bytes at `at` are to be mapped, if they can be.
    pub(crate) fn choose(&self, at: *mut u8, len: u32, wanted: i64) -> Result<u64, Failure> {
        let taken = |offset: u64, end: u64| {
            self.list.iter().any(|m| offset < m.offset + u64::from(m.len) && m.offset < end)
        };
        // Upstream's choice, which programs may know: the address.
        let first = if wanted == ANY {
            at.addr() as u64
        } else {
            u64::try_from(wanted).map_err(|_| Failure::Invalid)?
        };
        let end =
            |offset: u64| offset.checked_add(u64::from(len)).filter(|end| *end <= i64::MAX as u64);
        if !taken(first, end(first).ok_or(Failure::Invalid)?) {
            return Ok(first);
        }
        if wanted != ANY {
            return Err(Failure::Exists);
        }
        // Behind all others there is room for any.
        let behind = self.list.iter().map(|m| m.offset + u64::from(m.len)).max().unwrap_or(0);
        end(behind).map(|_| behind).ok_or(Failure::NoMemory)
    }

    /// The lowest index that no mapping has.
    pub(crate) fn free_index(&self) -> Option<u32> {
        (0..).find(|i| self.list.iter().all(|m| m.entry.is_none_or(|e| e.index != *i)))
    }

    /// That of the next entry for the peer.
    pub(crate) fn next_generation(&self, s: &Slot) -> u32 {
        // Relaxed: the lock orders it. Even, and never 0 before it wraps; by then no peer remembers
        // an earlier one.
        s.placement.generation.fetch_add(2, Ordering::Relaxed).wrapping_add(2)
    }

    /// The peer sees this mapping no more.
    pub(crate) fn hide(&self, which: usize, ends: &Ends, s: &Slot) {
        if let Some(entry) = self.list.get(which).and_then(|m| m.entry) {
            ends.incoming.show_map(entry.index, self.next_generation(s), 0, 0);
        }
    }
}

/// How long a thread at leisure looks away, in nanoseconds.
const LEISURE_NS: i64 = 20_000;

/// A connection's place.
pub(crate) struct Place {
    /// Threads of the program that wait for the lock.
    waiting: AtomicU32,
    maps: Mutex<Maps>,
}

static TABLE: [Published<Place>; MAX_SLOTS + 1] = [const { Published::new() }; MAX_SLOTS + 1];
/// One more than the highest place that was ever made.
static HIGH: AtomicUsize = AtomicUsize::new(0);

impl Place {
    /// The place of a connection, if there is one in this process.
    pub(crate) fn of(id: SlotId) -> Option<&'static Self> {
        TABLE.get(id.raw() as usize)?.get()
    }

    /// The place of a connection, held from now on.
    pub(crate) fn of_or_make(id: SlotId) -> &'static Self {
        let place = Self::of(id).unwrap_or_else(|| {
            let maps = Mutex::new(Maps::none());
            let new = Box::leak(Box::new(Self { waiting: AtomicU32::new(0), maps }));
            HIGH.fetch_max(id.raw() as usize + 1, Ordering::AcqRel);
            // One that comes too late is lost, which is a few words.
            TABLE.get(id.raw() as usize).map_or(new, |entry| entry.offer(new))
        });
        place.with(|maps| maps.held = true);
        place
    }

    /// As [`Self::with`], for a thread that would otherwise take the lock again and again, and keep
    /// the program's threads from it. Such a thread lets the program's threads go first.
    pub(crate) fn with_leisure<R>(&self, f: impl FnOnce(&mut Maps) -> R) -> Option<R> {
        // Relaxed: a thread that is overlooked goes first the next time.
        while self.waiting.load(Ordering::Relaxed) > 0 {
            let limit = libc::timespec { tv_sec: 0, tv_nsec: LEISURE_NS };
            let _ = sys::wait(&mut [], Some(&limit), core::ptr::null());
        }
        self.locked(f)
    }

    /// Works on what is mapped; `None` in a signal handler that interrupted that.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Maps) -> R) -> Option<R> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let r = self.locked(f);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        r
    }

    fn locked<R>(&self, f: impl FnOnce(&mut Maps) -> R) -> Option<R> {
        self.maps.with(f)
    }
}

/// In the child of a fork: all places are the parent's.
pub(crate) fn forked() {
    let high = HIGH.load(Ordering::Acquire);
    HIGH.settle(0);
    for entry in TABLE.iter().take(high) {
        entry.withdraw();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(offset: u64, len: u32, index: u32) -> Map {
        Map { at: 0x10_0000, len, offset, entry: Some(Entry { index, generation: 2 }) }
    }

    #[test]
    fn offsets_are_given_once() {
        let at = core::ptr::without_provenance_mut(0x7000_0000);
        let mut maps = Maps::none();
        assert_eq!(maps.choose(at, 10, 0), Ok(0));
        assert_eq!(maps.choose(at, 10, ANY), Ok(0x7000_0000));
        assert_eq!(maps.choose(at, 10, -2), Err(Failure::Invalid));
        assert_eq!(maps.choose(at, 10, i64::MAX - 10), Ok(i64::MAX as u64 - 10));
        assert_eq!(maps.choose(at, 10, i64::MAX - 9), Err(Failure::Invalid));
        maps.list.push(map(100, 10, 0));
        for (offset, free) in
            [(89, true), (90, true), (91, false), (100, false), (109, false), (110, true)]
        {
            assert_eq!(maps.choose(at, 10, offset).is_ok(), free, "{offset}");
        }
        assert_eq!(maps.choose(at, 10, 100), Err(Failure::Exists));
        maps.list.push(map(0x7000_0005, 100, 1));
        assert_eq!(maps.choose(at, 10, ANY), Ok(0x7000_0005 + 100));
        maps.list.push(map(i64::MAX as u64 - 5, 5, 2));
        assert_eq!(maps.choose(at, 10, ANY), Err(Failure::NoMemory));
        assert_eq!(maps.free_index(), Some(3));
        maps.list.remove(1);
        assert_eq!(maps.free_index(), Some(1));
    }
}
