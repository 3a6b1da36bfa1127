//! The bridges of this process, by number.
//!
//! A bridge's place is never given back to the allocator, so that a thread of the program may look
//! at it at any time. What is in it belongs to the thread that holds its lock. Must not know what a
//! bridge does. Entry points: [`find`], [`take`], [`Bridge::try_with`], [`Bridge::in_turn`],
//! [`Bridge::with`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::connection::Connection;
use super::yield_predictor::YieldPredictor;
use crate::sync::mutex::{Mutex, MutexGuard};
use crate::sync::published::Published;
use crate::sys::settle::Settle;
use crate::sys::{self, cancelling};

/// Bridges of one process.
pub const BRIDGES: usize = 8192;

/// One place.
pub struct Bridge {
    connection: Mutex<Option<Connection>>,
    /// Changes when the place is given to another connection.
    pub generation: AtomicU32,
    /// Ticks when a thread of the program last looked in vain, after many times: it polls by
    /// itself.
    pub polled_at: AtomicU64,
    /// Looks in vain since something moved.
    pub vain: AtomicU32,
    /// How soon its program finds answers.
    pub yield_predictor: YieldPredictor,
    /// Threads of the program that spin on it.
    pub spinners: AtomicU32,
    /// Nonzero while the device's next event is awaited, by the thread that hears of it.
    pub armed: AtomicU32,
    /// The waker of a thread that waits for the device's news alone
    /// ([`super::cq_ownership::CqOwnership::naps`]); 0: no thread does.
    pub napper: AtomicU64,
    /// Nonzero while the program's bytes may be in the device's memory, and nowhere else
    /// ([`super::deferred`]). Changed under the lock.
    pub keeps: AtomicU32,
    /// Nonzero while the service thread hears of the device's events ([`super::cq_ownership`]).
    /// Changed under the lock.
    pub heard: AtomicU32,
    used: AtomicU32,
    /// Its number.
    pub index: u32,
}

// SAFETY: a connection moves between threads with its lock; its queue pair is driven by one thread
// at a time. The rest is atomics.
unsafe impl Sync for Bridge {}
// SAFETY: as above.
unsafe impl Send for Bridge {}

static TABLE: [Published<Bridge>; BRIDGES] = [const { Published::new() }; BRIDGES];
/// One more than the highest number that was ever used.
static HIGH: AtomicU32 = AtomicU32::new(0);
/// The process that the table belongs to; 0 before there is one.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// The bridge with this number, if it was ever made.
#[inline]
#[must_use]
pub fn find(index: u32) -> Option<&'static Bridge> {
    TABLE.get(index as usize)?.get()
}

/// A place for a new connection, empty. `None` when all are taken.
pub fn take() -> Option<&'static Bridge> {
    OWNER.store(sys::pid(), Ordering::Relaxed);
    let high = HIGH.load(Ordering::Acquire);
    let claim = |r: &&'static Bridge| {
        // Acquire: pairs with the release in give_back().
        r.used.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    let found = (0..high).filter_map(find).find(claim).or_else(make)?;
    found.generation.fetch_add(1, Ordering::AcqRel);
    found.polled_at.store(0, Ordering::Relaxed);
    found.vain.store(0, Ordering::Relaxed);
    found.yield_predictor.forget();
    found.spinners.store(0, Ordering::Relaxed);
    found.armed.store(0, Ordering::Relaxed);
    found.keeps.store(0, Ordering::Relaxed);
    found.heard.store(1, Ordering::Relaxed);
    found.napper.store(0, Ordering::Relaxed);
    Some(found)
}

fn make() -> Option<&'static Bridge> {
    let index = HIGH.fetch_add(1, Ordering::AcqRel);
    let Some(entry) = TABLE.get(index as usize) else {
        HIGH.fetch_sub(1, Ordering::AcqRel);
        return None;
    };
    let bridge = Box::leak(Box::new(Bridge {
        connection: Mutex::new(None),
        generation: AtomicU32::new(0),
        polled_at: AtomicU64::new(0),
        vain: AtomicU32::new(0),
        yield_predictor: YieldPredictor::new(),
        spinners: AtomicU32::new(0),
        armed: AtomicU32::new(0),
        keeps: AtomicU32::new(0),
        heard: AtomicU32::new(1),
        napper: AtomicU64::new(0),
        used: AtomicU32::new(1),
        index,
    }));
    entry.publish(bridge);
    Some(bridge)
}

/// Every place that is in use.
pub fn all() -> impl Iterator<Item = &'static Bridge> {
    (0..HIGH.load(Ordering::Acquire))
        .filter_map(find)
        .filter(|r| r.used.load(Ordering::Acquire) == 1)
}

/// In the child of a fork: the parent's bridges are the parent's. What the device library keeps for
/// them is left alone, and their places are not used again.
pub fn forked() {
    let high = HIGH.load(Ordering::Acquire);
    HIGH.settle(0);
    for entry in TABLE.iter().take(high as usize) {
        entry.withdraw();
    }
    OWNER.settle(0);
}

impl Bridge {
    /// Whether bytes of the program's may have stayed in the device's memory ([`super::deferred`]).
    /// A caller that could lose them by a stale answer has a fence before it, or has seen what the
    /// call did that left them. Acquire: pairs with the release in `deferred::none`.
    #[inline]
    pub(super) fn keeps_any(&self) -> bool {
        self.keeps.load(Ordering::Acquire) != 0
    }

    /// What names this connection and no later one in this place.
    pub fn key(&self) -> u64 {
        u64::from(self.generation.load(Ordering::Acquire)) << 32 | u64::from(self.index)
    }

    /// The bridge that a key names, if it is still that one.
    pub fn of_key(key: u64) -> Option<&'static Self> {
        find(key as u32).filter(|r| r.key() == key)
    }

    /// Works on the connection if no other thread does at the moment. The thread cannot be
    /// cancelled inside: a device's library may make system calls that are cancellation points.
    #[inline]
    pub fn try_with<R>(&self, f: impl FnOnce(&mut Option<Connection>) -> R) -> Option<R> {
        Some(inside(self.connection.try_hold()?, f))
    }

    /// As [`Self::try_with`], but waits for its turn while bytes of the program's are kept here: a
    /// caller that finds none says that there are none.
    #[inline]
    pub fn in_turn<R>(&self, f: impl FnOnce(&mut Option<Connection>) -> R) -> Option<R> {
        let held =
            if self.keeps_any() { self.connection.hold() } else { self.connection.try_hold() };
        Some(inside(held?, f))
    }

    /// As [`Self::try_with`], but waits for its turn. `None` only in a signal handler that
    /// interrupted this very section.
    pub fn with<R>(&self, f: impl FnOnce(&mut Option<Connection>) -> R) -> Option<R> {
        Some(inside(self.connection.hold()?, f))
    }

    /// Takes the connection out of the place and gives that back, if it is the one that is meant.
    /// Between two looks at the place it may have become another's.
    pub fn clear(&self, is: impl FnOnce(&mut Connection) -> bool) -> Option<Connection> {
        self.with(|place| place.take_if(is).inspect(|_| self.give_back())).flatten()
    }

    /// Gives the place back, empty.
    pub fn give_back(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        // Release: pairs with the acquire in take().
        self.used.store(0, Ordering::Release);
    }
}

#[inline]
fn inside<R>(
    mut held: MutexGuard<'_, Option<Connection>>,
    f: impl FnOnce(&mut Option<Connection>) -> R,
) -> R {
    let before = cancelling::set(false);
    let r = f(held.get());
    drop(held);
    cancelling::set(before);
    r
}
