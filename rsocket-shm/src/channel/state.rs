//! What the two ends of a channel remember of its protocol, as plain integers. The integers live in
//! memory that fork siblings share, and are published as one copy ([`rsocket_sync::guarded`]).
//!
//! Must not know where the channel is, nor whose. Entry point: [`fresh`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use super::buffer_classes::{Beyond, LARGE, class_start, entry};
use crate::layout;
use rsocket_host::reason::Reason;
use rsocket_wire::proto::{RecvHalf, RecvParams, SendHalf};

/// In a hint: there is room for a message.
const HAS_ROOM: u64 = 1;
/// In a hint: there is so much that poll calls it writable. Linux does at a third of the buffer.
pub const AMPLE: u64 = 2;
/// Messages that a write may fall into, at the ends of segments and of the message ring.
const AMPLE_CREDITS: u32 = 16;

/// The sending direction's protocol state.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SendState {
    /// The protocol's sending half, for each class.
    pub classes: [SendHalf; 2],
    /// Next position in the message ring.
    pub data_position: u32,
    /// Next position in the credit ring.
    pub control_position: u32,
}

impl SendState {
    /// Bytes sent over the device so far.
    #[must_use]
    pub fn total(&self) -> u64 {
        let [small, large] = &self.classes;
        small.total().wrapping_add(large.total())
    }

    /// Becomes `newer`, which differs from this state by one message that was sent, to the small
    /// class.
    #[inline(always)]
    pub fn follow(&mut self, newer: &Self) {
        let ([small, _], [newer_small, _]) = (&mut self.classes, &newer.classes);
        small.follow_data(newer_small);
        self.data_position = newer.data_position;
    }

    /// Bytes that the next message may have.
    #[must_use]
    #[inline(always)]
    pub fn room(&self) -> u32 {
        let [small, large] = &self.classes;
        small.room().max(large.room())
    }

    /// What a look without the lock goes by: the position in the credit ring, and below it
    /// `HAS_ROOM` and [`AMPLE`].
    #[must_use]
    pub fn hint(&self, beyond: Beyond) -> u64 {
        let ample = if self.is_ample(beyond) { AMPLE } else { 0 };
        self.hint_after_short(ample)
    }

    /// As [`Self::hint`], where the hint was `before` and a message has gone to the small class.
    #[must_use]
    #[inline(always)]
    pub fn hint_after_short(&self, before: u64) -> u64 {
        let [small, large] = &self.classes;
        let room = if small.room() > 0 || large.room() > 0 { HAS_ROOM } else { 0 };
        u64::from(self.control_position) << 32 | room | before & AMPLE
    }

    /// Whether there is so much room that a write of a usual length does not sleep: a quarter of
    /// the large class. The receiver wakes a sender as soon as it has given that back.
    fn is_ample(&self, beyond: Beyond) -> bool {
        let [_, large] = &self.classes;
        let quarter = beyond.class_len(LARGE) / layout::SEGMENTS;
        large.free() as usize >= quarter && u32::from(large.credits()) >= AMPLE_CREDITS
    }
}

/// The receiving direction's protocol state.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RecvState {
    /// The protocol's receiving half, for each class.
    pub classes: [RecvHalf; 2],
    /// Next position in the message ring.
    pub data_position: u32,
    /// Next position in the credit ring.
    pub control_position: u32,
    /// The class of the current message.
    pub current: u32,
    /// Nonzero once the end of the stream was read in the ring.
    pub ended: u32,
    /// What was given back since the sender was last woken ([`super::receiver::WAKE_AT`]).
    pub owed: u32,
    /// Keeps the size a multiple of eight without hidden padding.
    pub _pad: u32,
}

impl RecvState {
    /// Bytes that were read so far.
    #[must_use]
    pub fn total(&self) -> u64 {
        let [small, large] = &self.classes;
        small.total().wrapping_add(large.total())
    }

    /// Whether so many messages and bytes, unread in the large class, leave ample room to a sender
    /// that has taken all that was given back ([`SendState::hint`]).
    #[must_use]
    pub fn leaves_ample(&self, messages: u32, bytes: usize, beyond: Beyond) -> bool {
        let [_, large] = &self.classes;
        let quarter = beyond.class_len(LARGE) / layout::SEGMENTS;
        messages.saturating_add(AMPLE_CREDITS) <= u32::from(large.allowed())
            && bytes.saturating_add(quarter) <= large.promised() as usize
    }

    /// Whether there is something to tell the sender.
    #[must_use]
    #[inline]
    pub fn owes(&self) -> bool {
        let [small, large] = &self.classes;
        small.owes() || large.owes()
    }

    /// Becomes `newer`, which differs from this state by messages that came to the small class and
    /// were read.
    #[inline(always)]
    pub fn follow(&mut self, newer: &Self) {
        let ([small, _], [newer_small, _]) = (&mut self.classes, &newer.classes);
        small.follow_reading(newer_small);
        self.data_position = newer.data_position;
        self.current = newer.current;
    }

    /// The half whose message is being read.
    #[must_use]
    #[inline]
    pub fn half(&mut self) -> &mut RecvHalf {
        let [small, large] = &mut self.classes;
        if self.current as usize == LARGE { large } else { small }
    }

    /// As [`Self::half`], to be looked at.
    #[must_use]
    #[inline]
    pub fn reading(&self) -> &RecvHalf {
        let [small, large] = &self.classes;
        if self.current as usize == LARGE { large } else { small }
    }

    /// Where in the receive buffer the next bytes are, or will be if they come in the class of the
    /// last ones.
    #[must_use]
    #[inline]
    pub fn next_bytes(&self) -> u64 {
        class_start(self.current) + u64::from(self.reading().next_read().offset)
    }

    /// Unread bytes of the current message.
    #[must_use]
    #[inline]
    pub fn readable(&self) -> u32 {
        self.reading().readable()
    }

    /// What a look without the lock goes by: the position in the message ring, and the unread bytes
    /// of the current message.
    #[must_use]
    #[inline(always)]
    pub fn hint(&self) -> u64 {
        u64::from(self.data_position) << 32 | u64::from(self.readable())
    }
}

/// Both protocol states of an end of a channel that no connection has used yet.
///
/// # Errors
/// [`Reason::Inconsistent`], never with the classes as they are.
pub fn fresh(beyond: Beyond) -> Result<(RecvState, SendState), Reason> {
    let [small, large] = &beyond.classes();
    let halves = [RecvHalf::new(small), RecvHalf::new(large)];
    let sender = |class: usize, p: &RecvParams, half: &RecvHalf| {
        SendHalf::new(p.queue, entry(class, half.first()), p.segments)
            .map_err(|_| Reason::Inconsistent)
    };
    let [first, second] = &halves;
    let senders = [sender(0, small, first)?, sender(1, large, second)?];
    let recv = RecvState {
        classes: halves,
        data_position: 0,
        control_position: 0,
        current: 0,
        ended: 0,
        owed: 0,
        _pad: 0,
    };
    Ok((recv, SendState { classes: senders, data_position: 0, control_position: 0 }))
}
