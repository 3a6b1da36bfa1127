//! A connection's channel in an arena: its two directions as seen from this side, how it comes to
//! them and leaves them.
//!
//! [`super::arenas`] knows where arenas are and which connection has which channel of them. Must
//! not know what the bytes are. Entry points: [`start`], [`ends`], [`release`].

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::arenas::{self, Claim, keep_for_siblings, map_found, mapped, note_waker, record, sweep};
use super::arenas_lock;
use super::mapping;
use crate::config::sizes::Size;
use crate::conn::arena_record::{ArenaRecord, GUEST};
use crate::conn::fork_group;
use crate::conn::pairing_lock::PairingGuard;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::device::shm::arena::{Arena, Channel};
use crate::device::shm::channel::{self, Beyond, Receiver};
use crate::device::shm::direction::Direction;
use crate::device::shm::park::{self, Announce};
use crate::reason::Reason;
use crate::stats::{self, Counter};
use crate::sync::living;
use crate::sys;

static DISTRUSTED: AtomicBool = AtomicBool::new(false);

/// After an internal inconsistency: this process attaches no more.
pub fn distrust() {
    DISTRUSTED.store(true, Ordering::Relaxed);
}

/// Whether [`distrust`] was called.
pub fn distrusted() -> bool {
    DISTRUSTED.load(Ordering::Relaxed)
}

/// The two directions of a connection's channel, as seen from this side.
#[derive(Clone, Copy)]
pub struct Ends {
    channel: Channel,
    record: u32,
    peer: u32,
    /// Bytes that come in.
    pub incoming: Direction,
    /// Bytes that go out.
    pub outgoing: Direction,
}

impl Ends {
    /// Whether this is the channel that the connection has now. A thread that has waited for a lock
    /// asks under it: the connection may have been closed meanwhile. Then its slot and its channel
    /// may be another connection's.
    #[inline(always)]
    #[must_use]
    pub fn are_of(&self, s: &Slot) -> bool {
        // Acquire: pairs with the release in start() and part().
        s.arena.load(Ordering::Acquire) == self.record + 1
            && s.channel.load(Ordering::Relaxed) == self.channel.index()
    }

    /// How the peer's epoll sets hear of this channel.
    #[inline]
    #[must_use]
    pub fn peer_announce(&self) -> Announce<'_> {
        self.channel.announce(self.peer)
    }

    /// How this side's epoll sets hear of it.
    fn own_announce(&self) -> Announce<'_> {
        self.channel.announce(self.peer ^ 1)
    }

    /// Rings the peer's threads that wait for our bytes.
    #[inline]
    pub fn wake_reader(&self) {
        self.outgoing
            .data_waiters()
            .wake_with(Some(self.peer_announce()), |id| self.wake(id, self.peer_announce()));
    }

    /// The same, right after the lock was given back under which they were sent.
    #[inline]
    pub fn wake_reader_unlocked(&self) {
        self.outgoing
            .data_waiters()
            .wake_unlocked(Some(self.peer_announce()), |id| self.wake(id, self.peer_announce()));
    }

    /// Rings the threads of this side that wait for bytes, as the peer does after it has sent some.
    pub fn wake_own_readers(&self) {
        self.incoming.data_waiters().wake(Some(self.own_announce()));
    }

    /// Rings the peer's threads that wait for room.
    #[inline]
    pub fn wake_writer(&self) {
        self.incoming
            .room_waiters()
            .wake_with(Some(self.peer_announce()), |id| self.wake(id, self.peer_announce()));
    }

    /// Rings this side's own sleepers, for news that is not in the channel.
    #[cold]
    pub(crate) fn wake_own(&self) {
        let own = self.own_announce();
        self.incoming.data_waiters().wake_with(Some(own), |id| self.wake(id, own));
        self.outgoing.room_waiters().wake_with(Some(own), |id| self.wake(id, own));
    }

    #[cold]
    fn wake(&self, id: u64, ready: Announce<'_>) {
        stats::add(Counter::WakeupsRung, 1);
        match mapping::mapping(self.record).and_then(mapping::Mapping::there) {
            None => park::wake(id, Some(ready)),
            Some(there) => park::wake_there(id, there, ready),
        }
        note_waker(self.record, id);
    }
}

/// What is beyond the connection's channel.
#[inline]
#[must_use]
pub fn beyond(s: &Slot) -> Beyond {
    if s.has(flag::BRIDGED) { Beyond::Bridge } else { Beyond::Peer }
}

/// Whether the connection has a channel at all.
#[inline]
#[must_use]
pub fn has_channel(s: &Slot) -> bool {
    s.has_channel()
}

/// The connection's directions, or `None` when it has no channel or this process cannot get at it.
#[inline]
#[must_use]
pub fn ends(s: &Slot) -> Option<Ends> {
    // Acquire, as in ends_here(): pairs with the release in start(), so that channel and side are
    // there.
    let index = s.arena.load(Ordering::Acquire).checked_sub(1)?;
    let r = record(fork_group::get()?, index)?;
    match arenas::arena(r, index) {
        Some(arena) => view(s, &arena),
        None => join(s, index),
    }
}

/// As [`ends`], where this process has mapped the arena already: for the short paths, which leave
/// the rest to the whole way.
#[inline(always)]
#[must_use]
pub fn ends_here(s: &Slot) -> Option<Ends> {
    // Acquire: as in ends().
    let index = s.arena.load(Ordering::Acquire).checked_sub(1)?;
    let arena = arenas::arena(record(fork_group::get()?, index)?, index)?;
    view(s, &arena)
}

#[inline]
fn view(s: &Slot, arena: &Arena) -> Option<Ends> {
    let record = s.arena.load(Ordering::Relaxed).wrapping_sub(1);
    view_of(arena, record, s.channel.load(Ordering::Relaxed), s.side.load(Ordering::Relaxed))
}

/// The arena stays mapped while its record has a live connection, which the caller has or holds
/// ([`hold`]).
#[inline]
fn view_of(arena: &Arena, record: u32, channel: u32, side: u32) -> Option<Ends> {
    let channel = arena.channel(channel)?;
    let side = side & 1;
    Some(Ends {
        channel,
        record,
        peer: side ^ 1,
        incoming: channel.direction(side ^ 1),
        outgoing: channel.direction(side),
    })
}

/// The accepting side of a claimed channel whose both sides are in this process
/// ([`crate::bridge`]). The arena stays until [`let_go`].
pub(crate) fn hold(claim: &Claim) -> Option<Ends> {
    let r = record(fork_group::get()?, claim.record)?;
    let ends = arenas::arena(r, claim.record)
        .and_then(|arena| view_of(&arena, claim.record, claim.channel, 1));
    if ends.is_some() {
        r.live.fetch_add(1, Ordering::AcqRel);
    }
    arenas::settled(r, claim.channel);
    ends
}

/// The accepting side of such a channel is done: once the other one is too, it is free again.
pub(crate) fn let_go(ends: &Ends) {
    super::handover_state::close(&ends.incoming, &ends.outgoing);
    ends.wake_reader();
    ends.wake_writer();
    if let Some(r) = fork_group::get().and_then(|f| record(f, ends.record)) {
        r.live.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The other side of such a channel is kept for a connection of the program's that is still to
/// come. It may come from any process of the fork group, by [`start`]. Until then, or until
/// [`nobody_comes`], the channel is no other connection's, even when this side is done.
pub(crate) fn keep((index, channel): (u32, u32)) -> bool {
    let Some(r) = fork_group::get().and_then(|f| record(f, index)) else { return false };
    let Some(w) = r.slot_of.get(channel as usize) else { return false };
    // Its user before its mark: as in begin().
    r.live.fetch_add(1, Ordering::AcqRel);
    // Release: pairs with the acquire in was_kept() and in free_channel().
    let kept = w.compare_exchange(0, GUEST, Ordering::Release, Ordering::Relaxed).is_ok();
    if !kept {
        r.live.fetch_sub(1, Ordering::AcqRel);
    }
    kept
}

/// The connection for which the channel was kept will not have it. Nothing happens if it has it
/// already.
pub(crate) fn nobody_comes((index, channel): (u32, u32)) {
    let Some(r) = fork_group::get().and_then(|f| record(f, index)) else { return };
    // Release: pairs with the acquire in free_channel().
    let kept =
        |w: &AtomicU32| w.compare_exchange(GUEST, 0, Ordering::Release, Ordering::Relaxed).is_ok();
    if r.slot_of.get(channel as usize).is_some_and(kept) {
        r.live.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Gives the connection its channel, which it was promised, and both protocol states.
///
/// The arena knows its user before the connection has the channel. A caller that is killed in
/// between leaves an arena that no process takes back, never one that is taken back in use.
///
/// # Errors
/// When the channel does not exist or is another connection's.
pub fn start(
    id: SlotId,
    s: &PairingGuard<'_>,
    (index, channel): (u32, u32),
    side: u32,
    beyond: Beyond,
) -> Result<(), Reason> {
    let r = fork_group::get().and_then(|f| record(f, index)).ok_or(Reason::ResourceError)?;
    let result = begin(id, s, (r, index, channel), side, beyond);
    if result.is_ok() && !s.has(flag::RSOCKET) {
        s.clear(flag::CONNECT_NEWS);
    }
    arenas::settled(r, channel);
    result
}

fn begin(
    id: SlotId,
    s: &PairingGuard<'_>,
    (r, index, channel): (&'static ArenaRecord, u32, u32),
    side: u32,
    beyond: Beyond,
) -> Result<(), Reason> {
    let kept = was_kept(r, channel, beyond)?;
    let (recv, send) = channel::fresh(beyond)?;
    s.channel.store(channel, Ordering::Relaxed);
    s.side.store(side, Ordering::Relaxed);
    // SAFETY: the connection has no channel yet, so that no other thread looks at its states. The
    // guard says that no other thread gives it one.
    let (mut receiving, mut sending) = unsafe { (s.receive.alone(), s.send.alone()) };
    receiving.set(recv);
    sending.set(send);
    s.unread_hint.store(0, Ordering::Relaxed);
    s.room_hint.store(send.hint(beyond), Ordering::Relaxed);
    if !mapped(r, index) && !map_found(r, index) {
        crate::log_info!("the arena was not found");
        return Err(Reason::ArenaRefused);
    }
    let arena = arenas::arena(r, index).ok_or(Reason::ArenaRefused)?;
    let ends = view(s, &arena).ok_or(Reason::ArenaRefused)?;
    s.placement.reset();
    ends.outgoing.offer(s.sizes.get(Size::Iomap));
    // `wire-protocol §5.6`: the buffers after the first are announced at once.
    Receiver::new(receiving.reborrow(), &ends.incoming).give_back();
    if !kept {
        r.live.fetch_add(1, Ordering::AcqRel);
    }
    if let Some(w) = r.slot_of.get(channel as usize) {
        // Release: pairs with the acquire in collect_ready.
        w.store(id.raw(), Ordering::Release);
    }
    // Siblings may outlive this process, and its peer.
    if fork_group::shared(id) {
        keep_for_siblings(r);
    }
    s.arena.store(index + 1, Ordering::Release);
    Ok(())
}

/// Whether the channel was kept for the connection ([`keep`]); else it is free.
///
/// # Errors
/// When the channel does not exist or is another connection's.
fn was_kept(r: &ArenaRecord, channel: u32, beyond: Beyond) -> Result<bool, Reason> {
    // Acquire: pairs with the release in leave(), keep() and nobody_comes().
    let user = r.slot_of.get(channel as usize).map(|w| w.load(Ordering::Acquire));
    let kept = beyond == Beyond::Bridge && user == Some(GUEST);
    let channels = r.channels.load(Ordering::Relaxed);
    if channel < channels && (kept || user == Some(0)) {
        return Ok(kept);
    }
    crate::log_info!("channel {} of {} is in use, or there is none", channel, channels);
    Err(Reason::ArenaRefused)
}

/// The connection may come to siblings that did not have it so far.
pub fn share(s: &Slot) {
    if let Some((i, r)) = record_of(s)
        && arenas::own(r, i)
    {
        keep_for_siblings(r);
    }
}

/// Whether the process lives that had the other end of the connection's channel when it attached.
#[must_use]
pub fn peer_lives(s: &Slot) -> bool {
    record_of(s).is_some_and(|(i, r)| arenas::peer_lives(r, i))
}

/// Whether that process was in another network namespace, where nothing here is known of sockets.
#[must_use]
pub fn is_far(s: &Slot) -> bool {
    record_of(s).is_some_and(|(_, r)| r.there.load(Ordering::Relaxed) != 0)
}

fn record_of(s: &Slot) -> Option<(u32, &'static ArenaRecord)> {
    let index = s.arena.load(Ordering::Acquire).checked_sub(1)?;
    Some((index, record(fork_group::get()?, index)?))
}

/// What both ends of the connection have in common, and no other two at the same time. It is made
/// of the arena's name, which it does not tell, and the channel. 0 without one.
#[must_use]
pub fn common(s: &Slot) -> u64 {
    record_of(s).map_or(0, |(_, r)| {
        let [a, b] = arenas::load_pair(&r.id);
        let mixed = (a ^ b.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ u64::from(s.channel.load(Ordering::Relaxed))
    })
}

/// Connecting side: the hello-ack could not be sent. No other process knows of the channel, which
/// is as if never used.
pub fn abandon(s: &PairingGuard<'_>) {
    if let Some((_, r)) = record_of(s) {
        let w = s.channel.load(Ordering::Relaxed);
        if let Some(ends) = ends(s) {
            ends.channel.wipe();
        }
        if let Some(word) = r.taken.get(w as usize / 64) {
            word.fetch_and(!(1 << (w % 64)), Ordering::Relaxed);
        }
        // First: a process that is killed in between leaves a user too many, never one that is
        // taken away twice.
        s.arena.store(0, Ordering::Release);
        r.leave(w);
    }
}

/// A channel that its connection does not have any more ([`part`]), and that is not free yet.
pub(crate) struct Parted {
    record: &'static ArenaRecord,
    channel: u32,
    ends: Option<Ends>,
}

impl Parted {
    /// Says to the peer that this side neither reads nor writes any more, and frees the channel. To
    /// be called when no thread is inside that found it before.
    ///
    /// The side that connects gives channels away, so it says of its own last that the channel is
    /// free. The other side says so first: from the marks on the peer may give the channel to a
    /// connection that another thread of ours accepts.
    pub(crate) fn close(self) {
        let accepts = self.ends.as_ref().is_some_and(|ends| ends.peer == 0);
        if accepts {
            self.record.free(self.channel);
        }
        if let Some(ends) = &self.ends {
            super::handover_state::close(&ends.incoming, &ends.outgoing);
            ends.wake_reader();
            ends.wake_writer();
        }
        if !accepts {
            self.record.free(self.channel);
        }
        self.record.live.fetch_sub(1, Ordering::AcqRel);
        if let Some(group) = fork_group::get() {
            sweep(&arenas_lock::lock(), group);
        }
    }
}

/// Takes the connection's channel from it: no thread finds it there any more.
pub(crate) fn part(s: &Slot) -> Option<Parted> {
    let ends = ends(s);
    s.set(flag::CHANNEL_DONE);
    let (_, record) = record_of(s)?;
    let channel = s.channel.load(Ordering::Relaxed);
    // Before the channel has one user less: as in abandon().
    s.arena.store(0, Ordering::Release);
    Some(Parted { record, channel, ends })
}

/// The connection is done with its channel, in which no thread is.
pub fn release(s: &Slot) {
    if let Some(channel) = part(s) {
        channel.close();
    }
}

/// An owner that did not map the connection's arena finds it in the fd stash, or through a process
/// that did map it. That is the sibling that attached, or the peer (`life-of-a-connection §6`).
#[cold]
fn join(s: &Slot, index: u32) -> Option<Ends> {
    let r = record(fork_group::get()?, index)?;
    if !map_found(r, index) {
        return None;
    }
    view(s, &arenas::arena(r, index)?)
}

/// Whether the next program of this process, and siblings to come, can get at the connection's
/// channel.
#[must_use]
pub fn outlasts_exec(s: &Slot) -> bool {
    let Some((i, r)) = record_of(s) else { return true };
    if arenas::own(r, i) {
        return sys::is_private(r.fd.load(Ordering::Relaxed));
    }
    let owner = r.owner.load(Ordering::Relaxed);
    r.in_fd_stash.load(Ordering::Relaxed) != 0
        // Else the process that has it open is asked for it. A process that had to close it says
        // so, except for the peer.
        || r.fd.load(Ordering::Relaxed) >= 0
            && (owner != sys::pid() && living::process(owner)
                || living::process(r.peer_pid.load(Ordering::Relaxed)))
}

/// The bridge, in whatever process, looks at the connection and finds the rules changed.
pub(crate) fn tell_bridge(s: &Slot) {
    if s.has(flag::BRIDGED)
        && let Some(ends) = ends(s)
    {
        ends.wake_reader();
    }
}
