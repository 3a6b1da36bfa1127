//! What a thread that waits asks of a socket, connection or datagrams: whether it is ready, and to
//! be woken.
//!
//! A part of the socket layer's face ([`super`]), by number; whose answers they are is
//! [`super::ready`]'s and [`crate::datagram::ready`]'s to know. Entry points: [`look`], [`arm`],
//! [`progress`].

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::os::fd::RawFd;

use super::door::{Door, door};
use super::{hints, reader, ready, soon};
use crate::channel::ready_bitmap::{self, Meant};
use crate::channel::{link, waiters};
use crate::config::policy;
use crate::conn::fork_group::{self, slot};
use crate::conn::kind::Kind;
use crate::conn::look::Look;
use crate::conn::machine::Phase;
use crate::conn::progress::Progress;
use crate::conn::slot::{Slot, SlotId};
use crate::host::counters;
use crate::host::events::Events;
use crate::waiting::spinning;
use crate::{bridge, datagram};

/// Looks what is ready; see [`Look`].
#[must_use]
pub fn look(id: SlotId, fd: RawFd) -> Look {
    match door(id) {
        Door::Stream(s) => ready::look(id, s, fd),
        Door::Datagram => datagram::ready::look(id, fd),
        Door::Nobody => Look { ready: Events::empty(), ask: Events::IN | Events::OUT },
    }
}

/// There will be a [`look`] soon: a hint, which changes nothing.
#[inline]
pub fn foresee(id: SlotId) {
    if let Some(s) = slot(id) {
        ready::foresee(s);
    }
}

/// What the kernel said about the TCP socket, as the program may see it.
#[must_use]
pub fn heard(id: SlotId, fd: RawFd, kernel: Events) -> Events {
    match door(id) {
        Door::Stream(s) => ready::heard(s, fd, kernel),
        Door::Datagram => datagram::ready::heard(id, fd, kernel),
        Door::Nobody => kernel,
    }
}

/// Puts a waker into the words that the peer looks at; false when something became ready meanwhile.
#[must_use]
pub fn arm(id: SlotId, interest: Events, waker: u64, mark_ready: bool) -> bool {
    let s = match door(id) {
        Door::Stream(s) => s,
        Door::Datagram => return datagram::ready::arm(id, interest, waker, mark_ready),
        Door::Nobody => return true,
    };
    match ready::arm(id, s, interest, waker, mark_ready) {
        ready::Armed::Armed => {
            bridge::cq_ownership::by_service(s);
            true
        }
        ready::Armed::Ready => false,
        // Without a channel no other thread could wake this one: then the kernel will speak, or a
        // time-out.
        ready::Armed::Crowded if !link::has_channel(s) => true,
        ready::Armed::Crowded => {
            waiters::disarm(s, waker);
            false
        }
    }
}

/// As [`arm`] for the receiving direction, but what was there already does not count: false only
/// when [`Progress::received`] is no longer `seen`.
#[must_use]
pub fn arm_edge(id: SlotId, seen: u64, waker: u64, mark_ready: bool) -> bool {
    let s = match door(id) {
        Door::Stream(s) => s,
        Door::Datagram => return datagram::ready::arm_edge(id, seen, waker, mark_ready),
        Door::Nobody => return true,
    };
    let armed = ready::arm_edge(s, seen, waker, mark_ready);
    if armed {
        bridge::cq_ownership::by_service(s);
    }
    armed
}

/// Whether an epoll set of this process may not have heard yet of bytes that are here.
#[must_use]
pub fn sets_may_be_deaf(id: SlotId) -> bool {
    slot(id).is_some_and(Slot::sets_may_be_deaf)
}

/// Takes the waker out again.
pub fn disarm(id: SlotId, waker: u64) {
    match door(id) {
        Door::Stream(s) => {
            waiters::disarm(s, waker);
        }
        Door::Datagram => datagram::ready::disarm(id, waker),
        Door::Nobody => {}
    }
}

/// Tells of the ready bits that peers set for connections of this process, and whom each is for.
pub fn collect_ready(f: &mut dyn FnMut(SlotId, Meant<'_>)) {
    ready_bitmap::collect_ready(f);
    // Those of datagrams are this process's alone.
    datagram::waiters::collect(&mut |id| f(id, &|_, _| true));
}

/// A few microseconds, in ticks.
const LATELY: u64 = 10_000;

/// How long a busy caller does without [`collect_ready`], in ticks; 0 where that has little to look
/// through.
#[must_use]
pub fn bits_serve() -> u64 {
    if ready_bitmap::has_many_bits() { LATELY } else { 0 }
}

/// Wakers of this process that peers have woken have to be woken again.
pub fn hear() {
    ready_bitmap::hear();
}

/// Whether both directions are wholly on the device.
#[must_use]
pub fn settled(id: SlotId) -> bool {
    slot(id).is_some_and(Slot::is_settled)
}

/// Changes whenever [`Look::ask`] or [`on_device`] does.
#[must_use]
pub fn mode_epoch(id: SlotId) -> u32 {
    slot(id).map_or(0, |s| s.mode_epoch.load(Ordering::Acquire))
}

/// How soon a waiter must look again, where something may change of which no waker tells. That is
/// so while a connection that may not use TCP attaches, where a half-closed peer may die, and where
/// TCP and the channel each have a part of what is waited for.
#[must_use]
pub fn recheck_after(id: SlotId) -> Option<Duration> {
    match door(id) {
        Door::Stream(s) => soon::recheck_after(id, s).or_else(|| reader::recheck_after(s)),
        Door::Datagram => datagram::ready::recheck_after(id),
        Door::Nobody => None,
    }
}

/// Whether a sibling may take a connection out of TCP, as all calls on it may, without any thread
/// of this process hearing of it.
#[must_use]
pub fn may_be_taken(id: SlotId) -> bool {
    // What may need no question comes first, and none is asked where one could be deadly. There
    // nothing attaches, and siblings attach nothing that such a process holds. The holders are
    // asked for before what the connection is by now: a sibling that holds it no more has done what
    // it did.
    let asks = fork_group::may_be_shared(id) && !policy::sandboxed();
    let others = slot(id).filter(|_| asks && fork_group::shared(id));
    others.is_some_and(|s| {
        s.kind_by_flags() != Kind::Datagram
            && !matches!(s.phase(), Phase::Unconnected | Phase::Refused)
    })
}

/// How far the two directions have come.
#[must_use]
pub fn progress(id: SlotId) -> Progress {
    let s = match door(id) {
        Door::Stream(s) => s,
        Door::Datagram => return datagram::ready::progress(id),
        Door::Nobody => return Progress::default(),
    };
    // What the look that follows would have the bridge bring belongs to this, or it would be news
    // once more.
    bridge::bring(s);
    hints::progress(s)
}

/// How much has arrived by TCP: changes with each arrival. `before`: that was all when the
/// direction left TCP.
#[must_use]
pub fn arrived(id: SlotId, fd: RawFd, before: bool) -> u64 {
    let Some(s) = slot(id) else { return 0 };
    if before { ready::switch_offset(s) } else { counters::arrived(fd).unwrap_or(0) }
}

/// Whether bytes that TCP has now came around the library.
#[must_use]
pub fn astray(id: SlotId) -> bool {
    slot(id).is_some_and(ready::astray)
}

/// Whether the end of the stream came by the device, whatever is unread before it.
#[must_use]
pub fn is_over(id: SlotId) -> bool {
    match door(id) {
        Door::Stream(s) => ready::is_over(s),
        Door::Datagram | Door::Nobody => false,
    }
}

/// Spins while that pays: true as soon as `probe` is.
pub fn spin(probe: &mut dyn FnMut() -> bool, slots: &[SlotId]) -> bool {
    match slots.first().map(|id| door(*id)) {
        Some(Door::Datagram) => datagram::ready::spin(probe),
        Some(Door::Stream(_) | Door::Nobody) | None => spinning::spin_for(probe, slots),
    }
}
