//! What a pump carries from the channel to the device, and how it says that nothing follows.
//!
//! Must not know what comes back. Entry point: [`Pump::forward`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use super::Pump;
use crate::bridge::channel_port::Broken;
use crate::bridge::outgoing::Outgoing;
use crate::bridge::peer_control::Note;
use crate::channel::handover_state;
use crate::device::{PostError, QueuePair};
use crate::proto::ramp::Ramp;
use crate::proto::state::Event;

/// Bytes of messages of the program's that go to the device as one, at most.
const GATHERED: u32 = 65_536;

impl<Q: QueuePair> Pump<Q> {
    /// From the channel to the device.
    pub(super) fn forward(&mut self) -> Result<bool, Broken> {
        let mut moved = false;
        let mut ramp = Ramp::FLAT;
        loop {
            // Before the ring: what was written before the program closed is in the ring by then.
            let closed = self.gone || handover_state::sender_closed(&self.port.ends().incoming);
            let next = self.port.outgoing()?;
            if !self.before_data(&mut moved)? {
                break;
            }
            match next {
                Outgoing::Bytes(len) => {
                    // They are next still: what was posted since came from the ring of direct
                    // writes.
                    if !self.post_bytes(len, &mut ramp)? {
                        break;
                    }
                    moved = true;
                }
                Outgoing::End => {
                    moved |= self.shut(closed);
                    break;
                }
                Outgoing::Nothing => {
                    // A direction that went back to TCP ends there, and says nothing here.
                    let closed = self.gone || closed && !self.port.goes_on_under();
                    if closed || self.went_back() && self.takes_nothing() {
                        moved |= self.shut(closed);
                    }
                    break;
                }
            }
        }
        Ok(moved)
    }

    /// Posts the `len` bytes that the port has next, or what of them there is room for; false for
    /// none.
    #[inline]
    fn post_bytes(&mut self, len: u32, ramp: &mut Ramp) -> Result<bool, Broken> {
        if !self.stream.state().writable() {
            // No receiver takes it any more.
            self.dropped = true;
            self.port.consumed(len)?;
            return Ok(true);
        }
        // Short messages that had to wait go together: the peer sees a stream.
        let len = len + self.port.behind(GATHERED.saturating_sub(len));
        let most = len.min(self.pair.staging_room());
        if most == 0 || !self.switch_offset_told() {
            return Ok(false);
        }
        let Some(post) = self.stream.next_data(ramp, most) else { return Ok(false) };
        let n = post.target.len;
        let port = &mut self.port;
        let fill = |to: &mut [u8]| port.look(to.get_mut(..n as usize).unwrap_or(&mut []));
        match self.pair.post_filled(post.target, Some(post.word), post.token, fill) {
            Ok(()) => {
                self.outstanding += 1;
                self.carried.0 += u64::from(n);
            }
            // Its end will be polled.
            Err(PostError::Ended) => self.dropped = true,
            Err(PostError::Full | PostError::Unsupported) => return Err(Broken),
        }
        self.port.consumed(n)?;
        Ok(true)
    }

    /// The program sends no more, or has closed.
    fn shut(&mut self, closed: bool) -> bool {
        let before = self.stream.state();
        self.closing |= closed;
        let both = closed || self.takes_nothing();
        if both && !self.tell_taken(closed) {
            return false;
        }
        self.stream.on_event(if both { Event::ShutBoth } else { Event::ShutWrite });
        before != self.stream.state()
    }

    /// Tells a peer of ours what the program has taken, before the word that it takes no more. From
    /// that word alone the peer cannot know whether what it sent last was read. A program that has
    /// not `closed`, but shut both directions, can still read what has arrived. Whether that is
    /// done, as far as it can be.
    fn tell_taken(&mut self, closed: bool) -> bool {
        if self.said_taken || self.reader.is_none() || !self.stream.state().connected() {
            return true;
        }
        // A note of several words is never parted.
        let between = self.beside.as_ref().is_some_and(|beside| !beside.unsaid.is_empty());
        let read = self.stream.messages().1;
        let note = Note::Closed(if closed { read } else { self.stream.arrived() });
        let Some(word) = note.words().next().filter(|_| !between) else { return false };
        // Else when there is a slot for it.
        let Some(post) = self.stream.say(word) else { return false };
        self.said_taken = true;
        self.post(&post);
        true
    }

    /// Whether the program has closed, or has shut both directions.
    fn takes_nothing(&self) -> bool {
        handover_state::receiver_closed(&self.port.ends().outgoing)
    }
}
