//! The 32-bit message word (`wire-protocol §4.1`) and its two forms on the network (`§4.2`).
//!
//! Knows nothing of who sends words or when. Entry points: [`Word::message`] to read one,
//! [`Word::data`], [`Word::sgl`], [`Word::iomap`] and the control constants to make one.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A message word: opcode in bits 31:29, data in bits 28:0.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Word(pub u32);

/// What a control word asks for.
#[doc(alias = "RS_CTRL_DISCONNECT")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ctrl {
    /// Both directions are over.
    Disconnect,
    /// A number without a use: never sent, ignored when received.
    Keepalive,
    /// The sender's direction is over.
    Shutdown,
}

/// A word with its parts named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// So many application bytes were placed; at least one, by [`Word::message`].
    Data(u32),
    /// The new credit limit, already cut to the 16 bits that count.
    Sgl(u16),
    /// The entry of the iomap table that was written.
    Iomap(u16),
    /// A control word.
    Ctrl(Ctrl),
}

/// Why a word is not a [`Message`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadWord {
    /// An opcode that no conforming peer sends (1, 2, 3, 5).
    Reserved(u8),
    /// DATA of no bytes, which a C peer would take for the end of the stream.
    EmptyData,
    /// A control value without a meaning. A C peer ignores these.
    UnknownCtrl(u32),
}

/// Bits 28:0.
const DATA_MASK: u32 = 0x1fff_ffff;
const OP_SHIFT: u32 = 29;
const OP_DATA: u32 = 0;
const OP_SGL: u32 = 4;
const OP_IOMAP: u32 = 6;
const OP_CTRL: u32 = 7;

impl Word {
    /// The most bytes that one DATA word can count.
    pub const MAX_DATA: u32 = DATA_MASK;
    /// Both directions are over.
    pub const DISCONNECT: Self = Self(OP_CTRL << OP_SHIFT);
    /// Never sent by any peer.
    pub const KEEPALIVE: Self = Self(OP_CTRL << OP_SHIFT | 1);
    /// The sender's direction is over.
    pub const SHUTDOWN: Self = Self(OP_CTRL << OP_SHIFT | 2);

    /// A DATA word. `len` is at most [`Self::MAX_DATA`]; more is cut to it rather than spilled into
    /// the opcode.
    #[must_use]
    pub const fn data(len: u32) -> Self {
        Self(if len > DATA_MASK { DATA_MASK } else { len })
    }

    /// A credit word. The sum is not cut to 16 bits, exactly as upstream does it
    /// (`wire-protocol §5.4`); the receiver cuts it.
    #[must_use]
    pub const fn sgl(consumed: u16, queue: u16) -> Self {
        Self(OP_SGL << OP_SHIFT | (consumed as u32 + queue as u32))
    }

    /// An IOMAP word.
    #[must_use]
    pub const fn iomap(index: u16) -> Self {
        Self(OP_IOMAP << OP_SHIFT | index as u32)
    }

    /// Bits 31:29.
    #[must_use]
    pub const fn opcode(self) -> u8 {
        (self.0 >> OP_SHIFT) as u8
    }

    /// Bits 28:0.
    #[must_use]
    pub const fn payload(self) -> u32 {
        self.0 & DATA_MASK
    }

    /// What the word says.
    ///
    /// # Errors
    /// [`BadWord`]; whether that ends the connection or is ignored is the protocol's decision, not
    /// ours.
    pub const fn message(self) -> Result<Message, BadWord> {
        let data = self.payload();
        match self.opcode() as u32 {
            OP_DATA if data == 0 => Err(BadWord::EmptyData),
            OP_DATA => Ok(Message::Data(data)),
            OP_SGL => Ok(Message::Sgl(data as u16)),
            OP_IOMAP => Ok(Message::Iomap(data as u16)),
            OP_CTRL => match data {
                0 => Ok(Message::Ctrl(Ctrl::Disconnect)),
                1 => Ok(Message::Ctrl(Ctrl::Keepalive)),
                2 => Ok(Message::Ctrl(Ctrl::Shutdown)),
                _ => Err(BadWord::UnknownCtrl(data)),
            },
            op => Err(BadWord::Reserved(op as u8)),
        }
    }

    /// The word as immediate data: big endian on every host (`wire-protocol §4.2`).
    #[must_use]
    pub const fn to_immediate(self) -> [u8; 4] {
        self.0.to_be_bytes()
    }

    /// Reads immediate data.
    #[must_use]
    pub const fn from_immediate(bytes: [u8; 4]) -> Self {
        Self(u32::from_be_bytes(bytes))
    }

    /// The word as the 4-byte SEND of message mode: the sender's own byte order, not converted
    /// (`wire-protocol §4.2`).
    #[must_use]
    pub const fn to_native(self) -> [u8; 4] {
        self.0.to_ne_bytes()
    }

    /// Reads the 4-byte SEND of message mode.
    #[must_use]
    pub const fn from_native(bytes: [u8; 4]) -> Self {
        Self(u32::from_ne_bytes(bytes))
    }
}

impl From<Message> for Word {
    fn from(message: Message) -> Self {
        match message {
            Message::Data(len) => Self::data(len),
            Message::Sgl(limit) => Self::sgl(0, limit),
            Message::Iomap(index) => Self::iomap(index),
            Message::Ctrl(Ctrl::Disconnect) => Self::DISCONNECT,
            Message::Ctrl(Ctrl::Keepalive) => Self::KEEPALIVE,
            Message::Ctrl(Ctrl::Shutdown) => Self::SHUTDOWN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn byte_examples_of_section_4_2() {
        assert_eq!(Word::data(5).to_immediate(), [0, 0, 0, 5]);
        assert_eq!(Word::sgl(0, 384).to_immediate(), [0x80, 0, 1, 0x80]);
        assert_eq!(Word::SHUTDOWN.to_immediate(), [0xe0, 0, 0, 2]);
        assert_eq!(Word::DISCONNECT.to_immediate(), [0xe0, 0, 0, 0]);
        assert_eq!(Word::iomap(0).to_immediate(), [0xc0, 0, 0, 0]);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn message_mode_examples_of_section_15() {
        assert_eq!(Word::data(5).to_native(), [5, 0, 0, 0]);
        assert_eq!(Word::sgl(0, 384).to_native(), [0x80, 1, 0, 0x80]);
        assert_eq!(Word::SHUTDOWN.to_native(), [2, 0, 0, 0xe0]);
    }

    #[test]
    fn credit_words_of_sections_5_6_and_5_7() {
        assert_eq!(Word::sgl(8, 16).0, 0x8000_0018);
        assert_eq!(Word::sgl(9, 384).0, 0x8000_0189);
        assert_eq!(Word(0x8001_0180).message(), Ok(Message::Sgl(0x180)), "only 16 bits count");
        assert_eq!(Word::sgl(0xffff, 384).0, 0x8001_017f, "bit 16 may be set");
    }

    #[test]
    fn reserved_opcodes_are_errors() {
        for op in [1u8, 2, 3, 5] {
            assert_eq!(Word(u32::from(op) << 29 | 7).message(), Err(BadWord::Reserved(op)));
        }
        assert_eq!(Word(0).message(), Err(BadWord::EmptyData));
        assert_eq!(Word(0xe000_0003).message(), Err(BadWord::UnknownCtrl(3)));
        assert_eq!(Word(0xe000_0001).message(), Ok(Message::Ctrl(Ctrl::Keepalive)));
    }

    proptest! {
        #[test]
        fn every_word_survives_both_forms(raw: u32) {
            prop_assert_eq!(Word::from_immediate(Word(raw).to_immediate()), Word(raw));
            prop_assert_eq!(Word::from_native(Word(raw).to_native()), Word(raw));
            if let Ok(message) = Word(raw).message() {
                prop_assert_eq!(Word::from(message).message(), Ok(message));
            }
        }
    }
}
