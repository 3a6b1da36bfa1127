//! Receiving datagrams.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::RawFd;

use super::endpoint::{Front, State};
use super::{ready, with};
use crate::address::SockAddr;
use crate::config::policy;
use crate::conn::fork_group;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::copy::{CopyHint, out_of_shared};
use crate::device::shm::waker;
use crate::failure::Failure;
use crate::host::kernel;
use crate::stats::{self, Counter, Transport};
use crate::sync::spin::CHEAP_LOOKS;
use crate::sys::vectors::Cursor;
use crate::waiting::call_deadline::CallDeadline;
use crate::waiting::{sleep, spinning};

/// The longest sleep of a thread whose wake-up a fork sibling may take, or that has no waker, in
/// nanoseconds.
const SHARED_NS: u64 = 20_000_000;

/// A datagram that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes that were copied.
    pub copied: usize,
    /// Bytes that it has.
    pub whole: usize,
    /// Who sent it; `None` after a shutdown, where there is nothing.
    pub from: Option<SockAddr>,
}

/// Receives one datagram. Blocks as the descriptor's flags say.
///
/// # Errors
/// As recvfrom(2).
pub fn receive(id: SlotId, fd: RawFd, to: &[libc::iovec], flags: i32) -> Result<Received, Failure> {
    let s = fork_group::slot(id).ok_or(Failure::BadDescriptor)?;
    if !Cursor::plausible(to) {
        return Err(Failure::BadAddress);
    }
    let mut deadline = CallDeadline::new(s, libc::SO_RCVTIMEO);
    loop {
        if let Some(received) =
            with(id, fd, |state| state.receive(to, flags & libc::MSG_PEEK != 0))??
        {
            return Ok(received);
        }
        if s.has(flag::READ_SHUT) {
            return Ok(Received { copied: 0, whole: 0, from: None });
        }
        if flags & libc::MSG_DONTWAIT != 0 || kernel::nonblocking(fd) {
            return Err(Failure::Blocked);
        }
        if !spun(id, s, fd) {
            sleep(id, s, fd, &mut deadline)?;
        }
    }
}

impl State {
    fn receive(&mut self, to: &[libc::iovec], peek: bool) -> Result<Option<Received>, Failure> {
        self.gather();
        loop {
            let Some(front) = self.front() else {
                return self.error.take().map_or(Ok(None), Err);
            };
            let Some((from, at, whole)) = self.show(front) else { continue };
            let mut cursor = Cursor::new(to);
            let copied = whole.min(cursor.left());
            let mut done = 0;
            while done < copied
                && let Some((place, room)) = cursor.stretch()
            {
                let n = room.min(copied - done);
                // SAFETY: the datagram lies there until it is taken, though a ring's sender may
                // change its bytes meanwhile; the program vouched for its buffers.
                unsafe { out_of_shared(place, at.add(done), n, CopyHint::Ordinary) };
                cursor.advance(n);
                done += n;
            }
            if !peek {
                count(front, whole);
                self.take(front);
            }
            return Ok(Some(Received { copied, whole, from: Some(SockAddr(from)) }));
        }
    }
}

fn count(front: Front, bytes: usize) {
    match front {
        Front::Held => stats::add(Counter::DatagramsReceivedUdp, 1),
        Front::Ring(_) => stats::received(Transport::Shm, bytes as u64, 1),
        Front::Fabric => stats::received(Transport::Rdma, bytes as u64, 1),
    }
}

/// Spins as long as that has paid lately; only memory and the device are worth it.
fn spun(id: SlotId, s: &Slot, fd: RawFd) -> bool {
    let worth = with(id, fd, |state| state.fabric.is_some() || state.has_rings()).unwrap_or(false);
    if !worth {
        return false;
    }
    let cap = u32::try_from(policy::polling_ns()).unwrap_or(u32::MAX);
    let probe = || with(id, fd, State::stirs).unwrap_or(true);
    spinning::spin_alone(&s.receive_spin, cap, CHEAP_LOOKS, probe)
}

/// Sleeps until something may have come.
fn sleep(id: SlotId, s: &Slot, fd: RawFd, deadline: &mut CallDeadline) -> Result<(), Failure> {
    let mut left = deadline.left(s, fd)?;
    let waker = waker::borrow();
    let armed = with(id, fd, |state| {
        let device = state.before_sleep(waker.map(|b| b.id()));
        state.gather();
        let quiet = state.front().is_none() && state.error.is_none();
        if let Some(waker) = waker.filter(|_| !quiet) {
            state.waiters.retain(|waiter| *waiter != waker.id());
        }
        quiet.then_some((device, state.has_rings()))
    });
    let slept = match armed {
        Ok(Some((device, rings))) => {
            if rings && fork_group::shared(id) || waker.is_none() {
                left = Some(left.map_or(SHARED_NS, |ns| ns.min(SHARED_NS)));
            }
            let fds = [fd, device, waker.map_or(-1, |b| b.fd())];
            let mut fds = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
            stats::add(Counter::Sleeps, 1);
            sleep::sleep_on(s, &mut fds, left, deadline)
        }
        other => other.map(|_| ()),
    };
    if let Some(waker) = waker {
        ready::disarm(id, waker.id());
        waker.drain();
        waker::give_back(waker);
    }
    slept
}
