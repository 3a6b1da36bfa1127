//! What a connection is ready for, as far as the device can say, and how a waiter is told of a
//! change.
//!
//! `look` and `arm` take no lock, but to learn how much room a receiver has given back. They read
//! the hints that the two data paths leave behind ([`super::hints`]), and the words that the peer
//! writes. A hint that is out of date makes a call that finds nothing, never a missed event. A
//! thread that sleeps arms first and looks again.

use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use super::hints::{data_waiting, progress, writable};
use super::{asking, reader, rest, returned, switch_offset, tcp_anchored, verdict};
use crate::channel::link::{self, Ends};
use crate::channel::unread::{end_is_ahead, end_is_next};
use crate::channel::waiters::disarm;
use crate::channel::{handover_state, residual};
use crate::conn::look::Look;
use crate::conn::machine::{Phase, ReceiveMode, SendMode};
use crate::conn::pending;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::device::shm::channel::AMPLE;
use crate::device::shm::park::MARK_READY;
use crate::host::events::Events;
use crate::waiting::spinning;
use crate::wire::word::{Message, Word};
use crate::{bridge, fork_safe, pairing};

/// Whether nothing but the sender's mark was found, which may have come behind a look's beginning.
/// Then the receiver follows now, and the kernel knows whether there is something to read.
#[inline]
fn only_the_mark(id: SlotId, s: &Slot, fd: RawFd, ends: &Ends) -> bool {
    if fd < 0 || handover_state::end(&ends.incoming).is_none() {
        return false;
    }
    returned::follow_back(id, s, fd, ends);
    s.receive_mode() == ReceiveMode::Returned
}

/// Whether the channel has or had the end of the stream.
#[must_use]
pub fn is_over(s: &Slot) -> bool {
    s.has(flag::ENDED)
        || s.receive_mode() == ReceiveMode::Device
            && link::ends(s).is_some_and(|ends| end_is_ahead(s, &ends))
}

/// Whether bytes that TCP has now came around the library: all of the peer's come by the device. A
/// peer that goes back says so first, so its mark is there before its bytes are.
#[must_use]
pub fn astray(s: &Slot) -> bool {
    let elsewhere = flag::UNCOMMON & !(flag::BRIDGED | flag::WRITE_SHUT);
    let device = s.receive_mode() == ReceiveMode::Device;
    device
        && !s.has(elsewhere | flag::TCP_ANCHORED | flag::PEER_FIN)
        && link::ends(s).is_some_and(|ends| handover_state::end(&ends.incoming).is_none())
}

/// The look at a connection that is wholly on its device, in the middle of its life, which most
/// are. `None` for any other: [`look`] goes the long way then.
#[inline]
fn common(s: &Slot) -> Option<Look> {
    if s.has(flag::UNCOMMON | flag::PEER_FIN) || !s.is_settled() || s.phase() != Phase::Paired {
        return None;
    }
    let ends = link::ends(s)?;
    let mut ready = Events::empty();
    // Acquire: pairs with the release in room::follows.
    let hint = s.unread_hint.load(Ordering::Acquire);
    if hint as u32 != 0 {
        ready |= Events::IN;
    } else if let Some(word) = ends.incoming.poll_data((hint >> 32) as u32) {
        if !matches!(Word(word).message(), Ok(Message::Data(_))) {
            return None;
        }
        // It will be read soon. Relaxed: a hint.
        ends.incoming.fetch_payload(s.next_bytes.load(Ordering::Relaxed));
        ready |= Events::IN;
    }
    let over = handover_state::end(&ends.incoming).is_some()
        || handover_state::is_asked_back(&ends.outgoing)
        || handover_state::receiver_closed(&ends.outgoing);
    if over || s.low_water.load(Ordering::Relaxed) > 1 {
        return None;
    }
    // Acquire: pairs with the release in room::show_room.
    let hint = s.room_hint.load(Ordering::Acquire);
    if hint & AMPLE != 0 {
        ready |= Events::OUT;
    } else if ends.outgoing.poll_control((hint >> 32) as u32).is_some() {
        return None;
    }
    Some(Look { ready, ask: Events::empty() })
}

/// Soon there will be a look at the connection: what it reads of the peer's is asked for already.
#[inline]
pub fn foresee(s: &Slot) {
    if !s.has(flag::UNCOMMON)
        && s.is_settled()
        && let Some(ends) = link::ends(s)
    {
        // Relaxed: a hint.
        ends.incoming.fetch_word((s.unread_hint.load(Ordering::Relaxed) >> 32) as u32);
    }
}

/// Looks, without a system call once both directions are settled. The exception is a question now
/// and then where there is no room and the peer sends no more.
#[inline]
pub fn look(id: SlotId, s: &Slot, fd: RawFd) -> Look {
    common(s).unwrap_or_else(|| look_closely(id, s, fd, true))
}

/// As [`look`], right after the bridge, if there is one, has brought what there is.
pub(super) fn look_again(id: SlotId, s: &Slot, fd: RawFd) -> Look {
    common(s).unwrap_or_else(|| look_closely(id, s, fd, false))
}

fn look_closely(id: SlotId, s: &Slot, fd: RawFd, bring: bool) -> Look {
    if let Some(look) = decided(id, s, fd, bring) {
        return look;
    }
    pairing::advance(id, s, fd);
    let ends = link::ends(s);
    if let Some(e) = ends.as_ref().filter(|_| fd >= 0) {
        hand_over(id, s, fd, e);
    }
    let (receive_mode, send_mode) = (s.receive_mode(), s.send_mode());
    // The thread that set the modes gave the connection its channel before: another thread may have
    // done both since.
    let ends = ends.or_else(|| link::ends(s));
    let mut look = Look::default();
    if pending::is_kernels(s) {
        look.ready |= Events::IN | Events::OUT | Events::ERR;
    }
    match receive_mode {
        ReceiveMode::Device => look.add(received(id, s, fd, ends.as_ref())),
        ReceiveMode::Acknowledged => look.add(before_the_switch(s, fd, ends.as_ref())),
        ReceiveMode::Kernel | ReceiveMode::Asked | ReceiveMode::Returned => look.ask |= Events::IN,
    }
    if s.has(flag::PEER_FIN) && !s.has(flag::BRIDGED) && !look.ready.contains(Events::RDHUP) {
        // TCP has said it before the device does, if that ever does: a killed peer says nothing
        // there.
        look.ask |= Events::RDHUP;
    }
    let strict = s.has(flag::STRICT);
    match send_mode {
        SendMode::Device => look.add(sendable(s, fd, ends.as_ref())),
        SendMode::Kernel | SendMode::Asked if strict => match s.phase() {
            Phase::Paired if send_mode == SendMode::Asked => look.ready |= Events::OUT,
            _ => look.ready |= verdict::ready(s, fd),
        },
        SendMode::Kernel | SendMode::Asked | SendMode::Returned => look.ask |= Events::OUT,
    }
    if strict && s.phase() == Phase::Unconnected {
        look.ask |= Events::IN | Events::OUT;
    }
    if s.has(flag::CONNECT_NEWS) && verdict::tells_connected(s) {
        look.ask |= Events::OUT;
    }
    look
}

/// The look at a connection whose directions do not count: it is broken, not one yet, or no more.
/// A bridge brings what there is, if it is to `bring`.
fn decided(id: SlotId, s: &Slot, fd: RawFd, bring: bool) -> Option<Look> {
    let all = Events::IN | Events::OUT | Events::ERR | Events::HUP;
    let says = |ready| Some(Look { ready, ask: Events::empty() });
    if s.has(flag::BROKEN) {
        return says(all);
    }
    if !fork_safe::settle(id, s, fd, fork_safe::Use::Look) {
        return Some(Look { ready: Events::empty(), ask: fork_safe::ask(s) });
    }
    if s.has(flag::BRIDGED) {
        if s.has(flag::PENDING) {
            return says(Events::empty());
        }
        if s.has(flag::UNREACHED) {
            return says(all);
        }
        if bring {
            bridge::pump(s);
        }
    }
    if s.has(flag::LOST) { says(all | Events::RDHUP) } else { None }
}

/// The steps of a handover that are due on this side, and need no call that sends or receives.
fn hand_over(id: SlotId, s: &Slot, fd: RawFd, ends: &Ends) {
    if handover_state::is_asked_back(&ends.outgoing) {
        residual::serve_return(id, s, fd, ends);
    }
    if handover_state::end(&ends.incoming).is_some() {
        returned::follow_back(id, s, fd, ends);
    }
    if s.has(flag::FIN_FIRST) && s.receive_mode() == ReceiveMode::Acknowledged {
        switch_offset::pass_the_switch(s, fd, ends);
    }
}

/// What there is to receive from the device, and of its end.
fn received(id: SlotId, s: &Slot, fd: RawFd, ends: Option<&Ends>) -> Look {
    let mut look = Look::default();
    let here = ends.is_none_or(|e| data_waiting(s, e));
    let mark = |e| only_the_mark(id, s, fd, e);
    let awaited = || !s.has(flag::READ_SHUT | flag::ENDED) && rest::is_awaited(s, fd, ends);
    if here && (ends.is_some_and(mark) || awaited()) {
        look.ask |= Events::IN;
    } else if here || s.has(flag::READ_SHUT) {
        look.ready |= Events::IN;
    }
    look.ready |= shut_here(s);
    // Both directions have ended. A bridge's FIN, by which the kernel would know, comes a moment
    // later.
    if s.has(flag::WRITE_SHUT) {
        if s.has(flag::ENDED) || ends.is_some_and(|e| end_is_ahead(s, e)) {
            look.ready |= Events::IN | Events::RDHUP | Events::HUP;
        }
    } else if s.has(flag::ENDED) || ends.is_some_and(|e| end_is_next(s, e)) {
        look.ready |= Events::IN | Events::RDHUP;
        // A reset has ended the other direction as well. Where that is the device's, `sendable`
        // asks; where it is on TCP, only the kernel knows.
        if s.has(flag::ENDED) && !s.has(flag::BRIDGED) && s.send_mode() != SendMode::Device {
            look.ask |= Events::RDHUP;
        }
    }
    look
}

/// What there is to receive while TCP has the next bytes and the channel those behind them.
fn before_the_switch(s: &Slot, fd: RawFd, ends: Option<&Ends>) -> Look {
    let mut look = Look::default();
    let bridge_says = s.has(flag::FIN_FIRST) && ends.is_some();
    if !bridge_says {
        // Before the switch offset the kernel knows, even if the channel has its first bytes
        // already.
        look.ask |= Events::IN;
    }
    let next = |e| {
        data_waiting(s, e) && switch_offset::at_the_switch(s, fd, e) || rest::is_enough(s, fd, e)
    };
    if ends.is_some_and(next) {
        look.ready |= Events::IN;
    }
    if let Some(e) = ends {
        look.ready |= tcp_anchored::ready(s, e);
    }
    look
}

/// Whether the device takes something, and whether any process reads it.
fn sendable(s: &Slot, fd: RawFd, ends: Option<&Ends>) -> Look {
    let mut look = Look::default();
    let room = ends.is_none_or(|e| writable(s, e));
    // After FIN there may be no process left to make room.
    let over = || s.has(flag::WRITE_SHUT) || s.has(flag::PEER_FIN) && reader::check(s, fd);
    if room || s.has(flag::PEER_GONE) || over() {
        look.ready |= Events::OUT;
    }
    let closed = || ends.is_some_and(|e| handover_state::receiver_closed(&e.outgoing));
    if !s.has(flag::BRIDGED) && (s.has(flag::PEER_GONE) || closed()) {
        // What is sent now brings a reset, which must be seen beside all that is ready.
        look.ask |= Events::IN | Events::OUT;
    }
    look
}

/// What this side's own shutdown says, which no caller need ask the kernel about. (A bridge's end
/// may still have news.)
fn shut_here(s: &Slot) -> Events {
    if !s.has(flag::READ_SHUT) || s.has(flag::BRIDGED) {
        Events::empty()
    } else if s.has(flag::WRITE_SHUT) {
        Events::RDHUP | Events::HUP
    } else {
        Events::RDHUP
    }
}

/// What the kernel said about the TCP socket, as the program may see it.
pub fn heard(s: &Slot, fd: RawFd, kernel: Events) -> Events {
    if s.has(flag::UNDECIDED)
        && let Some(seen) = fork_safe::heard(s)
    {
        return seen;
    }
    let kernel = if s.has(flag::UNDECIDED) { kernel } else { fork_safe::confirmed(s, fd, kernel) };
    let mut seen = kernel;
    if s.has(flag::TCP_ANCHORED)
        && !s.has(flag::ENDED | flag::LOST)
        && let Some(seen) = tcp_anchored::heard(s, fd, kernel)
    {
        return seen;
    }
    if kernel.intersects(Events::RDHUP | Events::HUP | Events::ERR) {
        asking::ask_kernel_next(s);
        reader::heard_fin(s);
        seen |= Events::IN;
        if kernel.contains(Events::RDHUP) || kernel.contains(Events::HUP) {
            seen |= Events::RDHUP;
        }
        if kernel.intersects(Events::HUP | Events::ERR) {
            s.set(flag::PEER_GONE);
            // The kernel sets the error of a reset a moment before the rest; a waker may wake us in
            // between.
            seen |= Events::OUT | Events::HUP | Events::RDHUP;
        } else if reader::is_full(s) && reader::check(s, fd) {
            seen |= Events::OUT;
        }
    }
    if kernel.contains(Events::IN) {
        asking::ask_kernel_next(s);
    }
    seen
}

/// Puts `waker` into the words that the peer looks at; false when something became ready meanwhile,
/// and then nothing is armed.
pub fn arm(id: SlotId, s: &Slot, interest: Events, waker: u64, mark: bool) -> Armed {
    let Some(ends) = link::ends(s) else { return Armed::Crowded };
    spinning::say_cpu(&ends);
    let word = said(s, waker, mark);
    let mut armed = Armed::Armed;
    // Data waiters are armed whatever the interest is: a peer that wants to go back rings them.
    if !ends.incoming.data_waiters().enlist(word) {
        armed = Armed::Crowded;
    }
    if interest.contains(Events::OUT) && !ends.outgoing.room_waiters().enlist(word) {
        armed = Armed::Crowded;
    }
    // Behind the wakers: the thread that takes the device's event away arms again for the sleepers
    // whose wakers it sees.
    let brought = s.has(flag::BRIDGED) && bridge::arm(s);
    // Arming a waker ends with the fence that pairs with the one in wake(). Either the peer sees
    // the waker, or we see what it published before it looked.
    let look = if brought { look_again(id, s, -1) } else { look(id, s, -1) };
    if look.ready.intersects(interest) {
        disarm(s, waker);
        return Armed::Ready;
    }
    armed
}

/// The word of a waker. An epoll set's is to be told by a ready bit, its `mark`.
fn said(s: &Slot, waker: u64, mark: bool) -> u64 {
    if !mark {
        return waker;
    }
    s.set_may_be_deaf();
    waker | MARK_READY
}

/// How arming went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Armed {
    /// What is waited for is there; nothing is armed.
    Ready,
    /// The peer will wake.
    Armed,
    /// All places are taken: look again soon.
    Crowded,
}

/// As [`arm`] for data alone, but only what came after `seen` counts.
pub fn arm_edge(s: &Slot, seen: u64, waker: u64, mark: bool) -> bool {
    let Some(ends) = link::ends(s) else { return true };
    spinning::say_cpu(&ends);
    let armed = ends.incoming.data_waiters().enlist(said(s, waker, mark));
    // As in arm().
    if s.has(flag::BRIDGED) {
        bridge::arm(s);
    }
    if !armed || progress(s).received != seen {
        disarm(s, waker);
        return false;
    }
    true
}

/// How much of the stream TCP had carried when it went to the device, in the terms of
/// `host::counters::arrived`.
pub fn switch_offset(s: &Slot) -> u64 {
    link::ends(s).and_then(|ends| handover_state::switch_offset(&ends.incoming)).unwrap_or(0)
}
