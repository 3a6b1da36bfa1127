//! The front waker: one of this process's, to which each peer is handed a shorter way.
//!
//! To write to an eventfd costs a fraction of what a datagram costs. So one waker has an eventfd
//! beside its socket. Peers get the eventfd with the messages by which two ends meet
//! (`attach::hello` of the core). The first epoll set that needs a waker takes this one. Some
//! processes have not got the eventfd, or have dropped it: siblings that attached before, the next
//! program after an `exec`. Such a process rings by the socket: the set listens to both.
//!
//! No thread reads the eventfd before a sleep: it stands in the set edge-triggered, where each
//! write is an edge. Peers are of one user (`attach::trust` of the core). So a peer that fills the
//! counter, or has writers wait, hurts no process that it could not stop by a signal.
//!
//! Must not know who sleeps. Entry points: [`offered`], [`take`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::EventfdFlags;

use super::{SET, SPARE, THREAD, Waker, WakerRef, discard, find, make, put_away};
use rsocket_host::sys;

/// Its id; 0 while there is none.
static FRONT: AtomicU64 = AtomicU64::new(0);

/// There shall be none: the program has few descriptors, and the two of a front waker would be of
/// these. Relaxed: a thread that does not see it finds the same.
static SCARCE: AtomicBool = AtomicBool::new(false);

/// Below this number, and below the program's limit, descriptors are few.
const FEW: i32 = 1024;

/// What peers are told of it: the id, 0 if there is none, and the eventfd, if there is one.
#[must_use]
pub fn offered() -> (u64, Option<BorrowedFd<'static>>) {
    let Some(waker) = current().or_else(first) else { return (super::some(), None) };
    let event = waker.event();
    (waker.id(), (event >= 0).then(|| sys::borrow(event)))
}

fn current() -> Option<WakerRef> {
    // Acquire: pairs with the Release in `first`, so that the eventfd is seen with the id.
    find(FRONT.load(Ordering::Acquire))
}

#[cold]
fn first() -> Option<WakerRef> {
    if SCARCE.load(Ordering::Relaxed) {
        return None;
    }
    let new = make(SPARE)?;
    let entry = new.entry()?;
    if new.fd() < FEW && sys::is_below_limit(new.fd()) {
        SCARCE.store(true, Ordering::Relaxed);
        put_away(&new, entry);
        return None;
    }
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    if let Ok(event) =
        rustix::event::eventfd(0, flags).map_err(Into::into).and_then(sys::make_private)
    {
        entry.event.store(event, Ordering::Relaxed);
    }
    // Release: pairs with the Acquire in `current`.
    match FRONT.compare_exchange(0, new.id(), Ordering::Release, Ordering::Relaxed) {
        Ok(_) => Some(new),
        Err(_) => {
            discard(entry);
            current()
        }
    }
}

/// An epoll set has asked for it: threads leave it to the sets from then on. Relaxed: a hint.
static FOR_SETS: AtomicBool = AtomicBool::new(false);

/// The front waker for one sleep of a thread, where no set wants it.
pub(super) fn take_for_thread() -> Option<WakerRef> {
    if FOR_SETS.load(Ordering::Relaxed) {
        return None;
    }
    let waker = current()?;
    // Acquire: as in take().
    let taken =
        waker.entry()?.state.compare_exchange(SPARE, THREAD, Ordering::Acquire, Ordering::Relaxed);
    taken.is_ok().then_some(waker)
}

/// The front waker for an epoll set, if no other set has it.
pub(super) fn take() -> Option<WakerRef> {
    if !FOR_SETS.load(Ordering::Relaxed) {
        FOR_SETS.store(true, Ordering::Relaxed);
    }
    let waker = current()?;
    // Acquire: pairs with the Release in `put_back`.
    let taken =
        waker.entry()?.state.compare_exchange(SPARE, SET, Ordering::Acquire, Ordering::Relaxed);
    taken.is_ok().then_some(waker)
}

/// As [`super::give_back`]; false where it is another waker.
pub(super) fn put_back(waker: &WakerRef, entry: &Waker) -> bool {
    let ours = is(waker.id());
    if ours {
        // Release: pairs with the Acquire in `take`.
        entry.state.store(SPARE, Ordering::Release);
    }
    ours
}

fn is(id: u64) -> bool {
    id != 0 && FRONT.load(Ordering::Relaxed) == id
}

/// The waker `id` is no more.
pub(super) fn gone(id: u64) {
    if is(id) {
        FRONT.store(0, Ordering::Relaxed);
    }
}

/// Whether what a peer has handed over can be an eventfd: it has no type, as no file has.
pub(super) fn is_event(fd: impl AsFd) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|s| rustix::fs::FileType::from_raw_mode(s.st_mode) == UNTYPED)
}

const UNTYPED: rustix::fs::FileType = rustix::fs::FileType::from_raw_mode(0);

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::super::{Woke, borrow_for_set, forget, give_back, hang_up, meet, try_wake};
    use super::*;

    fn copy(event: BorrowedFd<'_>) -> std::os::fd::OwnedFd {
        rustix::io::fcntl_dupfd_cloexec(event, 0).unwrap()
    }

    fn readable(fd: i32) -> bool {
        let flags = rustix::event::PollFlags::IN;
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(sys::borrow(fd), flags)];
        rustix::event::poll(&mut fds, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 }))
            .unwrap()
            == 1
    }

    #[test]
    fn peers_ring_by_what_they_were_handed() {
        // Other tests borrow wakers for sets, too.
        let (id, event, waker) = loop {
            let (id, event) = offered();
            if SCARCE.load(Ordering::Relaxed) {
                return assert!(event.is_none(), "of a few descriptors it takes none");
            }
            if let Some(waker) = take().filter(|waker| waker.id() == id) {
                break (id, event.unwrap(), waker);
            }
        };
        assert!(sys::is_private(event.as_raw_fd()) && is_event(event));
        assert_eq!(waker.event(), event.as_raw_fd());
        // It is the same one for all, lent to one set at a time.
        assert_eq!((offered().0, take()), (id, None));
        let other = borrow_for_set().unwrap();
        assert!(other.id() != id && other.event() == -1);
        give_back(other);

        assert_eq!(
            (try_wake(id), readable(waker.fd()), readable(waker.event())),
            (Woke::Yes, true, false)
        );
        assert!(waker.drain() && !readable(waker.fd()));
        for _ in 0..3 {
            // Handed over again, as by each connection.
            assert_eq!(meet(id, Some(copy(event))), Woke::Yes);
            assert_eq!(
                (try_wake(id), readable(waker.fd()), readable(waker.event())),
                (Woke::Yes, false, true)
            );
            assert!(waker.drain() && !waker.drain() && !readable(waker.event()));
        }
        hang_up(id);
        assert_eq!((try_wake(id), readable(waker.fd())), (Woke::Yes, true), "by its socket again");
        // What is no eventfd is no way to it.
        let file = rustix::fs::memfd_create(c"x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(meet(id, Some(file)), Woke::Yes);
        assert!(waker.drain());
        assert_eq!((try_wake(id), readable(waker.fd())), (Woke::Yes, true));

        forget(waker);
        assert!(waker.event() == -1 && offered().0 != id, "the next one is another");
    }
}
