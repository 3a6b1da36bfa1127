//! What a datagram socket is ready for, and how a poller is told: the same questions that
//! [`crate::socket::ready`] answers for streams.
//!
//! The kernel's UDP socket wakes the threads that sleep on it. A writer of shared memory sends it a
//! packet when the reader said that it sleeps. So the kernel is always asked for readability, and
//! what it says is looked into. What comes by a queue pair makes another descriptor readable
//! ([`events`]), on which a poller sleeps as well. For epoll sets [`super::service`] sleeps on it,
//! and signals the wakers that were left ([`super::waiters`]).
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::os::fd::RawFd;

use super::endpoint::State;
use super::{hint, service, waiters, with};
use crate::config::policy;
use crate::conn::fork_group;
use crate::conn::look::Look;
use crate::conn::progress::Progress;
use crate::conn::slot::{SlotId, flag};
use crate::device::shm::park::{MARK_READY, WAKER};
use crate::failure::Failure;
use crate::host::events::Events;
use crate::sync::spin::{Adaptive, CHEAP_LOOKS};

/// How soon a poller whose wake-up a fork sibling may take looks by itself.
const SHARED: Duration = Duration::from_millis(20);

impl State {
    /// Whatever is here, by level.
    fn ready(&mut self, shut: bool) -> Events {
        self.gather();
        let mut ready = Events::empty();
        if self.front().is_some() {
            ready |= Events::IN;
        }
        if self.error.is_some() {
            ready |= Events::IN | Events::OUT | Events::ERR;
        }
        if shut {
            ready |= Events::IN | Events::RDHUP;
        }
        if !self.stuffed && self.fabric.as_mut().is_none_or(super::fabric::Fabric::has_room) {
            ready |= Events::OUT;
        }
        ready
    }
}

/// What is ready, and what only the kernel can say.
pub(crate) fn look(id: SlotId, fd: RawFd) -> Look {
    let shut = fork_group::slot(id).is_some_and(|s| s.has(flag::READ_SHUT));
    let found = with(id, fd, |state| (state.ready(shut), state.stuffed));
    let (ready, stuffed) = match found {
        Ok((ready, stuffed)) => (hint(id, Some(ready)), stuffed),
        Err(Failure::Blocked) => (hint(id, None), false),
        Err(_) => (Events::IN | Events::OUT | Events::ERR, false),
    };
    Look { ready, ask: if stuffed { Events::IN | Events::OUT } else { Events::IN } }
}

/// What the kernel said about the UDP socket: that there are packets does not mean that there are
/// datagrams.
pub(crate) fn heard(id: SlotId, fd: RawFd, kernel: Events) -> Events {
    let mut seen = kernel - Events::IN;
    if kernel.contains(Events::OUT) {
        let _ = with(id, fd, |state| state.stuffed = false);
    }
    if kernel.intersects(Events::IN | Events::ERR) {
        seen |= look(id, fd).ready & (Events::IN | Events::ERR);
    }
    seen
}

/// Puts a waker where it will be woken; false when something is ready meanwhile, and then it is
/// nowhere.
pub(crate) fn arm(id: SlotId, interest: Events, waker: u64, mark: bool) -> bool {
    let quiet = enlist(id, waker, mark);
    if quiet && !look(id, -1).ready.intersects(interest) {
        return true;
    }
    disarm(id, waker);
    false
}

/// As [`arm`] for what comes after `seen` of [`progress`].
pub(crate) fn arm_edge(id: SlotId, seen: u64, waker: u64, mark: bool) -> bool {
    if enlist(id, waker, mark) && progress(id).received == seen {
        return true;
    }
    disarm(id, waker);
    false
}

/// A set's waker is woken by the service thread too; a thread that polls sleeps on [`events`]
/// itself.
fn enlist(id: SlotId, waker: u64, set: bool) -> bool {
    let armed = with(id, -1, |state| {
        let word = if set { waker | MARK_READY } else { waker };
        state.before_sleep(Some(word))
    });
    if let Ok(device) = armed
        && set
        && device >= 0
    {
        service::watch(device, id);
    }
    armed.is_ok()
}

/// What a poller sleeps on beside the UDP socket, once it has armed.
pub(crate) fn events(id: SlotId) -> Option<RawFd> {
    with(id, -1, |state| state.fabric.as_ref().map(super::fabric::Fabric::events)).ok().flatten()
}

/// Spins for a poller, as long as that has paid lately.
pub(crate) fn spin(probe: &mut dyn FnMut() -> bool) -> bool {
    static LEARNT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: what one thread learnt is a hint to the others.
    let mut adaptive = Adaptive::from_raw(LEARNT.load(Ordering::Relaxed));
    let cap = u32::try_from(policy::polling_ns()).unwrap_or(u32::MAX);
    let spun = adaptive.spin(cap, CHEAP_LOOKS, || 0, probe);
    LEARNT.store(adaptive.to_raw(), Ordering::Relaxed);
    spun.found()
}

/// Takes the waker out again.
pub(crate) fn disarm(id: SlotId, waker: u64) {
    let _ = with(id, -1, |state| state.waiters.retain(|word| word & WAKER != waker & WAKER));
}

/// How much has come; what goes out is never held back for long.
pub(crate) fn progress(id: SlotId) -> Progress {
    let arrived = with(id, -1, |state| {
        state.gather();
        state.arrived
    });
    Progress { received: arrived.unwrap_or(0), room: 0 }
}

/// How soon a poller must look by itself.
pub(crate) fn recheck_after(id: SlotId) -> Option<Duration> {
    let rings = fork_group::shared(id) && with(id, -1, |state| state.has_rings()) == Ok(true);
    rings.then_some(SHARED)
}

/// Something was done to the socket that may have changed what it is ready for.
pub(super) fn changed(id: SlotId) {
    let wakers = with(id, -1, |state| core::mem::take(&mut state.waiters));
    waiters::wake(id, &wakers.unwrap_or_default());
    if let Some(s) = fork_group::slot(id) {
        s.next_epoch();
    }
}
