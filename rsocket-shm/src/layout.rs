//! Where everything in an arena lies: sizes, offsets and the shared structures. Pure numbers and
//! plain `repr(C)` atomics; it must not know who uses them how. Entry points: [`DirectionPage`] and
//! [`ArenaHeader`].
//!
//! A side does not write a line that it polls, but to take a waker out of it. What the two sides
//! write lies 128 bytes apart, because adjacent-line prefetch takes pairs of 64-byte lines. A
//! connection that has exchanged a little touches two pages for each direction: the
//! [`DirectionPage`], and the first of the receive buffer. The buffer has two classes, small and
//! large, each with buffers, credits and a place in the stream of its own. So short messages stay
//! in warm memory while a bulk writer finds as much room as TCP would give it. A bit in the word
//! says which class a message is in. All of the arena starts as zeroes. Any word may turn to zero
//! at any time, since the peer can punch holes into the memory. So zero is never a valid entry of a
//! ring.
#![forbid(unsafe_code)]

use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// What starts every arena.
pub const MAGIC: u64 = u64::from_le_bytes(*b"rsockarn");
/// Two libraries of different layouts never share memory. Raise it with any change in this file, or
/// in the meaning of a word.
pub const VERSION: u32 = 3;
/// The most channels that one arena may have.
pub const MAX_CHANNELS: u32 = 1024;

/// The unit of memory that the kernel gives.
pub const PAGE: usize = 4096;
/// Entries in the message ring: a power of two, so that a position may wrap at 2^32. As many
/// messages may wait unread; TCP takes thousands of short ones too.
pub const DATA_RING: u32 = 2048;
/// Entries in the credit ring.
pub const CONTROL_RING: u32 = 32;
/// Messages that a sender may have under way: fewer than the ring holds, so that words which cost
/// no credit (a shutdown) always have room.
pub const CREDITS: u32 = DATA_RING - 8;
/// Entries in the target table.
pub const TARGETS: usize = 8;
/// Threads that can sleep on one side of a direction before the next one has to make do without a
/// waker.
pub const SLEEPERS: usize = 4;

/// Segments in each class of the receive buffer.
pub const SEGMENTS: usize = 4;
/// Bytes of a segment in the small class: a chatty connection stays in a few pages, warm in both
/// caches.
pub const SMALL: usize = 4096;
/// Bytes of a segment in the large class: as much as the kernel would take of a writer whose reader
/// is busy.
pub const LARGE: usize = 512 * 1024;
/// The same, where a bridge is at the other end. What a busy reader leaves waits in the protocol's
/// own buffers as well. What is copied twice on its way should be in the cache the second time.
pub const LARGE_OF_BRIDGE: usize = 128 * 1024;
/// Where the large class starts in the receive buffer.
pub const LARGE_ZONE: usize = SEGMENTS * SMALL;
/// Bytes of the receive buffer.
pub const BUFFER_LEN: usize = LARGE_ZONE + SEGMENTS * LARGE;
/// Of [`CREDITS`], those of the small class.
pub const SMALL_CREDITS: u32 = 640;
/// Of [`CREDITS`], those of the large class.
pub const LARGE_CREDITS: u32 = CREDITS - SMALL_CREDITS;
/// In a DATA or SGL word: it is about the large class. (Lengths here stay far below it.)
pub const LARGE_CLASS: u32 = 1 << 28;
/// In an SGL word: an entry of the target table comes with it. An entry counts only once its word
/// is there, so that one which a dying receiver wrote and did not announce can be written again.
pub const WITH_ENTRY: u32 = 1 << 27;

/// Entries in the table of mappings ([`super::places`]), and so the most that one end can have.
pub const MAPS: usize = 1024;
/// Bytes of the ring in which directly placed bytes travel. The ring has room for more than three
/// pieces of the longest kind, so that the sender fills one while another is being placed.
pub const PLACES: usize = 256 * 1024;

/// Bytes before the receive buffer: the first page and as much of the message ring as does not fit
/// into it.
pub const HEAD_LEN: usize = size_of::<DirectionPage>();
/// Where the table of mappings starts in a direction.
pub const MAPS_AT: usize = HEAD_LEN + BUFFER_LEN;
/// Where the ring of directly placed bytes starts in a direction.
pub const PLACES_AT: usize = MAPS_AT + MAPS * size_of::<MapEntry>();
/// Bytes of one direction.
pub const DIRECTION_LEN: usize = PLACES_AT + PLACES;
/// Bytes of one channel.
pub const CHANNEL_LEN: usize = 2 * DIRECTION_LEN;
/// Bytes of the arena's header.
pub const HEADER_LEN: usize = PAGE;
/// Words of one side's ready bitmap.
pub const READY_WORDS: usize = MAX_CHANNELS as usize / 64;
/// Words for notes that a waker of one side is waking; a waker's id says which is its.
pub const WOKEN_WORDS: usize = 4;

/// The exact size of an arena with so many channels; `None` when there may not be so many, or none.
#[must_use]
pub const fn arena_len(channels: u32) -> Option<usize> {
    if channels == 0 || channels > MAX_CHANNELS {
        return None;
    }
    Some(HEADER_LEN + channels as usize * CHANNEL_LEN)
}

/// What the receiving end tells the sending end.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct ReceiverLine {
    /// Nonzero: no thread of the receiver is inside the kernel on this direction, it may switch.
    pub acknowledged: AtomicU32,
    /// Nonzero: the receiver will read no more.
    pub receiver_closed: AtomicU32,
    /// Where the receiver last ran: `rsocket_host::thread::cpu()`, 0 unknown. With [`ALONE`] it
    /// waits for nothing of another process.
    pub receiver_cpu: AtomicU32,
}

/// In `receiver_cpu`: the receiver's thread waits for connections of one process alone.
pub const ALONE: u32 = 1 << 31;

/// What the sending end tells the receiving end.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct SenderLine {
    /// Bytes of the stream that went by TCP before this direction took over, plus 1.
    pub switch_offset: AtomicU64,
    /// The fallback to TCP, written once by the end that goes first. The sender writes the bytes of
    /// this direction after which the rest goes by TCP, plus 1. The receiver writes the bytes that
    /// it has read, plus 1, and the highest bit. Before that the receiver may set the highest bit
    /// alone: the sender is to go first.
    pub end: AtomicU64,
    /// Bytes that TCP had taken when the receiver's unread residual bytes began to be sent by it,
    /// plus 1.
    pub returned: AtomicU64,
    /// Nonzero: the sender has no credit or no room left.
    pub starved: AtomicU32,
    /// Where the sender last ran: `rsocket_host::thread::cpu()`, 0 unknown.
    pub sender_cpu: AtomicU32,
    /// Nonzero: nothing more will be sent.
    pub sender_closed: AtomicU32,
    /// Why this side has gone back to TCP (`conn::cause` of the core); 0 while it has not said.
    pub why: AtomicU32,
}

/// The sleepers at one side of a direction: see [`super::park`].
#[repr(C, align(128))]
#[derive(Debug)]
pub struct SleeperLine {
    /// One bit for each word that may be in use.
    pub any: AtomicU32,
    /// The sleepers' wakers.
    pub words: [AtomicU64; SLEEPERS],
}

/// One buffer that the sender may fill (`wire-protocol §3.2`, as atomics).
#[repr(C)]
#[derive(Debug)]
pub struct TargetEntry {
    /// Offset in the receive buffer.
    pub addr: AtomicU64,
    /// Whatever the receiver's end chose for a key.
    pub rkey: AtomicU32,
    /// Bytes; 0 is an empty entry.
    pub len: AtomicU32,
}

/// What the sender of a direction says about direct placement ([`super::places`]).
#[repr(C, align(128))]
#[derive(Debug)]
pub struct PlacingLine {
    /// Mappings that the sender remembers at one time, plus 1; 0 before it has said so.
    pub offered: AtomicU32,
    /// Bytes ever put into the ring.
    pub put: AtomicU64,
}

/// What the receiver of a direction says about direct placement.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct PlacedLine {
    /// Entries of the table of mappings that were ever written; the others are of an earlier
    /// connection.
    pub high: AtomicU32,
    /// Bytes ever taken out of the ring.
    pub taken: AtomicU64,
}

/// A mapping of the receiver's, into which the sender may have bytes placed.
#[repr(C)]
#[derive(Debug)]
pub struct MapEntry {
    /// Which mapping it is; odd while the entry is being changed.
    pub generation: AtomicU32,
    /// Bytes; 0 is no mapping.
    pub len: AtomicU32,
    /// The offset by which the programs name its first byte.
    pub offset: AtomicU64,
}

/// The head of a direction: all that is not payload. Its first page has everything but the later
/// entries of the message ring.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct DirectionPage {
    /// Written by the receiver.
    pub receiver: ReceiverLine,
    /// Written by the sender.
    pub sender: SenderLine,
    /// The receiver's threads, asleep until there is data; woken by the sender.
    pub data_waiters: SleeperLine,
    /// The sender's threads, asleep until there is room; woken by the receiver.
    pub room_waiters: SleeperLine,
    /// Written by the receiver; the sender only empties an entry.
    pub targets: [TargetEntry; TARGETS],
    /// Written by the receiver: words about buffers and credits.
    pub control: [AtomicU64; CONTROL_RING as usize],
    /// Written by the sender.
    pub placing: PlacingLine,
    /// Written by the receiver.
    pub placed: PlacedLine,
    _spare: [AtomicU64; 112],
    /// Written by the sender: words about data. Begins in the first page, and goes on over as many
    /// pages as it takes.
    pub data: [AtomicU64; DATA_RING as usize],
    _rest: [AtomicU64; 256],
}

/// What one side's epoll sets look at before each wait, on lines of its own: one line, where
/// channels are few.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct ReadySide {
    /// Which threads have woken which wakers of the side's epoll sets, as far as they were not
    /// heard yet ([`super::park::Announce`]).
    pub woken: [AtomicU64; WOKEN_WORDS],
    /// Channels that have become ready.
    pub bits: [AtomicU64; READY_WORDS],
}

/// The first page of an arena.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct ArenaHeader {
    /// [`MAGIC`], stored last of all.
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// Channels that follow.
    pub channels: AtomicU32,
    /// Bytes of the whole.
    pub size: AtomicU64,
    /// 128 random bits that name the arena.
    pub id: [AtomicU64; 2],
    /// What has become ready for the connecting side (0) and for the accepting side (1).
    pub ready: [ReadySide; 2],
}

const _: () = {
    assert!(HEAD_LEN == 5 * PAGE);
    assert!(size_of::<ReceiverLine>() == 128 && size_of::<SenderLine>() == 128);
    assert!(size_of::<SleeperLine>() == 128 && size_of::<TargetEntry>() == 16);
    assert!(offset_of!(DirectionPage, receiver) == 0);
    assert!(offset_of!(DirectionPage, sender) == 0x80);
    assert!(offset_of!(DirectionPage, data_waiters) == 0x100);
    assert!(offset_of!(DirectionPage, room_waiters) == 0x180);
    assert!(offset_of!(DirectionPage, targets) == 0x200);
    assert!(offset_of!(DirectionPage, control) == 0x280);
    assert!(
        offset_of!(DirectionPage, placing) == 0x380 && offset_of!(DirectionPage, placed) == 0x400
    );
    assert!(
        size_of::<PlacingLine>() == 128
            && size_of::<PlacedLine>() == 128
            && size_of::<MapEntry>() == 16
    );
    assert!(
        PLACES.is_power_of_two() && MAPS_AT.is_multiple_of(PAGE) && PLACES_AT.is_multiple_of(PAGE)
    );
    assert!(offset_of!(DirectionPage, data) == 0x800);
    assert!(size_of::<ArenaHeader>() == HEADER_LEN);
    assert!(offset_of!(ArenaHeader, ready) == 0x80 && size_of::<ReadySide>() == 256);
    assert!(DATA_RING.is_power_of_two() && CONTROL_RING.is_power_of_two());
    assert!(CREDITS + 8 <= DATA_RING);
    assert!(DIRECTION_LEN.is_multiple_of(PAGE));
    assert!(BUFFER_LEN < LARGE_CLASS as usize && 2 * SEGMENTS == TARGETS);
    assert!(READY_WORDS * 64 == MAX_CHANNELS as usize);
};
