//! What a stream is made of, what it gives its driver to post, and what a reader finds: plain
//! values.
//!
//! Must not know what becomes of them. Entry points: [`StreamParams`], [`Post`], [`Readable`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use super::control::Mode;
use super::recv_half::{RecvHalf, RecvParams, Region};
use crate::private_data::PrivateData;
use crate::sge::{Endian, Sge};
use crate::word::Word;

/// What a stream is made of.
#[derive(Clone, Copy, Debug)]
pub struct StreamParams {
    /// How words travel.
    pub mode: Mode,
    /// Work requests that our send queue holds; [`super::control::Control::SLOTS`] of them are not
    /// for data.
    pub send_queue: u16,
    /// How our receive buffer is cut up, and the credits that we gave.
    pub recv: RecvParams,
    /// Our receive buffer, as the peer names it.
    pub buffer: Sge,
    /// Our target table, as the peer names it; the length counts entries, 2..=8.
    pub table: Sge,
    /// Entries of the iomap table behind it: mappings that the peer may tell us of.
    pub iomaps: u16,
}

impl StreamParams {
    /// What we tell the peer while connecting.
    #[must_use]
    pub const fn private_data(&self) -> PrivateData {
        let first = RecvHalf::new(&self.recv).first();
        PrivateData {
            endian: Endian::NATIVE,
            credits: if self.recv.queue == 0 { 1 } else { self.recv.queue },
            // Upstream says so too where it has none.
            iomap: Some(self.iomaps),
            notes: true,
            table: self.table,
            buffer: Sge { len: first.len, ..self.buffer },
        }
    }
}

/// What goes with a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Nothing.
    None,
    /// The application's next bytes, as many as the target is long.
    Data,
    /// An entry for the peer's target table, as the peer reads it.
    Entry([u8; Sge::SIZE]),
}

/// A message to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Post {
    /// The bytes to put into the peer's memory.
    pub payload: Payload,
    /// Where they go.
    pub target: Sge,
    /// The word.
    pub word: Word,
    /// What its completion is to be reported with.
    pub token: u64,
}

/// What an application that reads finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readable {
    /// Bytes, here.
    Bytes(Region),
    /// Nothing yet.
    Nothing,
    /// The end, which the peer announced.
    End,
    /// The connection ended without the peer having said so: bytes may be missing.
    Broken,
}
