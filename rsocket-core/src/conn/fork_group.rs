//! The memory that a process shares with its fork siblings: all slots, and their owners.
//!
//! It is mapped shared when the first TCP socket appears, and inherited from then on. The next
//! program of the process finds it again after `exec` ([`crate::exec_handover`]) by the file behind
//! it, a memfd without a name. Every process of the group has an entry with its pid, and
//! every slot one bit for each of them ([`crate::conn::owners`]). So "which processes still hold
//! this connection" survives deaths that no process announced. All of it may only ever err towards
//! "a process still holds it", which costs a slot, never a byte.

mod entries;
mod fork;
mod here;
mod own_entry;
mod sweep;

use core::num::NonZeroUsize;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::os::fd::{OwnedFd, RawFd};

use once_cell::race::OnceNonZeroUsize;

use crate::config::policy;
use crate::conn::arena_record::{ArenaRecord, GUEST, MAX_ARENAS};
use crate::conn::fds_in_flight;
use crate::conn::guest::{GUESTS, Place};
use crate::conn::machine::Phase;
use crate::conn::owners::{BEYOND, ENTRIES, ON_THE_WAY};
use crate::conn::slot::{Slot, SlotId, flag};
use crate::host::filter;
use crate::sync::lock::OwnedLock;
use crate::sys::{self, files};

use entries::others_alive;
pub use fork::{fork_child, fork_failed, fork_parent, fork_prepare, leave_all, rejoin_all};
use here::held;
pub use here::{add_descriptor, descriptor, held_here};
pub(crate) use here::{another_name, descriptors, moved_to};
use own_entry::me;
pub(crate) use sweep::sweep;

/// Connections that a group can have at one time; further ones are plain TCP.
pub const MAX_SLOTS: usize = 32768;
const _: () = assert!(MAX_SLOTS < GUEST as usize);
/// Value of a process entry that was taken for a child which has not written its pid yet.
const EXPECTED: u32 = u32::MAX;
/// The same of one whose process has ended, while slots may have bits of it.
const ENDED: u32 = u32::MAX - 1;

/// The shared memory.
#[repr(C)]
pub struct ForkGroup {
    /// Free list: slot number in the low half, a counter against reuse in the high half.
    free: AtomicU64,
    /// Slots that were ever used.
    used: AtomicU32,
    /// Held while slots of the dead are taken back.
    sweeping: OwnedLock,
    /// Held by the thread that looks into the fd stash ([`crate::channel::fd_stash`]).
    pub fd_stash: OwnedLock,
    /// Where the next free one of [`Self::processes`] is looked for first.
    next_entry: AtomicU32,
    /// pid of each process entry; 0 is free.
    processes: [AtomicU32; ENTRIES],
    /// Records of [`Self::arenas`] that were ever used. The others are not looked at: a page of
    /// this memory becomes real by the first look.
    pub arenas_used: AtomicU32,
    /// Arenas, for siblings that must join one.
    pub arenas: [ArenaRecord; MAX_ARENAS],
    /// Descriptors on their way to siblings.
    pub fds_in_flight: fds_in_flight::Table,
    /// Places of [`Self::guests`] that were ever used, as of the arenas.
    pub guests_used: AtomicU32,
    /// Connections over RDMA that wait to be accepted.
    pub guests: [Place; GUESTS],
    slots: [Slot; MAX_SLOTS],
}

static FORK_GROUP: OnceNonZeroUsize = OnceNonZeroUsize::new();
/// The private descriptor of the file behind it, once that is settled: before the group is mapped.
static FILE: AtomicI32 = AtomicI32::new(UNSETTLED);
const UNSETTLED: i32 = -1;
/// There is no such file.
const NONE: i32 = -2;
/// This process's entry in `processes`, plus one; 0 before there is one.
static ME: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The entry that the child of this thread's fork takes over, plus one. The child runs on a
    /// copy of the forking thread, so it finds it here.
    static CHILD: core::cell::Cell<u32> = const { core::cell::Cell::new(0) };
}

/// The group's memory, if a TCP socket was ever seen.
#[inline]
pub fn get() -> Option<&'static ForkGroup> {
    let p = FORK_GROUP.get()?.get() as *const ForkGroup;
    // SAFETY: once set, the address is a mapping of size_of::<ForkGroup>() bytes that is never
    // unmapped. It began as zeroes, which is its valid start, and is only reached through atomics
    // and locked cells.
    Some(unsafe { &*p })
}

/// The group's memory, mapped now if need be. `None` when there is no room for it.
pub fn get_or_map() -> Option<&'static ForkGroup> {
    if let Some(f) = get() {
        return Some(f);
    }
    // Two threads may both map, and the first to finish wins; neither waits for the other
    // (`hazards H2`). Both map the same file, so a child that is forked meanwhile has the right
    // one, whichever of the mappings it has.
    let mine = map(settled_file().map(sys::borrow))?;
    if FORK_GROUP.get_or_init(|| mine) != mine {
        let at = core::ptr::with_exposed_provenance_mut(mine.get());
        if let Some(at) = core::ptr::NonNull::new(at) {
            // SAFETY: our own mapping, which no other thread saw.
            unsafe { sys::unlocked::give_back(at, size_of::<ForkGroup>()) };
        }
    }
    get()
}

/// The address and length of the group's memory, if it is mapped.
#[must_use]
pub fn range() -> Option<(usize, usize)> {
    FORK_GROUP.get().map(|at| (at.get(), size_of::<ForkGroup>()))
}

/// The file that all threads map, if there is one.
fn settled_file() -> Option<RawFd> {
    let known = || Some(FILE.load(Ordering::Acquire)).filter(|f| *f != UNSETTLED);
    let file = known().unwrap_or_else(|| {
        let mine = new_file().and_then(|f| sys::make_private(f).ok()).unwrap_or(NONE);
        // Acquire: pairs with the release of the thread that was first.
        match FILE.compare_exchange(UNSETTLED, mine, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => mine,
            Err(first) => {
                if mine >= 0 {
                    sys::close_private(mine);
                }
                first
            }
        }
    });
    (file >= 0).then_some(file)
}

/// An empty file of the right size, in memory. Without one the group is as good, but ends with
/// `exec`.
fn new_file() -> Option<OwnedFd> {
    let deadly = filter::may_be_deadly(policy::seccomp());
    if deadly || !sys::file_may_reach(size_of::<ForkGroup>() as u64) {
        return None;
    }
    files::zeros_in_memory("rsockets-family", size_of::<ForkGroup>() as u64).ok()
}

fn map(file: Option<impl std::os::fd::AsFd>) -> Option<NonZeroUsize> {
    use rustix::mm::MapFlags;
    let file = file.as_ref().map(std::os::fd::AsFd::as_fd);
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    let at = sys::unlocked::map(file, size_of::<ForkGroup>(), flags).ok()?;
    NonZeroUsize::new(at.as_ptr().expose_provenance())
}

/// What the next program of this process needs to find the group again: the file, and this
/// process's entry. `None` if there is no such file, or something has closed it.
pub fn bequest() -> Option<(RawFd, u32)> {
    let file = FILE.load(Ordering::Acquire);
    is_ours(file).then_some(())?;
    Some((file, me(get()?) as u32))
}

/// Whether the descriptor is a group's, of a library like this one.
fn is_ours(file: RawFd) -> bool {
    file >= 0
        && files::status_of(sys::borrow(file))
            .is_ok_and(|s| s.size() == size_of::<ForkGroup>() as u64)
}

/// After `exec`: maps the group that the last program of this process left, and takes its entry
/// over. False if the file is something else, or there is a group already.
pub fn inherit(file: RawFd, entry: u32) -> bool {
    if FORK_GROUP.get().is_some() || !is_ours(file) {
        return false;
    }
    if FILE.compare_exchange(UNSETTLED, file, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return false;
    }
    let Some(group) = get_or_map() else { return false };
    let known = group.processes.get(entry as usize);
    if entry as usize != BEYOND && known.is_none_or(|e| e.load(Ordering::Acquire) != pid()) {
        return false;
    }
    ME.store(entry + 1, Ordering::Relaxed);
    true
}

/// After `exec`: a descriptor that the last program of this process had for the slot. False if it
/// had none.
pub fn inherit_descriptor(id: SlotId, fd: RawFd) -> bool {
    let (Some(group), Some(s)) = (get(), slot(id)) else { return false };
    let mine = me(group);
    let held = s.owners.has(mine);
    if held {
        add_descriptor(id);
        moved_to(id, fd);
    }
    held
}

/// The slot with this number.
#[inline]
#[must_use]
pub fn slot(id: SlotId) -> Option<&'static Slot> {
    get()?.slots.get(id.raw() as usize)
}

use crate::sys::pid;

/// Slots that are used for the first time between two sweeps.
const SWEEP_EVERY: u32 = 1024;

/// Takes a free slot for a new descriptor of this process.
pub fn take(flags: u32, fd: i32) -> Option<SlotId> {
    let group = get_or_map()?;
    let mine = me(group);
    let id = pop_free(group).or_else(|| {
        if group.used.load(Ordering::Relaxed) % SWEEP_EVERY == SWEEP_EVERY - 1 {
            sweep(group);
            if let Some(id) = pop_free(group) {
                return Some(id);
            }
        }
        let next = group.used.fetch_add(1, Ordering::AcqRel) + 1;
        if next as usize >= MAX_SLOTS {
            group.used.fetch_sub(1, Ordering::AcqRel);
            return None;
        }
        SlotId::from_raw(next)
    })?;
    let s = group.slots.get(id.raw() as usize)?;
    s.reset(flags);
    s.owners.clear();
    // Before the bit: a sweep of another thread believes a bit of this process's only with a
    // descriptor beside it.
    let here = held(id)?;
    here.count.store(1, Ordering::SeqCst);
    s.owners.add(mine);
    here.descriptor.store((fd + 1) as u32, Ordering::Relaxed);
    Some(id)
}

fn pop_free(group: &ForkGroup) -> Option<SlotId> {
    loop {
        // Acquire: pairs with the release in give_back, so that next_free is what was pushed.
        let head = group.free.load(Ordering::Acquire);
        let id = SlotId::from_raw(head as u32)?;
        let next = group.slots.get(id.raw() as usize)?.next_free.load(Ordering::Relaxed);
        let new = (head >> 32).wrapping_add(1) << 32 | u64::from(next);
        if group.free.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            return Some(id);
        }
    }
}

/// Returns a slot that no process holds.
pub fn give_back(id: SlotId) {
    let Some(group) = get() else { return };
    let Some(s) = group.slots.get(id.raw() as usize) else { return };
    loop {
        let head = group.free.load(Ordering::Relaxed);
        s.next_free.store(head as u32, Ordering::Relaxed);
        let new = (head >> 32).wrapping_add(1) << 32 | u64::from(id.raw());
        // Release: pairs with the acquire in pop_free.
        if group.free.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            return;
        }
    }
}

/// What is left after a descriptor was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// Other descriptors of this process.
    Here,
    /// Other processes, as far as is known.
    Elsewhere,
    /// No process.
    Nobody,
}

/// Drops one descriptor of this process.
pub fn drop_descriptor(id: SlotId, fd: i32) -> Left {
    let Some(here) = held(id) else { return Left::Here };
    if descriptor(id) == fd {
        here.descriptor.store(0, Ordering::Relaxed);
    }
    // In one step: another thread may be making a duplicate.
    match here.count.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |n| n.checked_sub(1)) {
        Ok(1) => {}
        _ => return Left::Here,
    }
    let (Some(group), Some(s)) = (get(), slot(id)) else { return Left::Here };
    let mine = me(group);
    let held = s.owners.remove(mine);
    // Another thread may have received the descriptor in a message meanwhile (join). Either it sets
    // the bit after this, or it has counted before; beyond the table it adds what it has to.
    if held_here(id) {
        if mine != BEYOND {
            s.owners.add(mine);
        }
        return Left::Here;
    }
    // Several processes may leave at a time, and each may find that no owner is left: the first to
    // say so is the last owner.
    if held && !others_hold(group, id, s) && s.set_first(flag::OVER) {
        s.owners.clear();
        Left::Nobody
    } else {
        Left::Elsewhere
    }
}

/// Whether others hold the slot that this process has just left. Of a listener, which each child of
/// a server closes, the kernel is not asked: a slot that only the dead hold is swept up.
fn others_hold(group: &ForkGroup, id: SlotId, s: &Slot) -> bool {
    if s.phase() == Phase::Unconnected && !s.has(flag::RSOCKET) {
        may_be_shared(id)
    } else {
        others_alive(group, s)
    }
}

/// Whether a process other than this one holds the slot.
#[must_use]
pub fn shared(id: SlotId) -> bool {
    let (Some(group), Some(s)) = (get(), slot(id)) else { return false };
    others_alive(group, s)
}

/// Whether it may be so: dead processes count as well, until a thread asks the kernel. Makes no
/// system call.
#[must_use]
pub fn may_be_shared(id: SlotId) -> bool {
    let (Some(group), Some(s)) = (get(), slot(id)) else { return false };
    let (mine, seen) = (me(group), s.owners.see());
    seen.beyond() > 0 || seen.entries().any(|entry| entry != mine)
}

/// Whether copies of the slot's descriptor are on their way.
fn on_the_way(group: &ForkGroup, s: &Slot) -> bool {
    id_of(group, s).is_some_and(|id| group.fds_in_flight.holds(id))
}

fn id_of(group: &ForkGroup, s: &Slot) -> Option<SlotId> {
    let index =
        core::ptr::from_ref(s).addr().wrapping_sub(group.slots.as_ptr().addr()) / size_of::<Slot>();
    SlotId::from_raw(index as u32)
}

/// Copies of the slot's descriptor are on their way: it is held until they have come, or are
/// forgotten.
pub fn set_on_the_way(s: &Slot) {
    s.owners.add(ON_THE_WAY);
}

/// A descriptor of a sibling's slot has come to this process.
pub fn join(id: SlotId, fd: RawFd) {
    let (Some(group), Some(s)) = (get(), slot(id)) else { return };
    let mine = me(group);
    // In this order: see drop_descriptor().
    if add_descriptor(id) || mine != BEYOND {
        s.owners.add(mine);
    }
    if descriptor(id) < 0 {
        moved_to(id, fd);
    }
}

/// Whether any process holds the slot.
#[must_use]
pub fn is_held(id: SlotId) -> bool {
    held_here(id) || shared(id)
}

/// Calls `f` for every slot of which this process has a descriptor.
pub fn each_local(mut f: impl FnMut(SlotId, &'static Slot)) {
    let Some(group) = get() else { return };
    let used = group.used.load(Ordering::Acquire);
    for raw in 1..=used {
        if let Some(id) = SlotId::from_raw(raw)
            && held_here(id)
            && let Some(s) = slot(id)
        {
            f(id, s);
        }
    }
}

/// Calls `f` for every slot that was ever used in the group; what is in a free one is out of date.
pub fn each_used(mut f: impl FnMut(SlotId, &'static Slot)) {
    let used = get().map_or(0, |f| f.used.load(Ordering::Acquire));
    for raw in 1..=used {
        if let Some(id) = SlotId::from_raw(raw)
            && let Some(s) = slot(id)
        {
            f(id, s);
        }
    }
}
