//! One end of a connected pair over one channel of an arena: the seam's [`QueuePair`] for shared
//! memory.
//!
//! - *Memory* is cut from the receive buffer of the direction that comes in. The peer reads of it
//!   in that direction's target table, with a key. A write is one copy by the poster, straight to
//!   its place; before it the poster compares the place with that table.
//! - *Words*, those about credit too, go through the message ring of the direction that goes out.
//!   The reason: the other end asks for one order of all words.
//! - *Receives* are one running count. An entry of the credit ring holds it, always the same one:
//!   it is overwritten and not queued. A word waits in the ring until the owner of the ring has a
//!   receive for it. A post is reported when its word and all earlier ones have their receives. So
//!   the ring never has more than the posts that were not reported and the receives that were not
//!   used.
//! - *The end* is said by the words `sender_closed` and `receiver_closed`. A process that dies says
//!   nothing: that is the kernel's news, and the thread that watches the TCP connection says it
//!   with [`ShmPair::bury`].
//!
//! What we believe of the peer is only counts, words and places. A lie about a count makes us
//! report posts early or late, and overruns the liar's own ring. A lie about a place is stopped at
//! the end of the liar's own buffer. A peer with another device than this can write all of the
//! channel at any time, registered or not. There is nothing in the channel but this pair. This
//! module must not know what the words mean, nor who made the arena. Entry point:
//! [`ShmPair::open`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use super::arena::Channel;
use super::direction::Direction;
use super::layout::{BUFFER_LEN, DATA_RING, TARGETS};
use super::park::Sleepers;
use super::waker::{self, WakerRef, Woke};
use rsocket_device::{Completion, MemoryError, PostError, QueuePair};
use rsocket_host::copy::CopyHint;
use rsocket_host::failure::Failure;
use rsocket_wire::proto::control::Mode;
use rsocket_wire::sge::Sge;
use rsocket_wire::word::Word;

/// Posts of one end that may be unreported.
pub const SEND_QUEUE: u16 = 512;
/// Receives of one end that may be unused.
pub const RECV_QUEUE: u16 = 1024;

// A word whose post was not reported, or that has an unused receive, has its place in the ring.
const _: () = assert!(SEND_QUEUE as u32 + RECV_QUEUE as u32 <= DATA_RING);

/// The entry of the credit ring that holds the count of receives.
const RECEIVES: u32 = 0;

/// Registered memory starts at a multiple of this, so that no two regions share a line.
const ALIGN: u64 = 64;

/// A post that was not reported yet.
#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    token: u64,
    /// Words posted up to and with this post: as many receives the peer must have posted before it
    /// counts as carried out.
    words: u32,
}

/// One end of a pair.
///
/// It has no destructor, so that it may be alive across a cancellation point: [`ShmPair::release`]
/// ends it.
#[derive(Debug)]
pub struct ShmPair {
    side: u32,
    incoming: Direction,
    outgoing: Direction,
    /// Our own memory; what the peer can change is only a copy of this.
    regions: [Sge; TARGETS],
    registered: usize,
    /// Bytes of the receive buffer that are registered.
    used: u64,
    /// What keys are made of.
    key: u32,
    /// A ring of `unreported` posts from `head` on.
    pending: Box<[Pending]>,
    head: usize,
    unreported: u16,
    /// Words posted, words taken, receives posted, ever.
    posted: u32,
    taken: u32,
    receives: u32,
    closed: bool,
    ended: bool,
    waker: WakerRef,
    /// Where the waker hangs: for words and for receives of the peer.
    armed: [Option<usize>; 2],
    /// A waker that could not be woken for want of a descriptor; tried again with each call. 0:
    /// none.
    owed: u64,
}

/// The direction that comes in at a side, and the direction that goes out.
fn directions(channel: Channel, side: u32) -> (Direction, Direction) {
    (channel.direction(1 - (side & 1)), channel.direction(side & 1))
}

/// Says that a side neither sends nor receives any more.
fn say_closed(incoming: Direction, outgoing: Direction) {
    // Release: pairs with the Acquire in `peer_closed`; a peer that sees it sees every word posted
    // before.
    outgoing.sender().sender_closed.store(1, Ordering::Release);
    incoming.receiver().receiver_closed.store(1, Ordering::Release);
}

impl ShmPair {
    /// The end of a pair at a side of the channel: 0 connecting, 1 accepting. The channel is fresh,
    /// or [wiped](Channel::wipe) since its last use, and the other side opens it as a queue pair
    /// too, once.
    ///
    /// # Errors
    /// `EMFILE` when there is no waker to be had; what the kernel says when it has no random bits.
    pub fn open(channel: Channel, side: u32) -> Result<Self, Failure> {
        let (incoming, outgoing) = directions(channel, side);
        let key = super::random::bits()? as u32;
        let waker = waker::borrow_for_set().ok_or(Failure::NoDescriptors)?;
        waker.drain();
        Ok(Self {
            side: side & 1,
            incoming,
            outgoing,
            regions: [Sge::default(); TARGETS],
            registered: 0,
            used: 0,
            key,
            pending: vec![Pending::default(); usize::from(SEND_QUEUE)].into_boxed_slice(),
            head: 0,
            unreported: 0,
            posted: 0,
            taken: 0,
            receives: 0,
            closed: false,
            ended: false,
            waker,
            armed: [None; 2],
            owed: 0,
        })
    }

    /// 0 connecting, 1 accepting.
    #[must_use]
    pub const fn side(&self) -> u32 {
        self.side
    }

    /// Closes and gives the waker back.
    pub fn release(mut self) {
        self.disarm();
        self.close();
        self.pay();
        waker::give_back(self.waker);
    }

    /// The process at `side` of the channel is dead: says in its name that it closed, and wakes the
    /// other side. For a thread that watches the process; may be called more than once, from any
    /// thread.
    pub fn bury(channel: Channel, side: u32) {
        let (incoming, outgoing) = directions(channel, side);
        say_closed(incoming, outgoing);
        outgoing.data_waiters().wake(None);
        incoming.room_waiters().wake(None);
    }

    fn peer_closed(&self) -> bool {
        // Acquire: pairs with the Release in `say_closed`.
        self.outgoing.receiver().receiver_closed.load(Ordering::Acquire) != 0
            || self.incoming.sender().sender_closed.load(Ordering::Acquire) != 0
    }

    /// Whether posts are refused.
    fn over(&self) -> bool {
        self.closed || self.ended || self.peer_closed()
    }

    /// Whether `len` bytes at `addr` lie in one region of ours.
    fn owns(&self, addr: u64, len: usize) -> bool {
        self.regions.iter().take(self.registered).any(|region| inside(region, addr, len))
    }

    /// Copies bytes to the peer's memory; false when they have no place there.
    fn place(&self, bytes: &[u8], target: Sge) -> bool {
        let table = (0..TARGETS).map(|index| self.outgoing.peek_entry(index));
        let mut regions = table.filter(|region| region.len != 0 && region.rkey == target.rkey);
        regions.any(|region| inside(&region, target.addr, bytes.len()))
            // SAFETY: the slice is readable for its length, and no code has a reference into an
            // arena: it is only given out as raw pointers.
            && unsafe { self.outgoing.write(target.addr, bytes.as_ptr(), bytes.len(), CopyHint::Ordinary) }
    }

    fn post(
        &mut self,
        bytes: &[u8],
        target: Sge,
        word: Option<Word>,
        token: u64,
    ) -> Result<(), PostError> {
        self.pay();
        if self.over() {
            return Err(PostError::Ended);
        }
        if self.unreported >= SEND_QUEUE {
            return Err(PostError::Full);
        }
        if !bytes.is_empty() && !self.place(bytes, target) {
            self.close();
            return Err(PostError::Ended);
        }
        let at = (self.head + usize::from(self.unreported)) % usize::from(SEND_QUEUE);
        let words = self.posted.wrapping_add(u32::from(word.is_some()));
        let Some(place) = self.pending.get_mut(at) else { return Err(PostError::Full) };
        *place = Pending { token, words };
        self.unreported += 1;
        if let Some(word) = word {
            self.outgoing.publish_data(self.posted, word.0);
            self.posted = words;
            let outgoing = self.outgoing;
            self.wake(outgoing.data_waiters());
        }
        self.nudge();
        Ok(())
    }

    /// The oldest post that was not reported, and whether it was carried out.
    fn oldest(&self) -> Option<(u64, bool)> {
        if self.unreported == 0 {
            return None;
        }
        let oldest = self.pending.get(self.head)?;
        let receives = self.outgoing.poll_control(RECEIVES).unwrap_or(0);
        // Both wrap; they are never 2^31 apart unless the peer lies.
        Some((oldest.token, receives.wrapping_sub(oldest.words) as i32 >= 0))
    }

    fn report_oldest(&mut self) {
        self.head = (self.head + 1) % usize::from(SEND_QUEUE);
        self.unreported = self.unreported.saturating_sub(1);
    }

    /// The next word of the peer, whether or not there is a receive for it.
    fn next_word(&self) -> Option<Word> {
        self.incoming.poll_data(self.taken).map(Word)
    }

    /// The next thing to report, with nothing changed. The token of a post is not looked at again:
    /// a caller that takes it calls `took`.
    fn look(&self) -> Option<Completion> {
        if self.ended {
            return None;
        }
        // Before the looks at what the peer did: what it did before closing is then seen below.
        let peer_closed = self.peer_closed();
        let oldest = self.oldest();
        if let Some((token, true)) = oldest {
            return Some(Completion::Sent { token });
        }
        let word = self.next_word();
        if let Some(word) = word
            && self.taken != self.receives
        {
            return Some(Completion::Word(word));
        }
        // A peer that closed waits with its end until its words have found receives. But we post
        // none after our own close, and our close waits for our words.
        let end = if peer_closed {
            word.is_none() || self.closed
        } else {
            self.closed && oldest.is_none()
        };
        if !end {
            return None;
        }
        Some(oldest.map_or(Completion::Ended, |(token, _)| Completion::Failed { token }))
    }

    fn took(&mut self, completion: Completion) {
        match completion {
            Completion::None => {}
            Completion::Sent { .. } | Completion::Failed { .. } => self.report_oldest(),
            Completion::Word(_) => self.taken = self.taken.wrapping_add(1),
            Completion::Ended => self.ended = true,
        }
    }

    /// Wakes the peer, after something was published for it.
    fn wake(&mut self, sleepers: Sleepers<'_>) {
        let owed = &mut self.owed;
        sleepers.wake_with(None, |id| wake(id, owed));
    }

    /// Tries again to signal a waker that could not be woken.
    fn pay(&mut self) {
        let id = core::mem::take(&mut self.owed);
        if id != 0 {
            wake(id, &mut self.owed);
        }
    }

    /// After a change of our own: gives ourselves the event that is due if we are armed.
    fn nudge(&mut self) {
        if self.armed != [None; 2] && self.look().is_some() {
            wake(self.waker.id(), &mut self.owed);
        }
    }

    fn disarm(&mut self) {
        let [words, receives] = core::mem::take(&mut self.armed);
        let id = self.waker.id();
        if let Some(slot) = words {
            self.incoming.data_waiters().disarm(slot, id);
        }
        if let Some(slot) = receives {
            self.outgoing.room_waiters().disarm(slot, id);
        }
    }
}

/// Signals a waker, or remembers that it has to be woken.
fn wake(id: u64, owed: &mut u64) {
    if matches!(waker::try_wake(id), Woke::Failed | Woke::Forbidden) {
        *owed = id;
    }
}

/// Whether `len` bytes at `addr` lie in the region.
fn inside(region: &Sge, addr: u64, len: usize) -> bool {
    let before = addr.checked_sub(region.addr);
    let room = before.and_then(|before| u64::from(region.len).checked_sub(before));
    room.is_some_and(|room| len as u64 <= room)
}

impl QueuePair for ShmPair {
    // What was accepted is in shared memory.
    const SURVIVES: bool = true;

    fn mode(&self) -> Mode {
        Mode::Immediate
    }

    fn register(&mut self, len: u32) -> Result<Sge, MemoryError> {
        let end = self.used.checked_add(u64::from(len)).filter(|end| *end <= BUFFER_LEN as u64);
        let (Some(end), Some(region)) = (end, self.regions.get_mut(self.registered)) else {
            return Err(MemoryError::Exhausted);
        };
        // All keys of an end are different: the low bits count.
        let rkey = self.key & !(TARGETS as u32 - 1) | self.registered as u32;
        *region = Sge { addr: self.used, rkey, len };
        let sge = *region;
        // Another connection may have used the channel before.
        let zeroes = [0_u8; 4096];
        let mut at = sge.addr;
        while at < end {
            let piece = (end - at).min(zeroes.len() as u64);
            // SAFETY: the array is readable for `piece` bytes and private.
            let _ = unsafe {
                self.incoming.write(at, zeroes.as_ptr(), piece as usize, CopyHint::Ordinary)
            };
            at += piece;
        }
        self.incoming.post_entry(self.registered, sge);
        self.registered += 1;
        self.used = end.next_multiple_of(ALIGN);
        Ok(sge)
    }

    fn load(&self, addr: u64, into: &mut [u8]) -> Result<(), MemoryError> {
        let done = self.owns(addr, into.len())
            // SAFETY: the slice is writable for its length, and no slice lies in an arena.
            && unsafe { self.incoming.read(addr, into.len(), into.as_mut_ptr(), CopyHint::Ordinary) };
        if done { Ok(()) } else { Err(MemoryError::Range) }
    }

    fn store(&mut self, addr: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        let done = self.owns(addr, bytes.len())
            // SAFETY: the slice is readable for its length, and no slice lies in an arena.
            && unsafe { self.incoming.write(addr, bytes.as_ptr(), bytes.len(), CopyHint::Ordinary) };
        if done { Ok(()) } else { Err(MemoryError::Range) }
    }

    fn post_receives(&mut self, count: u16) -> Result<(), PostError> {
        self.pay();
        // A peer that closed may have left words behind that wait for these.
        if self.closed || self.ended {
            return Err(PostError::Ended);
        }
        let unused = self.receives.wrapping_sub(self.taken);
        if unused + u32::from(count) > u32::from(RECV_QUEUE) {
            return Err(PostError::Full);
        }
        self.receives = self.receives.wrapping_add(u32::from(count));
        self.incoming.publish_control(RECEIVES, self.receives);
        let incoming = self.incoming;
        self.wake(incoming.room_waiters());
        self.nudge();
        Ok(())
    }

    fn room(&self) -> u16 {
        if self.over() { 0 } else { SEND_QUEUE.saturating_sub(self.unreported) }
    }

    fn post_write(
        &mut self,
        bytes: &[u8],
        target: Sge,
        word: Option<Word>,
        token: u64,
    ) -> Result<(), PostError> {
        self.post(bytes, target, word, token)
    }

    fn post_send(&mut self, word: Word, token: u64) -> Result<(), PostError> {
        self.post(&[], Sge::default(), Some(word), token)
    }

    fn poll(&mut self, into: &mut [Completion]) -> usize {
        self.pay();
        let mut count = 0;
        for slot in into {
            let Some(completion) = self.look() else { break };
            self.took(completion);
            *slot = completion;
            count += 1;
        }
        count
    }

    fn arm(&mut self) {
        self.pay();
        // Anew each time: of the two, one may have been woken.
        self.disarm();
        let id = self.waker.id();
        let (incoming, outgoing) = (self.incoming, self.outgoing);
        self.armed = [incoming.data_waiters().arm(id), outgoing.room_waiters().arm(id)];
        if self.armed.contains(&None) {
            // Only a peer that breaks the rules fills the words. Better an event too many than
            // none.
            wake(id, &mut self.owed);
        }
    }

    fn take_event(&mut self) -> bool {
        let came = self.waker.drain();
        if came {
            self.disarm();
        }
        came
    }

    fn event_fd(&self) -> Option<c_int> {
        Some(self.waker.fd()).filter(|fd| *fd >= 0)
    }

    fn close(&mut self) {
        if self.closed {
            return;
        }
        self.closed = true;
        let (incoming, outgoing) = (self.incoming, self.outgoing);
        say_closed(incoming, outgoing);
        self.wake(outgoing.data_waiters());
        self.wake(incoming.room_waiters());
        self.nudge();
    }
}
