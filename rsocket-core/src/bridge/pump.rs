//! The pump: what carries a connection's bytes between its channel and a queue pair.
//!
//! On one side a [`ChannelPort`], on the other a [`Stream`] over a device. It moves whatever can
//! move and never waits. Must not know descriptors, threads, or how the pair was connected. Entry
//! points: [`Pump::new`], [`Pump::run`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod ending;
mod forward;

use super::channel_port::{Broken, ChannelPort};
use super::mappings::Placements;
use super::opening::Opening;
#[cfg(doc)]
use super::peer_control::Note;
use super::peer_control::Reader;
use super::told::Beside;
use super::watch::Seen;
use crate::copy::Bytes;
use crate::device::{Completion, HALF, PostError, QueuePair};
use crate::proto::control::Mode;
use crate::proto::state::{Event, State};
use crate::proto::stream::{Payload, Post, Readable, Stream, StreamParams};
use crate::proto::{RecvHalf, RecvParams, Region, Violation};
use crate::sys;
use crate::wire::iomap::Iomap;
use crate::wire::private_data::PrivateData;
use crate::wire::sge::{Endian, Sge};
use crate::wire::word::{Message, Word};

/// Completions that are taken from the device at a time.
const BATCH: usize = 8;
/// Entries of our target table: as many as upstream has (`wire-protocol §2.2`).
const ENTRIES: u32 = 2;
/// Times that [`Pump::run`] looks at the device before it stops giving it more to do.
pub(super) const ROUNDS: u32 = 64;

/// How the peer's side of the connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerEnd {
    /// It has not, or not all that it sent has been delivered yet.
    Open,
    /// It sends no more, but may still receive.
    Shut,
    /// It has closed; all that it sent was delivered.
    Closed,
    /// It is gone without having said so, or it broke a rule: bytes may be missing.
    Broken,
}

/// A connection's two sides, and what is between them.
pub struct Pump<Q> {
    pub(super) port: ChannelPort,
    pub(super) pair: Q,
    pub(super) stream: Stream,
    table: Sge,
    buffer: Sge,
    /// Where the device's news are taken to; means nothing between two looks.
    batch: [Completion; BATCH],
    /// The program was told that the peer sends no more.
    end_delivered: bool,
    peer: PeerEnd,
    /// The program has closed for good.
    closing: bool,
    /// The program's end is known to be gone, although its side of the channel does not say so.
    gone: bool,
    /// It was told to end.
    hung_up: bool,
    /// The pair has ended.
    ended: bool,
    /// The peer was told what the program had taken when it closed ([`Note::Closed`]).
    said_taken: bool,
    /// The same of the peer's program, once that has closed.
    pub(super) taken: Option<u16>,
    /// Bytes of the program's were dropped, or a post of them failed, since the peer had closed.
    dropped: bool,
    /// Messages that were posted and not reported yet.
    pub(super) outstanding: u32,
    /// What the device reported in all, and how much of it were words of the peer's and posts
    /// carried out.
    pub(super) reports: u64,
    /// What it had reported when a sender last waited for it in vain.
    pub(super) vain_at: Option<u64>,
    pub(super) words: u64,
    acknowledged: u64,
    /// Completions that there can be at most while nothing is posted.
    most_news: u32,
    /// What was carried in all: bytes out, bytes in.
    pub(super) carried: (u64, u64),
    /// The marks, where a TCP connection to the same peer stands beside this one.
    pub(super) beside: Option<Box<Beside>>,
    /// Puts together what a peer of ours says beside the protocol.
    pub(super) reader: Option<Reader>,
    pub(super) placements: Placements,
    /// In message mode, until the peer has said something.
    pub(super) opening: Option<Opening>,
    /// No bytes of the peer's buffer.
    nowhere: Sge,
}

/// Registers what the protocol needs and posts the first receives. To be called before connecting,
/// so that a peer may send as soon as it is connected (`wire-protocol §2.1`).
///
/// # Errors
/// The device has no memory or no room for it.
pub fn prepare(
    pair: &mut impl QueuePair,
    queue: u16,
    buffer: u32,
    send_queue: u16,
    iomaps: u16,
) -> Option<StreamParams> {
    let half = (buffer / 2).max(1);
    let recv = RecvParams { queue, segments: ENTRIES, large: half, small: 0 };
    let table =
        pair.register(ENTRIES * Sge::SIZE as u32 + u32::from(iomaps) * Iomap::SIZE as u32).ok()?;
    let buffer = pair.register(RecvHalf::buffer_len(&recv)).ok()?;
    pair.post_receives(queue).ok()?;
    let table = Sge { len: ENTRIES, ..table };
    Some(StreamParams { mode: pair.mode(), send_queue, recv, buffer, table, iomaps })
}

/// Completions that a peer can make at most that keeps to the protocol, while we post nothing:
/// - reports of all our posts;
/// - as many words as it has credits;
/// - for each post of ours that it takes up, a word without a credit (`wire-protocol §5.5`).
///
/// And as much again, for what is ours and not upstream's.
fn most_news(params: &StreamParams) -> u32 {
    2 * (2 * u32::from(params.send_queue) + u32::from(params.recv.queue))
}

impl<Q: QueuePair> Pump<Q> {
    /// A connection that was just established with a peer that said `peer`.
    ///
    /// # Errors
    /// What is wrong with the peer's offer. The port is closed then.
    pub fn new(
        port: ChannelPort,
        pair: Q,
        params: &StreamParams,
        peer: &PrivateData,
    ) -> Result<Self, Violation> {
        match Stream::new(params, peer) {
            Err(violation) => {
                port.close();
                Err(violation)
            }
            Ok(stream) => Ok(Self {
                port,
                pair,
                placements: Placements::new(params, &stream),
                reader: peer.notes.then(Reader::default),
                stream,
                table: params.table,
                buffer: params.buffer,
                batch: [Completion::None; BATCH],
                end_delivered: false,
                peer: PeerEnd::Open,
                closing: false,
                gone: false,
                hung_up: false,
                ended: false,
                said_taken: false,
                taken: None,
                dropped: false,
                outstanding: 0,
                reports: 0,
                vain_at: None,
                words: 0,
                acknowledged: 0,
                most_news: most_news(params),
                carried: (0, 0),
                beside: None,
                opening: None,
                nowhere: Sge { len: 0, ..peer.buffer },
            }),
        }
    }

    /// A TCP connection to the same peer stands beside this one: marks are carried too.
    #[must_use]
    pub fn beside_tcp(mut self) -> Self {
        self.beside = Some(Box::default());
        self.reader = Some(Reader::default());
        self
    }

    /// The connection stands from now on; `asked` at the accepting end.
    pub fn begin(&mut self, asked: bool) {
        let ours = self.reader.is_some();
        self.opening =
            (self.pair.mode() == Mode::Message).then(|| Opening::new(asked, ours, sys::now_ns()));
    }

    /// When it must be run again although nothing happens, on the clock of [`sys::now_ns`].
    #[must_use]
    pub fn due(&self) -> Option<u64> {
        self.opening.as_ref().and_then(Opening::next)
    }

    /// The device's side, for the caller that hears of its end or arms it.
    pub fn pair(&mut self) -> &mut Q {
        &mut self.pair
    }

    /// The channel's side.
    pub fn port(&mut self) -> &mut ChannelPort {
        &mut self.port
    }

    /// As [`ChannelPort::waits_under`].
    #[must_use]
    pub fn waits_under(&self) -> bool {
        self.port.waits_under()
    }

    /// How the peer's side ended.
    #[must_use]
    pub fn peer(&self) -> PeerEnd {
        self.peer
    }

    /// Why the peer was thrown out, if it was.
    #[must_use]
    pub fn violation(&self) -> Option<Violation> {
        self.stream.violation()
    }

    /// Moves all that can move; whether anything did. However fast the peer is, and whatever it
    /// says, this comes to its end.
    pub fn run(&mut self) -> bool {
        let mut any = false;
        let mut taken = false;
        let mut delivered = false;
        for round in 0..2 * ROUNDS {
            let (polled, more) =
                if round < ROUNDS { self.poll() } else { (self.poll_out(), false) };
            let may_speak = self.open_up();
            let noted = may_speak && self.notes();
            let sent = if may_speak { self.forward() } else { Ok(false) };
            let (in_moved, out_moved) = match (self.deliver(), sent) {
                (Ok(i), Ok(o)) => (i, o),
                _ => {
                    self.fail();
                    (false, false)
                }
            };
            delivered |= in_moved;
            taken |= out_moved;
            // Where a direction ends is said behind its bytes.
            let ended = may_speak && (in_moved || out_moved) && self.notes();
            let said = may_speak && self.control();
            let moved = polled || noted || in_moved || out_moved || ended || said;
            any |= moved;
            // Each step has done all that it could. Only news of the device's make more possible,
            // and what another thread of the program has put in since. An end comes in many steps.
            let again = more || out_moved && self.port.has_outgoing() || moved && self.ending();
            if !again || self.violation() == Some(Violation::Flood) {
                break;
            }
        }
        if taken {
            self.port.wake_writer();
        }
        if delivered {
            self.port.wake_reader();
        }
        any
    }

    /// Whether a direction or the connection has ended, or is about to.
    pub(super) fn ending(&self) -> bool {
        self.hung_up || self.closing || self.stream.state() != State::Open
    }

    /// Whether anything may be sent yet; sends an empty write where one is due ([`Opening`]).
    fn open_up(&mut self) -> bool {
        let Some(opening) = &mut self.opening else { return true };
        if opening.knock(sys::now_ns()) {
            // A queue that is full, or a pair that has ended, needs none.
            let _ = self.pair.post_write(&[], self.nowhere, None, HALF);
        }
        opening.may_speak() || self.ended
    }

    /// Takes the device's news: whether there were any, and whether there may be more.
    pub(super) fn poll(&mut self) -> (bool, bool) {
        let count = self.pair.poll(&mut self.batch);
        self.reports += count as u64;
        let mut words = 0;
        for i in 0..count {
            let Some(completion) = self.batch.get(i) else { break };
            match *completion {
                Completion::None
                | Completion::Sent { token: HALF }
                | Completion::Failed { token: HALF } => {}
                Completion::Sent { token } => {
                    self.outstanding = self.outstanding.saturating_sub(1);
                    // That the peer is there does not mean that it takes anything.
                    self.acknowledged += u64::from(!Stream::is_keep_alive(token));
                    self.stream.on_sent(token);
                }
                Completion::Failed { token } => {
                    self.outstanding = self.outstanding.saturating_sub(1);
                    self.dropped |= Stream::is_data(token);
                    self.stream.on_failed();
                }
                Completion::Ended => {
                    self.ended = true;
                    self.stream.on_event(Event::PeerGone);
                }
                Completion::Word(word) => {
                    words += 1;
                    self.on_word(word);
                }
            }
        }
        self.words += u64::from(words);
        if words > 0 {
            // A pair that has ended takes none, and needs none.
            let _ = self.pair.post_receives(words);
        }
        (count > 0, count == BATCH)
    }

    /// The peer has said this.
    #[inline]
    fn on_word(&mut self, word: Word) {
        self.opening = None;
        if self.heard(word) {
            return;
        }
        let taken = self.stream.on_word(word).and_then(|()| match word.message() {
            Ok(Message::Sgl(_)) => self.entry(),
            Ok(Message::Iomap(index)) => {
                self.learn(index);
                Ok(())
            }
            _ => Ok(()),
        });
        if taken.is_err() {
            self.hang_up();
        }
    }

    /// Takes all the news that the device has, posting nothing meanwhile; whether there were any. A
    /// peer that has more is thrown out: words that need no credit cost it nothing.
    fn poll_out(&mut self) -> bool {
        let before = self.reports;
        while self.poll().1 {
            if self.reports - before > u64::from(self.most_news) {
                self.stream.on_flood();
                self.hang_up();
                break;
            }
        }
        self.reports > before
    }

    /// Reads the entry of our target table that an SGL word may have announced
    /// (`wire-protocol §5.6`). No more than one: the next has a word of its own, and before that
    /// may be half written.
    fn entry(&mut self) -> Result<(), Violation> {
        let Some(index) = self.stream.expected_entry() else { return Ok(()) };
        let at = self.table.addr + u64::from(index) * Sge::SIZE as u64;
        let mut bytes = [0; Sge::SIZE];
        if self.pair.load(at, &mut bytes).is_err() {
            return Ok(());
        }
        let entry = Sge::from_bytes(bytes, Endian::NATIVE);
        if entry.len == 0 {
            return Ok(());
        }
        let _ = self.pair.store(at + LEN_OFFSET, &[0; 4]);
        self.stream.on_entry(index, entry)
    }

    /// From the device's buffer into the channel.
    fn deliver(&mut self) -> Result<bool, Broken> {
        let mut moved = false;
        if !self.port.hand_back()? {
            return Ok(false);
        }
        while !self.end_delivered {
            let region = match self.stream.next_read() {
                Ok(Readable::Bytes(region)) => region,
                Ok(Readable::Nothing) => break,
                Ok(Readable::End) => {
                    self.end_delivered = true;
                    // One that went back to TCP ends there.
                    if !self.beside.as_ref().is_some_and(|beside| beside.returned) {
                        if !self.connected() {
                            // Before the end can be read: a program that has read it learns from
                            // its next send that the peer has closed both ways.
                            self.port.refuse();
                        }
                        self.port.deliver_end();
                    }
                    moved = true;
                    break;
                }
                Ok(Readable::Broken) => {
                    self.end_delivered = true;
                    self.peer = PeerEnd::Broken;
                    return Ok(true);
                }
                Err(_) => {
                    self.hang_up();
                    continue;
                }
            };
            let n = self.deliver_region(region)?;
            if n == 0 {
                break;
            }
            self.stream.on_read(n);
            self.carried.1 += u64::from(n);
            moved = true;
        }
        if self.end_delivered && self.peer != PeerEnd::Broken {
            self.peer = if self.connected() { PeerEnd::Shut } else { PeerEnd::Closed };
        }
        Ok(moved)
    }

    /// Whether the peer still takes what is sent, whatever it does with its own direction.
    fn connected(&self) -> bool {
        matches!(self.stream.state(), State::Open | State::WriteOnly)
    }

    /// Where a part of our receive buffer is, as the device names it.
    pub(super) fn arrival(&self, region: &Region) -> u64 {
        self.buffer.addr.wrapping_add(u64::from(region.offset))
    }

    /// Whether the program was told that nothing follows.
    pub(super) fn has_ended_delivering(&self) -> bool {
        self.end_delivered
    }

    /// As much of a region as the channel takes now.
    fn deliver_region(&mut self, region: Region) -> Result<u32, Broken> {
        let addr = self.arrival(&region);
        let (mut done, mut broken, mut full) = (0, false, false);
        let port = &mut self.port;
        let mut sink = |mut from: Bytes<'_>| {
            while !full && !broken && !from.is_empty() {
                match port.deliver(from) {
                    Ok(0) => full = true,
                    Ok(n) => {
                        from = from.behind(n as usize);
                        done += n;
                    }
                    Err(Broken) => broken = true,
                }
            }
        };
        let inside = self.pair.each_chunk(addr, region.len, &mut sink);
        if broken || inside.is_err() { Err(Broken) } else { Ok(done) }
    }

    /// Posts what is not data.
    #[inline]
    pub(super) fn control(&mut self) -> bool {
        self.owes_control() && self.pay_control()
    }

    /// Whether there may be anything to post that is not data; mostly there is not.
    #[inline]
    fn owes_control(&self) -> bool {
        self.stream.owes_control() || self.placements.owes_control()
    }

    #[inline(never)]
    fn pay_control(&mut self) -> bool {
        let mut any = self.unmappings();
        // Before asking: what the stream has said cannot be put back.
        while self.pair.staging_room() >= Sge::SIZE as u32
            && let Some(post) = self.stream.next_control(false)
        {
            any = true;
            self.post(&post);
        }
        any
    }

    pub(super) fn post(&mut self, post: &Post) {
        let bytes: &[u8] = match &post.payload {
            Payload::None | Payload::Data => &[],
            Payload::Entry(bytes) => bytes,
        };
        match self.pair.post_message(bytes, post.target, post.word, post.token) {
            Ok(()) => self.outstanding += 1,
            Err(PostError::Ended) => {}
            // Slots are counted so that this cannot be; a connection that miscounts is not to be
            // trusted.
            Err(PostError::Full | PostError::Unsupported) => self.hang_up(),
        }
    }

    /// What [`super::watch`] goes by. Where words travel by messages (iWARP) a report says no more
    /// than that the device has taken a post. Then only words are signs of life, unless
    /// `reports_count`.
    #[must_use]
    pub fn seen(&self, reports_count: bool) -> Seen {
        Seen {
            signs: if reports_count { self.reports } else { self.words },
            heard_at: None,
            waiting: self.outstanding > 0 || self.unsent(),
            progress: self.acknowledged + self.carried.0,
        }
    }

    /// Sends what only the peer's device answers (`wire-protocol §7`). Sends nothing while
    /// something is on its way that would fail as well if the peer were gone. If the peer is gone,
    /// the post fails, and the pair ends.
    pub fn ask(&mut self) {
        if self.outstanding > 0 || self.due().is_some() {
            return;
        }
        let Some(token) = self.stream.keep_alive() else { return };
        match self.pair.post_write(&[], Sge::default(), None, token) {
            Ok(()) => self.outstanding += 1,
            Err(PostError::Ended) => {}
            Err(PostError::Full | PostError::Unsupported) => self.hang_up(),
        }
    }
}

/// Where the length is in an entry (`wire-protocol §3.2`).
const LEN_OFFSET: u64 = 12;
