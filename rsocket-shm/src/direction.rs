//! What the two ends of one direction do to their shared memory: write payload, publish words, post
//! buffers, and look at what the other did.
//!
//! Every operation is a few loads and stores: no lock, no allocation, no system call. Positions are
//! the caller's: they live in the private state of `proto`'s halves. Here they only choose a slot
//! and the tag that tells one lap of a ring from the next. Nothing read here is to be believed:
//! words, offsets and lengths are the peer's. Entry point: [`Direction`], from
//! [`super::arena::Channel::direction`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::Advice;

use super::layout::{
    ALONE, BUFFER_LEN, CONTROL_RING, DATA_RING, DirectionPage, HEAD_LEN, LARGE_ZONE, MAPS, MAPS_AT,
    MapEntry, PLACES, PLACES_AT, PlacedLine, PlacingLine, ReceiverLine, SenderLine, SleeperLine,
    TargetEntry,
};
use super::park::Sleepers;
use super::stores;
use rsocket_host::copy::{self, Bytes, CopyHint};
use rsocket_host::thread;
use rsocket_wire::sge::Sge;

/// A handle on one direction: a copy of a plain pointer, valid while its arena stays mapped.
///
/// Both ends use the same type; which operations are whose is said at each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Direction {
    base: NonNull<u8>,
}

// SAFETY: the memory behind it is shared between processes anyway, and only reached by atomics and
// by raw copies that the protocol keeps apart.
unsafe impl Send for Direction {}
// SAFETY: as above.
unsafe impl Sync for Direction {}

/// What tells the entry of this lap from those of all others: it is never 0, and comes again only
/// after 2^32 positions.
#[inline(always)]
fn tag(position: u32, ring: u32) -> u32 {
    position / ring + 1
}

#[inline(always)]
fn publish(ring: &[AtomicU64], position: u32, word: u32) {
    let len = ring.len() as u32;
    let entry = u64::from(word) | u64::from(tag(position, len)) << 32;
    if let Some(slot) = ring.get((position % len) as usize) {
        // Release: pairs with the Acquire in `poll`. What was written before (payload by ordinary
        // stores, or by streaming stores and the sfence of `copy`) is there when the entry is.
        slot.store(entry, Ordering::Release);
    }
}

#[inline(always)]
fn poll(ring: &[AtomicU64], position: u32) -> Option<u32> {
    let len = ring.len() as u32;
    // Acquire: pairs with the Release in `publish`.
    let entry = ring.get((position % len) as usize)?.load(Ordering::Acquire);
    ((entry >> 32) as u32 == tag(position, len)).then_some(entry as u32)
}

impl Direction {
    /// The direction whose memory starts here.
    ///
    /// # Safety
    /// `DIRECTION_LEN` bytes from `base` on are mapped, readable and writable, page-aligned, and
    /// stay so while any copy of the handle is used. They are only ever reached as this module does
    /// it.
    #[must_use]
    pub unsafe fn from_base(base: NonNull<u8>) -> Self {
        Self { base }
    }

    #[inline(always)]
    fn page(&self) -> &DirectionPage {
        // SAFETY: from_base's caller promised the memory and its alignment. Every field is an
        // atomic, for which any bytes are valid and concurrent writes are harmless.
        unsafe { self.base.cast::<DirectionPage>().as_ref() }
    }

    /// What the receiver tells the sender.
    #[must_use]
    #[inline]
    pub fn receiver(&self) -> &ReceiverLine {
        &self.page().receiver
    }

    /// What the sender tells the receiver.
    #[must_use]
    #[inline]
    pub fn sender(&self) -> &SenderLine {
        &self.page().sender
    }

    /// The receiver's sleepers, which wait for data: armed by the receiver, woken by the sender.
    #[must_use]
    #[inline]
    pub fn data_waiters(&self) -> Sleepers<'_> {
        sleepers(&self.page().data_waiters)
    }

    /// The sender's sleepers, which wait for room: armed by the sender, woken by the receiver.
    #[must_use]
    #[inline]
    pub fn room_waiters(&self) -> Sleepers<'_> {
        sleepers(&self.page().room_waiters)
    }

    /// What the sender says about direct placement.
    #[inline(always)]
    pub(super) fn placing(&self) -> &PlacingLine {
        &self.page().placing
    }

    /// What the receiver says about direct placement.
    #[inline(always)]
    pub(super) fn placed(&self) -> &PlacedLine {
        &self.page().placed
    }

    /// The table of mappings.
    #[inline]
    pub(super) fn maps(&self) -> &[MapEntry; MAPS] {
        // SAFETY: as in page(): the table lies at this multiple of a page inside the direction, and
        // is atomics only.
        unsafe { self.base.add(MAPS_AT).cast::<[MapEntry; MAPS]>().as_ref() }
    }

    /// Byte `at` of the ring of directly placed bytes, which is below [`PLACES`]: there and behind
    /// it the rest of the ring.
    #[inline]
    pub(super) fn place(&self, at: usize) -> *mut u8 {
        // SAFETY: the remainder is below PLACES, and the ring lies wholly inside the direction
        // (from_base).
        unsafe { self.base.as_ptr().add(PLACES_AT + at % PLACES) }
    }

    /// The receive buffer, when `len` bytes from `offset` on lie inside it.
    #[inline(always)]
    fn buffer(&self, offset: u64, len: usize) -> Option<*mut u8> {
        let room = (BUFFER_LEN as u64).checked_sub(offset)?;
        if len as u64 > room {
            return None;
        }
        // SAFETY: offset + len <= BUFFER_LEN, and the direction has HEAD_LEN + BUFFER_LEN bytes
        // (from_base).
        Some(unsafe { self.base.as_ptr().add(HEAD_LEN + offset as usize) })
    }

    /// Sender: makes the first `len` bytes of the large class memory now, as far as they are not.
    /// On kernels that cannot (before 5.14) it becomes memory where it is used.
    pub fn touch_large(&self, len: usize) {
        if let Some(at) = self.buffer(LARGE_ZONE as u64, len) {
            // SAFETY: the stretch lies inside the mapping (buffer); what is in it stays as it is.
            let _ = unsafe { rustix::mm::madvise(at.cast(), len, Advice::LinuxPopulateWrite) };
        }
    }

    /// Sender: copies payload into the peer's receive buffer. False, and nothing done, when it
    /// would not lie inside the buffer: the peer named a target that does not exist.
    ///
    /// # Safety
    /// `src` is readable for `len` bytes and outside the arena.
    #[must_use]
    #[inline]
    pub unsafe fn write(&self, offset: u64, src: *const u8, len: usize, hint: CopyHint) -> bool {
        let Some(to) = self.buffer(offset, len) else { return false };
        // SAFETY: `to` has room for len bytes (buffer); the rest is our caller's promise.
        unsafe { self.fill(to, src, len, hint) };
        true
    }

    /// Sender: the same, to a place that [`Self::payload`] has given.
    ///
    /// # Safety
    /// `to` has room for `len` bytes in the receive buffer, and `src` is readable for as many,
    /// outside the arena.
    #[inline(always)]
    pub(super) unsafe fn fill(&self, to: *mut u8, src: *const u8, len: usize, hint: CopyHint) {
        if hint == CopyHint::Near {
            // SAFETY: as below.
            return unsafe { copy::near(to, src, len) };
        }
        if len < copy::STREAM_FROM || hint == CopyHint::Ordinary {
            // SAFETY: both ends are the caller's promise, and private memory does not overlap the
            // arena. The peer may write there too; the bytes are payload, never interpreted here.
            return unsafe { core::ptr::copy_nonoverlapping(src, to, len) };
        }
        // Relaxed: a hint about where the peer runs.
        let said = self.page().receiver.receiver_cpu.load(Ordering::Relaxed);
        let elsewhere = said & !ALONE != thread::cpu();
        // SAFETY: as above.
        unsafe { copy::into_shared(to, src, len, elsewhere && stores::streams()) };
        if elsewhere {
            stores::copied(len);
        }
    }

    /// Receiver: copies payload out of the receive buffer. False, and nothing done, when it would
    /// not lie inside the buffer.
    ///
    /// # Safety
    /// `dst` is writable for `len` bytes and outside the arena.
    #[must_use]
    #[inline]
    pub unsafe fn read(&self, offset: u64, len: usize, dst: *mut u8, hint: CopyHint) -> bool {
        let Some(from) = self.buffer(offset, len) else { return false };
        // SAFETY: `from` has len bytes (buffer), dst is the caller's promise, and private memory
        // does not overlap the arena. A hostile peer may change the bytes meanwhile: it only spoils
        // its own stream.
        unsafe { copy::out_of_shared(dst, from, len, hint) };
        true
    }

    /// Sender: where payload lies that was written before, to be sent again another way. `None`
    /// when it would not lie inside the buffer. The memory is valid while the arena stays mapped.
    #[must_use]
    #[inline(always)]
    pub fn payload(&self, offset: u64, len: usize) -> Option<*mut u8> {
        self.buffer(offset, len)
    }

    /// The same, to be read.
    #[must_use]
    pub fn bytes(&self, offset: u64, len: usize) -> Option<Bytes<'_>> {
        // SAFETY: the buffer has them there; they stay while this handle may be used.
        self.buffer(offset, len).map(|at| unsafe { Bytes::new(at, len) })
    }

    /// Sender: shows the receiver the word at this position of the message ring, with all that was
    /// written before it.
    #[inline]
    pub fn publish_data(&self, position: u32, word: u32) {
        publish(&self.page().data, position, word);
    }

    /// Sender: a message is about to be made whose word goes to this position and whose `len` bytes
    /// go to this offset. The lines are asked for at once, so that they come from the peer's cache
    /// while the caller is still about to write them.
    #[inline(always)]
    pub fn claim(&self, position: u32, offset: u64, len: usize) {
        if let Some(slot) = self.page().data.get((position % DATA_RING) as usize) {
            copy::claim(core::ptr::from_ref(slot).cast());
        }
        self.claim_lines(offset, len);
    }

    /// Sender: the same for the messages that may come a little later, if they are like this one.
    /// This one was short, went to the small class and ended before `end`. The peer has no use for
    /// these lines now.
    #[inline(always)]
    pub fn claim_ahead(&self, position: u32, end: u64, len: usize) {
        if let Some(slot) =
            self.page().data.get((position.wrapping_add(WORDS_AHEAD) % DATA_RING) as usize)
        {
            copy::claim(core::ptr::from_ref(slot).cast());
        }
        self.claim_lines(end + BYTES_AHEAD, len);
    }

    #[inline(always)]
    fn claim_lines(&self, offset: u64, len: usize) {
        let mut line = 0;
        while line < len.min(CLAIMED) {
            let at = HEAD_LEN + (offset as usize + line) % LARGE_ZONE;
            // Nothing is touched, wherever it is.
            copy::claim(self.base.as_ptr().wrapping_add(at));
            line += LINE;
        }
    }

    /// Sender: whether the word at this position has been published, by the thread that held the
    /// lock before.
    #[must_use]
    #[inline]
    pub fn data_published(&self, position: u32) -> bool {
        poll(&self.page().data, position).is_some()
    }

    /// Receiver: the word at this position of the message ring, once it is there. Looking changes
    /// nothing, so positions ahead can be looked at too.
    #[must_use]
    #[inline]
    pub fn poll_data(&self, position: u32) -> Option<u32> {
        poll(&self.page().data, position)
    }

    /// Receiver: asks for the line of the word at this position, to be looked at soon.
    #[inline(always)]
    pub fn fetch_word(&self, position: u32) {
        if let Some(slot) = self.page().data.get((position % DATA_RING) as usize) {
            copy::fetch(core::ptr::from_ref(slot).cast());
        }
    }

    /// Receiver: asks for the first line of a payload that is there, to be read soon.
    #[inline(always)]
    pub fn fetch_payload(&self, offset: u64) {
        if let Some(at) = self.buffer(offset, 1) {
            copy::fetch(at);
        }
    }

    /// Receiver: how many words from this position on are there, at most `limit`.
    #[must_use]
    pub fn data_ready(&self, position: u32, limit: u32) -> u32 {
        let limit = limit.min(DATA_RING);
        (0..limit).find(|&n| self.poll_data(position.wrapping_add(n)).is_none()).unwrap_or(limit)
    }

    /// Receiver: shows the sender the word at this position of the credit ring.
    #[inline]
    pub fn publish_control(&self, position: u32, word: u32) {
        publish(&self.page().control, position, word);
    }

    /// Receiver: whether the word at this position has been published.
    #[must_use]
    #[inline]
    pub fn control_published(&self, position: u32) -> bool {
        poll(&self.page().control, position).is_some()
    }

    /// Sender: the word at this position of the credit ring, once it is there.
    #[must_use]
    #[inline]
    pub fn poll_control(&self, position: u32) -> Option<u32> {
        poll(&self.page().control, position)
    }

    #[inline]
    fn entry(&self, index: usize) -> Option<&TargetEntry> {
        self.page().targets.get(index)
    }

    /// Receiver: names a buffer that the sender may fill. Nothing happens for an index that does
    /// not exist.
    #[inline]
    pub fn post_entry(&self, index: usize, sge: Sge) {
        let Some(entry) = self.entry(index) else { return };
        entry.addr.store(sge.addr, Ordering::Relaxed);
        entry.rkey.store(sge.rkey, Ordering::Relaxed);
        // Release: pairs with the Acquire in `peek_entry`; an entry with a length has its other
        // fields.
        entry.len.store(sge.len, Ordering::Release);
    }

    /// Sender: the buffer named at this index, length 0 when there is none. It stays there.
    #[must_use]
    #[inline]
    pub fn peek_entry(&self, index: usize) -> Sge {
        let Some(entry) = self.entry(index) else { return Sge::default() };
        // Acquire: pairs with the Release in `post_entry`.
        let len = entry.len.load(Ordering::Acquire);
        if len == 0 {
            return Sge::default();
        }
        Sge {
            addr: entry.addr.load(Ordering::Relaxed),
            rkey: entry.rkey.load(Ordering::Relaxed),
            len,
        }
    }

    /// Sender: empties the entry at this index, so that the next one can be told.
    #[inline]
    pub fn clear_entry(&self, index: usize) {
        if let Some(entry) = self.entry(index) {
            // Relaxed: the receiver never looks at it, and posts again only after the buffer came
            // back.
            entry.len.store(0, Ordering::Relaxed);
        }
    }

    /// Sender: takes the buffer named at this index, and empties the entry; length 0 when there is
    /// none.
    #[must_use]
    #[inline]
    pub fn take_entry(&self, index: usize) -> Sge {
        let sge = self.peek_entry(index);
        if sge.len != 0 {
            self.clear_entry(index);
        }
        sge
    }

    /// As if fresh: every word of the head is 0 again. No other thread, of either side, may be
    /// using the direction.
    pub fn wipe(&self) {
        let words = self.base.cast::<AtomicU64>();
        for i in 0..HEAD_LEN / 8 {
            // SAFETY: i * 8 + 8 <= HEAD_LEN, inside the direction and aligned; all of the head is
            // atomics.
            unsafe { words.add(i).as_ref() }.store(0, Ordering::Relaxed);
        }
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;
/// How far ahead a sender of short messages claims: a line comes in the time that several of them
/// take.
const BYTES_AHEAD: u64 = 256;
/// The same, in the message ring.
const WORDS_AHEAD: u32 = 4;
/// Bytes of a message whose lines are claimed: a core can wait for about as many lines at one time.
const CLAIMED: usize = 16 * LINE;

#[inline(always)]
fn sleepers(line: &SleeperLine) -> Sleepers<'_> {
    Sleepers::new(&line.any, &line.words)
}

const _: () = assert!(DATA_RING as u64 * (u32::MAX / DATA_RING + 1) as u64 == 1 << 32);
const _: () = assert!(CONTROL_RING as u64 * (u32::MAX / CONTROL_RING + 1) as u64 == 1 << 32);
