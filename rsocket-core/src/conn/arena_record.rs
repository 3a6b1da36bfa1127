//! What the processes of a fork group know of an arena, so that one that did not map it can find
//! out how to.
//!
//! Must not know where it is mapped, nor how a channel is given away (`channel::arenas`). Entry
//! point: [`ArenaRecord`].
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Arenas that a fork group can have at one time.
pub const MAX_ARENAS: usize = 2048;

/// Channels of the largest arena that is made here.
pub(crate) const MOST_CHANNELS: usize = 256;

/// What a fork group knows about one arena. All zeroes is a free record.
#[repr(C)]
pub struct ArenaRecord {
    pub(crate) state: AtomicU32,
    /// Changes when the record is freed, so that a mapping can be told to be of another arena.
    pub(crate) generation: AtomicU32,
    /// 0: made here, this side connects. 1: made by the peer, this side accepts.
    pub(crate) side: AtomicU32,
    pub(crate) channels: AtomicU32,
    pub(crate) id: [AtomicU64; 2],
    pub(crate) peer: [AtomicU64; 2],
    /// The process that made or opened it, and the number of its descriptor there.
    pub(crate) owner: AtomicU32,
    pub(crate) fd: AtomicI32,
    pub(crate) peer_pid: AtomicU32,
    /// Connections that use it.
    pub(crate) live: AtomicU32,
    /// Channels that are promised to a connection which does not use them yet (`claim` and `open`
    /// in channel::arenas), a bit for each. Until `settled` no other thread may take the arena for
    /// idle. Changed by the owner; set under its lock.
    pub(crate) promised: [AtomicU64; MOST_CHANNELS / 64],
    /// Nonzero: the fd stash has a copy of its descriptor.
    pub(crate) in_fd_stash: AtomicU32,
    /// Channels given to connections and not known to be free again (side 0 only).
    pub(crate) taken: [AtomicU64; MOST_CHANNELS / 64],
    /// The connection that has each channel on this side; 0 is none, [`GUEST`] one that is still to
    /// come.
    pub(crate) slot_of: [AtomicU32; MOST_CHANNELS],
    /// Wakers of the peer that were woken, to be forgotten with it.
    pub(crate) woken: [AtomicU64; WOKEN],
    /// Nonzero: the peer is in another network namespace, and is woken by a socket of that. The
    /// owner's number of it, plus one.
    pub(crate) there: AtomicI32,
    /// What tells the peer process beside its pid (`channel::arenas::Peer`).
    pub(crate) peer_inode: AtomicU64,
}

impl ArenaRecord {
    /// No connection of this side has the channel any more.
    pub(crate) fn free(&self, channel: u32) {
        if let Some(w) = self.slot_of.get(channel as usize) {
            // Release: pairs with the acquire of the thread that takes it next: `was_kept` in
            // channel::link and `free_channel` in channel::arenas.
            w.store(0, Ordering::Release);
        }
    }

    /// No connection of this side has the channel any more, and the arena has a connection less.
    pub(crate) fn leave(&self, channel: u32) {
        self.free(channel);
        self.live.fetch_sub(1, Ordering::AcqRel);
    }
}

/// In `slot_of`: the channel is kept for a connection that has no slot yet (`keep` in
/// channel::link). No slot has this number.
pub(crate) const GUEST: u32 = u32::MAX;

/// How many of the peer's wakers a record remembers: one for each of its threads that sleep at a
/// time.
const WOKEN: usize = 32;
