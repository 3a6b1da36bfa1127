//! The receiving end of one direction (`wire-protocol §5.3` to `§5.6`).
//!
//! Knows which parts of the receive buffer were promised to the peer, what of them it filled, and
//! what can be promised again. Must not know where the buffer is or how words travel. Entry point:
//! [`RecvHalf`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{MAX_SEGMENTS, Violation};
use crate::word::Word;

/// SHUTDOWN or DISCONNECT was seen.
const ENDED: u16 = 1;
/// Segments are promised at their full size from now on.
const GROWN: u16 = 2;

/// The small zone is rounded up to this, so that full-size segments start on a page.
const ZONE_ALIGN: u32 = 4096;

/// A part of the receive buffer.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Region {
    /// From the start of the buffer.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
}

/// How a receive buffer is cut up. Fixed for the life of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvParams {
    /// Credits: messages that may be on their way or unread. At least 1; 0 is taken for 1.
    pub queue: u16,
    /// Entries in the peer's table that we rotate through, 2..=8. Anything else is moved into that
    /// range.
    pub segments: u32,
    /// Bytes of a full-size segment. At least 1, and small enough that the buffer has less than 4
    /// GiB; anything else is moved into that range.
    pub large: u32,
    /// Bytes of a small segment, with which a connection starts; 0 = always full size.
    pub small: u32,
}

impl RecvParams {
    /// The same with every value in its range, so that no arithmetic on them can overflow.
    const fn sane(&self) -> Self {
        let segments = match self.segments {
            0 | 1 => 2,
            n if n as usize > MAX_SEGMENTS => MAX_SEGMENTS as u32,
            n => n,
        };
        let small_max = u32::MAX / 4 / segments;
        let small = if self.small > small_max { small_max } else { self.small };
        let large_max = (u32::MAX - zone(segments, small)) / segments;
        let large = match self.large {
            0 => 1,
            n if n > large_max => large_max,
            n => n,
        };
        Self { queue: if self.queue == 0 { 1 } else { self.queue }, segments, large, small }
    }
}

/// Bytes that small segments take at the start of the buffer.
const fn zone(segments: u32, small: u32) -> u32 {
    (segments * small).next_multiple_of(ZONE_ALIGN)
}

/// What the receiver of a direction knows.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct RecvHalf {
    /// Where each segment was when it was last promised.
    promised: [Region; MAX_SEGMENTS],
    /// Bytes read by the application since the start.
    total: u64,
    /// Entries of the peer's table, of which at most `segments` are promised at a time.
    table: u32,
    segments: u32,
    large: u32,
    small: u32,
    /// The segment that the peer is filling. Messages never cross entries, so the current message
    /// is in it.
    filling: u32,
    /// Bytes of that segment that were filled and read.
    read: u32,
    /// Bytes of the current message behind them, not yet read.
    pending: u32,
    /// `E`: the entry of the peer's table to write next.
    next_entry: u32,
    /// The segment to promise next.
    next_segment: u32,
    /// Segments promised and not yet read to their end, `filling` being the first of them.
    live: u32,
    /// `R`: messages read to their end, modulo 2^16.
    consumed: u16,
    /// The limit that the peer was last told, modulo 2^16. `A` of the specification is half a queue
    /// before it; what was read since the last update follows from it too.
    limit: u16,
    /// `Q`.
    queue: u16,
    /// [`ENDED`] and [`GROWN`].
    flags: u16,
}

const _: () = assert!(size_of::<RecvHalf>() <= 256);

/// Something to tell the peer: first put the entry into its table, if there is one, then send the
/// word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update {
    /// The index in the peer's target table, and the part of our buffer that the entry describes.
    pub entry: Option<(u32, Region)>,
    /// The SGL word.
    pub word: Word,
}

impl RecvHalf {
    /// The state at the start of a connection: segment 0 is promised by the private data, the
    /// others are free.
    #[must_use]
    pub const fn new(p: &RecvParams) -> Self {
        Self::with_table(p, p.segments)
    }

    /// The same for a peer whose table has `table` entries, which may be more than we have
    /// segments. Entries and segments then go round separately, as they may (`wire-protocol §5.8`).
    /// With fewer entries, the receiver uses only so many segments.
    #[must_use]
    pub const fn with_table(p: &RecvParams, table: u32) -> Self {
        let table = if table < 2 { 2 } else { table };
        let p = RecvParams { segments: if p.segments > table { table } else { p.segments }, ..*p }
            .sane();
        let none = Region { offset: 0, len: 0 };
        let mut half = Self {
            promised: [none; MAX_SEGMENTS],
            total: 0,
            table: if table < p.segments { p.segments } else { table },
            segments: p.segments,
            large: p.large,
            small: p.small,
            filling: 0,
            read: 0,
            pending: 0,
            next_entry: 1,
            next_segment: 1,
            live: 1,
            consumed: 0,
            limit: p.queue,
            queue: p.queue,
            flags: 0,
        };
        let first = half.region(0);
        let [slot, ..] = &mut half.promised;
        *slot = first;
        half
    }

    /// Segment 0 as it was announced at connection time.
    #[must_use]
    pub const fn first(&self) -> Region {
        Region { offset: 0, len: if self.small == 0 { self.large } else { self.small } }
    }

    /// Bytes of receive buffer that these parameters need: the small zone, then the full-size
    /// segments.
    #[must_use]
    pub const fn buffer_len(p: &RecvParams) -> u32 {
        let p = p.sane();
        zone(p.segments, p.small) + p.segments * p.large
    }

    /// Where segment `index` lies, in the size that is promised now.
    const fn region(&self, index: u32) -> Region {
        if self.small == 0 || self.flags & GROWN != 0 {
            Region { offset: zone(self.segments, self.small) + index * self.large, len: self.large }
        } else {
            Region { offset: index * self.small, len: self.small }
        }
    }

    /// The entry being filled; empty when none is promised.
    #[inline]
    fn current(&self) -> Region {
        if self.live == 0 {
            return Region::default();
        }
        self.promised.get(self.filling as usize).copied().unwrap_or_default()
    }

    /// Messages read since the last update.
    #[inline]
    const fn unreported(&self) -> u16 {
        self.consumed.wrapping_sub(self.limit.wrapping_sub(self.queue))
    }

    /// What holds for every message that costs a credit.
    #[inline]
    const fn check_message(&self) -> Result<(), Violation> {
        if self.pending != 0 {
            return Err(Violation::Unread);
        }
        if self.flags & ENDED != 0 {
            return Err(Violation::AfterEnd);
        }
        // Everything before this message was read, so `consumed` is also how many were sent before
        // it.
        if self.consumed == self.limit {
            return Err(Violation::CreditOverrun);
        }
        Ok(())
    }

    /// The next DATA message becomes the current one. To be called only when nothing is
    /// [`readable`](Self::readable).
    ///
    /// # Errors
    /// The message breaks a rule; nothing changed.
    #[inline]
    pub fn on_data(&mut self, len: u32) -> Result<(), Violation> {
        self.check_message()?;
        if len == 0 {
            return Err(Violation::EmptyData);
        }
        if self.live == 0 {
            return Err(Violation::NoBuffer);
        }
        if len > self.current().len.saturating_sub(self.read) {
            return Err(Violation::DataBounds);
        }
        self.pending = len;
        Ok(())
    }

    /// An IOMAP word, in its turn among the DATA words. Upstream takes the credit for it and never
    /// gives it back (`wire-protocol §5.4`); we give it back.
    ///
    /// # Errors
    /// The message breaks a rule; nothing changed.
    pub fn on_iomap(&mut self) -> Result<(), Violation> {
        self.check_message()?;
        self.consumed = self.consumed.wrapping_add(1);
        Ok(())
    }

    /// SHUTDOWN or DISCONNECT, in its turn among the DATA words: nothing follows what was taken up
    /// already.
    pub const fn on_shutdown(&mut self) {
        self.flags |= ENDED;
    }

    /// Whether the stream is over and all of it was read.
    #[must_use]
    pub const fn ended(&self) -> bool {
        self.flags & ENDED != 0 && self.pending == 0
    }

    /// Unread bytes of the current message.
    #[must_use]
    #[inline]
    pub const fn readable(&self) -> u32 {
        self.pending
    }

    /// Where they are; they never wrap.
    #[must_use]
    #[inline]
    pub fn next_read(&self) -> Region {
        Region { offset: self.current().offset.saturating_add(self.read), len: self.pending }
    }

    /// Bytes of the segment behind the current message: the next messages are there, one after the
    /// other, as long as they fit.
    #[must_use]
    pub fn behind(&self) -> u32 {
        self.current().len.saturating_sub(self.read).saturating_sub(self.pending)
    }

    /// The application has read `n` of them. More than there are counts as all of them.
    #[inline]
    pub fn on_read(&mut self, n: u32) {
        let n = n.min(self.pending);
        if n == 0 {
            return;
        }
        self.pending -= n;
        self.read += n;
        self.total = self.total.wrapping_add(u64::from(n));
        if self.pending != 0 {
            return;
        }
        self.consumed = self.consumed.wrapping_add(1);
        if self.read >= self.current().len {
            self.read = 0;
            self.filling = after(self.filling, self.segments);
            self.live = self.live.saturating_sub(1);
        }
    }

    /// Becomes `newer`, which differs from this state by messages that came and were read
    /// ([`Self::on_data`], [`Self::on_read`]) and by nothing else.
    #[inline(always)]
    pub const fn follow_reading(&mut self, newer: &Self) {
        self.total = newer.total;
        self.filling = newer.filling;
        self.read = newer.read;
        self.pending = newer.pending;
        self.live = newer.live;
        self.consumed = newer.consumed;
    }

    /// Whether there is anything to tell the peer: [`Self::next_update`] without `grow` would say
    /// something.
    #[must_use]
    #[inline]
    pub const fn owes(&self) -> bool {
        self.flags & ENDED == 0
            && (self.live < self.segments || self.unreported() >= credit_step(self.queue))
    }

    /// The next thing to tell the peer; to be called until there is none.
    ///
    /// An entry as soon as a segment is free, else a credit when half of the queue was read since
    /// the last update (`wire-protocol §5.6`). With `grow`, segments are promised at full size from
    /// now on. After the end of the stream there is nothing left to promise.
    pub fn next_update(&mut self, grow: bool) -> Option<Update> {
        if self.flags & ENDED != 0 {
            return None;
        }
        if grow {
            self.flags |= GROWN;
        }
        let entry = if self.live < self.segments {
            let (index, segment) = (self.next_entry, self.next_segment);
            let region = self.region(segment);
            *self.promised.get_mut(segment as usize)? = region;
            self.next_entry = after(index, self.table);
            self.next_segment = after(segment, self.segments);
            self.live += 1;
            Some((index, region))
        } else if self.unreported() >= credit_step(self.queue) {
            None
        } else {
            return None;
        };
        self.limit = self.consumed.wrapping_add(self.queue);
        Some(Update { entry, word: Word::sgl(self.consumed, self.queue) })
    }

    /// Messages that the peer may have sent beyond those that were read: with so many unread it has
    /// no credit left.
    #[must_use]
    pub const fn allowed(&self) -> u16 {
        self.limit.wrapping_sub(self.consumed)
    }

    /// Bytes of buffer that were promised to the peer and not read: with so many unread it has no
    /// room left.
    #[must_use]
    pub fn promised(&self) -> u32 {
        let mut segment = self.filling;
        let mut sum = 0_u32;
        for _ in 0..self.live {
            sum = sum
                .saturating_add(self.promised.get(segment as usize).map_or(0, |region| region.len));
            segment = after(segment, self.segments);
        }
        sum.saturating_sub(self.read)
    }

    /// Bytes read by the application since the start.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// Messages read to their end, modulo 2^16.
    #[must_use]
    pub const fn messages(&self) -> u16 {
        self.consumed
    }
}

/// The number after `index`, round and round below `count`.
const fn after(index: u32, count: u32) -> u32 {
    if index + 1 >= count { 0 } else { index + 1 }
}

/// Messages read between two updates that carry only credits. Never 0, or updates would never stop.
const fn credit_step(queue: u16) -> u16 {
    if queue < 2 { 1 } else { queue / 2 }
}

#[cfg(test)]
#[path = "recv_half_tests.rs"]
mod tests;
