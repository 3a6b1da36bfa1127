//! The memory between this process and a peer process: arenas, their windows, and which connection has
//! which window.
//!
//! An [`ArenaRecord`] lives in the family's shared memory, so that a relative that did not map an arena
//! itself can find out how to; where an arena is mapped is each process's own business ([`Mapping`]).
//! Windows are reused between the same two processes, because faulting in fresh memory costs more than
//! everything else about an attach.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::os::fd::OwnedFd;

use super::hello::Id;
use super::reason::Reason;
use crate::device::shm::arena::{Arena, Window};
use crate::device::shm::bell;
use crate::device::shm::direction::Direction;
use crate::device::shm::layout;
use crate::proto::{RecvHalf, RecvParams, Region, SendHalf};
use crate::socket::family::{self, Family};
use crate::socket::options::Size;
use crate::socket::slot::{RecvState, SendState, Slot, SlotId, flag};
use crate::socket::{receive, send};
use crate::stats::{self, Counter};
use crate::sync::lock::{OwnedLock, Taken};
use crate::sync::thread::tid;
use crate::sys;
use crate::wire::sge::Sge;

/// Arenas that a family can have at one time.
pub const MAX_ARENAS: usize = 2048;
/// Windows of the largest arena that is made here.
const MOST_WINDOWS: usize = 256;
/// Arenas without a connection that are kept for the next one.
const KEPT: usize = 4;
/// The key of the only memory region that a window has.
const KEY: u32 = 1;

/// How the two banks of a direction's receive buffer are cut up; the same at both ends.
pub const BANKS: [RecvParams; 2] = [
    RecvParams {
        queue: layout::SMALL_CREDITS as u16,
        segments: layout::SEGMENTS as u32,
        large: layout::SMALL as u32,
        small: 0,
    },
    RecvParams {
        queue: layout::LARGE_CREDITS as u16,
        segments: layout::SEGMENTS as u32,
        large: layout::LARGE as u32,
        small: 0,
    },
];

/// Where a bank starts in the receive buffer.
#[inline]
#[must_use]
pub fn bank_start(bank: u32) -> u64 {
    if bank == 0 { 0 } else { layout::LARGE_ZONE as u64 }
}

const FREE: u32 = 0;
const BUSY: u32 = 1;
const READY: u32 = 2;

/// What a family knows about one arena. All zeroes is a free record.
#[repr(C)]
pub struct ArenaRecord {
    state: AtomicU32,
    /// Changes when the record is freed, so that a mapping can be told to be of another arena.
    generation: AtomicU32,
    /// 0: made here, this side connects. 1: made by the peer, this side accepts.
    side: AtomicU32,
    windows: AtomicU32,
    id: [AtomicU64; 2],
    peer: [AtomicU64; 2],
    /// The process that made or opened it, and the number of its descriptor there.
    owner: AtomicU32,
    fd: AtomicI32,
    peer_pid: AtomicU32,
    /// Connections that use it.
    live: AtomicU32,
    /// Nonzero: the vault has a copy of its descriptor.
    in_vault: AtomicU32,
    /// Windows given to connections and not known to be free again (side 0 only).
    taken: [AtomicU64; MOST_WINDOWS / 64],
    slot_of: [AtomicU32; MOST_WINDOWS],
    /// Bells of the peer that were rung last, to be forgotten with it.
    rung: [AtomicU64; RUNG],
}

/// How many of the peer's bells a record remembers.
const RUNG: usize = 8;

/// Where this process has an arena.
struct Mapping {
    /// Address; 0 when not mapped. Stored last, Release.
    base: AtomicUsize,
    windows: AtomicU32,
    generation: AtomicU32,
    id: [AtomicU64; 2],
}

static MAPPINGS: [Mapping; MAX_ARENAS] = [const {
    Mapping {
        base: AtomicUsize::new(0),
        windows: AtomicU32::new(0),
        generation: AtomicU32::new(0),
        id: [const { AtomicU64::new(0) }; 2],
    }
}; MAX_ARENAS];
/// One more than the highest record this process has mapped.
static HIGH: AtomicUsize = AtomicUsize::new(0);
/// Serialises changes to this process's records and mappings. Never held across a sleep.
static LOCK: OwnedLock = OwnedLock::new();
static DISTRUSTED: AtomicBool = AtomicBool::new(false);

/// After an internal inconsistency: this process attaches no more.
pub fn distrust() {
    DISTRUSTED.store(true, Ordering::Relaxed);
}

/// Whether [`distrust`] was called.
pub fn distrusted() -> bool {
    DISTRUSTED.load(Ordering::Relaxed)
}

/// The two directions of a connection's window, as seen from this side.
#[derive(Clone, Copy)]
pub struct Ends {
    window: Window,
    record: u32,
    peer: u32,
    /// Bytes that come in.
    pub incoming: Direction,
    /// Bytes that go out.
    pub outgoing: Direction,
}

impl Ends {
    /// The ready bit of the peer's side, for waking its epoll sets.
    #[inline]
    #[must_use]
    pub fn peer_ready(&self) -> Option<(&AtomicU64, u64)> {
        Some(self.window.ready(self.peer))
    }

    /// Rings the peer's threads that wait for our bytes.
    #[inline]
    pub fn wake_reader(&self) {
        self.outgoing.data_waiters().wake_with(self.peer_ready(), |id| self.ring(id));
    }

    /// Rings the threads of this side that wait for bytes, as the peer does after it has sent some.
    pub fn wake_own_readers(&self) {
        self.incoming.data_waiters().wake(Some(self.window.ready(self.peer ^ 1)));
    }

    /// Rings the peer's threads that wait for room.
    #[inline]
    pub fn wake_writer(&self) {
        self.incoming.room_waiters().wake_with(self.peer_ready(), |id| self.ring(id));
    }

    /// Rings this side's own sleepers, for news that is not in the window.
    #[cold]
    pub(crate) fn wake_own(&self) {
        let ready = Some(self.window.ready(self.peer ^ 1));
        self.incoming.data_waiters().wake_with(ready, |id| self.ring(id));
        self.outgoing.room_waiters().wake_with(ready, |id| self.ring(id));
    }

    #[cold]
    fn ring(&self, id: u64) {
        stats::add(Counter::BellsRung, 1);
        bell::ring(id);
        if let Some(r) = family::get().and_then(|f| record(f, self.record)) {
            note_bell(r, id);
        }
    }
}

fn note_bell(r: &ArenaRecord, id: u64) {
    if r.rung.iter().any(|b| b.load(Ordering::Relaxed) == id) {
        return;
    }
    // The one that is pushed out is found again by its next ring.
    let place = r.rung.iter().find(|b| b.load(Ordering::Relaxed) == 0).or(r.rung.first());
    if let Some(b) = place {
        bell::hang_up(b.swap(id, Ordering::Relaxed));
    }
}

fn record(family: &'static Family, index: u32) -> Option<&'static ArenaRecord> {
    family.arenas.get(index as usize)
}

fn used_records(family: &'static Family) -> impl Iterator<Item = &'static ArenaRecord> {
    // Acquire: pairs with the release in adopt.
    family.arenas.iter().take(family.arenas_used.load(Ordering::Acquire) as usize)
}

fn mapping(index: u32) -> Option<&'static Mapping> {
    MAPPINGS.get(index as usize)
}

/// Whether the connection has a window at all.
#[inline]
#[must_use]
pub fn has_window(s: &Slot) -> bool {
    s.arena.load(Ordering::Relaxed) != 0
}

/// The connection's directions, or `None` when it has no window or this process cannot get at it.
#[inline]
#[must_use]
pub fn ends(s: &Slot) -> Option<Ends> {
    // Acquire: pairs with the release in start(), so that window and side are there.
    let index = s.arena.load(Ordering::Acquire).checked_sub(1)?;
    let r = record(family::get()?, index)?;
    let m = mapping(index)?;
    // Acquire: pairs with the release in map_here().
    let base = m.base.load(Ordering::Acquire);
    if base == 0 || m.generation.load(Ordering::Relaxed) != r.generation.load(Ordering::Relaxed) {
        return join(s, index);
    }
    view(s, m, base)
}

#[inline]
fn view(s: &Slot, m: &Mapping, base: usize) -> Option<Ends> {
    let record = s.arena.load(Ordering::Relaxed).wrapping_sub(1);
    view_of(m, base, record, s.window.load(Ordering::Relaxed), s.side.load(Ordering::Relaxed))
}

#[inline]
fn view_of(m: &Mapping, base: usize, record: u32, window: u32, side: u32) -> Option<Ends> {
    let windows = m.windows.load(Ordering::Relaxed);
    // SAFETY: base and windows were stored together by map_here, and the mapping stays while the record
    // that it belongs to has a live connection, which the caller has or holds (hold).
    let arena = unsafe { Arena::from_parts(base, windows, [0; 2]) }?;
    let window = arena.window(window)?;
    let side = side & 1;
    Some(Ends {
        window,
        record,
        peer: side ^ 1,
        incoming: window.direction(side ^ 1),
        outgoing: window.direction(side),
    })
}

/// The accepting side of a claimed window whose both sides are in this process ([`crate::relay`]). The arena
/// stays until [`let_go`].
pub(crate) fn hold(claim: &Claim) -> Option<Ends> {
    let r = record(family::get()?, claim.record)?;
    let m = mapping(claim.record)?;
    let ends = view_of(m, m.base.load(Ordering::Acquire), claim.record, claim.window, 1)?;
    r.live.fetch_add(1, Ordering::AcqRel);
    Some(ends)
}

/// The accepting side of such a window is done: once the other one is too, it is free again.
pub(crate) fn let_go(ends: &Ends) {
    super::marks::close(ends);
    ends.wake_reader();
    ends.wake_writer();
    if let Some(r) = family::get().and_then(|f| record(f, ends.record)) {
        r.live.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Offset in the receive buffer that an entry names, if its key is right. The device checks the bounds.
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

fn lock() {
    // A signal handler that interrupted the section cannot get here twice: the section makes no call that
    // a handler of the program could run inside of with our lock needed, other than by attaching, and then
    // Own lets it through to records that are marked BUSY.
    let _: Taken = LOCK.lock(tid());
}

/// A window for a new connection.
pub struct Claim {
    /// The arena's record.
    pub record: u32,
    /// The window's number in it.
    pub window: u32,
    /// The arena's name.
    pub id: Id,
    /// Its descriptor, private, still ours.
    pub fd: i32,
}

/// Connecting side: a free window between this process and the peer, wiped.
///
/// # Errors
/// Why there is none.
pub fn claim(peer: Id, peer_pid: u32) -> Result<Claim, Reason> {
    let family = family::get().ok_or(Reason::ResourceError)?;
    lock();
    let claim = claim_existing(family, peer).or_else(|| claim_new(family, peer, peer_pid));
    LOCK.unlock(tid());
    claim.ok_or(Reason::ResourceError)
}

fn claim_existing(family: &'static Family, peer: Id) -> Option<Claim> {
    let high = HIGH.load(Ordering::Relaxed) as u32;
    (0..high).find_map(|i| {
        let r = record(family, i)?;
        if !mine(r, 0, peer) || !mapped(r, i) {
            return None;
        }
        let window = free_window(r, i)?;
        Some(claimed(r, i, window))
    })
}

fn mine(r: &ArenaRecord, side: u32, peer: Id) -> bool {
    r.state.load(Ordering::Acquire) == READY
        && r.owner.load(Ordering::Relaxed) == sys::pid()
        && r.side.load(Ordering::Relaxed) == side
        && load_pair(&r.peer) == peer.0
}

fn mapped(r: &ArenaRecord, index: u32) -> bool {
    mapping(index).is_some_and(|m| {
        m.base.load(Ordering::Acquire) != 0
            && m.generation.load(Ordering::Relaxed) == r.generation.load(Ordering::Relaxed)
    })
}

fn arena(index: u32) -> Option<Arena> {
    let m = mapping(index)?;
    // SAFETY: as in view(); callers hold LOCK, under which nothing is unmapped.
    unsafe { Arena::from_parts(m.base.load(Ordering::Acquire), m.windows.load(Ordering::Relaxed), [0; 2]) }
}

/// A window that was never used, or that both ends have closed.
fn free_window(r: &ArenaRecord, index: u32) -> Option<u32> {
    let arena = arena(index)?;
    (0..r.windows.load(Ordering::Relaxed)).find(|&w| {
        let bit = 1 << (w % 64);
        let Some(word) = r.taken.get(w as usize / 64) else { return false };
        if word.load(Ordering::Relaxed) & bit == 0 {
            return true;
        }
        let ours = r.slot_of.get(w as usize).is_some_and(|s| s.load(Ordering::Acquire) == 0);
        ours && arena.window(w).is_some_and(|w| {
            // The accepting side reads direction 0 and writes direction 1.
            super::marks::receiver_closed(&w.direction(0)) && super::marks::sender_closed(&w.direction(1))
        })
    })
}

fn claimed(r: &ArenaRecord, index: u32, window: u32) -> Claim {
    let bit = 1 << (window % 64);
    let word = r.taken.get(window as usize / 64);
    let used = word.is_none_or(|word| word.fetch_or(bit, Ordering::Relaxed) & bit != 0);
    // Memory that was never used is zero, and stays unreal until it is.
    if used && let Some(w) = arena(index).and_then(|a| a.window(window)) {
        w.wipe();
    }
    let id = Id(load_pair(&r.id));
    Claim { record: index, window, id, fd: r.fd.load(Ordering::Relaxed) }
}

fn claim_new(family: &'static Family, peer: Id, peer_pid: u32) -> Option<Claim> {
    sweep(family);
    let high = HIGH.load(Ordering::Relaxed) as u32;
    let before = (0..high).filter(|&i| record(family, i).is_some_and(|r| mine(r, 0, peer))).count();
    let windows = match before {
        0 => 16,
        1 => 64,
        _ => MOST_WINDOWS as u32,
    };
    let (arena, fd) = Arena::create(windows).ok()?;
    stats::add(Counter::ArenasMade, 1);
    let index = adopt(family, arena, fd, 0, peer, peer_pid)?;
    Some(claimed(record(family, index)?, index, 0))
}

/// Enters a mapped arena into a free record. The caller holds the lock.
fn adopt(
    family: &'static Family,
    arena: Arena,
    fd: OwnedFd,
    side: u32,
    peer: Id,
    peer_pid: u32,
) -> Option<u32> {
    let free = || {
        (0..MAX_ARENAS as u32).find(|&i| {
            record(family, i).is_some_and(|r| {
                r.state.compare_exchange(FREE, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            })
        })
    };
    let found = free().or_else(|| {
        free_orphans();
        free()
    });
    let private = sys::make_private(fd);
    let (Some(index), Ok(fd)) = (found, private) else {
        if let Some(r) = found.and_then(|i| record(family, i)) {
            r.state.store(FREE, Ordering::Release);
        }
        // SAFETY: no handle on it has left this function.
        unsafe { arena.unmap() };
        return None;
    };
    let r = record(family, index)?;
    // Release: pairs with the acquire in used_records; a record is looked at only when it is READY, which it becomes later.
    family.arenas_used.fetch_max(index + 1, Ordering::Release);
    let (base, windows, id) = arena.into_parts();
    r.side.store(side, Ordering::Relaxed);
    r.windows.store(windows, Ordering::Relaxed);
    store_pair(&r.id, id);
    store_pair(&r.peer, peer.0);
    r.owner.store(sys::pid(), Ordering::Relaxed);
    r.fd.store(fd, Ordering::Relaxed);
    r.peer_pid.store(peer_pid, Ordering::Relaxed);
    r.live.store(0, Ordering::Relaxed);
    r.in_vault.store(0, Ordering::Relaxed);
    r.taken.iter().for_each(|w| w.store(0, Ordering::Relaxed));
    r.slot_of.iter().for_each(|w| w.store(0, Ordering::Relaxed));
    map_here(r, index, base, windows, id);
    // Release: pairs with the acquire in mine().
    r.state.store(READY, Ordering::Release);
    Some(index)
}

fn store_pair(words: &[AtomicU64; 2], [a, b]: [u64; 2]) {
    let [first, second] = words;
    first.store(a, Ordering::Relaxed);
    second.store(b, Ordering::Relaxed);
}

fn load_pair(words: &[AtomicU64; 2]) -> [u64; 2] {
    let [first, second] = words;
    [first.load(Ordering::Relaxed), second.load(Ordering::Relaxed)]
}

fn map_here(r: &ArenaRecord, index: u32, base: usize, windows: u32, id: [u64; 2]) {
    let Some(m) = mapping(index) else { return };
    let stale = m.base.swap(0, Ordering::AcqRel);
    if stale != 0 {
        let id = load_pair(&m.id);
        // SAFETY: the record was freed since, which happens only when no connection uses the arena.
        if let Some(old) = unsafe { Arena::from_parts(stale, m.windows.load(Ordering::Relaxed), id) } {
            // SAFETY: as above.
            unsafe { old.unmap() };
        }
    }
    m.windows.store(windows, Ordering::Relaxed);
    m.generation.store(r.generation.load(Ordering::Relaxed), Ordering::Relaxed);
    store_pair(&m.id, id);
    m.base.store(base, Ordering::Release);
    HIGH.fetch_max(index as usize + 1, Ordering::AcqRel);
}

/// Accepting side: the record of the arena that the peer named, mapped now if this is its first window.
///
/// # Errors
/// Why the arena is not to be used.
pub fn open(peer: Id, peer_pid: u32, id: Id, fd: Option<OwnedFd>) -> Result<u32, Reason> {
    let family = family::get().ok_or(Reason::ResourceError)?;
    lock();
    let known = (0..HIGH.load(Ordering::Relaxed) as u32).find(|&i| {
        record(family, i).is_some_and(|r| mine(r, 1, peer) && mapped(r, i) && load_pair(&r.id) == id.0)
    });
    let index = match (known, fd) {
        (Some(i), _) => Ok(i),
        (None, None) => Err(Reason::ArenaRefused),
        (None, Some(fd)) => {
            sweep(family);
            match Arena::open(&fd) {
                Ok(arena) if arena.id() == id.0 && arena.windows() as usize <= MOST_WINDOWS => {
                    adopt(family, arena, fd, 1, peer, peer_pid).ok_or(Reason::ResourceError)
                }
                Ok(arena) => {
                    // SAFETY: no handle on it exists.
                    unsafe { arena.unmap() };
                    Err(Reason::ArenaRefused)
                }
                Err(_) => Err(Reason::ArenaRefused),
            }
        }
    };
    LOCK.unlock(tid());
    index
}

/// Both protocol states of an end of a window that nobody has used yet.
///
/// # Errors
/// [`Reason::Inconsistent`], never with the banks as they are.
pub(crate) fn fresh() -> Result<(RecvState, SendState), Reason> {
    let [small, large] = &BANKS;
    let halves = [RecvHalf::new(small), RecvHalf::new(large)];
    let sender = |bank: usize, p: &RecvParams, half: &RecvHalf| {
        SendHalf::new(p.queue, entry(bank, half.first()), p.segments).map_err(|_| Reason::Inconsistent)
    };
    let [first, second] = &halves;
    let senders = [sender(0, small, first)?, sender(1, large, second)?];
    let recv = RecvState {
        banks: halves,
        data_position: 0,
        control_position: 0,
        current: 0,
        ended: 0,
        owed: 0,
        _pad: 0,
    };
    Ok((recv, SendState { banks: senders, data_position: 0, control_position: 0 }))
}

/// Gives the connection its window and both protocol states. The caller holds the pairing lock.
///
/// The arena knows its user before the connection has the window: a caller that is killed in between leaves an arena
/// that nobody takes back, never one that is taken back in use.
///
/// # Errors
/// When the window does not exist or is somebody's.
pub fn start(id: SlotId, s: &Slot, index: u32, window: u32, side: u32) -> Result<(), Reason> {
    let r = family::get().and_then(|f| record(f, index)).ok_or(Reason::ResourceError)?;
    let free = r.slot_of.get(window as usize).is_some_and(|w| w.load(Ordering::Acquire) == 0);
    if window >= r.windows.load(Ordering::Relaxed) || !free {
        return Err(Reason::ArenaRefused);
    }
    let (recv, send) = fresh()?;
    s.window.store(window, Ordering::Relaxed);
    s.side.store(side, Ordering::Relaxed);
    // SAFETY: the connection has no window yet, so that nobody else looks at its states.
    unsafe {
        s.receive.stage(recv);
        s.send.stage(send);
    }
    s.receive.flip();
    s.send.flip();
    s.unread_hint.store(0, Ordering::Relaxed);
    s.room_hint.store(send::hint_word(&send), Ordering::Relaxed);
    if !mapped(r, index) && !map_found(r, index) {
        return Err(Reason::ArenaRefused);
    }
    let m = mapping(index).ok_or(Reason::ResourceError)?;
    let ends = view(s, m, m.base.load(Ordering::Acquire)).ok_or(Reason::ArenaRefused)?;
    s.placement.reset();
    ends.outgoing.offer(s.sizes.get(Size::Iomap));
    // wire-protocol §5.6: the buffers after the first are announced at once.
    receive::give_back(s, &ends);
    r.live.fetch_add(1, Ordering::AcqRel);
    if let Some(w) = r.slot_of.get(window as usize) {
        // Release: pairs with the acquire in collect_ready.
        w.store(id.raw(), Ordering::Release);
    }
    // Relatives may outlive this process, and its peer.
    if family::shared(id) {
        keep_for_relatives(r);
    }
    s.arena.store(index + 1, Ordering::Release);
    Ok(())
}

/// The connection may come to relatives that did not have it so far.
pub fn share(s: &Slot) {
    if let Some(r) = record_of(s)
        && r.owner.load(Ordering::Relaxed) == sys::pid()
    {
        keep_for_relatives(r);
    }
}

/// Puts the arena where every relative finds it. What does not fit is found as long as its owner or the peer lives.
fn keep_for_relatives(r: &ArenaRecord) {
    if r.in_vault.load(Ordering::Relaxed) == 0 {
        free_orphans();
        if super::vault::deposit(load_pair(&r.id), r.fd.load(Ordering::Relaxed)) {
            r.in_vault.store(1, Ordering::Relaxed);
        }
    }
}

/// Before a fork: the arenas of this process that have connections, for relatives to come, which may become other
/// programs and lose their mappings.
pub fn fork_prepare() {
    if matches!(LOCK.lock(tid()), Taken::Own) {
        // A signal handler that interrupted a change of the arenas.
        return;
    }
    each_own(|_, r| {
        if r.live.load(Ordering::Relaxed) != 0 {
            keep_for_relatives(r);
        }
    });
    LOCK.unlock(tid());
}

/// Frees the records of processes that ended without freeing them, once no connection uses the arena.
fn free_orphans() {
    let Some(family) = family::get() else { return };
    family::sweep(family);
    for r in used_records(family) {
        let orphan = r.state.load(Ordering::Acquire) == READY
            && r.live.load(Ordering::Acquire) == 0
            && !family::process_alive(r.owner.load(Ordering::Relaxed));
        if orphan && r.state.compare_exchange(READY, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            leave_vault(r);
            r.rung.iter().for_each(|b| b.store(0, Ordering::Relaxed));
            r.generation.fetch_add(1, Ordering::AcqRel);
            r.state.store(FREE, Ordering::Release);
        }
    }
}

fn leave_vault(r: &ArenaRecord) {
    if r.in_vault.swap(0, Ordering::Relaxed) != 0 {
        super::vault::withdraw(load_pair(&r.id));
    }
}

fn record_of(s: &Slot) -> Option<&'static ArenaRecord> {
    record(family::get()?, s.arena.load(Ordering::Acquire).checked_sub(1)?)
}

/// Connecting side: the welcome could not be sent. Nobody else knows of the window, which is as if never used.
pub fn abandon(s: &Slot) {
    if let Some(r) = record_of(s) {
        let w = s.window.load(Ordering::Relaxed);
        if let Some(ends) = ends(s) {
            ends.window.wipe();
        }
        if let Some(word) = r.taken.get(w as usize / 64) {
            word.fetch_and(!(1 << (w % 64)), Ordering::Relaxed);
        }
        leave(r, w);
    }
    s.arena.store(0, Ordering::Release);
}

/// The window has no user any more.
fn leave(r: &ArenaRecord, window: u32) {
    if let Some(w) = r.slot_of.get(window as usize) {
        w.store(0, Ordering::Release);
    }
    r.live.fetch_sub(1, Ordering::AcqRel);
}

/// The connection is done with its window.
pub fn release(s: &Slot) {
    if let Some(ends) = ends(s) {
        super::marks::close(&ends);
        ends.wake_reader();
        ends.wake_writer();
    }
    forget(s);
    if let Some(family) = family::get() {
        lock();
        sweep(family);
        LOCK.unlock(tid());
    }
}

/// Takes the connection out of its record without touching the window: for relatives of the dead.
pub fn forget(s: &Slot) {
    if let Some(r) = record_of(s) {
        leave(r, s.window.load(Ordering::Relaxed));
    }
    s.arena.store(0, Ordering::Release);
    s.set(flag::WINDOW_DONE);
}

/// Frees arenas that no connection uses: all of them whose peer has ended, and of the others the oldest
/// beyond a few. The caller holds the lock.
fn sweep(family: &'static Family) {
    let mut kept = 0;
    for i in 0..HIGH.load(Ordering::Relaxed) as u32 {
        let Some(r) = record(family, i) else { continue };
        let idle = r.state.load(Ordering::Acquire) == READY
            && r.owner.load(Ordering::Relaxed) == sys::pid()
            && r.live.load(Ordering::Acquire) == 0;
        if !idle || !mapped(r, i) {
            continue;
        }
        if kept < KEPT && family::process_alive(r.peer_pid.load(Ordering::Relaxed)) {
            kept += 1;
            continue;
        }
        drop_record(r, i);
    }
}

fn drop_record(r: &ArenaRecord, index: u32) {
    if r.state.compare_exchange(READY, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return;
    }
    leave_vault(r);
    sys::close_private(r.fd.load(Ordering::Relaxed));
    r.rung.iter().for_each(|b| bell::hang_up(b.swap(0, Ordering::Relaxed)));
    if let (Some(arena), Some(m)) = (arena(index), mapping(index)) {
        m.base.store(0, Ordering::Release);
        // SAFETY: no connection uses it (live is 0, and only the owner, who we are, adds one).
        unsafe { arena.unmap() };
    }
    r.generation.fetch_add(1, Ordering::AcqRel);
    r.state.store(FREE, Ordering::Release);
}

/// A holder that did not map the connection's arena finds it through whoever did: the relative that
/// attached, or, if that one has ended, the vault or the peer (`life-of-a-connection §6`).
#[cold]
fn join(s: &Slot, index: u32) -> Option<Ends> {
    let r = record(family::get()?, index)?;
    if !map_found(r, index) {
        return None;
    }
    let m = mapping(index)?;
    view(s, m, m.base.load(Ordering::Acquire))
}

fn map_found(r: &ArenaRecord, index: u32) -> bool {
    let id = load_pair(&r.id);
    let found = super::vault::find(id)
        .or_else(|| super::search::arena_of(r.owner.load(Ordering::Relaxed), id))
        .or_else(|| super::search::arena_of(r.peer_pid.load(Ordering::Relaxed), id));
    let Some(found) = found else { return false };
    lock();
    if mapped(r, index) {
        // SAFETY: as above: another thread was faster.
        unsafe { found.unmap() };
    } else {
        let (base, windows, id) = found.into_parts();
        map_here(r, index, base, windows, id);
    }
    LOCK.unlock(tid());
    true
}

/// Takes the ready bits that peers set for connections which this process holds.
pub fn collect_ready(f: &mut dyn FnMut(SlotId)) {
    let Some(family) = family::get() else { return };
    for i in 0..HIGH.load(Ordering::Acquire) as u32 {
        let (Some(r), Some(m)) = (record(family, i), mapping(i)) else { continue };
        if m.base.load(Ordering::Acquire) == 0 || r.live.load(Ordering::Relaxed) == 0 || !mapped(r, i) {
            continue;
        }
        let Some(arena) = arena(i) else { continue };
        let side = r.side.load(Ordering::Relaxed);
        let words = (m.windows.load(Ordering::Relaxed) as usize).div_ceil(64);
        for (n, word) in arena.ready(side).iter().enumerate().take(words) {
            take_bits(r, n, word, f);
        }
    }
}

/// Takes the ready bits of the far sides that are in this process too ([`hold`]): record and window of each.
pub(crate) fn collect_far(f: &mut dyn FnMut(u32, u32)) {
    let Some(family) = family::get() else { return };
    let own = super::hello::process_id().map_or([0; 2], |id| id.0);
    for i in 0..HIGH.load(Ordering::Acquire) as u32 {
        let Some(r) = record(family, i) else { continue };
        if !mine(r, 0, Id(own)) || !mapped(r, i) {
            continue;
        }
        let Some(arena) = arena(i) else { continue };
        for (n, word) in arena.ready(1).iter().enumerate() {
            // Acquire: pairs with the release in Sleepers::wake.
            let mut bits = word.swap(0, Ordering::Acquire);
            while bits != 0 {
                f(i, n as u32 * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }
}

fn take_bits(r: &ArenaRecord, n: usize, word: &AtomicU64, f: &mut dyn FnMut(SlotId)) {
    // Relaxed first look: the bit that a bell announced is visible after the bell was drained.
    let mut bits = word.load(Ordering::Relaxed);
    while bits != 0 {
        let bit = bits & bits.wrapping_neg();
        bits &= bits - 1;
        let window = n * 64 + bit.trailing_zeros() as usize;
        let slot = r.slot_of.get(window).map_or(0, |w| w.load(Ordering::Acquire));
        let Some(id) = SlotId::from_raw(slot) else { continue };
        // A relative's connection keeps its bit: the relative looks too.
        if !family::held_here(id) {
            continue;
        }
        // Acquire: pairs with the release in Sleepers::wake.
        if word.fetch_and(!bit, Ordering::Acquire) & bit != 0 {
            f(id);
        }
    }
}

/// Whether the next program of this process, and relatives to come, can get at the connection's window.
#[must_use]
pub fn outlasts_exec(s: &Slot) -> bool {
    let Some(r) = record_of(s) else { return true };
    let owner = r.owner.load(Ordering::Relaxed);
    if owner == sys::pid() {
        return sys::is_private(r.fd.load(Ordering::Relaxed));
    }
    r.in_vault.load(Ordering::Relaxed) != 0
        || family::process_alive(owner)
        || family::process_alive(r.peer_pid.load(Ordering::Relaxed))
}

fn each_own(f: impl Fn(u32, &'static ArenaRecord)) {
    let Some(family) = family::get() else { return };
    for (i, r) in used_records(family).enumerate() {
        if r.state.load(Ordering::Acquire) == READY && r.owner.load(Ordering::Relaxed) == sys::pid() {
            f(i as u32, r);
        }
    }
}

/// Whether `exec` leaves this process's arenas open.
pub fn keep_across_exec(keep: bool) {
    each_own(|_, r| sys::keep_across_exec(r.fd.load(Ordering::Relaxed), keep));
}

/// After `exec`: maps the arenas that the last program of this process had.
pub fn inherit() {
    each_own(|i, r| {
        let fd = r.fd.load(Ordering::Relaxed);
        let Ok(arena) = Arena::open(sys::borrow(fd)) else { return };
        if arena.id() == load_pair(&r.id) {
            sys::inherit_private(fd);
            let (base, windows, id) = arena.into_parts();
            map_here(r, i, base, windows, id);
        } else {
            // SAFETY: no handle on it exists.
            unsafe { arena.unmap() };
        }
    });
}

/// In the child of a fork.
pub fn fork_child() {
    LOCK.reset();
}
