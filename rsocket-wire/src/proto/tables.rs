//! The iomap tables of both sides of a queue pair (`wire-protocol §8`): how many entries each has,
//! and where the peer's are.
//!
//! Entry point: [`Tables`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use crate::iomap::Iomap;
use crate::private_data::PrivateData;
use crate::sge::Sge;

/// The opcode by which a direct write is known when it is done; never sent (`wire-protocol §4.1`).
pub(super) const DIRECT: u8 = 2;

/// The iomap tables of both sides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tables {
    /// Entries of ours.
    ours: u16,
    /// Entries of the peer's, where the first is, and the key of that memory.
    pub(super) theirs: u16,
    at: u64,
    rkey: u32,
    /// The peer is one of ours.
    pub(super) answers: bool,
}

impl Tables {
    pub(super) fn new(ours: u16, peer: &PrivateData) -> Self {
        let at = peer.iomap_addr(0).unwrap_or(0);
        let theirs = peer.iomap.unwrap_or(0);
        Self { ours, theirs, at, rkey: peer.table.rkey, answers: peer.notes }
    }

    /// Whether we have an entry of that number.
    pub(super) const fn ours(&self, index: u16) -> bool {
        index < self.ours
    }

    /// Where the peer's entry is; `None` if it has none of that number. ([`PrivateData::parse`] saw
    /// to it that no address of the table wraps.)
    pub(super) fn entry(&self, index: u16) -> Option<Sge> {
        let at = self.at.wrapping_add(u64::from(index) * Iomap::SIZE as u64);
        (index < self.theirs).then_some(Sge { addr: at, rkey: self.rkey, len: Iomap::SIZE as u32 })
    }
}
