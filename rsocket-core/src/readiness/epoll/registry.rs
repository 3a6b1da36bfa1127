//! Which sets exist, which descriptors stand for them, and which of them a socket is in. It must
//! not know what a member reports.
//!
//! Sets are reused and never freed. So a thread which still sleeps on a closed one finds valid
//! memory (and sees by its `life` that it is another's). Tables are by number, in memory that costs
//! nothing until it is touched; look-ups take no lock.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::os::fd::RawFd;

use super::kernel;
use super::lock::Guarded;
use super::set::{Entry, State};
use crate::given::epoll::Wait;
use crate::readiness::source::{Events, SlotId, Source};
use crate::sync::published::Published;
use crate::sys::{self, MAX_FDS};

/// The most sets at a time; further ones are the kernel's alone.
const MAX_SETS: usize = 1 << 16;
/// In a home table: in more than one set, ask all.
const MANY: u32 = u32::MAX;
/// Put-off calls that are remembered one by one.
const LATER: usize = 16;

/// One epoll object's mirror.
pub(crate) struct Set<S: Source> {
    pub(crate) id: u32,
    pub(crate) state: Guarded<State<S>>,
    /// A member is or was special, or may be so unnoticed (`dormant`). Set under the lock; read
    /// without it.
    pub(crate) special: AtomicBool,
    /// Threads in (or about to enter) the kernel on it. One that was cancelled there stays counted,
    /// which costs rings.
    pub(crate) sleepers: AtomicU32,
    /// There are sets in it. Relaxed: the thread that waits has put them in, or was told by the
    /// thread that did.
    pub(crate) nests: AtomicBool,
    /// A member was added since a wait was last seen. Relaxed: a member's next wait tells of it.
    pub(super) unwaited: AtomicBool,
    /// Where memory was found for the events of a wait, last. Relaxed: the word is all that is
    /// said.
    room: AtomicUsize,
    /// Copied by a fork and not used here since ([`super::fork`]).
    pub(crate) dormant: AtomicBool,
    /// Members may be a sibling's as well, and when they were last looked at
    /// ([`super::siblings`]), in nanoseconds.
    pub(super) related: AtomicBool,
    pub(super) looked_at: AtomicU64,
    pub(super) later: [AtomicU64; LATER],
    pub(super) any_later: AtomicBool,
    pub(super) fork_held: AtomicBool,
    /// While the set is free: as [`Lists::free`].
    next_free: AtomicU32,
}

impl<S: Source> Set<S> {
    /// Whether memory is there for what a wait finds: asked once, while it is the same place.
    #[inline]
    pub(super) fn has_room(&self, wait: &Wait<'_>) -> bool {
        let at = wait.events().as_ptr().addr();
        if at != 0 && self.room.load(Ordering::Relaxed) == at {
            return true;
        }
        let there = wait.has_room();
        if there {
            self.room.store(at, Ordering::Relaxed);
        }
        there
    }
}

pub(super) struct Lists {
    count: u32,
    /// One more than the id of the first that is free; the others follow by [`Set::next_free`].
    /// (All zeroes, as all of an empty registry is: otherwise it would lie in the library's file,
    /// not in memory that costs nothing.)
    free: u32,
}

/// What is known of a descriptor's number. Zeroes: nothing.
struct Number<S: Source> {
    /// The set that it names.
    set: Published<Set<S>>,
    /// The set that it is a member of.
    home: AtomicU32,
}

/// All sets of a process (or of a test). The fields stand in this order, and what belongs together
/// is in one table. So a child of a server that makes a set of its own writes to few pages.
#[repr(C)]
pub struct Registry<S: Source> {
    /// What the sets ask about sockets.
    pub source: S,
    pub(super) lists: Guarded<Lists>,
    /// When all ready bits were last looked at, in ticks, where they are many. Relaxed: a hint.
    collected: AtomicU64,
    by_id: [Published<Set<S>>; MAX_SETS],
    by_fd: [Number<S>; MAX_FDS],
    pub(super) home_of_slot: [AtomicU32; MAX_FDS],
}

fn note(home: Option<&AtomicU32>, id: u32) {
    if let Some(home) = home {
        // SeqCst: the note comes before the caller's look at `on_device`, in the one order of all
        // such operations. `mode_changed` has the two the other way round. One of them sees the
        // other.
        let _ = home.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |h| {
            Some(if h == 0 || h == id + 1 { id + 1 } else { MANY })
        });
    }
}

fn unnote(home: Option<&AtomicU32>, id: u32) {
    if let Some(home) = home {
        // A table entry that says MANY stays: a hint may only ever be too wide.
        let _ = home.compare_exchange(id + 1, 0, Ordering::SeqCst, Ordering::SeqCst);
    }
}

impl<S: Source> Registry<S> {
    /// No sets.
    pub const fn new(source: S) -> Self {
        Self {
            source,
            lists: Guarded::new(Lists { count: 0, free: 0 }),
            collected: AtomicU64::new(0),
            by_id: [const { Published::new() }; MAX_SETS],
            by_fd: [const { Number { set: Published::new(), home: AtomicU32::new(0) } }; MAX_FDS],
            home_of_slot: [const { AtomicU32::new(0) }; MAX_FDS],
        }
    }

    fn place(&self, epfd: RawFd) -> Option<&Published<Set<S>>> {
        usize::try_from(epfd).ok().and_then(|i| self.by_fd.get(i)).map(|number| &number.set)
    }

    /// The mirror behind a descriptor.
    #[inline]
    pub(crate) fn get(&'static self, epfd: RawFd) -> Option<&'static Set<S>> {
        self.place(epfd)?.get()
    }

    /// See [`super::is_set`].
    #[inline]
    pub fn is_set(&self, epfd: RawFd) -> bool {
        self.place(epfd).is_some_and(Published::is_there)
    }

    /// Whether the kernel alone answers for this number: it is no set, or one without a member that
    /// ever was on device. A wait on it may still go through [`super::wait`], which copes with a
    /// member that changes meanwhile.
    #[inline]
    pub fn is_plain(&'static self, epfd: RawFd) -> bool {
        self.get(epfd).is_none_or(|set| !set.special.load(Ordering::Relaxed))
    }

    /// See [`super::polled`].
    pub fn polled(&'static self, epfd: RawFd) -> bool {
        let Some(set) = self.get(epfd) else { return false };
        self.saw_wait(set);
        // Relaxed, here and below: `special` is set under the lock, so a thread that sets it later
        // finds the set watched.
        if !set.special.load(Ordering::Relaxed) {
            self.enter(set, |state| state.watched = true);
        }
        set.special.load(Ordering::Relaxed)
    }

    /// See [`super::sleepers`].
    pub fn sleepers(&'static self, epfd: RawFd) -> u32 {
        self.get(epfd).map_or(0, |set| set.sleepers.load(Ordering::Relaxed))
    }

    /// See [`super::created`].
    pub fn created(&'static self, epfd: RawFd) {
        // The number may have been closed where no hook saw it.
        self.closed(epfd);
        // At once, not with the first tracked socket: a thread that sleeps on it by then must have
        // been counted.
        let _ = self.make(epfd);
    }

    /// The mirror of a set, made if there is none. `None` when there are too many, or from inside.
    pub(crate) fn make(&'static self, epfd: RawFd) -> Option<&'static Set<S>> {
        if let Some(set) = self.get(epfd) {
            return Some(set);
        }
        let place = self.place(epfd)?;
        self.lists.with(|lists| {
            if let Some(set) = self.get(epfd) {
                return Some(set);
            }
            let set = self.new_set(lists)?;
            set.state.with(|state| state.begin(epfd));
            place.publish(set);
            Some(set)
        })?
    }

    fn new_set(&'static self, lists: &mut Lists) -> Option<&'static Set<S>> {
        if let Some(set) = lists.free.checked_sub(1).and_then(|id| self.of_id(id)) {
            // Relaxed, here and where it is stored: under the lists' lock.
            lists.free = set.next_free.load(Ordering::Relaxed);
            return Some(set);
        }
        let place = self.by_id.get(lists.count as usize)?;
        let set: &'static Set<S> = Box::leak(Box::new(Set {
            id: lists.count,
            state: Guarded::new(State::new()),
            special: AtomicBool::new(false),
            unwaited: AtomicBool::new(false),
            room: AtomicUsize::new(0),
            sleepers: AtomicU32::new(0),
            nests: AtomicBool::new(false),
            dormant: AtomicBool::new(false),
            related: AtomicBool::new(false),
            looked_at: AtomicU64::new(0),
            later: [const { AtomicU64::new(0) }; LATER],
            any_later: AtomicBool::new(false),
            fork_held: AtomicBool::new(false),
            next_free: AtomicU32::new(0),
        }));
        place.publish(set);
        lists.count += 1;
        Some(set)
    }

    fn of_id(&'static self, id: u32) -> Option<&'static Set<S>> {
        self.by_id.get(id as usize)?.get()
    }

    pub(super) fn all(&'static self) -> impl Iterator<Item = &'static Set<S>> {
        (0..MAX_SETS as u32).map_while(|id| self.of_id(id))
    }

    /// See [`super::duplicated`].
    pub fn duplicated(&'static self, old: RawFd, new: RawFd) {
        if !self.is_set(old) || old == new {
            return;
        }
        self.closed(new);
        if let (Some(set), Some(place)) = (self.get(old), self.place(new)) {
            set.state.with(|state| state.fds.push(new));
            place.publish(set);
        }
    }

    /// See [`super::closed`].
    pub fn closed(&'static self, epfd: RawFd) {
        if !self.is_set(epfd) {
            return;
        }
        let set = self.get(epfd);
        if let Some(place) = self.place(epfd) {
            place.withdraw();
        }
        let Some(set) = set else { return };
        let last = self.enter(set, |state| {
            state.fds.retain(|fd| *fd != epfd);
            state.fds.is_empty() && self.retire(set, state)
        });
        if last == Some(true) {
            self.lists.with(|lists| {
                set.next_free.store(lists.free, Ordering::Relaxed);
                lists.free = set.id + 1;
            });
        }
    }

    fn retire(&'static self, set: &'static Set<S>, state: &mut State<S>) -> bool {
        for index in 0..state.members.len() as u32 {
            if let Some(member) = state.get(index) {
                let (fd, slot) = (member.fd, member.slot);
                state.drop_member(&self.source, index);
                self.left(set, state, fd, slot);
            }
        }
        if let Some(waker) = state.waker {
            self.source.give_back_set_waker(waker);
        }
        let life = state.life.wrapping_add(1);
        *state = State::new();
        state.life = life;
        set.special.store(false, Ordering::Relaxed);
        set.nests.store(false, Ordering::Relaxed);
        set.dormant.store(false, Ordering::Relaxed);
        set.related.store(false, Ordering::Relaxed);
        true
    }

    /// A member came: notes where it lives, for callers that know only the socket. Before a look at
    /// the socket's mode.
    pub(crate) fn joined(&self, set: &Set<S>, fd: RawFd, slot: SlotId) {
        note(self.home_of_fd(fd), set.id);
        note(self.home_of_slot.get(slot.raw() as usize), set.id);
        fence(Ordering::SeqCst);
    }

    /// A member has left the set.
    pub(crate) fn left(&self, set: &Set<S>, state: &State<S>, fd: RawFd, slot: SlotId) {
        unnote(self.home_of_fd(fd), set.id);
        if state.first_of(slot).is_none() {
            unnote(self.home_of_slot.get(slot.raw() as usize), set.id);
        }
    }

    #[inline]
    pub(super) fn home_of_fd(&self, fd: RawFd) -> Option<&AtomicU32> {
        usize::try_from(fd).ok().and_then(|i| self.by_fd.get(i)).map(|number| &number.home)
    }

    /// Whether the descriptor number is noted in any set.
    #[inline]
    pub(crate) fn housed(&self, fd: RawFd) -> bool {
        self.home_of_fd(fd).is_some_and(|h| h.load(Ordering::Relaxed) != 0)
    }

    pub(super) fn homes(
        &'static self,
        home: Option<&AtomicU32>,
        mut f: impl FnMut(&'static Set<S>),
    ) {
        match home.map_or(0, |h| h.load(Ordering::SeqCst)) {
            0 => {}
            MANY => self.all().for_each(f),
            id => {
                if let Some(set) = self.of_id(id - 1) {
                    f(set);
                }
            }
        }
    }

    /// Runs `f` inside the set, and then what was put off meanwhile. `None` when this thread is
    /// inside.
    pub(crate) fn enter<R>(
        &'static self,
        set: &'static Set<S>,
        f: impl FnOnce(&mut State<S>) -> R,
    ) -> Option<R> {
        let result = set.state.with(f)?;
        self.catch_up(set);
        Some(result)
    }

    /// Whether a call that may wait can do without looking at all ready bits: they are many, and
    /// were looked at a moment ago. What was set since is found by the next such call, or before
    /// the thread sleeps.
    pub(crate) fn collected_lately(&self) -> bool {
        let serve = self.source.bits_serve();
        serve != 0 && sys::ticks().wrapping_sub(self.collected.load(Ordering::Relaxed)) < serve
    }

    /// Takes the ready bits of the process and gives each to the sets that its socket is in. No
    /// set's lock is held here.
    pub(crate) fn collect(&'static self, own: &Set<S>) {
        if self.source.bits_serve() != 0 {
            self.collected.store(sys::ticks(), Ordering::Relaxed);
        }
        self.source.collect_ready(&mut |slot, meant| {
            let (mut taken, mut passed) = (false, false);
            let home = self.home_of_slot.get(slot.raw() as usize);
            self.homes(home, |set| {
                self.hand_over(own, set, slot, |waker, armed| {
                    taken = taken || meant(waker, armed);
                    passed |= !taken;
                    taken
                });
            });
            // A set that was still armed when it was asked may have been woken before the bit was
            // taken. The bit was then its bit as well. A set that was not is judged for nothing.
            if taken && passed {
                self.homes(home, |set| self.hand_over(own, set, slot, |_, _| true));
            }
        });
    }

    /// Tells the set that it was woken for the slot, if `meant` says so of what it has armed.
    fn hand_over(
        &'static self,
        own: &Set<S>,
        set: &'static Set<S>,
        slot: SlotId,
        meant: impl FnOnce(u64, Events) -> bool,
    ) {
        let wake = self.enter(set, |state| {
            // A bit says that an armed word was taken. Where this process has armed none, the word
            // was a sibling's, and the sibling finds the bit where it is.
            let armed = state.armed(slot);
            let waker =
                state.waker_id().filter(|waker| !armed.is_empty() && meant(*waker, armed))?;
            state.woken(&self.source, slot);
            // A sleeper that was woken by its waker may have looked before this bit was handed
            // over. The count is read under the lock, under which a sleeper looks after it has
            // counted itself.
            let foreign = !core::ptr::eq(set, own);
            Some(waker).filter(|_| foreign && set.sleepers.load(Ordering::SeqCst) > 0)
        });
        if let Some(Some(waker)) = wake {
            self.source.wake(waker);
        }
    }

    /// See [`super::dissolve`].
    pub fn dissolve(&'static self) {
        for set in self.all() {
            self.enter(set, |state| {
                let dormant = set.dormant.load(Ordering::Relaxed);
                for index in 0..state.members.len() as u32 {
                    let Some(member) = state.get(index) else { continue };
                    let (fd, slot) = (member.fd, member.slot);
                    let _ = match (member.entry, member.present, member.disabled) {
                        (Entry::Program, ..) => Ok(()),
                        // The parent may sleep on it.
                        _ if dormant => Ok(()),
                        (_, false, _) => state.remove(index),
                        // Spent: silent but for what cannot be silenced.
                        (_, true, true) => state.change(index, kernel::ONESHOT, member.data),
                        _ => state.change(index, member.events & !kernel::EXCLUSIVE, member.data),
                    };
                    state.drop_member(&self.source, index);
                    self.left(set, state, fd, slot);
                }
                state.listen_no_more();
                state.changes = state.changes.wrapping_add(1);
                set.special.store(false, Ordering::SeqCst);
            });
        }
    }
}
