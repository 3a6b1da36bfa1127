//! Sets around a fork. The child has a copy of each mirror. But the kernel's object behind it, and
//! the waiter slots of the connections, are its parent's as well, which may be asleep on both. So a
//! copy is *dormant* until the child uses the set itself ([`Registry::awaken`]). A dormant copy
//! takes note of what becomes of its members and touches nothing that is shared. Most children
//! never use the set, and close it.
//!
//! It must not know what a member reports.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;

use super::registry::{Registry, Set};
use super::set::{Entry, NOWHERE, State};
use crate::readiness::source::{Events, Source};

impl<S: Source> Registry<S> {
    /// See [`super::fork_prepare`].
    pub fn fork_prepare(&'static self) {
        self.lists.lock.take();
        for set in self.all() {
            // False: a signal handler forks inside a section of its own thread; nothing to take or
            // release.
            set.fork_held.store(set.state.lock.take(), Ordering::Relaxed);
        }
    }

    /// See [`super::fork_parent`].
    pub fn fork_parent(&'static self) {
        for set in self.all() {
            self.related(set);
            if set.fork_held.swap(false, Ordering::Relaxed) {
                set.state.lock.release();
                // Other threads have left here what they could not wait for.
                self.catch_up(set);
            }
        }
        self.lists.lock.release();
    }

    /// See [`super::forked`].
    pub fn forked(&'static self) {
        for set in self.all() {
            if set.fork_held.swap(false, Ordering::Relaxed) {
                set.state.lock.reset();
            }
            set.sleepers.store(0, Ordering::Relaxed);
            set.state.with(|state| self.lull(set, state));
        }
        self.lists.lock.reset();
    }

    fn lull(&self, set: &Set<S>, state: &mut State<S>) {
        if state.fds.is_empty() {
            return;
        }
        if let Some(waker) = state.waker.take() {
            self.source.forget_waker(waker);
        }
        // What is armed is the parent's waker.
        for member in state.members.iter_mut().flatten() {
            member.armed = Events::empty();
            State::<S>::give_up_place(core::mem::replace(&mut member.place, NOWHERE));
        }
        // Special as well: no thread marks it while it is dormant, and a thread that polls it has
        // to wake it. (Relaxed: there is one thread.)
        set.special.store(true, Ordering::Relaxed);
        set.dormant.store(true, Ordering::Relaxed);
    }

    /// The process uses a set that it has inherited. It does so with a waker of its own, and after
    /// a look at what the set's members have become meanwhile. This comes before anything else that
    /// concerns the kernel's object.
    pub(crate) fn awaken(&self, set: &Set<S>, state: &mut State<S>) {
        // Relaxed, here and in a look without the lock: changed under it.
        if !set.dormant.swap(false, Ordering::Relaxed) {
            return;
        }
        let mut special = false;
        for index in 0..state.members.len() as u32 {
            let Some(member) = state.get(index) else { continue };
            let plain = member.entry == Entry::Program;
            if plain && !self.source.special(member.slot) {
                continue;
            }
            special = true;
            if plain {
                state.refresh(&self.source, index);
            } else {
                state.need_waker(&self.source);
            }
            if state.get(index).is_some_and(|m| m.live() && !m.warm) {
                state.enqueue(index);
            }
        }
        set.special.store(special, Ordering::SeqCst);
        self.related(set);
    }
}
