//! What a receiver gives back to its sender: room in the buffer, and credit.
//!
//! The other half of [`super::receive`]. Knows the receiving state and the control lane; must not know who waits for
//! the room. Entry points: [`give_back`], [`Due`].

use super::slot::{LARGE, RecvState, SMALL, Slot};
use crate::attach::link::{self, Ends};
use crate::device::shm::layout::{self, SEGMENTS};
use crate::proto::RecvHalf;
use crate::wire::sge::Sge;

/// An update that is to be published: room, or credit, or both.
pub(crate) struct Due {
    position: u32,
    word: u32,
    entry: Option<(usize, Sge)>,
}

impl Due {
    /// The next update that the state owes the sender, if there is one; the state counts it as said.
    pub(crate) fn next(state: &mut RecvState) -> Option<Self> {
        for bank in [SMALL, LARGE] {
            let Some(update) = state.banks.get_mut(bank).and_then(|half| half.next_update(false)) else {
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
                    entry: Some((bank * SEGMENTS + index as usize, link::entry(bank, region))),
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

/// Sends the updates that are due. The caller holds the receive lock.
pub(crate) fn give_back(s: &Slot, ends: &Ends) {
    // SAFETY: the lock is our caller's. Nothing is edited while the state is looked at, and each draft is used until its
    // flip only.
    while unsafe { s.receive.view() }.banks.iter().any(RecvHalf::owes) {
        // SAFETY: as above.
        let Some(due) = Due::next(unsafe { s.receive.draft() }) else { return };
        due.publish(ends);
        s.receive.flip();
    }
}
