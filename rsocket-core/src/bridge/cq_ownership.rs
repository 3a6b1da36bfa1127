//! Which thread hears of the device's news while a thread sleeps on a connection: the service
//! thread, or the sleeper itself.
//!
//! A thread that sleeps on this one connection, in a blocking call, waits for the device's events
//! itself, and the service thread is left asleep. So no thread stands between the program and the
//! device then either. The service thread wakes any other waiter (an epoll set, poll, another
//! process of the fork group), and hears again from then on. While there is no waiter, and nothing
//! is to be sent, no thread need hear: the next call looks at the device.
//!
//! Must not know what the news are. Entry points: [`CqOwnership::begin`] and, for any other waiter,
//! [`by_service`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{Ordering, fence};
use std::os::fd::RawFd;

use super::table::Bridge;
use super::{connection::Connection, news, service};
use crate::channel::link::{self, Ends};
use crate::conn::fork_group;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::device::shm::park::MARK_READY;
use crate::device::shm::waker;

/// A thread's sleep in which it hears of the device's news.
#[derive(Clone, Copy)]
pub struct CqOwnership {
    bridge: &'static Bridge,
    key: u64,
    /// Readable when there is news.
    pub fd: RawFd,
}

/// Whether a waiter of the program's side has a waker in the channel, other than the one with this
/// id.
pub(super) fn others(ends: &Ends, waker: u64) -> bool {
    [ends.incoming.data_waiters(), ends.outgoing.room_waiters()]
        .iter()
        .any(|sleepers| sleepers.any_but(|word| word & !MARK_READY == waker))
}

impl CqOwnership {
    /// For tests: of a bridge that need not have a connection.
    #[cfg(test)]
    pub(super) fn of(bridge: &'static Bridge, fd: RawFd) -> Self {
        Self { bridge, key: bridge.key(), fd }
    }

    /// Before a thread arms its waker to sleep on the connection. `None`: the service thread is to
    /// hear.
    #[must_use]
    pub fn begin(id: SlotId, s: &Slot) -> Option<Self> {
        if !s.has(flag::BRIDGED) || !s.is_settled() || fork_group::shared(id) {
            return None;
        }
        let bridge = super::of(s)?;
        let own =
            (s.arena.load(Ordering::Relaxed).wrapping_sub(1), s.channel.load(Ordering::Relaxed));
        let fd = bridge
            .with(|slot| slot.as_mut().filter(|c| c.channel() == own)?.event_fd())
            .flatten()?;
        Some(Self { bridge, key: bridge.key(), fd })
    }

    /// After the thread's waker is in the channel, and the device is armed. The service thread does
    /// not hear any more, unless there is another waiter.
    pub fn settle(&self, id: SlotId, s: &Slot, waker: u64) {
        if self.bridge.heard.load(Ordering::Relaxed) == 0 {
            return;
        }
        let Some(ends) = link::ends(s) else { return };
        self.bridge.with(|slot| {
            // One that has ended keeps its key for a while; the number may be another device's
            // channel by now.
            let still = slot.as_mut().and_then(|c| c.event_fd()) == Some(self.fd);
            if !still
                || self.bridge.key() != self.key
                || self.bridge.heard.swap(0, Ordering::Relaxed) == 0
            {
                return;
            }
            // Pairs with the fence of a thread that puts a waker into the channel and then looks at
            // `heard` (by_service), or that makes siblings (bridge::shared). Either that thread
            // sees that the service thread does not hear, or this one sees the waker or the
            // siblings.
            fence(Ordering::SeqCst);
            if others(&ends, waker) || fork_group::shared(id) {
                self.bridge.heard.store(1, Ordering::Relaxed);
            } else {
                service::hears(self.key, self.fd, false);
            }
        });
    }

    /// The thread goes to sleep for room alone, with no waker in the channel. A thread that takes
    /// the event away first wakes this one, which thus hears of whatever comes after the look that
    /// follows. False if the event is taken away already. Where another thread's waker is there,
    /// this one has to look again soon.
    #[must_use]
    pub fn naps(&self, waker: u64) -> bool {
        // Relaxed: the fence orders it.
        let _ = self.bridge.napper.compare_exchange(0, waker, Ordering::Relaxed, Ordering::Relaxed);
        // Pairs with the fence of a thread that takes the mark of arming away and then looks for a
        // waker (taken). One of the two threads sees the other.
        fence(Ordering::SeqCst);
        self.bridge.armed.load(Ordering::Relaxed) != 0
    }

    /// It has slept, or was about to. Whether its waker was still there; if not, it has been woken,
    /// or is about to be.
    pub fn woke(&self, waker: u64) -> bool {
        // Relaxed: nothing is published by leaving.
        self.bridge.napper.compare_exchange(waker, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The thread has slept, and its waker is out of the channel: takes the event. The news
    /// themselves are taken here if `now`, or if there are other waiters, which hear of the next.
    /// Else they are taken by the look with which the thread goes on.
    pub fn heard(&self, s: &Slot, now: bool) {
        let ends = link::ends(s);
        let alive = news::with_news(self.bridge, |slot| {
            let c = slot.as_mut().filter(|_| self.bridge.key() == self.key)?;
            c.take_event();
            self.bridge.armed.store(0, Ordering::Relaxed);
            // Pairs with the fence in bridge::arm, as in Service::look.
            fence(Ordering::SeqCst);
            if !now && ends.as_ref().is_some_and(|ends| !others(ends, 0)) {
                return Some(true);
            }
            let mut ran = c.run();
            if ran.alive && ends.as_ref().is_some_and(|ends| others(ends, 0)) {
                c.arm();
                self.bridge.armed.store(1, Ordering::Relaxed);
                // Once more (device rule 10). What this brings about makes another event.
                ran = c.run();
            }
            Some(ran.alive)
        });
        taken(self.bridge);
        if alive.flatten() == Some(false) {
            service::nudge();
        }
    }
}

/// An event was taken away, and what it was about may have been as well. A thread that waits for
/// that alone is woken, and looks for itself. To be called with the bridge's lock given back, since
/// that look needs it.
#[inline]
pub(super) fn taken(bridge: &Bridge) {
    // Relaxed: ordered by the fence after `armed` was cleared, see CqOwnership::naps.
    if bridge.napper.load(Ordering::Relaxed) != 0 {
        waker::wake(bridge.napper.swap(0, Ordering::Relaxed));
    }
}

/// A waiter that the service thread wakes waits for the connection: the service thread hears from
/// now on. To be called after the waker was put into the channel.
#[inline]
pub fn by_service(s: &Slot) {
    if !s.has(flag::BRIDGED) {
        return;
    }
    if let Some(bridge) = super::of(s) {
        // Relaxed: the fence of arming came before.
        if bridge.heard.load(Ordering::Relaxed) == 0 {
            bridge.with(|slot| slot.iter_mut().for_each(|c| again(bridge, c)));
        }
    }
}

/// Whether the service thread must hear of this connection's device. It must where something waits
/// to be sent, the peer was asked whether it is there, or a waiter is to be woken. It must also
/// where it is not known which waiter could be. The device's news alone move along a connection
/// that is leaving TCP, and one that has gone back to the kernel.
fn needed(c: &Connection) -> bool {
    let Some((id, s)) = c.program() else { return true };
    c.backlog()
        || c.asks()
        || s.has(flag::PENDING | flag::UNDECIDED)
        || !s.is_settled()
        || link::ends(s).is_none_or(|ends| others(&ends, 0))
        || fork_group::shared(id)
}

/// The service thread has looked at the bridge: whether it goes on to hear of its device.
pub fn as_needed(bridge: &Bridge, c: &mut Connection) -> bool {
    let heard = bridge.heard.swap(0, Ordering::Relaxed) != 0;
    // As in CqOwnership::settle.
    fence(Ordering::SeqCst);
    if needed(c) {
        bridge.heard.store(u32::from(heard), Ordering::Relaxed);
        again(bridge, c);
        return true;
    }
    if heard && let Some(fd) = c.event_fd() {
        service::hears(bridge.key(), fd, false);
    }
    false
}

/// As [`by_service`], for a thread that works on the bridge.
pub fn again(bridge: &Bridge, c: &mut Connection) {
    if bridge.heard.load(Ordering::Relaxed) == 0
        && let Some(fd) = c.event_fd()
    {
        bridge.heard.store(1, Ordering::Relaxed);
        service::hears(bridge.key(), fd, true);
    }
}
