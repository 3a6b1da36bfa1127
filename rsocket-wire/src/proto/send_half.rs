//! The sending end of one direction (`wire-protocol §5.1`, `§5.2`).
//!
//! Knows how many messages may still be sent and where in the peer their bytes go; must not know
//! how they get there. Entry point: [`SendHalf`]. The state is plain integers, so that it can live
//! in memory shared by fork siblings and be published as one copy.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{MAX_SEGMENTS, Violation};
use crate::sge::Sge;
use crate::word::Word;

/// The write side was closed; no DATA may follow.
const SHUT: u32 = 1;

/// Credits that are left alone for the sake of a peer without spare receives, at most.
const SPARED: u16 = 4;

/// What the sender of a direction knows.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct SendHalf {
    /// Our copy of our target table; what was used up is subtracted. `table[T]` of the
    /// specification.
    table: [Sge; MAX_SEGMENTS],
    /// DATA bytes since the start.
    total: u64,
    /// Entries in the table that are in use, 2..=8.
    segments: u32,
    /// `T`: the entry that the next bytes go to.
    current: u32,
    /// The entry that the peer writes next.
    expected: u32,
    /// [`SHUT`], or 0.
    flags: u32,
    /// `S`: messages sent that cost a credit, modulo 2^16.
    sent: u16,
    /// `L`: where `sent` must stop, modulo 2^16.
    limit: u16,
    /// The peer's queue size: `limit` is never further than this ahead of `sent`.
    queue: u16,
    /// Credits that are never used.
    reserve: u16,
}

const _: () = assert!(size_of::<SendHalf>() <= 256);

/// One message: put `target.len` bytes at `target.addr`, then tell the peer `word`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataWrite {
    /// Exactly this write: address, key and length.
    pub target: Sge,
    /// The DATA word that counts it.
    pub word: Word,
}

impl SendHalf {
    /// The state at the start of a connection. `first` is the peer's data buffer from its private
    /// data and becomes entry 0; `segments` is the length of our own target table.
    ///
    /// # Errors
    /// What is wrong with the peer's offer.
    pub const fn new(peer_credits: u16, first: Sge, segments: u32) -> Result<Self, Violation> {
        if segments < 2 || segments as usize > MAX_SEGMENTS {
            return Err(Violation::TableSize);
        }
        if peer_credits == 0 {
            return Err(Violation::NoCredits);
        }
        if first.len == 0 {
            return Err(Violation::EmptyBuffer);
        }
        if first.end().is_none() {
            return Err(Violation::BufferBounds);
        }
        let none = Sge { addr: 0, rkey: 0, len: 0 };
        Ok(Self {
            table: [first, none, none, none, none, none, none, none],
            total: 0,
            segments,
            current: 0,
            expected: 1,
            flags: 0,
            sent: 0,
            limit: peer_credits,
            queue: peer_credits,
            reserve: 0,
        })
    }

    /// The same towards a peer that may have no more receives than it gives credits. The last
    /// receives stay for the words that cost no credit (`wire-protocol §5.5`).
    ///
    /// No sender waits for ever by it. A blocked sender has sent at least three quarters of a queue
    /// beyond what the peer last said that it had read. The peer says more when it has read half a
    /// queue beyond that (`wire-protocol §5.6`).
    #[must_use]
    pub const fn sparing(self) -> Self {
        let quarter = self.queue / 4;
        Self { reserve: if quarter < SPARED { quarter } else { SPARED }, ..self }
    }

    /// The entry that the next bytes go to; empty when it is not written yet.
    #[inline(always)]
    fn entry(&self) -> Sge {
        self.table.get(self.current as usize).copied().unwrap_or_default()
    }

    /// The entry after `index`, round and round.
    const fn after(&self, index: u32) -> u32 {
        if index + 1 >= self.segments { 0 } else { index + 1 }
    }

    /// Bytes of the current entry that may be sent now as one message. 0 means blocked: no credit,
    /// no buffer, or the write side is shut.
    #[must_use]
    #[inline(always)]
    pub fn room(&self) -> u32 {
        if self.is_blocked() {
            return 0;
        }
        self.entry().len.min(Word::MAX_DATA)
    }

    /// Bytes that may be sent before the peer gives anything back, in however many messages. 0
    /// where no message may be sent that costs a credit.
    #[must_use]
    pub fn free(&self) -> u32 {
        if self.is_blocked() {
            return 0;
        }
        let entries = self.table.iter().take(self.segments as usize);
        entries.fold(0, |sum, entry| sum.saturating_add(entry.len))
    }

    /// Whether no message that costs a credit may be sent, wherever it would go.
    #[inline(always)]
    const fn is_blocked(&self) -> bool {
        self.flags & SHUT != 0 || self.credits() <= self.reserve
    }

    /// Messages that the peer has receives for and that were not sent. Those of the reserve will
    /// not be.
    #[must_use]
    #[inline(always)]
    pub const fn credits(&self) -> u16 {
        self.limit.wrapping_sub(self.sent)
    }

    /// Takes the next message: the smaller of `wanted` and [`Self::room`], never 0 bytes.
    ///
    /// All state has moved on before the write can be posted, as `wire-protocol §5.2` demands. Once
    /// the write is delivered, the peer may write a new entry over the one it used up.
    #[inline(always)]
    pub fn next_data(&mut self, wanted: u32) -> Option<DataWrite> {
        let len = wanted.min(self.room());
        if len == 0 { None } else { self.take(len) }
    }

    /// Where the next message would lie: as [`Self::next_data`] says, and nothing changes.
    #[must_use]
    #[inline(always)]
    pub fn next_place(&self, wanted: u32) -> Option<Sge> {
        let len = wanted.min(self.room());
        if len == 0 { None } else { Some(Sge { len, ..self.entry() }) }
    }

    /// As [`Self::next_place`], if there is room for all `wanted` bytes.
    #[must_use]
    #[inline(always)]
    pub fn whole_place(&self, wanted: u32) -> Option<Sge> {
        let fits = wanted != 0 && wanted <= self.room();
        fits.then(|| Sge { len: wanted, ..self.entry() })
    }

    /// The first `len` bytes of the place that [`Self::next_place`] named are a message: the word
    /// that counts it. `None`, and nothing changes, where it named no place of that length.
    #[inline(always)]
    pub fn placed(&mut self, len: u32) -> Option<Word> {
        self.take(len).map(|write| write.word)
    }

    /// As [`Self::next_data`], if that would take all `wanted` bytes.
    #[inline(always)]
    pub fn next_whole(&mut self, wanted: u32) -> Option<DataWrite> {
        self.whole_place(wanted).and_then(|place| self.take(place.len))
    }

    /// A message of `len` bytes, for which there is room.
    #[inline(always)]
    fn take(&mut self, len: u32) -> Option<DataWrite> {
        let entry = self.table.get_mut(self.current as usize)?;
        let left = entry.len.checked_sub(len)?;
        self.sent = self.sent.wrapping_add(1);
        let target = Sge { len, ..*entry };
        entry.addr = entry.addr.wrapping_add(u64::from(len));
        entry.len = left;
        if left == 0 {
            self.current = self.after(self.current);
        }
        self.total = self.total.wrapping_add(u64::from(len));
        Some(DataWrite { target, word: Word::data(len) })
    }

    /// Becomes `newer`, which differs from this state by one message that was sent
    /// ([`Self::next_data`]) and by nothing else.
    #[inline(always)]
    pub fn follow_data(&mut self, newer: &Self) {
        if let (Some(mine), Some(used)) =
            (self.table.get_mut(self.current as usize), newer.table.get(self.current as usize))
        {
            *mine = *used;
        }
        self.current = newer.current;
        self.sent = newer.sent;
        self.total = newer.total;
    }

    /// Takes a credit for an IOMAP message about entry `index` of the peer's iomap table
    /// (`wire-protocol §8.2`).
    pub fn next_iomap(&mut self, index: u16) -> Option<Word> {
        if self.is_blocked() {
            return None;
        }
        self.sent = self.sent.wrapping_add(1);
        Some(Word::iomap(index))
    }

    /// The index of the table entry that the peer writes next, if our copy of it is used up. Only
    /// then is there a reason to look at the table. The first is 1 (`wire-protocol §5.1`).
    #[must_use]
    pub fn expected_entry(&self) -> Option<u32> {
        self.table.get(self.expected as usize).filter(|entry| entry.len == 0).map(|_| self.expected)
    }

    /// An entry was read, once, from the target table. An entry of length 0 is nothing new and
    /// changes nothing.
    ///
    /// The owner of the table memory puts length 0 into an entry when it hands the entry over here.
    /// Otherwise the same entry would look new again one round later. The 0 cannot collide with the
    /// peer's next write of the entry: the peer may only write when these bytes have been sent and
    /// read.
    ///
    /// # Errors
    /// [`Violation::EntryOrder`], [`Violation::EntryInUse`], [`Violation::BufferBounds`]; nothing
    /// changed.
    pub fn on_entry(&mut self, index: u32, entry: Sge) -> Result<(), Violation> {
        if entry.len == 0 {
            return Ok(());
        }
        if index != self.expected {
            return Err(Violation::EntryOrder);
        }
        if entry.end().is_none() {
            return Err(Violation::BufferBounds);
        }
        let slot = self.table.get_mut(index as usize).ok_or(Violation::EntryOrder)?;
        if slot.len != 0 {
            return Err(Violation::EntryInUse);
        }
        *slot = entry;
        self.expected = self.after(index);
        Ok(())
    }

    /// An SGL word arrived; only the low 16 bits of its data count (`wire-protocol §4.1`).
    ///
    /// # Errors
    /// The limit is what the peer has read plus its queue size. It cannot fall, and it cannot be
    /// further ahead of what was sent than the queue is long. Nothing changed.
    pub const fn on_credit(&mut self, data: u32) -> Result<(), Violation> {
        let limit = data as u16;
        let ahead = limit.wrapping_sub(self.sent);
        if ahead > self.queue {
            return Err(Violation::CreditBeyond);
        }
        if ahead < self.credits() {
            return Err(Violation::CreditBackwards);
        }
        self.limit = limit;
        Ok(())
    }

    /// Closes the write side: the SHUTDOWN word, once.
    pub const fn shut(&mut self) -> Option<Word> {
        if self.flags & SHUT != 0 {
            return None;
        }
        self.flags |= SHUT;
        Some(Word::SHUTDOWN)
    }

    /// Whether the write side was closed.
    #[must_use]
    pub const fn is_shut(&self) -> bool {
        self.flags & SHUT != 0
    }

    /// DATA bytes since the start.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// Messages sent that cost a credit, modulo 2^16.
    #[must_use]
    pub const fn messages(&self) -> u16 {
        self.sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUFFER: Sge = Sge { addr: 0x10_0000, rkey: 9, len: 65536 };

    fn half(credits: u16) -> SendHalf {
        SendHalf::new(credits, BUFFER, 2).unwrap()
    }

    #[test]
    fn offers_that_make_no_sense_are_refused() {
        assert_eq!(SendHalf::new(0, BUFFER, 2), Err(Violation::NoCredits));
        assert_eq!(SendHalf::new(1, Sge { len: 0, ..BUFFER }, 2), Err(Violation::EmptyBuffer));
        assert_eq!(
            SendHalf::new(1, Sge { addr: u64::MAX, ..BUFFER }, 2),
            Err(Violation::BufferBounds)
        );
        assert_eq!(SendHalf::new(1, BUFFER, 1), Err(Violation::TableSize));
        assert_eq!(SendHalf::new(1, BUFFER, 9), Err(Violation::TableSize));
    }

    #[test]
    fn messages_fill_an_entry_and_never_cross_it() {
        let mut half = half(384);
        let first = half.next_data(5).unwrap();
        assert_eq!(first, DataWrite { target: Sge { len: 5, ..BUFFER }, word: Word(5) });
        let rest = half.next_data(u32::MAX).unwrap();
        assert_eq!(rest.target, Sge { addr: BUFFER.addr + 5, len: 65531, ..BUFFER });
        assert_eq!((half.room(), half.next_data(1)), (0, None));
        let next = Sge { addr: 0x20_0000, rkey: 9, len: 10 };
        assert_eq!(half.expected_entry(), Some(1));
        half.on_entry(1, next).unwrap();
        assert_eq!(half.expected_entry(), Some(0), "entry 0 is used up too");
        assert_eq!(half.next_data(100).unwrap().target, next);
        assert_eq!((half.total(), half.credits()), (65546, 381));
        assert_eq!(half.next_data(0), None);
    }

    #[test]
    fn a_place_is_named_before_it_is_used() {
        let mut half = half(384);
        let place = half.next_place(100).unwrap();
        assert_eq!(place, Sge { len: 100, ..BUFFER });
        assert_eq!(half.placed(70), Some(Word(70)), "it may become a shorter message");
        assert_eq!(half.next_place(u32::MAX).unwrap().addr, BUFFER.addr + 70);
        let left = half.next_place(u32::MAX).unwrap();
        assert_eq!(half.whole_place(left.len), Some(left));
        assert_eq!((half.whole_place(left.len + 1), half.whole_place(0)), (None, None));
        let before = half;
        assert_eq!((half.placed(65_467), half.next_place(0)), (None, None));
        assert_eq!(half, before);
        assert_eq!(half.placed(65_466), Some(Word(65_466)));
        assert_eq!((half.next_place(1), half.credits()), (None, 382));
    }

    #[test]
    fn a_copy_follows_message_by_message() {
        let mut half = half(384);
        half.on_entry(1, Sge { addr: 0x20_0000, rkey: 9, len: 10 }).unwrap();
        let mut behind = half;
        for len in [1, 65_000, 1000, 10, 1] {
            half.next_data(len);
            behind.follow_data(&half);
            assert_eq!(behind, half);
        }
    }

    #[test]
    fn an_entry_in_use_is_not_expected() {
        let mut half = half(384);
        half.on_entry(1, BUFFER).unwrap();
        assert_eq!(half.expected_entry(), None);
        half.next_data(65536).unwrap();
        assert_eq!(half.expected_entry(), Some(0));
    }

    #[test]
    fn bad_entries_change_nothing() {
        let before = half(4);
        let mut half = before;
        assert_eq!(half.on_entry(0, BUFFER), Err(Violation::EntryOrder));
        assert_eq!(half.on_entry(7, BUFFER), Err(Violation::EntryOrder));
        assert_eq!(
            half.on_entry(1, Sge { addr: u64::MAX - 1, ..BUFFER }),
            Err(Violation::BufferBounds)
        );
        assert_eq!(half.on_entry(1, Sge { len: 0, addr: u64::MAX, rkey: 0 }), Ok(()));
        assert_eq!(half, before);
        half.on_entry(1, BUFFER).unwrap();
        assert_eq!(half.on_entry(0, BUFFER), Err(Violation::EntryInUse));
    }

    #[test]
    fn the_limit_never_moves_back_or_runs_ahead() {
        let mut half = half(16);
        assert!((0..16).all(|_| half.next_data(1).is_some()));
        assert_eq!((half.room(), half.credits()), (0, 0));
        assert_eq!(half.on_credit(15), Err(Violation::CreditBeyond));
        assert_eq!(half.on_credit(33), Err(Violation::CreditBeyond));
        half.on_credit(0x1_0018).unwrap();
        assert_eq!(half.credits(), 8, "only 16 bits count");
        half.on_credit(24).unwrap();
        assert_eq!(half.on_credit(23), Err(Violation::CreditBackwards));
        assert_eq!(half.credits(), 8);
    }

    #[test]
    fn the_last_credits_are_left_alone() {
        for (queue, most) in
            [(1, 1), (3, 3), (4, 3), (8, 6), (15, 12), (16, 12), (17, 13), (384, 380)]
        {
            let mut half = half(queue).sparing();
            assert_eq!(
                (0..queue).filter(|_| half.next_data(1).is_some()).count(),
                usize::from(most)
            );
            assert_eq!((half.room(), half.next_iomap(0), half.credits()), (0, None, queue - most));
            // As soon as the peer has read half of its queue (`wire-protocol §5.6`).
            let read = queue / 2;
            half.on_credit(u32::from(read + queue)).unwrap();
            assert_eq!(
                (0..queue).filter(|_| half.next_data(1).is_some()).count(),
                usize::from(read)
            );
        }
    }

    #[test]
    fn credits_survive_the_wrap() {
        let mut half = SendHalf::new(7, Sge { len: u32::MAX, ..BUFFER }, 2).unwrap();
        for sent in 1..if cfg!(miri) { 500 } else { 200_000u32 } {
            assert!(half.next_data(1).is_some());
            half.on_credit(sent + 7).unwrap();
        }
    }

    #[test]
    fn shut_is_said_once_and_ends_sending() {
        let mut half = half(16);
        assert_eq!(half.shut(), Some(Word::SHUTDOWN));
        assert_eq!(
            (half.shut(), half.room(), half.next_data(1), half.next_iomap(0)),
            (None, 0, None, None)
        );
        half.on_credit(16).unwrap();
    }

    #[test]
    fn one_message_is_no_larger_than_a_word_can_say() {
        let mut half = SendHalf::new(7, Sge { len: u32::MAX, ..BUFFER }, 2).unwrap();
        assert_eq!(half.next_data(u32::MAX).unwrap().word, Word(Word::MAX_DATA));
    }

    #[test]
    fn iomap_costs_a_credit() {
        let mut half = half(1);
        assert_eq!(half.next_iomap(3), Some(Word(0xc000_0003)));
        assert_eq!((half.next_iomap(3), half.room()), (None, 0));
    }
}
