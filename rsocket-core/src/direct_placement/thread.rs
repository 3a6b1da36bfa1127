//! The thread that puts bytes into place while the program computes: rsocket(7) promises that they
//! appear by themselves.
//!
//! One for a process, made with its first mapping on a connection over shared memory. It sleeps on
//! a waker that stands in the channels of all such connections. The sender wakes it, as it does any
//! thread that waits for bytes. After work it looks on for as long as any spinning thread of ours
//! does, then sleeps. Entry points: [`watch`], [`forget`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::arrive;
use super::table::{Maps, Place};
use crate::channel::{broken, link};
use crate::config::policy;
use crate::conn::fork_group;
use crate::conn::slot::SlotId;
use crate::device::shm::places::Nonsense;
use crate::device::shm::waker::{self, WakerRef};
use crate::reason::Reason;
use crate::sync::mutex::Mutex;
use crate::sync::{backoff, thread};
use crate::sys::settle::Settle;
use crate::sys::{self, background};

/// How long it sleeps where no sender can wake it, in nanoseconds.
const UNRUNG_NS: u64 = 2_000_000;

/// The connections that the thread looks after.
static WATCHED: Mutex<Vec<SlotId>> = Mutex::new(Vec::new());
/// Whether there ever was one: in most processes there never is, and a child that asks the list
/// writes to its lock. Relaxed: set before the list's lock is taken, which the child takes as well.
static EVER: AtomicBool = AtomicBool::new(false);
/// The thread runs.
static RUNS: AtomicBool = AtomicBool::new(false);
/// Its waker; 0 when it has none.
static WAKER: AtomicU64 = AtomicU64::new(0);

/// The connection has a mapping: it is looked after from now on.
pub(crate) fn watch(id: SlotId) {
    EVER.store(true, Ordering::Relaxed);
    WATCHED.with(|list| {
        if !list.contains(&id) {
            list.push(id);
        }
    });
    if RUNS.swap(true, Ordering::AcqRel) {
        // It is to put its waker into one more channel, perhaps.
        let waker = WAKER.load(Ordering::Acquire);
        if waker != 0 {
            waker::wake(waker);
        }
    } else if !background::start("rsocket-place", run) {
        RUNS.store(false, Ordering::Release);
        crate::log_warn!(
            "no thread for direct placement: bytes appear when the program makes a call"
        );
    }
}

/// The connection, whose `maps` these are, is over for this process.
pub(crate) fn forget(id: SlotId, maps: &mut Maps) {
    maps.held = false;
    WATCHED.with(|list| list.retain(|other| *other != id));
}

/// In the child of a fork, which has no such thread.
pub(crate) fn forked() {
    WATCHED.forked();
    if EVER.load(Ordering::Relaxed) {
        WATCHED.with(Vec::clear);
    }
    RUNS.settle(false);
    WAKER.settle(0);
}

fn run() {
    let waker = waker::borrow();
    WAKER.store(waker.map_or(0, |b| b.id()), Ordering::Release);
    let mut list = Vec::new();
    let mut worked_at = sys::now_ns();
    let (mut looked_at, mut cpu) = (u64::MAX, backoff::of(thread::cpu()));
    loop {
        WATCHED.with(|watched| list.clone_from(watched));
        let found = list.iter().fold(Found::Nothing, |found, id| found.max(look(*id, None)));
        if found == Found::Something {
            (worked_at, looked_at) = (sys::now_ns(), u64::MAX);
            continue;
        }
        // As any spin: not beside others that want this CPU.
        let now = sys::ticks();
        let wanted = cpu.holds(|| now) || cpu.was_late(looked_at, now);
        if !wanted && sys::now_ns().saturating_sub(worked_at) < policy::polling_ns() {
            looked_at = now;
            cpu = backoff::of(thread::cpu());
            core::hint::spin_loop();
            continue;
        }
        // Arm, look once more, sleep: what came before the arming wakes no thread (park).
        if let Some(waker) = waker {
            waker.drain();
            WATCHED.with(|watched| list.clone_from(watched));
        }
        let found = list.iter().fold(Found::Nothing, |found, id| found.max(look(*id, waker)));
        if found == Found::Something {
            (worked_at, looked_at) = (sys::now_ns(), u64::MAX);
            continue;
        }
        sleep(waker, found == Found::Crowded);
        // Work and sleep are no measure of anything: the next look is in time.
        (worked_at, looked_at, cpu) = (sys::now_ns(), u64::MAX, backoff::of(thread::cpu()));
    }
}

/// What a look at a connection found.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Found {
    Nothing,
    /// There was no place for the waker.
    Crowded,
    Something,
}

/// Puts into place what is there, after the waker was put into the channel, if there is one.
fn look(id: SlotId, waker: Option<WakerRef>) -> Found {
    let Some((place, s)) = Place::of(id).zip(fork_group::slot(id)) else { return Found::Nothing };
    let mut found = Found::Nothing;
    let looked = place.with_leisure(|maps| {
        // The channel stays while the connection is held, which `closing` ends under the same lock.
        let here = if maps.held { link::ends(s) } else { None };
        let Some(here) = here else { return false };
        if let Some(waker) = waker
            && !here.incoming.data_waiters().enlist(waker.id())
        {
            found = Found::Crowded;
        }
        match arrive::all(s, &here, maps) {
            // A sender may wait for room. Rung under this lock: the channel must not go.
            Ok(true) => here.wake_writer(),
            Ok(false) => return false,
            Err(Nonsense) => {
                forget(id, maps);
                broken::break_connection(s, fork_group::descriptor(id), Reason::BadPlacement);
            }
        }
        true
    });
    if looked == Some(true) { Found::Something } else { found }
}

fn sleep(waker: Option<WakerRef>, crowded: bool) {
    let limit = libc::timespec { tv_sec: 0, tv_nsec: UNRUNG_NS as i64 };
    let mut fds =
        [libc::pollfd { fd: waker.map_or(-1, |b| b.fd()), events: libc::POLLIN, revents: 0 }];
    let limited = (crowded || waker.is_none()).then_some(&limit);
    let _ = sys::wait(&mut fds, limited, core::ptr::null());
}
