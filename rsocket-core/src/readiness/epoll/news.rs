//! What a set is told of a socket by others. Its mode has changed, a send found no room, or a
//! number of it is about to be closed. What this
//! thread hears inside a set may be put off. It must not know how a wait is put together. Enter at
//! [`Registry::mode_changed`] and its neighbours.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{AtomicU64, Ordering, fence};
use std::os::fd::RawFd;

use super::kernel;
use super::lock::inside_any;
use super::registry::{Registry, Set};
use super::set::{Entry, State};
use crate::readiness::source::{Events, SlotId, Source};

/// What was asked for while this thread was inside the set.
const MODE: u64 = 1 << 32;
const CLOSING: u64 = 2 << 32;
const STARVED: u64 = 3 << 32;
const SAID_ANEW: u64 = 4 << 32;
const ERROR_TAKEN: u64 = 5 << 32;
const UNREAD: u64 = 6 << 32;

impl<S: Source> Registry<S> {
    /// See [`super::mode_changed`].
    pub fn mode_changed(&'static self, slot: SlotId) {
        // SeqCst: after the caller's store to the socket's mode; see `note`.
        fence(Ordering::SeqCst);
        self.homes(self.home_of_slot.get(slot.raw() as usize), |set| {
            self.ask(set, MODE, slot.raw())
        });
    }

    /// See [`super::starved`].
    #[inline]
    pub fn starved(&'static self, slot: SlotId) {
        let home = self.home_of_slot.get(slot.raw() as usize);
        if home.is_some_and(|h| h.load(Ordering::Relaxed) != 0) {
            self.homes(home, |set| self.ask(set, STARVED, slot.raw()));
        }
    }

    /// See [`super::said_anew`].
    pub fn said_anew(&'static self, slot: SlotId) {
        let home = self.home_of_slot.get(slot.raw() as usize);
        self.homes(home, |set| self.ask(set, SAID_ANEW, slot.raw()));
    }

    /// See [`super::error_taken`].
    pub fn error_taken(&'static self, slot: SlotId) {
        let home = self.home_of_slot.get(slot.raw() as usize);
        self.homes(home, |set| self.ask(set, ERROR_TAKEN, slot.raw()));
    }

    /// See [`super::found_unread`].
    pub fn found_unread(&'static self, slot: SlotId) {
        let home = self.home_of_slot.get(slot.raw() as usize);
        self.homes(home, |set| self.ask(set, UNREAD, slot.raw()));
    }

    /// See [`super::member_closing`].
    #[inline]
    pub fn member_closing(&'static self, fd: RawFd) {
        if self.housed(fd) {
            self.homes(self.home_of_fd(fd), |set| self.ask(set, CLOSING, fd as u32));
        }
    }

    /// Runs what was put off while this thread was inside.
    pub(super) fn catch_up(&'static self, set: &'static Set<S>) {
        // SeqCst: pairs with `ask`; after the lock was released.
        while set.any_later.load(Ordering::SeqCst) {
            set.any_later.store(false, Ordering::Relaxed);
            for place in &set.later {
                self.run(set, place.swap(0, Ordering::Relaxed));
            }
        }
    }

    fn run(&'static self, set: &'static Set<S>, what: u64) {
        let _ = set.state.with(|state| self.apply(set, state, what));
    }

    fn apply(&'static self, set: &'static Set<S>, state: &mut State<S>, what: u64) {
        let number = what as u32;
        match (what & !0xffff_ffff, SlotId::from_raw(number)) {
            (MODE, Some(slot)) => self.remode(set, state, slot),
            (STARVED, Some(slot)) => self.starve(set, state, slot),
            (SAID_ANEW, Some(slot)) => self.say_anew(set, state, slot),
            (ERROR_TAKEN, Some(slot)) => self.fail(set, state, slot),
            (UNREAD, Some(slot)) => Self::judge_next(state, slot),
            (CLOSING, _) => self.expel(set, state, number as RawFd),
            _ => {}
        }
    }

    fn ask(&'static self, set: &'static Set<S>, what: u64, number: u32) {
        let what = what | u64::from(number);
        if !inside_any() {
            self.run(set, what);
            self.catch_up(set);
            return;
        }
        // This thread is inside a set. If that is another set, to wait for this one's lock while
        // its holder waits for ours would be a deadlock. So the request is met here only if the
        // lock is free, and else left for the holder to find on its way out.
        if set.state.try_with(|state| self.apply(set, state, what)).is_some() {
            return;
        }
        // Or this thread is inside this very set: left for it to find on its way out. More than fit
        // in are dropped; modes are also noticed by their epoch at the next judgement.
        let same = |p: &AtomicU64| p.load(Ordering::Relaxed) == what;
        if !set.later.iter().any(same) {
            let _ = set.later.iter().find(|p| {
                p.compare_exchange(0, what, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            });
        }
        // SeqCst: pairs with the release of the lock and the look in `catch_up`. The thread that
        // holds the lock now looks after it has let go; if no thread holds it any more, we do it.
        set.any_later.store(true, Ordering::SeqCst);
        let left = |state: &mut State<S>| {
            for place in &set.later {
                self.apply(set, state, place.swap(0, Ordering::Relaxed));
            }
        };
        let _ = set.state.try_with(left);
    }

    fn remode(&'static self, set: &Set<S>, state: &mut State<S>, slot: SlotId) {
        if set.dormant.load(Ordering::Relaxed) {
            return;
        }
        let mut at = state.first_of(slot);
        while let Some(index) = at {
            at = state.next_of(index);
            let epoch = self.source.mode_epoch(slot);
            if state.get(index).is_some_and(|m| m.entry != Entry::Program && m.epoch == epoch) {
                // The thread that judged the member has seen it.
                continue;
            }
            self.mark(set, slot);
            state.refresh(&self.source, index);
        }
        // In a second round: to refresh a member takes the waker out for all of the slot's.
        let mut at = state.first_of(slot);
        while let Some(index) = at {
            at = state.next_of(index);
            self.nudge(set, state, index, true);
        }
    }

    /// Before the kernel's entries of the slot change.
    pub(crate) fn mark(&self, set: &Set<S>, slot: SlotId) {
        if self.source.special(slot) {
            self.source.heed();
            // SeqCst: pairs with the look of a waiter that comes out of the kernel's set.
            set.special.store(true, Ordering::SeqCst);
        }
    }

    fn starve(&'static self, set: &Set<S>, state: &mut State<S>, slot: SlotId) {
        let mut at = state.first_of(slot);
        while let Some(index) = at {
            at = state.next_of(index);
            let Some(member) = state.get_mut(index) else { continue };
            let waits = member.edge_triggered() && member.wanted().contains(Events::OUT);
            if waits && member.live() {
                (member.was_out, member.echo) = (false, false);
                // Judged by the next wait, or armed now for one that goes on.
                self.nudge(set, state, index, false);
            }
        }
    }

    fn say_anew(&'static self, set: &Set<S>, state: &mut State<S>, slot: SlotId) {
        let mut at = state.first_of(slot);
        while let Some(index) = at {
            at = state.next_of(index);
            let Some(member) = state.get_mut(index) else { continue };
            let waits = member.edge_triggered() && member.wanted().contains(Events::IN);
            if waits && member.live() {
                member.edge = true;
                self.nudge(set, state, index, false);
            }
        }
    }

    fn fail(&'static self, set: &Set<S>, state: &mut State<S>, slot: SlotId) {
        let mut at = state.first_of(slot);
        while let Some(index) = at {
            at = state.next_of(index);
            let Some(member) = state.get_mut(index) else { continue };
            if member.edge_triggered() && member.live() && !member.failed {
                (member.edge, member.told, member.failed) = (true, true, true);
                // The kernel's entry may say so, too: before the member is judged.
                state.entry_news = true;
                self.nudge(set, state, index, false);
            }
        }
    }

    /// What sleeps on the set is woken by the peer.
    fn judge_next(state: &mut State<S>, slot: SlotId) {
        let mut at = state.first_of(slot);
        while let Some(index) = at {
            at = state.next_of(index);
            if state.get(index).is_some_and(|m| m.live() && !m.warm) {
                state.enqueue(index);
            }
        }
    }

    fn expel(&'static self, set: &Set<S>, state: &mut State<S>, fd: RawFd) {
        self.rename(set, state, fd);
        let Some(index) = state.find(fd) else { return };
        if !set.dormant.load(Ordering::Relaxed) && self.outlive(set, state, index) {
            return;
        }
        let Some(member) = state.get(index) else { return };
        let (slot, between) = (member.slot, member.entry == Entry::Between);
        // Gone to another process, the file may come back under this number, where no member is
        // registered.
        let left = !member.present && !self.source.settled(slot);
        if (between || left) && !set.dormant.load(Ordering::Relaxed) {
            // A detector is silent after one event; this one might go on when another descriptor
            // keeps the file open.
            let _ = kernel::remove(state.epfd(), fd);
        }
        state.drop_member(&self.source, index);
        self.left(set, state, fd, slot);
    }

    /// A member has changed. If a thread sleeps on the set, the member is judged or armed on the
    /// spot; otherwise the next wait does it.
    pub(crate) fn nudge(&'static self, set: &Set<S>, state: &mut State<S>, index: u32, now: bool) {
        let Some(member) = state.get(index) else { return };
        if member.entry == Entry::Program {
            return;
        }
        // (A store of this kind waits for all others: not where it says nothing new.)
        if !set.special.load(Ordering::Relaxed) {
            self.source.heed();
            set.special.store(true, Ordering::SeqCst);
        }
        if !member.live() {
            return;
        }
        if !member.warm {
            state.enqueue(index);
        }
        let heard = now || state.watched || set.sleepers.load(Ordering::SeqCst) > 0;
        if !heard || set.dormant.load(Ordering::Relaxed) {
            return;
        }
        let over = state.get(index).map_or(Events::empty(), |m| m.over);
        let due = state.consult(&self.source, index).is_some_and(|v| v.due);
        if due && let Some(member) = state.get_mut(index) {
            // The next wait tells it; the program has not heard of an end yet.
            (member.edge, member.told, member.over) = (true, true, over);
        }
        if (due || !state.park(&self.source, index))
            && let Some(waker) = state.waker_id()
        {
            self.source.wake(waker);
        }
    }
}
