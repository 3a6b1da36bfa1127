//! What two bridges tell each other of the marks, where a TCP connection to the same peer stands
//! beside theirs. The marks say from which byte on a direction goes by RDMA, and at which it goes
//! back.
//!
//! The bridge tells the peer's bridge in notes ([`super::peer_control`]) what the program's side of
//! the channel says. It writes into the channel what the peer's bridge tells. Must not know how
//! words travel. Entry points: [`Pump::heard`], [`Pump::peer_control`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use super::peer_control::{Note, Read};
use super::pump::Pump;
use crate::channel::handover_state;
use crate::device::{PostError, QueuePair};
use crate::wire::word::Word;

impl<Q: QueuePair> Pump<Q> {
    /// A word of the peer's bridge; false when it is the protocol's.
    pub(super) fn heard(&mut self, word: Word) -> bool {
        let Some(reader) = &mut self.reader else { return false };
        match (reader.read(word), &mut self.beside) {
            (Read::Foreign, _) => return false,
            (Read::Part, _) => {}
            (Read::Note(note @ (Note::Unmapped(_) | Note::Forgotten(_))), _) => self.noted(note),
            (Read::Note(Note::Closed(n)), _) => self.taken = Some(n),
            (Read::Note(Note::Acknowledged), Some(_)) => {
                handover_state::acknowledge(&self.port.ends().incoming)
            }
            (Read::Note(Note::SwitchOffset(n)), Some(_)) => {
                handover_state::publish_switch_offset(&self.port.ends().outgoing, n)
            }
            (Read::Note(Note::End(n)), Some(beside)) => {
                beside.end = Some(n);
                beside.returned = true;
            }
            (Read::Note(_), None) | (Read::Nonsense, _) => self.hang_up(),
        }
        // Threads of the program wait for marks as they do for bytes and room.
        self.port.ends().wake_reader();
        self.port.ends().wake_writer();
        true
    }

    /// Tells the peer's bridge which of our program's marks have changed.
    pub(super) fn notes(&mut self) -> bool {
        let Some(beside) = &mut self.beside else { return false };
        let ends = self.port.ends();
        // Not before the peer's bridge has spoken. Until then its program may never have heard of
        // it, and the connection can stay with TCP whatever becomes of the two bridges.
        if !beside.acknowledged && self.words > 0 && handover_state::acknowledged(&ends.outgoing) {
            beside.acknowledged = true;
            beside.unsaid.extend(Note::Acknowledged.words());
        }
        if !beside.cut
            && let Some(n) = handover_state::switch_offset(&ends.incoming)
        {
            beside.cut = true;
            beside.unsaid.extend(Note::SwitchOffset(n).words());
        }
        if !beside.ended
            && let Some(n) = handover_state::end(&ends.incoming)
            && n == self.carried.0
        {
            beside.ended = true;
            beside.unsaid.extend(Note::End(n).words());
        }
        // The peer's end is the program's to see once all before it is there.
        if beside.end == Some(self.carried.1) {
            beside.end = None;
            let _ = handover_state::publish_end(&ends.outgoing, self.carried.1);
            ends.wake_reader();
        }
        let mut any = false;
        while let Some(word) = beside.unsaid.front().copied()
            && let Some(post) = self.stream.say(word)
        {
            beside.unsaid.pop_front();
            any = true;
            match self.pair.post_message(&[], post.target, post.word, post.token) {
                Ok(()) => self.outstanding += 1,
                Err(PostError::Ended) => {}
                Err(PostError::Full | PostError::Unsupported) => {
                    self.hang_up();
                    break;
                }
            }
        }
        any
    }

    /// Whether the peer may count on our program having left TCP behind: it was told that a
    /// direction may switch, or has been.
    #[must_use]
    pub fn committed(&self) -> bool {
        self.beside.as_ref().is_some_and(|b| b.acknowledged || b.cut)
    }

    /// Whether our program's direction ends here because it goes on by TCP, and the peer was told.
    pub(super) fn went_back(&self) -> bool {
        self.beside.as_ref().is_some_and(|b| b.ended && b.unsaid.is_empty())
    }

    /// Whether bytes may follow: what leaves TCP behind is told before them.
    pub(super) fn switch_offset_told(&self) -> bool {
        self.beside.as_ref().is_none_or(|b| b.cut && b.unsaid.is_empty())
    }
}
