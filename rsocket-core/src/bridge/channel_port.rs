//! The bridge's side of a channel: what a peer process would be, in this process.
//!
//! Takes out what the program put in, and puts in what the program is to take out. It goes by the
//! same rules as any peer ([`crate::socket::send`], [`crate::socket::receive`]). But its state is
//! its own, since no other process shares it. Must not know queue pairs. Entry point:
//! [`ChannelPort`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use super::outgoing::Outgoing;
use super::under::Under;
use crate::channel::arenas::Claim;
use crate::channel::handover_state;
use crate::channel::link::{self, Ends};
use crate::copy::Bytes;
pub use crate::device::shm::channel::Broken;
use crate::device::shm::channel::{
    self, Beyond, Next, Receiver, RecvState, Refused, SendState, Sender,
};
use crate::device::shm::places::Header;
use crate::reason::Reason;
use crate::sync::guarded::Own;

/// One side of a channel, driven by hand.
pub struct ChannelPort {
    ends: Ends,
    recv: Own<RecvState>,
    send: Own<SendState>,
    /// Position in the ring of direct writes, and bytes of the piece there that were taken.
    taken: u64,
    done: u32,
    /// Room was given back there since the program's threads were last woken.
    gave: bool,
    /// The loopback connection under the channel, for what goes by it.
    under: Under,
}

/// A part of a direct write that the program has put in.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The whole.
    pub header: Header,
    /// Bytes of it before this part.
    pub done: u32,
    /// How many bytes it has, at least one.
    pub len: u32,
}

impl ChannelPort {
    /// The bridge's side of a fresh channel.
    ///
    /// # Errors
    /// The channel cannot be reached.
    pub fn new(claim: &Claim) -> Result<Self, Reason> {
        let (recv, send) = channel::fresh(Beyond::Bridge)?;
        let ends = link::hold(claim).ok_or(Reason::ResourceError)?;
        let mut port = Self {
            ends,
            recv: Own::new(recv),
            send: Own::new(send),
            taken: 0,
            done: 0,
            gave: false,
            under: Under::default(),
        };
        port.receiver().give_back();
        Ok(port)
    }

    /// The directions, as this side sees them.
    #[must_use]
    pub fn ends(&self) -> &Ends {
        &self.ends
    }

    /// Bytes that are not in the channel go by the loopback connection whose end this is, from now
    /// on.
    pub fn lies_over(&mut self, end: std::os::fd::RawFd) {
        self.under = Under::of(end);
    }

    /// Whether the program sends by the loopback connection and has not ended that: its side of the
    /// channel says nothing of its end.
    #[must_use]
    pub fn goes_on_under(&self) -> bool {
        self.under.goes_on(&self.ends.incoming, self.recv.view().total())
    }

    /// Whether bytes wait until the loopback connection has room for them: no event says when.
    #[must_use]
    pub fn waits_under(&self) -> bool {
        self.under.is_full()
    }

    /// Sends by the loopback connection what a reader that has only the kernel was told would come
    /// so. False: the connection has no room for the rest now.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn hand_back(&mut self) -> Result<bool, Broken> {
        self.under.hand_back(self.send.view(), &self.ends.outgoing)
    }

    /// What comes next from the program.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn outgoing(&mut self) -> Result<Outgoing, Broken> {
        let receiver = self.receiver();
        let state = receiver.state();
        if state.readable() == 0 && state.ended == 0 && receiver.arrived().is_none() {
            let total = state.total();
            return Ok(self.under.outgoing(&self.ends.incoming, total));
        }
        let mut taking = receiver.take();
        match taking.next()? {
            Next::Bytes(len) => {
                taking.memory()?;
                taking.commit();
                Ok(Outgoing::Bytes(len))
            }
            Next::End => {
                taking.commit();
                Ok(Outgoing::End)
            }
            Next::Nothing => Ok(Outgoing::Nothing),
        }
    }

    /// Copies the first bytes of what [`Self::outgoing`] showed, and of what is
    /// [`behind`](Self::behind) it.
    #[inline]
    pub fn look(&mut self, to: &mut [u8]) {
        if self.under.carries() {
            self.under.look(to);
        } else {
            self.receiver().look(to);
        }
    }

    /// How many bytes more lie right behind those that [`Self::outgoing`] showed, in messages that
    /// the program has put in since; at most `most`. Where direct writes wait, which go between
    /// messages, there are none.
    #[must_use]
    pub fn behind(&mut self, most: u32) -> u32 {
        if self.under.carries() {
            return 0;
        }
        let (incoming, taken) = (self.ends.incoming, self.taken);
        // What the program wrote before a message waits when the message is there.
        self.receiver().adjoining(most, || incoming.places_waiting(taken))
    }

    /// The first `n` bytes of what [`Self::outgoing`] showed, and of what was
    /// [`behind`](Self::behind) it, were taken: their room goes back to the program.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn consumed(&mut self, mut n: u32) -> Result<(), Broken> {
        if self.under.carries() {
            self.under.consumed(n);
            return Ok(());
        }
        let mut taking = self.receiver().take();
        loop {
            let part = n.min(taking.state().readable());
            taking.skip(part);
            n -= part;
            if n == 0 {
                break;
            }
            let Next::Bytes(_) = taking.next()? else { return Err(Broken) };
        }
        taking.commit();
        self.receiver().give_back();
        Ok(())
    }

    /// Shows the program a mapping of the peer's, or with no bytes that there is none any more.
    pub fn show_map(&mut self, index: u32, generation: u32, offset: u64, len: u32) {
        self.ends.incoming.show_map(index, generation, offset, len);
    }

    /// The next direct write, as far as it lies in a row.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn place(&mut self) -> Result<Option<Piece>, Broken> {
        let Some(header) = self.ends.incoming.next_place(self.taken).map_err(|_| Broken)? else {
            return Ok(None);
        };
        // The length may have changed since the piece was begun.
        let left = header.len.checked_sub(self.done).filter(|left| *left > 0).ok_or(Broken)?;
        let len = self.ends.incoming.stretch(self.taken, self.done as usize, left as usize).len();
        Ok(Some(Piece { header, done: self.done, len: len as u32 }))
    }

    /// Copies the first bytes of what [`Self::place`] showed.
    pub fn look_at_place(&self, to: &mut [u8]) {
        self.ends.incoming.stretch(self.taken, self.done as usize, to.len()).copy_to(to);
    }

    /// The first `n` bytes of what [`Self::place`] showed were taken.
    pub fn placed(&mut self, n: u32) {
        let Ok(Some(header)) = self.ends.incoming.next_place(self.taken) else { return };
        self.done = self.done.saturating_add(n);
        if self.done >= header.len {
            self.taken = self.taken.wrapping_add(header.extent());
            self.done = 0;
            self.gave = true;
            self.ends.incoming.publish_taken(self.taken);
        }
    }

    /// Wakes a program that waits for room, if any was given back since the last time.
    pub fn wake_writer(&mut self) {
        if self.recv.view().owed > 0 || self.gave {
            self.receiver().told();
            self.gave = false;
            self.ends.wake_writer();
        }
    }

    /// Bytes that [`Self::deliver`] would take now, in one message.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn room(&mut self) -> Result<u32, Broken> {
        let mut sender = self.sender();
        if sender.state().classes.iter().any(|half| half.room() == 0) {
            sender.refresh()?;
        }
        Ok(sender.state().room())
    }

    /// Puts the bytes, or the first of them, before the program as one message; how many. The
    /// program's threads are not woken: [`Self::wake_reader`].
    ///
    /// # Errors
    /// [`Broken`].
    pub fn deliver(&mut self, from: Bytes<'_>) -> Result<u32, Broken> {
        if self.under.delivers() {
            return Ok(self.under.deliver(from));
        }
        let mut sender = self.sender();
        sender.make_room(from.len())?;
        let mut message = match sender.reserve(from.len() as u32) {
            Ok(message) => message,
            Err(Refused::Full) => return Ok(0),
            Err(Refused::Broken) => return Err(Broken),
        };
        let n = message.len();
        if !message.fill_near(from.first(n)) {
            return Err(Broken);
        }
        message.commit();
        Ok(n as u32)
    }

    /// Says that the peer takes no more: the program's next send fails.
    pub fn refuse(&self) {
        handover_state::stop_reading(&self.ends.incoming);
    }

    /// Says that the peer sends no more, behind all that was delivered.
    pub fn deliver_end(&mut self) {
        if self.under.delivers() {
            // The FIN says so.
            return;
        }
        self.sender().shut();
    }

    fn receiver(&mut self) -> Receiver<'_> {
        Receiver::new(self.recv.hold(), &self.ends.incoming)
    }

    fn sender(&mut self) -> Sender<'_> {
        Sender::new(self.send.hold(), &self.ends.outgoing)
    }

    /// Wakes a program that waits for bytes or for the end.
    pub fn wake_reader(&self) {
        self.ends.wake_reader();
    }

    /// Whether anything waits to be taken out.
    #[must_use]
    #[inline(always)]
    pub fn has_outgoing(&self) -> bool {
        self.recv.view().readable() > 0
            || self.ends.incoming.places_waiting(self.taken)
            || self.recv.view().ended == 0
                && self.ends.incoming.poll_data(self.recv.view().data_position).is_some()
            || handover_state::is_decided(&self.ends.incoming)
                && self.under.has_outgoing(&self.ends.incoming, self.recv.view().total())
    }

    /// Whether the program said that it sends no more, and all before it was taken.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.recv.view().ended != 0 || self.under.has_ended()
    }

    /// Done with the channel.
    pub fn close(self) {
        link::let_go(&self.ends);
    }
}
