//! Direct placement over a queue pair (`wire-protocol §8`): what tells the peer of a mapping, and
//! what a direct write takes.
//!
//! Knows counts, words and addresses; must not know what is mapped. The other part of [`Stream`].
//! Entry points: [`Stream::next_iomap`], [`Stream::next_unmap`], [`Stream::next_direct`].
//!
//! A message about a mapping costs a credit. A peer of ours gives the credit back
//! ([`super::RecvHalf::on_iomap`]); upstream never does. Upstream takes no notice of the word
//! either, since it looks at its table when it writes. So a write without a word tells upstream. It
//! costs nothing: no credit is lost.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use super::stream::{Stream, token};
use super::tables::DIRECT;
use crate::iomap::Iomap;
use crate::sge::Sge;
use crate::word::Word;

/// What is to be posted about a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapPost {
    /// The peer's entry, as the peer reads it.
    pub bytes: [u8; Iomap::SIZE],
    /// Where it goes.
    pub target: Sge,
    /// The word that comes with it, if there is one.
    pub word: Option<Word>,
    /// What its completion is to be reported with.
    pub token: u64,
}

impl Stream {
    /// How many mappings of ours the peer remembers.
    #[must_use]
    pub const fn peer_iomaps(&self) -> u16 {
        self.iomaps.theirs
    }

    /// Whether the peer answers when it is told that a mapping is no more.
    #[must_use]
    pub const fn peer_answers(&self) -> bool {
        self.iomaps.answers
    }

    /// Tells the peer of a mapping, before any data that is asked for later. `None` while there is
    /// no credit or no slot for it, and when nothing may be sent any more.
    pub fn next_iomap(&mut self, index: u16, mapping: Iomap) -> Option<MapPost> {
        let target = self.iomaps.entry(index)?;
        let cost = self.mode.cost(true);
        if !self.state.writable() || self.slots < u16::from(cost) {
            return None;
        }
        let bytes = mapping.to_bytes(self.peer_endian);
        if !self.iomaps.answers {
            let token = self.next_direct()?;
            return Some(MapPost { bytes, target, word: None, token });
        }
        let word = self.send.next_iomap(index)?;
        self.slots -= u16::from(cost);
        Some(MapPost { bytes, target, word: Some(word), token: token(word, cost) })
    }

    /// Tells the peer that a mapping is no more: its entry becomes empty, and `word`, a CTRL word,
    /// says so to a peer of ours. Costs no credit, so that a peer which does not read hears of it
    /// too. `None` while there is no slot for it.
    pub fn next_unmap(&mut self, index: u16, word: Word) -> Option<MapPost> {
        let target = self.iomaps.entry(index)?;
        if !self.iomaps.answers {
            let token = self.next_direct()?;
            return Some(MapPost { bytes: [0; Iomap::SIZE], target, word: None, token });
        }
        let cost = self.mode.cost(true);
        if !self.state.connected() || !self.control.take(cost) {
            return None;
        }
        Some(MapPost {
            bytes: [0; Iomap::SIZE],
            target,
            word: Some(word),
            token: token(word, cost),
        })
    }

    /// What the completion of one direct write is to be reported with. `None` while there is no
    /// slot for it, and when nothing may be sent any more. A direct write costs no credit.
    pub fn next_direct(&mut self) -> Option<u64> {
        if !self.state.writable() || self.slots == 0 {
            return None;
        }
        self.slots -= 1;
        Some(token(Word((DIRECT as u32) << 29), 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private_data::PrivateData;
    use crate::proto::Violation;
    use crate::proto::control::Mode;
    use crate::proto::ramp::Ramp;
    use crate::proto::recv_half::RecvParams;
    use crate::proto::state::{Event, State};
    use crate::proto::stream::{Payload, Readable, StreamParams};
    use crate::sge::Endian;

    const TABLE: Sge = Sge { addr: 0x7000, rkey: 7, len: 2 };
    const BUFFER: Sge = Sge { addr: 0x10_0000, rkey: 8, len: 131_072 };
    const MAPPING: Iomap = Iomap { offset: 0, target: Sge { addr: 0x5000, rkey: 9, len: 8192 } };

    fn stream(mode: Mode, queue: u16, iomaps: u16, notes: bool) -> Stream {
        let recv = RecvParams { queue, segments: 2, large: 65536, small: 0 };
        let params =
            StreamParams { mode, send_queue: 384, recv, buffer: BUFFER, table: TABLE, iomaps };
        let peer = PrivateData { notes, ..params.private_data() };
        Stream::new(&params, &PrivateData::parse(&peer.to_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn publishing_as_in_section_15() {
        let mut b = stream(Mode::Immediate, 384, 3, true);
        let post = b.next_iomap(0, MAPPING).unwrap();
        assert_eq!((post.word, post.target.addr), (Some(Word(0xc000_0000)), TABLE.addr + 32));
        assert_eq!(post.bytes, MAPPING.to_bytes(Endian::NATIVE));
        assert_eq!(b.next_iomap(2, MAPPING).unwrap().target.addr, TABLE.addr + 32 + 48);
        assert_eq!(b.next_iomap(3, MAPPING), None, "the peer has three");
        assert_eq!(b.next_data(&mut Ramp::FLAT.clone(), 1).unwrap().payload, Payload::Data);
        assert_eq!(b.credits(), 381);
    }

    #[test]
    fn a_peer_of_ours_gives_the_credit_back() {
        for mode in [Mode::Immediate, Mode::Message] {
            let (mut a, mut b) = (stream(mode, 16, 1, true), stream(mode, 16, 1, true));
            while let Some(post) = a.next_control(false) {
                b.on_word(post.word).unwrap();
                a.on_sent(post.token);
            }
            for _ in 0..1000 {
                let post = b.next_iomap(0, MAPPING).unwrap();
                b.on_sent(post.token);
                a.on_word(post.word.unwrap()).unwrap();
                assert_eq!(a.next_read(), Ok(Readable::Nothing));
                while let Some(post) = a.next_control(false) {
                    a.on_sent(post.token);
                    b.on_word(post.word).unwrap();
                }
            }
        }
    }

    #[test]
    fn upstream_is_told_without_a_credit() {
        let mut b = stream(Mode::Immediate, 16, 1, false);
        for _ in 0..1000 {
            let post = b.next_iomap(0, MAPPING).unwrap();
            assert_eq!((post.word, b.credits()), (None, 16));
            b.on_sent(post.token);
            let post = b.next_unmap(0, Word(0xf300_0000)).unwrap();
            assert_eq!((post.word, post.bytes), (None, [0; 24]));
            b.on_sent(post.token);
        }
    }

    #[test]
    fn without_a_credit_it_waits() {
        let mut b = stream(Mode::Immediate, 2, 1, true);
        assert!(b.next_iomap(0, MAPPING).is_some() && b.next_iomap(0, MAPPING).is_some());
        assert_eq!(b.next_iomap(0, MAPPING), None);
        let note = Word(0xf300_0000);
        let unmap = b.next_unmap(0, note).unwrap();
        assert_eq!((unmap.word, unmap.bytes), (Some(note), [0; 24]), "which needs none");
    }

    #[test]
    fn unmapping_takes_control_slots_and_gives_them_back() {
        for (mode, most) in [(Mode::Immediate, 4), (Mode::Message, 2)] {
            let mut b = stream(mode, 384, 1, true);
            let note = Word(0xf300_0000);
            let posts: Vec<_> = core::iter::from_fn(|| b.next_unmap(0, note)).collect();
            assert_eq!(posts.len(), most);
            b.on_sent(posts[0].token);
            assert!(b.next_unmap(0, note).is_some());
            assert_eq!(b.next_unmap(1, note), None);
        }
    }

    #[test]
    fn direct_writes_share_the_slots_of_data() {
        for mode in [Mode::Immediate, Mode::Message] {
            let mut a = stream(mode, 384, 1, true);
            let tokens: Vec<_> = core::iter::from_fn(|| a.next_direct()).collect();
            assert_eq!((tokens.len(), a.room()), (380, 0));
            a.on_sent(tokens[0]);
            a.on_sent(tokens[1]);
            assert!(a.room() > 0);
            assert_eq!(a.credits(), 384);
            a.on_event(Event::ShutWrite);
            assert_eq!((a.next_direct(), a.next_iomap(0, MAPPING)), (None, None));
        }
    }

    #[test]
    fn an_entry_that_does_not_exist_ends_it() {
        let mut a = stream(Mode::Immediate, 384, 2, true);
        assert_eq!(a.on_word(Word::iomap(1)), Ok(()));
        assert_eq!(a.on_word(Word::iomap(2)), Err(Violation::IomapIndex));
        assert_eq!(a.state(), State::Error);
    }
}
