//! Room in the channel: what a receiver gives back after it has taken bytes, and what is left to a
//! sender after a message. A receiver gives back buffer space and credits.
//!
//! Knows the states of the channel's ends and what is shown of them. Must not know how bytes are
//! taken ([`crate::socket::receive`]) or put, nor which thread waits for the room. Entry points:
//! [`follow_up`], [`follows`]; [`sent`], [`show_room`], [`no_room`].

use core::sync::atomic::Ordering;

use super::guard::{RecvGuard, SendGuard};
use super::link::{self, Ends};
use crate::conn::slot::{Slot, flag};
use crate::device::shm::channel::SendState;
use crate::device::shm::channel::receiver::WAKE_AT;
use crate::live_segment::{self, Record, conn_counters};
use crate::proto::SendHalf;

/// As [`follows`], out of line: for calls that are long anyway.
#[inline(never)]
pub(crate) fn follow_up(guard: &mut RecvGuard<'_>, n: usize) {
    follows(guard, n);
}

/// What follows from `n` bytes that were consumed, as the valid state says by now. Gives room and
/// credit back, one step at a time. So a holder that comes after our death finds each step whole.
#[inline(always)]
pub(crate) fn follows(guard: &mut RecvGuard<'_>, n: usize) {
    let (s, ends) = (guard.s, guard.ends);
    let shown = live_segment::record(s);
    if n > 0 {
        conn_counters::received_shm(s, shown, n);
    }
    if guard.view().owes() {
        guard.receiver().give_back();
    }
    let mut state = guard.view();
    if state.ended != 0 && !s.has(flag::ENDED) {
        s.set(flag::ENDED);
    }
    let unread = state.hint();
    // A sender that sleeps is woken when it can write for a while, or when nothing is left to read.
    // (TCP wakes it when a third is free.)
    let drained =
        || state.readable() == 0 && ends.incoming.poll_data(state.data_position).is_none();
    if state.owed >= WAKE_AT || (state.owed > 0 && drained()) {
        guard.receiver().told();
        state = guard.view();
        s.wake_sender_soon();
    }
    if let Some(r) = shown {
        r.unread(unread as u32);
    }
    // Relaxed: a hint.
    s.next_bytes.store(state.next_bytes(), Ordering::Relaxed);
    s.unread_hint.store(unread, Ordering::Release);
}

/// A message of `n` bytes was sent, and the state is that of after it.
pub(crate) fn sent(s: &Slot, state: &SendState, n: usize) {
    let shown = live_segment::record(s);
    conn_counters::sent_shm(s, shown, n);
    show_room(s, shown, state);
}

/// As [`sent`], of a message in the small class: the large one is as it was.
#[inline(always)]
pub(crate) fn sent_short(s: &Slot, state: &SendState, n: usize) {
    let shown = live_segment::record(s);
    conn_counters::sent_shm(s, shown, n);
    // Relaxed: written under the lock, which is held.
    let before = s.room_hint.load(Ordering::Relaxed);
    s.room_hint.store(state.hint_after_short(before), Ordering::Release);
    if let Some(r) = shown {
        let [small, _] = &state.classes;
        r.small_credits(small.credits());
    }
}

/// Shows the room that there is, after messages that were counted.
#[inline(always)]
pub(crate) fn show_room(s: &Slot, shown: Option<&Record>, state: &SendState) {
    s.room_hint.store(state.hint(link::beyond(s)), Ordering::Release);
    if let Some(r) = shown {
        r.room(state.room(), state.classes.each_ref().map(SendHalf::credits));
    }
}

/// Takes what the receiver has given back, and shows the room that there is then. For a thread that
/// sends nothing now. False where the connection has no such channel any more, or this very thread
/// is inside it: then a call has to find out.
#[cold]
pub(crate) fn refresh(s: &Slot, ends: &Ends) -> bool {
    let Some(mut guard) = SendGuard::take(s, ends) else { return false };
    let taken = guard.sender().refresh().is_ok();
    show_room(s, live_segment::record(s), guard.view());
    taken
}

/// There was no room for a message. What was refused last says what is waited for.
pub(crate) fn no_room(s: &Slot) {
    s.room_epoch.fetch_add(1, Ordering::Relaxed);
    s.clear(flag::PLACES_FULL);
}
