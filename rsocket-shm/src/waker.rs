//! Wakers: what a sleeper sleeps on beside its TCP socket, and how the other side finds it.
//!
//! A waker is an abstract datagram socket of the UNIX family with a random name. Its owner polls
//! it; a thread that finds the waker's id in a waiter slot sends one byte. Any process of the same
//! network namespace could (the kernel lists the names). So a ring means "look again" and nothing
//! more, and a full queue is as good as a ring. Nothing is left behind when the owner dies: the
//! name goes with the socket, and waking it is refused.
//!
//! Wakers are kept in a process-wide pool without locks ([`borrow`], [`give_back`]); the sockets
//! for waking are cached by id ([`wake`]). All descriptors are private, non-blocking and
//! close-on-exec, and after their making only `read` and `write` touch them, which a sandbox
//! allows. A handle has no destructor, so that it may be alive across a cancellation point. It must
//! not know who sleeps or why.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

pub mod far;
pub mod front;
mod ways;

#[cfg(feature = "testing")]
pub use ways::while_nobody_rings;
pub use ways::{Woke, give_way, hang_up, meet, reach, try_wake, wake};

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::os::fd::{AsRawFd, RawFd};

use rustix::net::SocketAddrUnix;

use super::netns;
use super::waiter_slot::WAKER;
use rsocket_host::failure::Failure;
use rsocket_host::sys;
use rsocket_host::sys::settle::Settle;

/// The most wakers of one process.
pub const WAKERS: usize = 1024;

/// The most datagrams that one [`WakerRef::drain`] takes.
const MOST_RINGS: u32 = 4096;

/// Nothing here.
const EMPTY: u32 = 0;
/// A waker that no thread or set uses.
const IDLE: u32 = 1;
/// Lent to a thread for one sleep.
const THREAD: u32 = 2;
/// Lent to an epoll set for its life.
const SET: u32 = 3;
/// Being made.
const MAKING: u32 = 4;
/// The front waker while no set has it.
const SPARE: u32 = 5;

struct Waker {
    state: AtomicU32,
    fd: AtomicI32,
    /// The eventfd beside it, or -1.
    event: AtomicI32,
    id: AtomicU64,
}

impl Waker {
    const fn none() -> Self {
        Self {
            state: AtomicU32::new(EMPTY),
            fd: AtomicI32::new(-1),
            event: AtomicI32::new(-1),
            id: AtomicU64::new(0),
        }
    }
}

static POOL: [Waker; WAKERS] = [const { Waker::none() }; WAKERS];

/// One more than the highest entry that was ever taken: the child of a fork looks at no others.
static HIGH: AtomicU32 = AtomicU32::new(0);

/// One bit for each waker in state IDLE. Taking the bit takes the waker.
static FREE: [AtomicU64; WAKERS / 64] = [const { AtomicU64::new(0) }; WAKERS / 64];

/// A borrowed waker: a plain value, to be given back by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WakerRef {
    index: u32,
    fd: RawFd,
    id: u64,
}

impl WakerRef {
    fn entry(&self) -> Option<&'static Waker> {
        // Relaxed: ids are random and never used twice, so equality alone says that the entry is
        // still ours.
        POOL.get(self.index as usize).filter(|waker| waker.id.load(Ordering::Relaxed) == self.id)
    }

    /// What to poll for readability; -1, which `ppoll` skips, when the waker is
    /// [`stale`](Self::stale).
    #[must_use]
    pub fn fd(&self) -> RawFd {
        if self.stale() { -1 } else { self.fd }
    }

    /// What to put into a waiter slot; never 0, below 2^62.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What is readable beside [`fd`](Self::fd) after a ring by a peer that was handed it; -1 if
    /// there is none.
    #[must_use]
    pub fn event(&self) -> RawFd {
        self.entry().map_or(-1, |waker| waker.event.load(Ordering::Relaxed))
    }

    /// True after a fork in which the waker was closed here. It can only happen where a signal
    /// handler forked during a sleep: the child borrows another one.
    #[must_use]
    pub fn stale(&self) -> bool {
        self.entry().is_none()
    }

    /// Takes all bytes out; true when there were any. To be called *before* the look that decides
    /// whether to sleep again.
    pub fn drain(&self) -> bool {
        let event = self.event();
        let woken = event >= 0 && rustix::io::read(sys::borrow(event), &mut [0_u8; 8]).is_ok();
        self.take(u32::MAX) | woken
    }

    /// As [`take`](Self::take) after a sleep that has heard the socket, the eventfd, both, or
    /// neither, where a ring may be on its way.
    pub fn take_rung(&self, [socket, event]: [bool; 2], due: u32) -> bool {
        let fd = if event || !socket { self.event() } else { -1 };
        let by_event = fd >= 0 && rustix::io::read(sys::borrow(fd), &mut [0_u8; 8]).is_ok();
        if by_event && !socket {
            return true;
        }
        self.take(due) || by_event
    }

    /// As [`drain`](Self::drain) where so many rings are due at most: the read that finds nothing
    /// more is left out. The next thread that sleeps with this waker hears what other threads have
    /// rung, and it means nothing.
    pub fn take(&self, due: u32) -> bool {
        if self.stale() {
            return false;
        }
        let mut byte = [0_u8; 8];
        // The socket is non-blocking; one datagram for each read, until EAGAIN (or anything else)
        // ends it. The bound is beyond any queue's length: a stranger that floods the waker must
        // not keep us here.
        let reads = (0..due.min(MOST_RINGS))
            .take_while(|_| rustix::io::read(sys::borrow(self.fd), &mut byte).is_ok());
        reads.count() != 0
    }
}

/// A waker for one sleep of this thread. `None` when all are taken or none can be made: sleep for
/// short times, then.
#[must_use]
pub fn borrow() -> Option<WakerRef> {
    lend(THREAD)
}

/// As [`borrow`], for a sleep on the waker's [`event`](WakerRef::event) as well. Lends the front
/// waker while no other thread has it, in a process without epoll sets. Peers ring the front waker
/// at a fraction of the cost.
#[must_use]
pub fn borrow_front() -> Option<WakerRef> {
    front::take_for_thread().or_else(borrow)
}

/// A waker for an epoll set, which survives a fork in both processes until it is given back.
#[must_use]
pub fn borrow_for_set() -> Option<WakerRef> {
    front::take().or_else(|| lend(SET))
}

fn lend(state: u32) -> Option<WakerRef> {
    take_idle(state).or_else(|| make(state))
}

fn take_idle(state: u32) -> Option<WakerRef> {
    for (i, word) in FREE.iter().enumerate() {
        // Relaxed: only a hint which bit to try.
        let mut bits = word.load(Ordering::Relaxed);
        while bits != 0 {
            let bit = bits.trailing_zeros();
            // Acquire: pairs with the Release in `give_back` or `make`, which wrote the entry.
            let before = word.fetch_and(!(1 << bit), Ordering::Acquire);
            if before >> bit & 1 == 1 {
                let index = i as u32 * 64 + bit;
                let waker = POOL.get(index as usize)?;
                waker.state.store(state, Ordering::Relaxed);
                let (fd, id) = (waker.fd.load(Ordering::Relaxed), waker.id.load(Ordering::Relaxed));
                return Some(WakerRef { index, fd, id });
            }
            bits = before & !(1 << bit);
        }
    }
    None
}

/// Takes an empty entry, for a waker that is to be made.
fn take(index: usize, waker: &Waker) -> bool {
    if waker.state.load(Ordering::Relaxed) != EMPTY {
        return false;
    }
    // AcqRel, before the entry is taken: the child of a fork in between finds it.
    HIGH.fetch_max(index as u32 + 1, Ordering::AcqRel);
    // Acquire: pairs with the Release in `discard`; the entry is ours from here on.
    waker.state.compare_exchange(EMPTY, MAKING, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

#[cold]
fn make(state: u32) -> Option<WakerRef> {
    let (index, waker) = POOL.iter().enumerate().find(|(index, waker)| take(*index, waker))?;
    match socket() {
        Ok((fd, id)) => {
            waker.fd.store(fd, Ordering::Relaxed);
            waker.id.store(id, Ordering::Relaxed);
            // Release: pairs with the Acquire of the child that looks at the state in `forked`.
            waker.state.store(state, Ordering::Release);
            Some(WakerRef { index: index as u32, fd, id })
        }
        Err(_) => {
            waker.state.store(EMPTY, Ordering::Release);
            None
        }
    }
}

/// Returns a waker to the pool. A byte that is still on its way may wake the next borrower once for
/// nothing. A stale waker is ignored.
pub fn give_back(waker: WakerRef) {
    let Some(entry) = waker.entry() else { return };
    // A set leaves rings behind, which would wake the next borrower's sleeps.
    if entry.state.load(Ordering::Relaxed) == SET {
        waker.drain();
    }
    if !front::put_back(&waker, entry) {
        put_away(&waker, entry);
    }
}

/// Into the pool.
fn put_away(waker: &WakerRef, entry: &Waker) {
    entry.state.store(IDLE, Ordering::Relaxed);
    if let Some(word) = FREE.get(waker.index as usize / 64) {
        // Release: pairs with the Acquire in `take_idle`.
        word.fetch_or(1 << (waker.index % 64), Ordering::Release);
    }
}

/// The id of some waker of this process, by which others may find out whether they can wake here
/// ([`reach`]); 0 if there is none.
#[must_use]
pub fn some() -> u64 {
    let Some(waker) = borrow() else { return 0 };
    give_back(waker);
    waker.id
}

/// The waker with this id, if it is one of this process.
#[must_use]
pub fn find(id: u64) -> Option<WakerRef> {
    if id == 0 {
        return None;
    }
    // Relaxed: as in `WakerRef::entry`.
    let (index, waker) =
        POOL.iter().enumerate().find(|(_, b)| b.id.load(Ordering::Relaxed) == id)?;
    Some(WakerRef { index: index as u32, fd: waker.fd.load(Ordering::Relaxed), id })
}

/// Closes a waker instead of returning it: in the child of a fork for a set that stays the parent's
/// alone.
pub fn forget(waker: WakerRef) {
    if let Some(entry) = waker.entry() {
        discard(entry);
    }
}

fn discard(waker: &Waker) {
    front::gone(waker.id.swap(0, Ordering::Relaxed));
    for place in [&waker.fd, &waker.event] {
        let fd = place.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            sys::close_private(fd);
        }
    }
    // Release: pairs with the Acquire in `make`.
    waker.state.store(EMPTY, Ordering::Release);
}

/// In the child of a fork: the parent's wakers are not ours to sleep on, since both would drain
/// them. Closes all but those of epoll sets: the owner of those keeps them or calls [`forget`].
/// Also frees the locks of threads that do not exist here. The child has one thread; it calls this
/// before any other function here, after [`rsocket_host::thread::forked`].
pub fn forked() {
    FREE.iter().for_each(|word| word.settle(0));
    // Relaxed: there is one thread. A page of the pool that was never used is not touched.
    for waker in POOL.iter().take(HIGH.load(Ordering::Relaxed) as usize) {
        match waker.state.load(Ordering::Acquire) {
            EMPTY | SET => {}
            _ => discard(waker),
        }
    }
    ways::forked();
}

/// How many wakers exist, and how many of them are lent out.
#[must_use]
pub fn census() -> (usize, usize) {
    let mut all = 0;
    let mut lent = 0;
    for waker in &POOL {
        match waker.state.load(Ordering::Relaxed) {
            IDLE | SPARE => all += 1,
            THREAD | SET => {
                all += 1;
                lent += 1;
            }
            _ => {}
        }
    }
    (all, lent)
}

/// "rsockets/bell/" and 16 digits, in the abstract namespace.
fn address(id: u64) -> Result<SocketAddrUnix, Failure> {
    let mut name = *b"rsockets/bell/0000000000000000";
    for (i, digit) in name.iter_mut().rev().take(16).enumerate() {
        let nibble = (id >> (4 * i) & 15) as u8;
        *digit = if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 };
    }
    Ok(SocketAddrUnix::new_abstract_name(&name)?)
}

/// A new bound socket, at a private number.
fn socket() -> Result<(RawFd, u64), Failure> {
    let socket = netns::datagram_socket()?;
    if let Err(e) = netns::settle(socket.as_raw_fd()) {
        ways::close(socket);
        return Err(e);
    }
    // Never 0, which is a free waiter slot.
    let id = super::random::bits()? as u64 & WAKER | 1;
    rustix::net::bind(&socket, &address(id)?)?;
    Ok((sys::make_private(socket)?, id))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::ways::{RINGERS, Ringer, SHARDS};
    use super::*;

    fn readable(waker: &WakerRef, ms: i64) -> bool {
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(
            sys::borrow(waker.fd()),
            rustix::event::PollFlags::IN,
        )];
        let time = rustix::event::Timespec { tv_sec: 0, tv_nsec: ms * 1_000_000 };
        rustix::event::poll(&mut fds, Some(&time)).unwrap() == 1
    }

    #[test]
    fn rings_and_drains() {
        let waker = borrow().unwrap();
        assert!(sys::is_private(waker.fd()));
        assert!(waker.id() != 0 && waker.id() <= WAKER);
        assert!(!readable(&waker, 0));
        for _ in 0..3 {
            assert_eq!(try_wake(waker.id()), Woke::Yes);
            assert!(readable(&waker, 100));
            assert!(waker.drain());
            assert!(!waker.drain());
        }
        // Far more rings than a queue holds.
        for _ in 0..2000 {
            assert_eq!(try_wake(waker.id()), Woke::Yes);
        }
        assert!(waker.drain());
        give_back(waker);
    }

    #[test]
    fn what_was_not_due_stays_for_the_next_sleep() {
        let waker = borrow().unwrap();
        for _ in 0..3 {
            assert_eq!(try_wake(waker.id()), Woke::Yes);
        }
        assert!(waker.take(1) && waker.take(2) && !waker.take(1));
        assert_eq!((find(waker.id()), find(0)), (Some(waker), None));
        give_back(waker);
    }

    #[test]
    fn to_reach_a_waker_is_not_to_ring_it() {
        let waker = borrow().unwrap();
        assert_eq!(
            (reach(waker.id()), reach(waker.id()), waker.drain()),
            (Woke::Yes, Woke::Yes, false)
        );
        assert_eq!((try_wake(waker.id()), waker.drain()), (Woke::Yes, true));
        give_back(waker);
        assert_eq!((reach(0), reach(some()), reach(77)), (Woke::Gone, Woke::Yes, Woke::Gone));
    }

    #[test]
    fn a_waker_that_is_gone() {
        let waker = borrow().unwrap();
        assert_eq!(try_wake(waker.id()), Woke::Yes);
        forget(waker);
        assert!(waker.stale());
        assert_eq!(waker.fd(), -1);
        assert_eq!(try_wake(waker.id()), Woke::Gone, "the cached socket is refused");
        assert!(way_to(waker.id()).is_none(), "and forgotten");
        assert_eq!(try_wake(waker.id()), Woke::Gone, "and so is a new one");
        give_back(waker);
    }

    /// The way to it, if that is kept.
    fn way_to(id: u64) -> Option<&'static Ringer> {
        let shard = RINGERS.get((id >> 1) as usize % SHARDS).unwrap();
        shard.ways.iter().find(|way| way.id.load(Ordering::Relaxed) == id)
    }

    #[test]
    fn a_way_to_who_has_ended_is_forgotten() {
        let waker = borrow_for_set().unwrap();
        assert_eq!(try_wake(waker.id()), Woke::Yes);
        assert!(way_to(waker.id()).is_some());
        hang_up(waker.id());
        assert!(way_to(waker.id()).is_none());
        forget(waker);
    }

    #[test]
    fn a_way_that_somebody_has_closed_is_found_again() {
        let waker = borrow_for_set().unwrap();
        assert_eq!(try_wake(waker.id()), Woke::Yes);
        assert!(waker.drain());
        // The number is another socket's.
        let another = netns::datagram_socket().unwrap();
        sys::close_private(
            way_to(waker.id()).unwrap().fd.swap(another.as_raw_fd(), Ordering::Relaxed),
        );
        assert_eq!(try_wake(waker.id()), Woke::Yes);
        assert!(waker.drain());
        assert!(rustix::io::fcntl_getfd(&another).is_ok(), "which is left alone");
        forget(waker);
    }

    #[test]
    fn more_wakers_than_the_cache_holds() {
        let few = sys::spare() < 400;
        let wakers: Vec<_> =
            (0..if few { 60 } else { 400 }).map(|_| borrow_for_set().unwrap()).collect();
        let mut kept = Vec::new();
        for round in 0..2 {
            for waker in &wakers {
                assert_eq!(try_wake(waker.id()), Woke::Yes, "round {round}");
            }
            for waker in &wakers {
                assert!(waker.drain());
            }
            let ways = wakers.iter().filter_map(|waker| way_to(waker.id()));
            kept.push(ways.map(|way| way.fd.load(Ordering::Relaxed)).collect::<Vec<_>>());
        }
        let [first, second] = kept.as_slice() else { panic!("two rounds") };
        let same = first.iter().filter(|fd| second.contains(fd)).count();
        // Some share a shard with too many others.
        assert!(
            same > wakers.len() * 9 / 10,
            "the second round makes no sockets: {same} are the same"
        );
        for waker in &wakers {
            hang_up(waker.id());
        }
        wakers.into_iter().for_each(forget);
    }
}
