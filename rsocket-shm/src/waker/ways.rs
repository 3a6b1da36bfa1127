//! The ways to other processes' wakers: how they are woken, and the sockets that are kept for it.
//!
//! Must not know who sleeps on a waker. Entry points: [`try_wake`], [`reach`], [`hang_up`],
//! [`give_way`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};

use crossbeam_utils::CachePadded;
use rustix::net::SendFlags;

use super::super::netns;
use super::super::waiter_slot::WAKER;
use super::{address, front};
use rsocket_host::failure::Failure;
use rsocket_host::stats::{self, Counter};
use rsocket_host::sys;
use rsocket_host::thread;
use rsocket_sync::lock::OwnedLock;

/// Connected sockets, and eventfds that peers have handed over, cached by the id of the waker at
/// their other end. A shard is chosen by the id, which is random, and changed under its lock. No
/// lock is held while a way is written to, since the woken thread may take the processor at once.
/// Instead the users of a way are counted, and a way that has any keeps its descriptor.
pub(super) struct Ringer {
    pub(super) id: AtomicU64,
    pub(super) fd: AtomicI32,
    /// It is an eventfd.
    pub(super) event: AtomicBool,
    /// Threads that are about to write to it. Added to under the lock.
    users: AtomicU32,
}

impl Ringer {
    const fn none() -> Self {
        Self {
            id: AtomicU64::new(0),
            fd: AtomicI32::new(-1),
            event: AtomicBool::new(false),
            users: AtomicU32::new(0),
        }
    }

    /// Whether it may be closed. To be asked under the lock.
    fn is_idle(&self) -> bool {
        // Acquire: pairs with the Release in `say_by`: the last write has come back.
        self.users.load(Ordering::Acquire) == 0
    }
}

/// As many ways as the wakers of two servers with a thread or a process for each connection.
pub(super) const SHARDS: usize = 256;
const WAYS: usize = 8;
/// So many ways are kept however few descriptors the program may have.
const FEW: u32 = 128;

pub(super) struct Shard {
    lock: OwnedLock,
    /// The next way to be replaced.
    hand: AtomicU32,
    pub(super) ways: [Ringer; WAYS],
}

pub(super) static RINGERS: [CachePadded<Shard>; SHARDS] = [const {
    CachePadded::new(Shard {
        lock: OwnedLock::new(),
        hand: AtomicU32::new(0),
        ways: [const { Ringer::none() }; WAYS],
    })
}; SHARDS];

/// One bit for each shard that was ever used. The memory of the others is not touched, least of all
/// in the child of a fork, where that would copy it.
static USED: [AtomicU64; SHARDS / 64] = [const { AtomicU64::new(0) }; SHARDS / 64];

/// Ways that are kept. Relaxed: it orders nothing.
static KEPT: AtomicU32 = AtomicU32::new(0);

/// The shard for a waker.
fn shard(id: u64) -> Option<&'static Shard> {
    // The low bit is always 1: the shard comes from the others.
    let index = (id >> 1) as usize % SHARDS;
    let (word, bit) = (USED.get(index / 64)?, 1 << (index % 64));
    // Relaxed: the thread that forks, and any thread whose lock is to be freed in the child, has
    // set the bit before.
    if word.load(Ordering::Relaxed) & bit == 0 {
        word.fetch_or(bit, Ordering::Relaxed);
    }
    RINGERS.get(index).map(|shard| &**shard)
}

/// Those that were ever used.
fn used() -> impl Iterator<Item = &'static Shard> {
    let bit = |index: usize| {
        USED.get(index / 64).map_or(0, |w| w.load(Ordering::Relaxed) >> (index % 64) & 1)
    };
    RINGERS.iter().enumerate().filter(move |(index, _)| bit(*index) != 0).map(|(_, shard)| &**shard)
}

/// All that a ring says: what an eventfd adds up, and a socket passes on.
pub(super) const RING: &[u8] = &1_u64.to_ne_bytes();

/// What became of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woke {
    /// The sleeper's poll is ready now (or was already: its queue is full).
    Yes,
    /// There is no such waker: its owner is gone.
    Gone,
    /// This process may not wake it: a sandbox (Landlock) or a security module forbids it.
    Forbidden,
    /// No descriptor or memory for it. The sleeper keeps sleeping unless a caller tries again.
    Failed,
}

/// Signals the waker `id`, as found in a waiter slot.
#[cold]
pub fn wake(id: u64) {
    let _ = try_wake(id);
}

/// As [`wake`], and says what became of it.
pub fn try_wake(id: u64) -> Woke {
    let id = id & WAKER;
    if id == 0 {
        return Woke::Gone;
    }
    match by_socket(id, send) {
        Woke::Gone => wake_from_netns(id),
        // There is no descriptor for a way to it.
        Woke::Failed if netns::socket().is_some() => wake_from_netns(id),
        woke => woke,
    }
}

/// Finds out whether the waker `id` can be woken, without waking it. The first wake then finds its
/// socket connected.
pub fn reach(id: u64) -> Woke {
    let id = id & WAKER;
    if id == 0 { Woke::Gone } else { by_socket(id, |_| Ok(())) }
}

/// As [`reach`]; `event` is the eventfd that the waker's owner has handed over, which is the way to
/// it from here on.
pub fn meet(id: u64, event: Option<OwnedFd>) -> Woke {
    let reached = reach(id);
    if let Some(event) = event {
        if reached == Woke::Yes { adopt(id & WAKER, event) } else { close(event) }
    }
    reached
}

fn adopt(id: u64, event: OwnedFd) {
    let shard = shard(id).filter(|_| !thread::is_guest() && front::is_event(&event));
    let Some(shard) = shard else { return close(event) };
    let Some(_held) = shard.lock.hold() else { return close(event) };
    // Relaxed: as in `take_way`.
    let known = shard.ways.iter().find(|way| way.id.load(Ordering::Relaxed) == id);
    if known.is_some_and(|way| way.event.load(Ordering::Relaxed) || !way.is_idle()) {
        close(event);
    } else {
        keep(shard, known, (id, event), true);
    }
}

/// What is said by a socket that is connected to a waker.
type Say = fn(BorrowedFd<'_>) -> Result<(), Failure>;

/// By a connected socket, old or new.
fn by_socket(id: u64, say: Say) -> Woke {
    if thread::is_guest() {
        return once(id, say);
    }
    let Some(shard) = shard(id) else { return Woke::Failed };
    let Some(known) = locked(shard, || shard.take_way(id)) else {
        // A signal handler interrupted a change of the cache: go without it.
        return once(id, say);
    };
    known.and_then(|way| say_by(shard, way, id, say)).unwrap_or_else(|| anew(shard, id, say))
}

/// Runs `f` under the lock; `None` if this thread is inside already. Every entry is valid at each
/// step of a change, so a dead holder leaves nothing to repair.
fn locked<R>(shard: &Shard, f: impl FnOnce() -> R) -> Option<R> {
    let _held = shard.lock.hold()?;
    Some(f())
}

/// Forgets the way to a waker whose owner has ended.
pub fn hang_up(id: u64) {
    let id = id & WAKER;
    let Some(shard) = shard(id).filter(|_| id != 0) else { return };
    let Some(_held) = shard.lock.hold() else { return };
    // One that is being written to stays until its place is needed.
    let way = shard.ways.iter().find(|way| way.id.load(Ordering::Relaxed) == id);
    if let Some(way) = way.filter(|way| way.is_idle()) {
        empty(way);
    }
}

/// For tests: a thread that signals that waker meanwhile waits.
#[cfg(feature = "testing")]
#[allow(clippy::expect_used, clippy::indexing_slicing)]
pub fn while_nobody_rings<R>(id: u64, f: impl FnOnce() -> R) -> R {
    let _held = RINGERS[(id >> 1) as usize % SHARDS].lock.hold().expect("not inside");
    f()
}

impl Shard {
    /// The way to this waker, which stays until it is given back. Under the lock.
    fn take_way(&self, id: u64) -> Option<&Ringer> {
        // Relaxed, as all else in a shard: its lock orders it.
        let way = self.ways.iter().find(|way| way.id.load(Ordering::Relaxed) == id)?;
        way.users.fetch_add(1, Ordering::Relaxed);
        Some(way)
    }
}

/// By a way that was taken, and is given back; `None` if it is one no more.
fn say_by(shard: &Shard, way: &Ringer, id: u64, say: Say) -> Option<Woke> {
    let (fd, event) = (way.fd.load(Ordering::Relaxed), way.event.load(Ordering::Relaxed));
    let said = say(sys::borrow(fd));
    // Release: pairs with the Acquire in `is_idle`.
    way.users.fetch_sub(1, Ordering::Release);
    let Err(e) = said else {
        stats::add(Counter::EventsRung, u64::from(event));
        return Some(Woke::Yes);
    };
    let closed = event || is_another(e);
    locked(shard, || {
        let same = way.id.load(Ordering::Relaxed) == id && way.fd.load(Ordering::Relaxed) == fd;
        if same && way.is_idle() {
            if closed {
                // The program closed the number behind our back; it may name another file now.
                forget(way);
                sys::forget_private(way.fd.swap(-1, Ordering::Relaxed));
            } else {
                empty(way);
            }
        }
    });
    if closed { None } else { Some(Woke::Gone) }
}

/// By a new socket, which is kept.
fn anew(shard: &Shard, id: u64, say: Say) -> Woke {
    let socket = match connected(id) {
        Ok(socket) => socket,
        Err(woke) => return woke,
    };
    let sent = say(socket.as_fd());
    let mut socket = Some(socket);
    if sent.is_ok() {
        locked(shard, || {
            let known = shard.ways.iter().any(|way| way.id.load(Ordering::Relaxed) == id);
            if let Some(socket) = socket.take_if(|_| !known) {
                keep(shard, None, (id, socket), false);
            }
        });
    }
    if let Some(socket) = socket {
        close(socket);
    }
    answer(sent)
}

/// What a connected socket never answers.
fn is_another(e: Failure) -> bool {
    matches!(e, Failure::BadDescriptor | Failure::NotASocket | Failure::NotConnected)
}

/// Keeps a way, in this place or in one that is free. Without either it takes the place of the next
/// way, if no thread uses that one. Under the lock.
fn keep(shard: &Shard, place: Option<&Ringer>, (id, fd): (u64, OwnedFd), event: bool) {
    let hand = shard.hand.load(Ordering::Relaxed);
    let is_free = |way: &&Ringer| way.id.load(Ordering::Relaxed) == 0;
    let next = || {
        shard.hand.store(hand.wrapping_add(1), Ordering::Relaxed);
        shard.ways.get(hand as usize % WAYS)
    };
    let way = place.or_else(|| shard.ways.iter().find(is_free)).or_else(next);
    let kept = KEPT.load(Ordering::Relaxed);
    let one_more = kept < FEW || u64::from(kept) < sys::spare();
    let way = way.filter(|way| way.is_idle() && (one_more || !is_free(way)));
    let Some(way) = way else { return close(fd) };
    empty(way);
    if let Ok(fd) = sys::make_private(fd) {
        way.fd.store(fd, Ordering::Relaxed);
        way.event.store(event, Ordering::Relaxed);
        way.id.store(id, Ordering::Relaxed);
        KEPT.fetch_add(1, Ordering::Relaxed);
    }
}

/// There is no way any more. Under the lock.
fn forget(way: &Ringer) {
    if way.id.swap(0, Ordering::Relaxed) != 0 {
        KEPT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Closes what a way holds. The id goes first: a holder that dies in between leaks a descriptor of
/// a process that is dying, and nothing else.
fn empty(way: &Ringer) {
    forget(way);
    let fd = way.fd.swap(-1, Ordering::Relaxed);
    if fd >= 0 {
        sys::close_private(fd);
    }
}

fn once(id: u64, say: Say) -> Woke {
    match connected(id) {
        Ok(socket) => {
            let sent = say(socket.as_fd());
            close(socket);
            answer(sent)
        }
        Err(woke) => woke,
    }
}

/// The name may be one of another network namespace than that of the calling thread.
fn wake_from_netns(id: u64) -> Woke {
    let (Some(home), Ok(address)) = (netns::socket(), address(id)) else { return Woke::Gone };
    answer(send_by(|| rustix::net::sendto(sys::borrow(home), RING, SendFlags::NOSIGNAL, &address)))
}

fn connected(id: u64) -> Result<OwnedFd, Woke> {
    let address = address(id).map_err(|_| Woke::Failed)?;
    let socket = netns::datagram_socket().map_err(|_| Woke::Failed)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => Ok(socket),
        Err(e) => {
            close(socket);
            Err(answer(Err(e.into())))
        }
    }
}

/// A plain write to a datagram socket raises no SIGPIPE, and the socket is non-blocking.
fn send(socket: BorrowedFd<'_>) -> Result<(), Failure> {
    send_by(|| rustix::io::write(socket, RING))
}

pub(super) fn send_by(once: impl Fn() -> rustix::io::Result<usize>) -> Result<(), Failure> {
    loop {
        return match once().map_err(Failure::from) {
            // A full queue: the waker has been woken, and its owner has not looked yet.
            Ok(_) | Err(Failure::Blocked | Failure::NoBuffers) => Ok(()),
            Err(Failure::Interrupted) => continue,
            Err(e) => Err(e),
        };
    }
}

pub(super) fn answer(sent: Result<(), Failure>) -> Woke {
    match sent {
        Ok(()) => Woke::Yes,
        Err(Failure::Refused | Failure::Missing | Failure::Reset | Failure::Ended) => Woke::Gone,
        Err(Failure::NotPermitted | Failure::Denied) => Woke::Forbidden,
        Err(_) => Woke::Failed,
    }
}

/// Closes those that stand where the program could have a descriptor, which are found again by the
/// next ring. How many there were.
pub fn give_way() -> usize {
    let mut closed = 0;
    for shard in used() {
        let Some(_held) = shard.lock.hold() else { continue };
        for way in &shard.ways {
            let fd = way.fd.load(Ordering::Relaxed);
            if fd >= 0 && sys::is_below_limit(fd) && way.is_idle() {
                empty(way);
                closed += 1;
            }
        }
    }
    closed
}

/// In the child of a fork: frees the locks, and the ways, of threads that do not exist here.
pub(super) fn forked() {
    for shard in used() {
        shard.lock.reset();
        for way in shard.ways.iter().filter(|way| way.users.load(Ordering::Relaxed) != 0) {
            way.users.store(0, Ordering::Relaxed);
        }
    }
}

/// Closes by the kernel's call: the one of the C library is hooked.
pub(super) fn close(fd: OwnedFd) {
    // The number has never been private, and forgetting it is harmless.
    sys::close_private(fd.into_raw_fd());
}
