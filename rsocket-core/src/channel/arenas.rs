//! The memory that this process shares with peer processes: arenas, and which of their channels are
//! given away.
//!
//! An [`ArenaRecord`] lives in the fork group's shared memory. So a sibling that did not map an
//! arena itself can find out how to. Where an arena is mapped is each process's own business
//! ([`super::mapping`]). Channels are reused between the same two processes, because faulting in
//! fresh memory costs more than everything else about an attach.
//!
//! Must not know what is in a channel, nor what a connection does with it ([`super::link`]). Entry
//! points: [`claim`] and [`open`], then [`settled`]; [`map_found`].

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::os::fd::{OwnedFd, RawFd};

use super::arenas_lock::{self, ArenasGuard, lock};
use super::identity::Id;
use super::loan::{self, Loan};
use super::mapping::{self, Mapping, mapping};
use super::retired;
use crate::conn::arena_record::{ArenaRecord, MAX_ARENAS, MOST_CHANNELS};
use crate::conn::fork_group::{self, ForkGroup};
use crate::device::shm::arena::{Arena, OpenError, Unused};
use crate::device::shm::waker::{self, Woke, far};
use crate::reason::{Reason, refused};
use crate::stats::{self, Counter};
use crate::sync::living;
use crate::sys;

/// Arenas without a connection that are kept for the next one.
const KEPT: usize = 4;

const FREE: u32 = 0;
const BUSY: u32 = 1;
const READY: u32 = 2;

/// A waker of the peer's that has been found: forgotten when the peer has ended. The way to one for
/// which there is no place stays until another waker needs that ([`waker::try_wake`] keeps so
/// many).
pub(crate) fn note_waker(index: u32, id: u64) {
    let Some(r) = fork_group::get().and_then(|f| record(f, index)) else { return };
    // Relaxed: each word stands for itself; one that is lost is one that is not remembered.
    if r.woken.iter().any(|b| b.load(Ordering::Relaxed) == id) {
        return;
    }
    if let Some(b) = r.woken.iter().find(|b| b.load(Ordering::Relaxed) == 0) {
        b.store(id, Ordering::Relaxed);
    }
}

/// The peer of this arena, which is mapped here, is in the network namespace of that socket. The
/// socket is a private descriptor, by which the peer is woken from now on.
pub(crate) fn note_there(index: u32, socket: RawFd) {
    let held = lock();
    let r = fork_group::get().and_then(|f| record(f, index));
    match (r, mapping(index)) {
        (Some(r), Some(m)) => {
            r.there.store(m.bring(&held, socket).wrapping_add(1), Ordering::Relaxed);
        }
        _ => sys::close_private(socket),
    }
}

/// Whether the process that has the other end of this arena lives, as far as can be known. A
/// process that no number names here is asked by its wakers.
pub(crate) fn peer_lives(r: &ArenaRecord, index: u32) -> bool {
    let pid = r.peer_pid.load(Ordering::Relaxed);
    let there = mapping(index).and_then(Mapping::there).filter(|_| pid == 0);
    there.map_or_else(
        || living::process(pid),
        |there| woken(r).any(|b| far::wake(b, there) == Woke::Yes),
    )
}

fn woken(r: &ArenaRecord) -> impl Iterator<Item = u64> {
    r.woken.iter().map(|b| b.load(Ordering::Relaxed)).filter(|b| *b != 0)
}

#[inline]
pub(crate) fn record(group: &'static ForkGroup, index: u32) -> Option<&'static ArenaRecord> {
    group.arenas.get(index as usize)
}

pub(crate) fn used_records(
    group: &'static ForkGroup,
) -> impl Iterator<Item = &'static ArenaRecord> {
    // Acquire: pairs with the release in adopt.
    group.arenas.iter().take(group.arenas_used.load(Ordering::Acquire) as usize)
}

/// A channel for a new connection.
pub struct Claim {
    /// The arena's record.
    pub record: u32,
    /// The channel's number in it.
    pub channel: u32,
    /// The arena's name.
    pub id: Id,
    /// Its descriptor, private, still ours.
    pub fd: i32,
    /// As long as it may be sent it is not given away.
    _loan: Loan,
}

/// A peer process: what it calls itself, and what the kernel says of it. The name alone is not
/// believed, since other processes have heard it: a process that says it could be let into another
/// one's arena.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Its name.
    pub id: Id,
    /// Its number here; 0 if it has none.
    pub pid: u32,
    /// That of its pidfd's inode, where it is asked for, else 0.
    pub inode: u64,
}

impl Peer {
    fn is_of(&self, r: &ArenaRecord) -> bool {
        r.peer_pid.load(Ordering::Relaxed) == self.pid
            && r.peer_inode.load(Ordering::Relaxed) == self.inode
    }
}

/// Connecting side: a free channel between this process and the peer, wiped.
///
/// # Errors
/// Why there is none.
pub fn claim(peer: &Peer) -> Result<Claim, Reason> {
    let group = fork_group::get().ok_or(Reason::ResourceError)?;
    let held = lock();
    claim_existing(&held, group, peer).map_or_else(|| claim_new(&held, group, peer), Ok)
}

fn claim_existing(held: &ArenasGuard, group: &'static ForkGroup, peer: &Peer) -> Option<Claim> {
    mapping::indices().find_map(|i| {
        let r = record(group, i)?;
        // Without a descriptor it cannot be shown to the peer, which may have forgotten it.
        if !mine(r, i, 0, peer.id)
            || !peer.is_of(r)
            || !mapped(r, i)
            || r.fd.load(Ordering::Relaxed) < 0
        {
            return None;
        }
        let channel = free_channel(r, i)?;
        Some(claimed(held, r, i, channel))
    })
}

/// Whether this process owns the arena: its number in the record is that of a descriptor here.
pub(crate) fn own(r: &ArenaRecord, index: u32) -> bool {
    r.owner.load(Ordering::Relaxed) == sys::pid() && mapping(index).is_some_and(Mapping::is_own)
}

pub(crate) fn mine(r: &ArenaRecord, index: u32, side: u32, peer: Id) -> bool {
    r.state.load(Ordering::Acquire) == READY
        && own(r, index)
        && r.side.load(Ordering::Relaxed) == side
        && load_pair(&r.peer) == peer.0
}

pub(crate) fn mapped(r: &ArenaRecord, index: u32) -> bool {
    arena(r, index).is_some()
}

/// The record's arena, if it is mapped here: as [`Mapping::arena`].
pub(crate) fn arena(r: &ArenaRecord, index: u32) -> Option<Arena> {
    mapping(index)?.arena(r.generation.load(Ordering::Relaxed))
}

/// A channel that was never used, or that both ends have closed.
fn free_channel(r: &ArenaRecord, index: u32) -> Option<u32> {
    let arena = arena(r, index)?;
    (0..r.channels.load(Ordering::Relaxed)).find(|&w| {
        let bit = 1 << (w % 64);
        let Some(word) = r.taken.get(w as usize / 64) else { return false };
        if word.load(Ordering::Relaxed) & bit == 0 {
            return true;
        }
        let ours = r.slot_of.get(w as usize).is_some_and(|s| s.load(Ordering::Acquire) == 0);
        ours && arena.channel(w).is_some_and(|w| {
            // The accepting side reads direction 0 and writes direction 1.
            super::handover_state::receiver_closed(&w.direction(0))
                && super::handover_state::sender_closed(&w.direction(1))
        })
    })
}

fn claimed(held: &ArenasGuard, r: &ArenaRecord, index: u32, channel: u32) -> Claim {
    promise(held, r, channel);
    let bit = 1 << (channel % 64);
    let word = r.taken.get(channel as usize / 64);
    let used = word.is_none_or(|word| word.fetch_or(bit, Ordering::Relaxed) & bit != 0);
    // Memory that was never used is zero, and stays unreal until it is.
    if used && let Some(w) = arena(r, index).and_then(|a| a.channel(channel)) {
        w.wipe();
    }
    let id = Id(load_pair(&r.id));
    Claim { record: index, channel, id, fd: r.fd.load(Ordering::Relaxed), _loan: Loan::new(held) }
}

/// [`sweep`] leaves the arena alone from here on, until [`settled`].
fn promise(_held: &ArenasGuard, r: &ArenaRecord, channel: u32) {
    if let Some(word) = r.promised.get(channel as usize / 64) {
        word.fetch_or(1 << (channel % 64), Ordering::Relaxed);
    }
}

/// The connection that was promised the channel counts among the users of the arena now, or will
/// never have it.
pub(crate) fn settled(r: &ArenaRecord, channel: u32) {
    if let Some(word) = r.promised.get(channel as usize / 64) {
        // Release: pairs with the acquire in Idle::of(); a thread that finds the promise gone finds
        // the user.
        word.fetch_and(!(1 << (channel % 64)), Ordering::Release);
    }
}

fn claim_new(held: &ArenasGuard, group: &'static ForkGroup, peer: &Peer) -> Result<Claim, Reason> {
    sweep(held, group);
    let before = mapping::indices()
        .filter(|&i| record(group, i).is_some_and(|r| mine(r, i, 0, peer.id)))
        .count();
    let channels = match before {
        0 => 16,
        1 => 64,
        _ => MOST_CHANNELS as u32,
    };
    let (arena, fd) = Unused::create(channels).map_err(refused("a new arena"))?;
    stats::add(Counter::ArenasMade, 1);
    let index = adopt(held, group, (arena, fd), 0, peer)?;
    Ok(claimed(held, record(group, index).ok_or(Reason::ResourceError)?, index, 0))
}

/// Enters a mapped arena into a free record.
fn adopt(
    held: &ArenasGuard,
    group: &'static ForkGroup,
    (arena, fd): (Unused, OwnedFd),
    side: u32,
    peer: &Peer,
) -> Result<u32, Reason> {
    let found = take_record(group).or_else(|| {
        free_orphans();
        take_record(group)
    });
    let private = sys::make_private(fd).map_err(refused("the arena's descriptor"));
    let (Some(index), Ok(fd)) = (found, private) else {
        match found.and_then(|i| record(group, i)) {
            Some(r) => r.state.store(FREE, Ordering::Release),
            None => crate::log_info!("all {} arenas are in use", MAX_ARENAS),
        }
        arena.discard();
        return Err(Reason::ResourceError);
    };
    let r = record(group, index).ok_or(Reason::ResourceError)?;
    // Release: pairs with the acquire in used_records; a record is looked at only when it is READY,
    // which it becomes later.
    group.arenas_used.fetch_max(index + 1, Ordering::Release);
    write_record(r, (&arena, fd), side, peer);
    map_here(held, r, index, arena);
    mapping::keep_with_arenas(held, fd);
    set_own(index, true);
    // Release: pairs with the acquire in mine().
    r.state.store(READY, Ordering::Release);
    Ok(index)
}

/// Marks a free record as busy.
fn take_record(group: &'static ForkGroup) -> Option<u32> {
    (0..MAX_ARENAS as u32).find(|&i| {
        record(group, i).is_some_and(|r| {
            r.state.compare_exchange(FREE, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    })
}

/// What a record says of an arena of this process's that no connection uses yet. It is BUSY, so
/// that no other thread looks at it.
fn write_record(r: &ArenaRecord, (arena, fd): (&Unused, RawFd), side: u32, peer: &Peer) {
    r.side.store(side, Ordering::Relaxed);
    r.channels.store(arena.channels(), Ordering::Relaxed);
    store_pair(&r.id, arena.id());
    store_pair(&r.peer, peer.id.0);
    r.owner.store(sys::pid(), Ordering::Relaxed);
    r.fd.store(fd, Ordering::Relaxed);
    r.peer_pid.store(peer.pid, Ordering::Relaxed);
    r.peer_inode.store(peer.inode, Ordering::Relaxed);
    r.live.store(0, Ordering::Relaxed);
    r.in_fd_stash.store(0, Ordering::Relaxed);
    r.there.store(0, Ordering::Relaxed);
    r.promised.iter().chain(&r.taken).for_each(|w| w.store(0, Ordering::Relaxed));
    r.slot_of.iter().for_each(|w| w.store(0, Ordering::Relaxed));
}

fn store_pair(words: &[AtomicU64; 2], [a, b]: [u64; 2]) {
    let [first, second] = words;
    first.store(a, Ordering::Relaxed);
    second.store(b, Ordering::Relaxed);
}

pub(crate) fn load_pair(words: &[AtomicU64; 2]) -> [u64; 2] {
    let [first, second] = words;
    [first.load(Ordering::Relaxed), second.load(Ordering::Relaxed)]
}

pub(crate) fn set_own(index: u32, own: bool) {
    if let Some(m) = mapping(index) {
        m.set_own(own);
    }
}

fn map_here(held: &ArenasGuard, r: &ArenaRecord, index: u32, arena: Unused) {
    mapping::put(held, index, r.generation.load(Ordering::Relaxed), arena.put_to_use());
}

/// Accepting side: the record of the arena that the peer named, mapped now if this is its first
/// channel, and that channel promised.
///
/// # Errors
/// Why the arena is not to be used.
pub fn open(peer: &Peer, id: Id, fd: Option<OwnedFd>, channel: u32) -> Result<u32, Reason> {
    let group = fork_group::get().ok_or(Reason::ResourceError)?;
    let held = lock();
    let known = mapping::indices().find(|&i| {
        record(group, i).is_some_and(|r| {
            mine(r, i, 1, peer.id) && peer.is_of(r) && mapped(r, i) && load_pair(&r.id) == id.0
        })
    });
    let index = match (known, fd) {
        (Some(i), _) => Ok(i),
        (None, None) => Err(Reason::ArenaRefused),
        (None, Some(fd)) => {
            sweep(&held, group);
            match Unused::open(&fd) {
                Ok(arena) if arena.id() == id.0 && arena.channels() as usize <= MOST_CHANNELS => {
                    adopt(&held, group, (arena, fd), 1, peer)
                }
                Ok(arena) => {
                    crate::log_info!("the arena that came is not the one that was announced");
                    arena.discard();
                    Err(Reason::ArenaRefused)
                }
                Err(OpenError::Kernel(e)) => Err(refused("the peer's arena")(e)),
                Err(e) => {
                    crate::log_info!("the arena that came: {:?}", e);
                    Err(Reason::ArenaRefused)
                }
            }
        }
    };
    if let Ok(r) = index.and_then(|i| record(group, i).ok_or(Reason::ResourceError)) {
        promise(&held, r, channel);
    }
    index
}

/// Puts the arena where every sibling finds it. What does not fit is found as long as its owner or
/// the peer lives.
pub(crate) fn keep_for_siblings(r: &ArenaRecord) {
    if r.in_fd_stash.load(Ordering::Relaxed) == 0 {
        free_orphans();
        let there = r.there.load(Ordering::Relaxed).wrapping_sub(1);
        if super::fd_stash::deposit(load_pair(&r.id), r.fd.load(Ordering::Relaxed), there) {
            r.in_fd_stash.store(1, Ordering::Relaxed);
        }
    }
}

/// Before a fork: the arenas of this process that have connections, for siblings to come, which
/// may become other programs and lose their mappings.
pub fn fork_prepare() {
    // Not in a signal handler that interrupted a change of the arenas.
    let Some(_held) = arenas_lock::alone() else { return };
    each_own(|_, r| {
        if r.live.load(Ordering::Relaxed) != 0 {
            keep_for_siblings(r);
        }
    });
}

/// Frees the records of processes that ended without freeing them, once no connection uses the
/// arena.
fn free_orphans() {
    let Some(group) = fork_group::get() else { return };
    fork_group::sweep(group);
    for r in used_records(group) {
        let orphan = r.state.load(Ordering::Acquire) == READY
            && r.live.load(Ordering::Acquire) == 0
            && !living::process(r.owner.load(Ordering::Relaxed));
        if orphan
            && r.state.compare_exchange(READY, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            leave_fd_stash(r);
            r.woken.iter().for_each(|b| b.store(0, Ordering::Relaxed));
            r.generation.fetch_add(1, Ordering::AcqRel);
            r.state.store(FREE, Ordering::Release);
        }
    }
}

fn leave_fd_stash(r: &ArenaRecord) {
    if r.in_fd_stash.swap(0, Ordering::Relaxed) != 0 {
        super::fd_stash::withdraw(load_pair(&r.id));
    }
}

/// Frees arenas that no connection uses: all of them whose peer has ended, and of the others the
/// oldest beyond a few.
pub(crate) fn sweep(held: &ArenasGuard, group: &'static ForkGroup) {
    retired::let_go(held);
    let mut kept = 0;
    for i in mapping::indices() {
        let Some(idle) = record(group, i).and_then(|r| Idle::of(held, r, i)) else { continue };
        let pid = idle.r.peer_pid.load(Ordering::Relaxed);
        let has_no_number = pid == 0 && idle.r.there.load(Ordering::Relaxed) != 0;
        // One that no number names here is not asked each time.
        if kept < KEPT && (has_no_number || lived_lately(held, pid)) {
            kept += 1;
            continue;
        }
        idle.free();
    }
}

/// The process that was last found alive, and when; both under the lock.
static ALIVE: AtomicU32 = AtomicU32::new(0);
static ALIVE_AT: AtomicU64 = AtomicU64::new(0);
/// How long that is believed, in nanoseconds: brief connections do not ask each time.
const LATELY: u64 = 10_000_000;

/// Whether a process lives, or did a moment ago.
fn lived_lately(_held: &ArenasGuard, pid: u32) -> bool {
    let now = sys::now_ns();
    // Relaxed: the lock orders them.
    if ALIVE.load(Ordering::Relaxed) == pid
        && now.saturating_sub(ALIVE_AT.load(Ordering::Relaxed)) < LATELY
    {
        return true;
    }
    let lives = living::process(pid);
    if lives {
        ALIVE.store(pid, Ordering::Relaxed);
        ALIVE_AT.store(now, Ordering::Relaxed);
    }
    lives
}

/// An arena of this process that no connection uses, or is about to. So it stays while the guard
/// lives: users come in place of a promise, and promises with the guard.
struct Idle<'a> {
    r: &'static ArenaRecord,
    index: u32,
    held: &'a ArenasGuard,
}

impl<'a> Idle<'a> {
    fn of(held: &'a ArenasGuard, r: &'static ArenaRecord, index: u32) -> Option<Self> {
        let idle = r.state.load(Ordering::Acquire) == READY
            && own(r, index)
            // Acquire, and first: pairs with the release in settled().
            && r.promised.iter().all(|w| w.load(Ordering::Acquire) == 0)
            && r.live.load(Ordering::Acquire) == 0
            && mapped(r, index);
        idle.then_some(Self { r, index, held })
    }

    fn free(self) {
        let Self { r, index, held } = self;
        if r.state.compare_exchange(READY, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return;
        }
        leave_fd_stash(r);
        close_descriptor(held, r);
        r.woken.iter().for_each(|b| waker::hang_up(b.swap(0, Ordering::Relaxed)));
        if let Some(m) = mapping(index)
            && let Some(arena) = m.take(held)
        {
            m.set_own(false);
            // SAFETY: no connection uses it, or is about to: see the type.
            unsafe { retired::retire(held, arena) };
        }
        r.generation.fetch_add(1, Ordering::AcqRel);
        r.state.store(FREE, Ordering::Release);
    }
}

/// Closes the descriptor, if it is still there; the mapping stays.
pub(crate) fn close_descriptor(_held: &ArenasGuard, r: &ArenaRecord) {
    let fd = r.fd.swap(-1, Ordering::Relaxed);
    if fd >= 0 {
        sys::close_private(fd);
    }
}

/// Maps an arena that another process made or opened; false if it cannot be found.
pub(crate) fn map_found(r: &ArenaRecord, index: u32) -> bool {
    let generation = r.generation.load(Ordering::Acquire);
    let id = load_pair(&r.id);
    let stored = super::fd_stash::find(id);
    // The way to wake a peer that is elsewhere is in the fd stash alone.
    let is_far = r.there.load(Ordering::Relaxed) != 0;
    let found = stored.or_else(|| {
        let of = |pid: &AtomicU32| super::search::arena_of(pid.load(Ordering::Relaxed), id);
        let found = if is_far { None } else { of(&r.owner).or_else(|| of(&r.peer_pid)) };
        found.map(|arena| (arena, None))
    });
    let Some((found, there)) = found else { return false };
    let held = lock();
    let here = mapped(r, index);
    let still = r.generation.load(Ordering::Acquire) == generation;
    if here || !still {
        // Another thread was faster, or the record is another arena's by now.
        found.discard();
        there.into_iter().for_each(sys::discard);
    } else {
        map_here(&held, r, index, found);
        let there = there.and_then(|there| sys::make_private(there).ok());
        if let (Some(there), Some(m)) = (there, mapping(index)) {
            m.bring(&held, there);
        }
    }
    (here || still) && mapping(index).is_some_and(|m| m.there().is_some() == is_far)
}

pub(crate) fn each_own(mut f: impl FnMut(u32, &'static ArenaRecord)) {
    let Some(group) = fork_group::get() else { return };
    for (i, r) in used_records(group).enumerate() {
        if r.state.load(Ordering::Acquire) == READY && own(r, i as u32) {
            f(i as u32, r);
        }
    }
}

/// Calls `f` with the address and length of each arena that is mapped here. One that goes
/// meanwhile, or comes, may be among them or not.
pub fn each_mapping(f: &mut dyn FnMut(usize, usize)) {
    let all = mapping::indices().filter_map(mapping);
    all.filter_map(Mapping::range).for_each(|(at, length)| f(at, length));
}

/// Whether `exec` leaves this process's arenas open, those of other threads' attaches too.
pub fn keep_across_exec(keep: bool) {
    // Under the lock, so that no number is another file's meanwhile.
    let held = lock();
    mapping::exec_begins(&held, keep);
    each_own(|_, r| {
        let there = r.there.load(Ordering::Relaxed).wrapping_sub(1);
        for fd in [r.fd.load(Ordering::Relaxed), there].into_iter().filter(|fd| *fd >= 0) {
            sys::keep_across_exec(fd, keep);
        }
    });
    drop(held);
}

/// After `exec`: maps the arenas that the last program of this process had. An arena that another
/// thread made when `exec` had begun is not open any more, and its number is another file's, or
/// will be. Then it has no owner, and is found as a sibling's is. So is one of another process that
/// had this number.
pub fn inherit() {
    let Some(group) = fork_group::get() else { return };
    let held = lock();
    let left = |r: &&ArenaRecord| {
        r.state.load(Ordering::Acquire) == READY && r.owner.load(Ordering::Relaxed) == sys::pid()
    };
    for (i, r) in used_records(group).enumerate().filter(|(_, r)| left(r)) {
        let fd = r.fd.load(Ordering::Relaxed);
        let there = r.there.load(Ordering::Relaxed).wrapping_sub(1);
        let is_there = there < 0 || far::is_way(sys::borrow(there));
        match Unused::open(sys::borrow(fd)) {
            Ok(arena) if arena.id() == load_pair(&r.id) && is_there => {
                sys::inherit_private(fd);
                map_here(&held, r, i as u32, arena);
                if let Some(m) = mapping(i as u32).filter(|_| there >= 0) {
                    sys::inherit_private(there);
                    m.bring(&held, there);
                }
                set_own(i as u32, true);
            }
            other => {
                r.owner.store(0, Ordering::Relaxed);
                r.fd.store(-1, Ordering::Relaxed);
                if let Ok(arena) = other {
                    arena.discard();
                }
            }
        }
    }
}

/// In the child of a fork.
pub fn fork_child() {
    arenas_lock::forked();
    mapping::exec_begins(&lock(), false);
    loan::forked();
    for i in mapping::indices() {
        set_own(i, false);
    }
}
