//! A whole stream socket over a queue pair: both halves, the state, the queues (`wire-protocol §5`,
//! `§6`).
//!
//! Knows what has to be posted and what a completion means; must not know how to post or where
//! memory is. Entry point: [`Stream`]. The code that drives it ("the driver") carries words and
//! posts between it and a device:
//!
//! - each word received goes to [`Stream::on_word`], each post completed to [`Stream::on_sent`] or
//!   [`Stream::on_failed`], the end of the pair to [`Stream::on_event`] with [`Event::PeerGone`];
//! - after an SGL word, and no other, the driver asks [`Stream::expected_entry`]. It reads the
//!   entry that this names, if any, from the target table, and gives it to [`Stream::on_entry`].
//!   Each entry comes with such a word (`wire-protocol §5.6`), so none is missed, and none is read
//!   while it is being written;
//! - [`Stream::next_control`] is posted until there is none: after every poll, before sleeping;
//! - [`Stream::next_data`] is posted for the application's bytes, with one [`Ramp`] for each send
//!   call;
//! - [`Stream::next_read`] says where the application's bytes are, [`Stream::on_read`] that it has
//!   them.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use super::control::{Control, Mode};
use super::inbox::Inbox;
use super::ramp::Ramp;
use super::recv_half::{RecvHalf, Region};
use super::send_half::{DataWrite, SendHalf};
use super::state::{Event, State, Step};
use super::tables::{self, Tables};
pub use super::terms::{Payload, Post, Readable, StreamParams};
use super::{MAX_SEGMENTS, Violation};
use crate::private_data::PrivateData;
use crate::sge::{Endian, Sge};
use crate::word::{BadWord, Ctrl, Message, Word};

/// A stream socket whose connection stands.
#[derive(Clone, Debug)]
pub struct Stream {
    pub(super) state: State,
    pub(super) send: SendHalf,
    recv: RecvHalf,
    inbox: Inbox,
    pub(super) control: Control,
    /// Work requests that data may still take.
    pub(super) slots: u16,
    slots_max: u16,
    pub(super) mode: Mode,
    /// A control word that waits for its slot.
    farewell: Option<Word>,
    /// The peer said that nothing follows.
    end_seen: bool,
    /// We said that we take nothing more.
    left: bool,
    violation: Option<Violation>,
    buffer: Sge,
    peer_table: Sge,
    pub(super) peer_endian: Endian,
    pub(super) iomaps: Tables,
}

impl Stream {
    /// The state right after the connection was established. `peer` was checked by
    /// [`PrivateData::parse`].
    ///
    /// # Errors
    /// What is wrong with the peer's offer, or with our own parameters ([`Violation::TableSize`]).
    pub fn new(params: &StreamParams, peer: &PrivateData) -> Result<Self, Violation> {
        if peer.table.len < 2 || params.table.len as usize > MAX_SEGMENTS {
            return Err(Violation::TableSize);
        }
        let send = SendHalf::new(peer.credits, peer.buffer, params.table.len)?;
        let slots = params.send_queue.saturating_sub(u16::from(Control::SLOTS)).max(2);
        Ok(Self {
            state: State::Open,
            // Ours post more receives than they give credits (`device::rdma`); upstream does not.
            send: if peer.notes { send } else { send.sparing() },
            recv: RecvHalf::with_table(&params.recv, peer.table.len),
            inbox: Inbox::new(params.recv.queue),
            control: Control::new(),
            slots,
            slots_max: slots,
            mode: params.mode,
            farewell: None,
            end_seen: false,
            left: false,
            violation: None,
            buffer: params.buffer,
            peer_table: peer.table,
            peer_endian: peer.endian,
            iomaps: Tables::new(params.iomaps, peer),
        })
    }

    /// Where it is in its life.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// What the peer did wrong, if that is why it ended.
    #[must_use]
    pub const fn violation(&self) -> Option<Violation> {
        self.violation
    }

    /// Something happened that is not a word: the application shut something down, the pair ended.
    ///
    /// Returns false when the application asked for what cannot be done in this state.
    pub fn on_event(&mut self, event: Event) -> bool {
        match self.state.step(event) {
            Step::Stay => true,
            Step::Refuse => false,
            Step::Go(next, word) => {
                self.state = next;
                self.left |= next == State::Closing;
                if !next.writable() {
                    let _ = self.send.shut();
                }
                // A DISCONNECT says all that a waiting SHUTDOWN would have said.
                self.farewell = word.or(self.farewell);
                // No peer is left to hear it. A peer that said SHUTDOWN still listens, even if that
                // made us disconnected: without our word it would take our end for a broken one.
                if matches!(event, Event::GotDisconnect | Event::PeerGone | Event::Failed) {
                    self.farewell = None;
                }
                true
            }
        }
    }

    /// A word arrived. After the end of the connection words mean nothing and change nothing.
    ///
    /// # Errors
    /// The peer broke a rule: the connection is in [`State::Error`], and the driver closes the
    /// pair.
    pub fn on_word(&mut self, word: Word) -> Result<(), Violation> {
        // What was sent before a local shutdown is still on its way while we are closing.
        if !self.state.connected() && self.state != State::Closing {
            return Ok(());
        }
        let outcome = match word.message() {
            Ok(Message::Data(_) | Message::Iomap(_)) if self.end_seen => Err(Violation::AfterEnd),
            Ok(Message::Iomap(index)) if !self.iomaps.ours(index) => Err(Violation::IomapIndex),
            Ok(Message::Data(_) | Message::Iomap(_)) => self.inbox.push(word),
            Ok(Message::Sgl(limit)) => self.send.on_credit(u32::from(limit)),
            Ok(Message::Ctrl(Ctrl::Shutdown)) => {
                self.end_seen = true;
                self.on_event(Event::GotShutdown);
                Ok(())
            }
            Ok(Message::Ctrl(Ctrl::Disconnect)) => {
                self.end_seen = true;
                self.on_event(Event::GotDisconnect);
                Ok(())
            }
            Err(BadWord::EmptyData) => Err(Violation::EmptyData),
            // Upstream takes these for nothing (`wire-protocol §4.1`), and so do we; 2 is its own
            // tag.
            Ok(Message::Ctrl(Ctrl::Keepalive))
            | Err(BadWord::UnknownCtrl(_) | BadWord::Reserved(2)) => Ok(()),
            Err(BadWord::Reserved(_)) => Err(Violation::ReservedWord),
        };
        outcome.map_err(|violation| self.fail(violation))
    }

    /// The peer says more than it has to say (`wire-protocol §5.5`). The driver, which takes words
    /// from the device, counts those that need no credit.
    pub fn on_flood(&mut self) {
        self.fail(Violation::Flood);
    }

    /// Ends the connection for what the peer did. What it sent and was not read is not believed
    /// either: [`Self::next_read`] shows no more of it.
    fn fail(&mut self, violation: Violation) -> Violation {
        self.on_event(Event::Failed);
        self.violation.get_or_insert(violation);
        violation
    }

    /// The entry of our target table to read, if the peer writes that one next and ours is used up.
    /// To be asked once after each SGL word; the entry may be empty, since some of these words
    /// bring credits alone.
    #[must_use]
    pub fn expected_entry(&self) -> Option<u32> {
        self.send.expected_entry()
    }

    /// An entry was read from our target table, and its length there put to 0 (see
    /// [`SendHalf::on_entry`]).
    ///
    /// # Errors
    /// As [`Self::on_word`].
    pub fn on_entry(&mut self, index: u32, entry: Sge) -> Result<(), Violation> {
        self.send.on_entry(index, entry).map_err(|violation| self.fail(violation))
    }

    /// A post completed.
    pub fn on_sent(&mut self, token: u64) {
        let (word, cost) = (Word(token as u32), (token >> 32) as u8);
        match word.message() {
            Ok(Message::Data(_) | Message::Iomap(_)) | Err(BadWord::Reserved(tables::DIRECT)) => {
                self.slots = self.slots.saturating_add(u16::from(cost)).min(self.slots_max);
            }
            _ => self.control.give(cost),
        }
        if word == Word::DISCONNECT {
            self.on_event(Event::DisconnectSent);
        }
    }

    /// A post failed (`wire-protocol §5.9`).
    pub fn on_failed(&mut self) {
        self.on_event(Event::Failed);
    }

    /// How many bytes may be sent as one message now.
    #[must_use]
    #[inline]
    pub fn room(&self) -> u32 {
        if self.may_send() { self.send.room() } else { 0 }
    }

    /// A message of all `len` bytes, if they may be sent as one now.
    #[inline]
    pub fn next_whole(&mut self, len: u32) -> Option<Post> {
        if !self.may_send() {
            return None;
        }
        let write = self.send.next_whole(len)?;
        Some(self.data(write))
    }

    /// Whether the state and the work requests allow a message.
    #[inline]
    fn may_send(&self) -> bool {
        self.state.writable() && self.slots >= u16::from(self.mode.cost(true))
    }

    #[inline(always)]
    fn data(&mut self, write: DataWrite) -> Post {
        let cost = self.mode.cost(true);
        self.slots -= u16::from(cost);
        Post {
            payload: Payload::Data,
            target: write.target,
            word: write.word,
            token: token(write.word, cost),
        }
    }

    /// The next message of a send call that has `left` bytes to go.
    #[inline(always)]
    pub fn next_data(&mut self, ramp: &mut Ramp, left: u32) -> Option<Post> {
        let len = ramp.next_len(left, self.room());
        let write = self.send.next_data(len)?;
        Some(self.data(write))
    }

    /// Whether [`Self::next_control`] may have something to say; false if it has nothing.
    #[inline]
    #[must_use]
    pub const fn owes_control(&self) -> bool {
        self.farewell.is_some() || self.recv.owes()
    }

    /// The next message that is not data: SHUTDOWN or DISCONNECT, buffer, credit. With `grow`,
    /// buffers are promised at full size from now on.
    pub fn next_control(&mut self, grow: bool) -> Option<Post> {
        if let Some(word) = self.farewell {
            if !self.control.take(1) {
                return None;
            }
            self.farewell = None;
            return Some(Post {
                payload: Payload::None,
                target: Sge::default(),
                word,
                token: token(word, 1),
            });
        }
        // Before asking: what was asked for cannot be put back. So one more slot is wanted than a
        // credit alone would take, as upstream wants it.
        let most = self.mode.cost(true);
        if !self.state.connected() || self.control.free() < most {
            return None;
        }
        let update = self.recv.next_update(grow)?;
        let cost = self.mode.cost(update.entry.is_some());
        self.control.take(cost);
        let (payload, target) = match update.entry {
            None => (Payload::None, Sge::default()),
            Some((index, region)) => self.entry(index, region),
        };
        Some(Post { payload, target, word: update.word, token: token(update.word, cost) })
    }

    /// A CTRL word of the driver's own, between two ends that understand it (`wire-protocol §4.1`:
    /// any other peer ignores it). `None` while there is no slot for it, and when nothing may be
    /// said any more.
    pub fn say(&mut self, word: Word) -> Option<Post> {
        if !self.state.connected() || !self.control.take(1) {
            return None;
        }
        Some(Post { payload: Payload::None, target: Sge::default(), word, token: token(word, 1) })
    }

    /// What a zero-length write without a word is to be reported with (`wire-protocol §7`). The
    /// peer's program never sees it, but only a living peer's device answers. `None` while there is
    /// no slot for it.
    pub fn keep_alive(&mut self) -> Option<u64> {
        if !self.state.connected() || !self.control.take(1) {
            return None;
        }
        Some(token(Word::KEEPALIVE, 1))
    }

    /// Whether a post that was reported is one of [`Self::keep_alive`].
    #[must_use]
    pub fn is_keep_alive(reported: u64) -> bool {
        reported == token(Word::KEEPALIVE, 1)
    }

    /// Whether a post that was reported, or has failed, carried bytes of the stream.
    #[must_use]
    pub fn is_data(reported: u64) -> bool {
        matches!(Word(reported as u32).message(), Ok(Message::Data(_)))
    }

    /// Messages that have arrived, read or not, modulo 2^16.
    #[must_use]
    pub fn arrived(&self) -> u16 {
        let begun = u16::from(self.recv.readable() > 0);
        // No more than there are credits, which are 16 bits.
        self.recv.messages().wrapping_add(begun).wrapping_add(self.inbox.len() as u16)
    }

    /// A part of our buffer as an entry of the peer's table, and where that is.
    fn entry(&self, index: u32, region: Region) -> (Payload, Sge) {
        let addr = self.buffer.addr.wrapping_add(u64::from(region.offset));
        let entry = Sge { addr, rkey: self.buffer.rkey, len: region.len };
        let at = self.peer_table.addr.wrapping_add(u64::from(index) * Sge::SIZE as u64);
        let target = Sge { addr: at, rkey: self.peer_table.rkey, len: Sge::SIZE as u32 };
        (Payload::Entry(entry.to_bytes(self.peer_endian)), target)
    }

    /// What an application that reads now finds. Takes up the next message when the last one was
    /// read.
    ///
    /// # Errors
    /// As [`Self::on_word`]: the message does not fit where the peer was told to put it.
    #[inline(always)]
    pub fn next_read(&mut self) -> Result<Readable, Violation> {
        if self.violation.is_some() {
            return Ok(Readable::Broken);
        }
        while self.recv.readable() == 0 {
            let Some(word) = self.inbox.front() else { return Ok(self.dry()) };
            let taken = match word.message() {
                Ok(Message::Data(len)) => self.recv.on_data(len),
                _ => self.recv.on_iomap(),
            };
            taken.map_err(|violation| self.fail(violation))?;
            self.inbox.drop_front();
        }
        Ok(Readable::Bytes(self.recv.next_read()))
    }

    /// What is found when all that arrived was read.
    #[inline(never)]
    fn dry(&mut self) -> Readable {
        if self.end_seen {
            self.recv.on_shutdown();
            return Readable::End;
        }
        match self.state {
            State::Open | State::ReadOnly => Readable::Nothing,
            // The application itself gave up reading.
            State::WriteOnly => Readable::End,
            _ if self.left => Readable::End,
            _ => Readable::Broken,
        }
    }

    /// Whether there is a message that was not read to its end. (Without one there may be an end to
    /// read.)
    #[must_use]
    pub const fn has_unread(&self) -> bool {
        self.recv.readable() > 0 || !self.inbox.is_empty()
    }

    /// The application has read `n` bytes of what [`Self::next_read`] showed.
    pub fn on_read(&mut self, n: u32) {
        self.recv.on_read(n);
    }

    /// Bytes sent and bytes read since the start.
    #[must_use]
    pub const fn totals(&self) -> (u64, u64) {
        (self.send.total(), self.recv.total())
    }

    /// Messages sent that cost a credit, and messages read to their end, each modulo 2^16. What one
    /// end has sent and the other has not read is less than 2^16, since it costs credits.
    #[must_use]
    pub const fn messages(&self) -> (u16, u16) {
        (self.send.messages(), self.recv.messages())
    }

    /// Messages that may still be sent.
    #[must_use]
    pub const fn credits(&self) -> u16 {
        self.send.credits()
    }

    /// Whether a control word waits for a slot.
    #[must_use]
    pub const fn has_farewell(&self) -> bool {
        self.farewell.is_some()
    }
}

/// What a completion needs to be understood: the word, as upstream keeps it, and the work requests
/// taken.
pub(super) const fn token(word: Word, cost: u8) -> u64 {
    (cost as u64) << 32 | word.0 as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::recv_half::RecvParams;

    const TABLE: Sge = Sge { addr: 0x7000, rkey: 7, len: 2 };
    const BUFFER: Sge = Sge { addr: 0x10_0000, rkey: 8, len: 131_072 };

    fn params(mode: Mode) -> StreamParams {
        let recv = RecvParams { queue: 384, segments: 2, large: 65536, small: 0 };
        StreamParams { mode, send_queue: 384, recv, buffer: BUFFER, table: TABLE, iomaps: 0 }
    }

    fn stream(mode: Mode) -> Stream {
        Stream::new(&params(mode), &params(mode).private_data()).unwrap()
    }

    #[test]
    fn half_close_and_close_of_section_15() {
        let (mut a, mut b) = (stream(Mode::Immediate), stream(Mode::Immediate));
        assert!(a.on_event(Event::ShutWrite));
        let shutdown = a.next_control(false).unwrap();
        assert_eq!((shutdown.word, shutdown.payload), (Word(0xe000_0002), Payload::None));
        let entry = a.next_control(false).unwrap();
        assert_eq!(
            (entry.word, entry.target.addr, entry.target.len),
            (Word(0x8000_0180), TABLE.addr + 16, 16)
        );
        assert_eq!(a.next_control(false), None);

        b.on_word(shutdown.word).unwrap();
        b.on_word(entry.word).unwrap();
        assert_eq!(b.next_read(), Ok(Readable::End));
        let three = b.next_data(&mut Ramp::UPSTREAM.clone(), 3).unwrap();
        assert_eq!((three.word, three.target), (Word(3), Sge { len: 3, ..BUFFER }));
        assert!(b.on_event(Event::ShutBoth));
        let disconnect = b.next_control(false).unwrap();
        assert_eq!(disconnect.word, Word(0xe000_0000));
        b.on_sent(disconnect.token);
        assert_eq!(b.state(), State::Disconnected);

        a.on_word(three.word).unwrap();
        a.on_word(disconnect.word).unwrap();
        assert_eq!(a.next_read(), Ok(Readable::Bytes(Region { offset: 0, len: 3 })));
        a.on_read(3);
        assert_eq!(a.next_read(), Ok(Readable::End));
    }

    #[test]
    fn shut_read_then_shut_write_is_a_disconnect() {
        let mut a = stream(Mode::Immediate);
        assert!(a.on_event(Event::ShutRead));
        assert!(!a.has_farewell());
        a.on_word(Word(2)).unwrap();
        assert!(a.on_event(Event::ShutWrite));
        let disconnect = a.next_control(false).unwrap();
        assert_eq!(disconnect.word, Word(0xe000_0000));
        a.on_sent(disconnect.token);
        assert!(matches!(a.next_read(), Ok(Readable::Bytes(_))), "what came before");
        a.on_read(2);
        assert_eq!(a.next_read(), Ok(Readable::End), "of our own making");
    }

    #[test]
    fn the_last_word_is_said_although_the_peer_said_its_own_first() {
        let mut a = stream(Mode::Immediate);
        a.on_event(Event::ShutBoth);
        a.on_word(Word::SHUTDOWN).unwrap();
        assert_eq!(a.state(), State::Disconnected);
        assert_eq!(a.next_control(false).unwrap().word, Word::DISCONNECT);
        assert_eq!(a.next_control(false), None);
    }

    #[test]
    fn control_slots_bound_what_is_outstanding() {
        let mut a = stream(Mode::Message);
        let entry = a.next_control(false).unwrap();
        assert_eq!(entry.token >> 32, 2);
        a.on_event(Event::ShutWrite);
        let shutdown = a.next_control(false).unwrap();
        for _ in 0..2 {
            a.on_word(Word(65536)).unwrap();
            if let Readable::Bytes(region) = a.next_read().unwrap() {
                a.on_read(region.len);
            }
        }
        assert_eq!(a.next_control(false), None, "one slot is free, an entry takes two");
        a.on_sent(shutdown.token);
        assert!(a.next_control(false).is_some());
        assert_eq!(a.next_control(false), None);
        a.on_sent(entry.token);
        assert!(a.next_control(false).is_some());
    }

    #[test]
    fn data_leaves_four_slots_alone() {
        for (mode, most) in [(Mode::Immediate, 380), (Mode::Message, 190)] {
            let mut a = stream(mode);
            let posts: Vec<_> =
                core::iter::from_fn(|| a.next_data(&mut Ramp::UPSTREAM.clone(), 1)).collect();
            assert_eq!(posts.len(), most);
            a.on_sent(posts[0].token);
            assert!(a.next_data(&mut Ramp::UPSTREAM.clone(), 1).is_some());
            assert_eq!(a.room(), 0);
        }
    }

    #[test]
    fn harmless_words_are_ignored_and_others_end_it() {
        for word in [0xe000_0001, 0xe000_0003, 0x4000_0001] {
            let mut a = stream(Mode::Immediate);
            assert_eq!((a.on_word(Word(word)), a.state()), (Ok(()), State::Open));
        }
        for (word, violation) in [
            (0x2000_0001, Violation::ReservedWord),
            (0x6000_0001, Violation::ReservedWord),
            (0xa000_0001, Violation::ReservedWord),
            (0, Violation::EmptyData),
            (0x8000_0000, Violation::CreditBackwards),
            (0x8000_0181, Violation::CreditBeyond),
        ] {
            let mut a = stream(Mode::Immediate);
            assert_eq!(a.on_word(Word(word)), Err(violation));
            assert_eq!((a.state(), a.violation()), (State::Error, Some(violation)));
            assert_eq!((a.next_control(false), a.room()), (None, 0));
            assert_eq!(a.on_word(Word(5)), Ok(()), "nothing else happens");
            assert_eq!(a.next_read(), Ok(Readable::Broken));
        }
    }

    #[test]
    fn a_peer_cannot_overrun_the_inbox_or_the_end() {
        let mut a = stream(Mode::Immediate);
        assert!((0..384).all(|_| a.on_word(Word(1)).is_ok()));
        assert_eq!(a.on_word(Word(1)), Err(Violation::CreditOverrun));
        let mut a = stream(Mode::Immediate);
        a.on_word(Word::SHUTDOWN).unwrap();
        assert_eq!(a.on_word(Word(1)), Err(Violation::AfterEnd));
    }

    #[test]
    fn a_message_that_does_not_fit_ends_it() {
        let mut a = stream(Mode::Immediate);
        a.on_word(Word(65537)).unwrap();
        a.on_word(Word::SHUTDOWN).unwrap();
        assert_eq!(a.next_read(), Err(Violation::DataBounds));
        assert_eq!(a.next_read(), Ok(Readable::Broken), "not a clean end");
    }

    #[test]
    fn losing_the_peer_is_not_a_clean_end() {
        let mut a = stream(Mode::Immediate);
        a.on_word(Word(2)).unwrap();
        a.on_event(Event::PeerGone);
        assert!(matches!(a.next_read(), Ok(Readable::Bytes(_))));
        a.on_read(2);
        assert_eq!(a.next_read(), Ok(Readable::Broken));
    }

    #[test]
    fn a_reply_for_a_big_endian_peer_is_swapped() {
        let mut peer = params(Mode::Immediate).private_data();
        peer.endian = Endian::Big;
        let mut a = Stream::new(&params(Mode::Immediate), &peer).unwrap();
        let Payload::Entry(bytes) = a.next_control(false).unwrap().payload else {
            panic!("an entry")
        };
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0x11, 0, 0, 0, 0, 0, 8, 0, 1, 0, 0]);
    }
}
