//! How a pump ends: by the program, by its peer, by the rules; and what has to be carried out
//! before it is over.
//!
//! Must not know how bytes are carried. Entry points: [`Pump::abort`], [`Pump::fin`],
//! [`Pump::gone`], [`Pump::give_up`], by what the caller knows of an end; [`Pump::finished`], after
//! which [`Pump::close`] is left.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use super::{PeerEnd, Pump};
use crate::channel::handover_state;
use crate::device::QueuePair;
use crate::proto::state::{Event, State};

impl<Q: QueuePair> Pump<Q> {
    /// Ends the pair. What it reports then is still to be taken.
    pub(in crate::bridge) fn hang_up(&mut self) {
        self.hung_up = true;
        self.pair.close();
    }

    /// The program's side of the channel is not to be believed any more.
    pub(in crate::bridge) fn fail(&mut self) {
        self.stream.on_event(Event::Failed);
        self.end_delivered = true;
        self.peer = PeerEnd::Broken;
        self.hang_up();
    }

    /// The program's side was reset, or is gone: what was posted is still sent, and no clean end is
    /// said to a peer of ours. Any other gets the word of every close (`wire-protocol §6.1`): its
    /// reader hears of no other end (`§6.2`).
    pub fn abort(&mut self) {
        self.closing = true;
        self.end_delivered = true;
        if self.reader.is_none() {
            self.stream.on_event(Event::ShutBoth);
        } else {
            self.stream.on_event(Event::Failed);
            self.hang_up();
        }
    }

    /// FIN came from the program's socket: it has closed, unless its side of the channel says that
    /// it only shut its sending side.
    pub fn fin(&mut self) {
        self.gone |= !self.port.ended();
    }

    /// The program's end is closed, however that came: what it put in is sent, then the farewell.
    pub fn gone(&mut self) {
        self.gone = true;
    }

    /// Whether the program has closed and all that it sent, and the farewell, has been carried out;
    /// or the connection ended otherwise. Then only [`Self::close`] is left.
    #[must_use]
    pub fn finished(&self) -> bool {
        let done = matches!(self.stream.state(), State::Disconnected | State::Error);
        let sent = self.ended || self.outstanding == 0 && !self.stream.has_farewell();
        done && (self.closing || self.end_delivered) && sent
    }

    /// Whether the peer has closed, and something that the program sent was not taken. TCP answers
    /// data for a closed socket with a reset (tcp(7)). An older peer, or upstream's, does not say
    /// what it has taken; then that is known only of what has not left. A direction that went back
    /// to TCP goes on there.
    #[must_use]
    pub fn unheard(&self) -> bool {
        let ends = self.port.ends();
        let returned = handover_state::is_decided(&ends.incoming)
            || handover_state::is_decided(&ends.outgoing);
        let left = self.taken.is_some_and(|taken| taken != self.stream.messages().0);
        self.peer == PeerEnd::Closed && !returned && (self.dropped || left)
    }

    /// Whether anything of the program's, its farewell included, is not yet the peer's.
    #[must_use]
    pub fn under_way(&self) -> bool {
        !self.ended && (self.outstanding > 0 || self.unsent() || self.stream.has_farewell())
    }

    /// Whether the program has closed, as far as its end or its side of the channel says.
    #[must_use]
    pub fn closed(&self) -> bool {
        self.gone || self.closing || handover_state::sender_closed(&self.port.ends().incoming)
    }

    /// Whether anything of the program's is not posted yet.
    #[must_use]
    pub fn unsent(&self) -> bool {
        self.port.has_outgoing() && self.stream.state().writable()
    }

    /// The peer is taken for gone: nothing is waited for any more. Its pair is to be ended by the
    /// caller, at once.
    pub fn give_up(&mut self) {
        // What has come is the program's. A channel that is not to be believed takes nothing, and
        // no more is said to it.
        if self.deliver().is_ok_and(|moved| moved) {
            self.port.wake_reader();
        }
        self.stream.on_event(Event::Failed);
        self.closing = true;
        self.end_delivered = true;
        self.peer = PeerEnd::Broken;
    }

    /// Ends both sides.
    pub fn close(mut self) -> Q {
        self.pair.close();
        self.port.close();
        self.pair
    }
}
