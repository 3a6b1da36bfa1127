//! What two bridges of ours tell each other beside the protocol.
//!
//! Where they stand beside a TCP connection they tell its marks (`channel::handover_state`). A
//! channel's marks are words that both its ends read; between hosts the two bridges carry them.
//! They tell, too, what has become of mappings (`direct_placement`), and what a program had taken
//! when it closed. All of it travels as CTRL words with values that upstream ignores
//! (`wire-protocol §4.1`), in order with the data. It does so only where both ends have said that
//! they are ours. Must not know when a mark is due. Entry points: [`Note::words`], [`Reader`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use crate::wire::word::Word;

/// What changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// The receiver of the direction may switch.
    Acknowledged,
    /// The direction leaves TCP behind so many bytes.
    SwitchOffset(u64),
    /// The direction goes back to TCP behind so many bytes of the device's.
    End(u64),
    /// The mapping with this number is no more: the entry that came with the word is empty.
    Unmapped(u16),
    /// The answer to [`Self::Unmapped`]: nothing that was written to the mapping is on its way any
    /// more.
    Forgotten(u16),
    /// The program takes nothing any more, and has taken, or can still read, so many messages,
    /// modulo 2^16. Before the DISCONNECT that says the rest.
    Closed(u16),
}

/// Set in the value of every word of ours, beyond all that upstream gives a meaning.
const OURS: u32 = 1 << 28;
const KIND: u32 = 24;
const PART: u32 = 20;
const BITS: u32 = 16;

const ACKNOWLEDGED: u32 = 0;
const SWITCH_OFFSET: u32 = 1;
const END: u32 = 2;
const UNMAPPED: u32 = 3;
const FORGOTTEN: u32 = 4;
const CLOSED: u32 = 5;

/// The opcode of CTRL words, in place.
const CTRL: u32 = 7 << 29;

impl Note {
    /// The note as words, to be sent in this order.
    pub fn words(self) -> impl Iterator<Item = Word> {
        let (kind, value, parts) = match self {
            Self::Acknowledged => (ACKNOWLEDGED, 0, 1),
            Self::SwitchOffset(n) => (SWITCH_OFFSET, n, 4),
            Self::End(n) => (END, n, 4),
            Self::Unmapped(n) => (UNMAPPED, n.into(), 1),
            Self::Forgotten(n) => (FORGOTTEN, n.into(), 1),
            Self::Closed(n) => (CLOSED, n.into(), 1),
        };
        (0..parts).map(move |part| {
            let bits = (value >> (part * BITS)) as u32 & 0xffff;
            Word(CTRL | OURS | kind << KIND | part << PART | bits)
        })
    }
}

/// Puts notes together again.
#[derive(Debug, Default)]
pub struct Reader {
    value: u64,
    next: u32,
}

/// A word that is no note, or not in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// A word that belongs to no peer control message of ours.
    Foreign,
    /// A part of a note; more is to come.
    Part,
    /// A whole one.
    Note(Note),
    /// Parts that do not follow each other, or a kind that does not exist: the peer broke a rule.
    Nonsense,
}

impl Reader {
    /// The next word that arrived.
    pub fn read(&mut self, word: Word) -> Read {
        if word.0 & CTRL != CTRL || word.0 & OURS == 0 {
            return Read::Foreign;
        }
        let kind = word.0 >> KIND & 0xf;
        let part = word.0 >> PART & 0xf;
        if part != self.next {
            return Read::Nonsense;
        }
        self.value |= u64::from(word.0 & 0xffff) << (part * BITS);
        let last = if matches!(kind, SWITCH_OFFSET | END) { 3 } else { 0 };
        if part < last {
            self.next += 1;
            return Read::Part;
        }
        let value = core::mem::take(&mut self.value);
        self.next = 0;
        match kind {
            ACKNOWLEDGED => Read::Note(Note::Acknowledged),
            SWITCH_OFFSET => Read::Note(Note::SwitchOffset(value)),
            END => Read::Note(Note::End(value)),
            UNMAPPED => Read::Note(Note::Unmapped(value as u16)),
            FORGOTTEN => Read::Note(Note::Forgotten(value as u16)),
            CLOSED => Read::Note(Note::Closed(value as u16)),
            _ => Read::Nonsense,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_come_back() {
        let mut reader = Reader::default();
        let long = Note::SwitchOffset(0x1234_5678_9abc_def0);
        let short = [
            Note::Acknowledged,
            Note::Unmapped(1023),
            Note::Forgotten(u16::MAX),
            Note::Closed(40_000),
        ];
        for note in short.into_iter().chain([Note::SwitchOffset(0), Note::End(u64::MAX), long]) {
            let mut seen = Vec::new();
            for word in note.words() {
                assert!(
                    matches!(word.message(), Err(crate::wire::word::BadWord::UnknownCtrl(_))),
                    "upstream ignores it"
                );
                seen.push(reader.read(word));
            }
            assert_eq!(seen.pop(), Some(Read::Note(note)));
            assert!(seen.iter().all(|r| *r == Read::Part));
        }
    }

    #[test]
    fn other_words_are_not_notes_and_parts_have_their_order() {
        let mut reader = Reader::default();
        for word in
            [Word::SHUTDOWN, Word::DISCONNECT, Word::data(5), Word::sgl(1, 384), Word(CTRL | 77)]
        {
            assert_eq!(reader.read(word), Read::Foreign);
        }
        let words: Vec<Word> = Note::SwitchOffset(9).words().collect();
        assert_eq!(reader.read(words[1]), Read::Nonsense);
        assert_eq!(reader.read(Word(CTRL | OURS | 9 << KIND)), Read::Nonsense);
    }
}
