//! The rsockets stream protocol as machines without I/O, on plain-integer state.
//!
//! What a direction is at its two ends: [`SendHalf`] (may I write, and where) and [`RecvHalf`]
//! (what has arrived, and what may be given back). They share nothing; what one tells the other
//! travels as words and table entries. Nothing here sees an fd, a clock, a lock, a system call or a
//! pointer, and nothing allocates. Inputs are `on_*`, outputs `next_*`, decisions plain `Copy`
//! values with offsets.
//!
//! Everything that comes from a peer may be a lie. A lie that breaks a rule is a [`Violation`]: the
//! call that found it has changed nothing, and the caller ends the connection.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

pub mod control;
mod inbox;
pub mod iomap;
pub mod ramp;
pub mod recv_half;
pub mod send_half;
pub mod state;
pub mod stream;
mod tables;
mod terms;

pub use recv_half::{RecvHalf, RecvParams, Region, Update};
pub use send_half::{DataWrite, SendHalf};

/// The most entries that a target table may have here. Upstream has 2; the private data can say
/// more, and upstream's sender rotates through whatever it says (`wire-protocol §5.8`).
pub const MAX_SEGMENTS: usize = 8;

/// What a peer did wrong. Finding one ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// It offers no credits at all, so nothing could ever be sent.
    NoCredits,
    /// Its target table has fewer than 2 entries, or more than we can rotate through.
    TableSize,
    /// A buffer of no bytes where there must be one.
    EmptyBuffer,
    /// A buffer that runs past the end of memory.
    BufferBounds,
    /// A table entry written before its turn.
    EntryOrder,
    /// A table entry written while the one before it is still in use.
    EntryInUse,
    /// A credit limit that takes back what was given.
    CreditBackwards,
    /// A credit limit beyond what it can have read.
    CreditBeyond,
    /// More messages than it had credits for.
    CreditOverrun,
    /// A DATA message of no bytes.
    EmptyData,
    /// A DATA message larger than what is left of the entry it goes to.
    DataBounds,
    /// A DATA message when no entry is left to hold it.
    NoBuffer,
    /// A message after the end of the stream.
    AfterEnd,
    /// A new message was taken up before the last one was read. The only one that is our own doing.
    Unread,
    /// It names an entry of our iomap table that does not exist.
    IomapIndex,
    /// A word that no conforming peer sends.
    ReservedWord,
    /// More words that need no credit than there is anything to say.
    Flood,
}
