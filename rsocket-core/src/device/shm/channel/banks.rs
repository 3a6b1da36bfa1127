//! How a direction's receive buffer is cut into two banks (buffer classes), and how an entry of the
//! target table names a part of one.
//!
//! Both ends of a channel cut it alike. Must not know which messages go to which bank, nor who has
//! the buffer. Entry points: [`Beyond::banks`], [`entry`], [`offset_of`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use crate::device::shm::layout;
use crate::proto::{RecvParams, Region};
use crate::wire::sge::Sge;

/// The two banks of a window's buffer ([`layout`]), as indices.
pub const SMALL: usize = 0;
/// See [`SMALL`].
pub const LARGE: usize = 1;

/// The key of the only memory region that a window has.
const KEY: u32 = 1;

/// What is at the other end of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beyond {
    /// The peer itself, on this host.
    Peer,
    /// A relay ([`crate::relay`]).
    Relay,
}

impl Beyond {
    /// How the two banks of a direction's receive buffer are cut up; the same at both ends.
    #[must_use]
    pub const fn banks(self) -> [RecvParams; 2] {
        let large = match self {
            Self::Peer => layout::LARGE,
            Self::Relay => layout::LARGE_OF_RELAY,
        };
        [bank(layout::SMALL_CREDITS, layout::SMALL), bank(layout::LARGE_CREDITS, large)]
    }

    /// Bytes of a bank, all of its segments together.
    #[must_use]
    pub fn bank_len(self, bank: usize) -> usize {
        self.banks().get(bank).map_or(0, |p| p.segments as usize * p.large as usize)
    }
}

/// A bank, with credits for so many messages, and so many bytes in a segment.
const fn bank(credits: u32, segment: usize) -> RecvParams {
    RecvParams {
        queue: credits as u16,
        segments: layout::SEGMENTS as u32,
        large: segment as u32,
        small: 0,
    }
}

/// Where a bank starts in the receive buffer.
#[inline]
#[must_use]
pub fn bank_start(bank: u32) -> u64 {
    if bank == 0 { 0 } else { layout::LARGE_ZONE as u64 }
}

/// Offset in the receive buffer that an entry names, if its key is right. The device checks the
/// bounds.
#[inline]
#[must_use]
pub fn offset_of(entry: &Sge) -> Option<u32> {
    if entry.rkey != KEY {
        return None;
    }
    let end = entry.addr.checked_add(u64::from(entry.len))?;
    if end > layout::BUFFER_LEN as u64 { None } else { u32::try_from(entry.addr).ok() }
}

/// The entry that names a region of a bank.
#[must_use]
pub fn entry(bank: usize, region: Region) -> Sge {
    Sge { addr: bank_start(bank as u32) + u64::from(region.offset), rkey: KEY, len: region.len }
}
