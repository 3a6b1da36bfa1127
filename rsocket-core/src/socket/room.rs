//! Room in the channel: what a receiver gives back after it has taken bytes, buffer space and
//! credits, and what is left to a sender after a message.
//!
//! Knows the states of the channel's ends and what is shown of them; must not know how bytes are
//! taken ([`super::receive`]) or put, nor which thread waits for the room. Entry points:
//! [`commit`], [`follow_up`], [`give_back`], [`Due`]; [`sent`], [`show_room`], [`no_room`].

use core::sync::atomic::Ordering;

use super::guard::RecvGuard;
use crate::attach::link::Ends;
use crate::conn::slot::{Slot, flag};
use crate::device::shm::channel::banks::entry;
use crate::device::shm::channel::{LARGE, RecvState, SMALL, SendState};
use crate::device::shm::layout::{self, SEGMENTS};
use crate::live::tally;
use crate::live::{self, Record};
use crate::proto::SendHalf;
use crate::sync::guarded::Held;
use crate::wire::sge::Sge;

/// Updates after which a sleeping sender is woken: half of a bank's segments.
const WAKE_AT: u32 = SEGMENTS as u32 / 2;

/// An update that is to be published: room, or credit, or both.
pub(crate) struct Due {
    position: u32,
    word: u32,
    entry: Option<(usize, Sge)>,
}

impl Due {
    /// The next update that the state owes the sender, if there is one; the state counts it as
    /// said.
    pub(crate) fn next(state: &mut RecvState) -> Option<Self> {
        for bank in [SMALL, LARGE] {
            let Some(update) = state.banks.get_mut(bank).and_then(|half| half.next_update(false))
            else {
                continue;
            };
            let position = state.control_position;
            state.control_position = position.wrapping_add(1);
            state.owed = state.owed.saturating_add(1);
            let word = update.word.0 | (bank as u32 * layout::LARGE_BANK);
            return Some(match update.entry {
                None => Self { position, word, entry: None },
                Some((index, region)) => Self {
                    position,
                    word: word | layout::WITH_ENTRY,
                    entry: Some((bank * SEGMENTS + index as usize, entry(bank, region))),
                },
            });
        }
        None
    }

    /// Says it to the sender: the entry first, then the word that announces it.
    pub(crate) fn publish(&self, ends: &Ends) {
        if let Some((index, entry)) = self.entry {
            ends.incoming.post_entry(index, entry);
        }
        ends.incoming.publish_control(self.position, self.word);
    }
}

/// Sends the updates that are due.
#[inline(never)]
pub(crate) fn give_back(held: &mut Held<'_, RecvState>, ends: &Ends) {
    while held.view().owes() {
        let mut state = held.draft();
        let Some(due) = Due::next(&mut state) else { return };
        due.publish(ends);
        state.flip();
    }
}

/// What [`super::ready::data_waiting`] needs to know of the receiving state: position in the data
/// lane and unread bytes.
pub(super) fn unread_word(state: &RecvState) -> u64 {
    u64::from(state.data_position) << 32 | u64::from(state.readable())
}

/// Publishes that `n` bytes were consumed, as a state says that was edited elsewhere, and what
/// follows from it.
pub(super) fn commit(guard: &mut RecvGuard<'_>, state: RecvState, n: usize) {
    guard.set(state);
    follow_up(guard, n);
}

/// As [`follows`], out of line: for calls that are long anyway.
#[inline(never)]
pub(super) fn follow_up(guard: &mut RecvGuard<'_>, n: usize) {
    follows(guard, n);
}

/// What follows from `n` bytes that were consumed, as the valid state says by now: gives room and
/// credit back, one step at a time so that each is found whole by a holder that comes after our
/// death.
#[inline(always)]
pub(super) fn follows(guard: &mut RecvGuard<'_>, n: usize) {
    let (s, ends) = (guard.s, guard.ends);
    let shown = live::record(s);
    if n > 0 {
        tally::received_shm(s, shown, n);
    }
    if guard.view().owes() {
        give_back(guard, ends);
    }
    let mut state = guard.view();
    if state.ended != 0 && !s.has(flag::ENDED) {
        s.set(flag::ENDED);
    }
    let unread = unread_word(state);
    // A sender that sleeps is woken when it can write for a while, or when nothing is left to read:
    // waking it costs as much as copying a segment. (TCP calls a socket writable at a third.)
    let drained =
        || state.readable() == 0 && ends.incoming.poll_data(state.data_position).is_none();
    if state.owed >= WAKE_AT || (state.owed > 0 && drained()) {
        let mut draft = guard.draft();
        draft.owed = 0;
        state = draft.flip();
        s.wake_due.store(1, Ordering::Relaxed);
    }
    if let Some(r) = shown {
        r.unread(unread as u32);
    }
    // Relaxed: a hint.
    s.next_bytes.store(state.next_bytes(), Ordering::Relaxed);
    s.unread_hint.store(unread, Ordering::Release);
}

/// A message of `n` bytes was sent, and the state is that of after it.
pub(super) fn sent(s: &Slot, state: &SendState, n: usize) {
    let shown = live::record(s);
    tally::sent_shm(s, shown, n);
    show_room(s, shown, state);
}

/// As [`sent`], of a message in the small bank: the large one is as it was.
#[inline(always)]
pub(super) fn sent_short(s: &Slot, state: &SendState, n: usize) {
    let shown = live::record(s);
    tally::sent_shm(s, shown, n);
    s.room_hint.store(state.hint(), Ordering::Release);
    if let Some(r) = shown {
        let [small, _] = &state.banks;
        r.small_credits(small.credits());
    }
}

/// Shows the room that there is, after messages that were counted.
#[inline(always)]
pub(super) fn show_room(s: &Slot, shown: Option<&Record>, state: &SendState) {
    s.room_hint.store(state.hint(), Ordering::Release);
    if let Some(r) = shown {
        r.room(state.room(), state.banks.each_ref().map(SendHalf::credits));
    }
}

/// There was no room for a message. What was refused last says what is waited for.
pub(super) fn no_room(s: &Slot) {
    s.room_epoch.fetch_add(1, Ordering::Relaxed);
    s.clear(flag::PLACES_FULL);
}
