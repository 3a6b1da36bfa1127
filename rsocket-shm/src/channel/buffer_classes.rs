//! How a direction's receive buffer is cut into two buffer classes, and how an entry of the
//! target table names a part of one.
//!
//! Both ends of a channel cut it alike. Must not know which messages go to which class, nor who has
//! the buffer. Entry points: [`Beyond::buffer_classes`], [`entry`], [`offset_of`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use super::SendState;
use crate::direction::Direction;
use crate::layout;
use rsocket_wire::proto::{RecvParams, Region};
use rsocket_wire::sge::Sge;
use rsocket_wire::word::{Message, Word};

/// The two classes of a channel's buffer ([`layout`]), as indices.
pub const SMALL: usize = 0;
/// See [`SMALL`].
pub const LARGE: usize = 1;

/// The key of the only memory region that a channel has.
const KEY: u32 = 1;

/// What is at the other end of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beyond {
    /// The peer itself, on this host.
    Peer,
    /// A bridge to a queue pair, in this process.
    Bridge,
}

impl Beyond {
    /// How the two classes of a direction's receive buffer are cut up; the same at both ends.
    #[must_use]
    pub const fn classes(self) -> [RecvParams; 2] {
        let large = match self {
            Self::Peer => layout::LARGE,
            Self::Bridge => layout::LARGE_OF_BRIDGE,
        };
        [class(layout::SMALL_CREDITS, layout::SMALL), class(layout::LARGE_CREDITS, large)]
    }

    /// Bytes of a class, all of its segments together.
    #[must_use]
    pub fn class_len(self, class: usize) -> usize {
        self.classes().get(class).map_or(0, |p| p.segments as usize * p.large as usize)
    }
}

/// A class, with credits for so many messages, and so many bytes in a segment.
const fn class(credits: u32, segment: usize) -> RecvParams {
    RecvParams {
        queue: credits as u16,
        segments: layout::SEGMENTS as u32,
        large: segment as u32,
        small: 0,
    }
}

/// Where a class starts in the receive buffer.
#[inline]
#[must_use]
pub fn class_start(class: u32) -> u64 {
    if class == 0 { 0 } else { layout::LARGE_ZONE as u64 }
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

/// The entry that names a region of a class.
#[must_use]
pub fn entry(class: usize, region: Region) -> Sge {
    Sge { addr: class_start(class as u32) + u64::from(region.offset), rkey: KEY, len: region.len }
}

/// Where the byte at stream position `at` lies in the channel, and how many of its message follow.
/// Walks back over the words that were published last. What is unread is still in the ring, and the
/// buffers of a class are filled round and round.
#[must_use]
pub fn locate(
    state: &SendState,
    outgoing: &Direction,
    at: u64,
    beyond: Beyond,
) -> Option<(u64, u32)> {
    let mut position = state.data_position;
    let mut end = state.total();
    let mut ends_of = [state.classes[0].total(), state.classes[1].total()];
    for _ in 0..layout::DATA_RING {
        position = position.wrapping_sub(1);
        let Ok(Message::Data(word)) = Word(outgoing.poll_data(position)?).message() else {
            continue;
        };
        let class = usize::from(word & layout::LARGE_CLASS != 0);
        let len = word & !layout::LARGE_CLASS;
        let start = end.checked_sub(u64::from(len))?;
        let class_end = ends_of.get_mut(class)?;
        let first = class_end.checked_sub(u64::from(len))?;
        if start <= at {
            let skip = at - start;
            let size = beyond.class_len(class) as u64;
            let left = u32::try_from(u64::from(len) - skip).ok()?;
            return Some((class_start(class as u32) + (first + skip) % size, left));
        }
        end = start;
        *class_end = first;
    }
    None
}
