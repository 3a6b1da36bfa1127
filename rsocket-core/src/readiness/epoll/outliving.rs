//! Members whose number was closed while their file has other names. A registration is the file's,
//! under the number that it was made with, and lives as long as the file (epoll(7)). So it goes on
//! reporting, and is found again when that number names the file once more.
//!
//! The kernel's entry can be changed only through the number that it was made with, which the
//! program may give to anything. So the entry moves to a private number, its *place*. The place
//! names the file for the moment of a change and the set's waker otherwise: it keeps no file open.
//!
//! Where the kernel answers for the member it does all that by itself: the connection stays on TCP.
//! It must not know what a member reports. Entry points: [`Registry::outlive`] before a close,
//! [`Registry::readopt`] where a number is used again, [`State::change`] for a member's entry.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::RawFd;

use super::kernel::{self, detector};
use super::registry::{Registry, Set};
use super::set::{Entry, NOWHERE, State};
use crate::failure::Failure;
use crate::readiness::source::{SlotId, Source, Waker};
use crate::sys;

impl<S: Source> State<S> {
    /// Changes a member's entry in the kernel's set.
    pub(crate) fn change(&self, index: u32, events: u32, data: u64) -> Result<(), Failure> {
        let epfd = self.epfd();
        self.through(index, |number| kernel::change(epfd, number, events, data))
    }

    /// Removes it.
    pub(crate) fn remove(&self, index: u32) -> Result<(), Failure> {
        let epfd = self.epfd();
        self.through(index, |number| kernel::remove(epfd, number))
    }

    /// Calls `f` with the number of the member's entry, which names the member's file meanwhile.
    fn through(
        &self,
        index: u32,
        f: impl FnOnce(RawFd) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Some(member) = self.get(index) else { return Err(Failure::BadDescriptor) };
        if member.place == NOWHERE {
            return f(member.fd);
        }
        let Some(waker) = self.waker else { return Err(Failure::BadDescriptor) };
        name(member.place, member.fd)?;
        let result = f(member.place);
        let _ = name(member.place, waker.fd());
        result
    }

    /// Gives a member's place up.
    pub(crate) fn give_up_place(place: RawFd) {
        if place != NOWHERE {
            sys::close_private(place);
        }
    }
}

/// Has the private number `place` name what `fd` names.
fn name(place: RawFd, fd: RawFd) -> Result<(), Failure> {
    sys::name_at(sys::borrow(fd), place, true)
}

impl<S: Source> Registry<S> {
    /// See [`super::outlives_in_kernel`].
    #[cold]
    pub(super) fn outlives_in_kernel(&self, slot: SlotId, closing: RawFd) -> Option<RawFd> {
        if self.source.special(slot) { None } else { self.source.another_name(slot, closing) }
    }

    /// The member's number is about to be closed. True: its file has another name here, and it
    /// stays.
    pub(super) fn outlive(&self, set: &Set<S>, state: &mut State<S>, index: u32) -> bool {
        let Some(member) = state.get(index) else { return false };
        let (fd, slot, entry, present) = (member.fd, member.slot, member.entry, member.present);
        if entry == Entry::Program {
            return false;
        }
        let Some(other) = self.source.another_name(slot, fd) else { return false };
        if !present || state.waker.is_none() {
            // Under this number the program may add the file again.
            let _ = state.remove(index);
            return false;
        }
        if self.move_entry(state, index, other).is_err() {
            return false;
        }
        state.unname(index);
        state.outliving.push(index);
        self.left(set, state, fd, slot);
        self.joined(set, other, slot);
        if entry == Entry::Between {
            state.set_between(&self.source, index);
        }
        true
    }

    /// Makes the entry anew under a private number, as that of a member that goes by `other`.
    fn move_entry(&self, state: &mut State<S>, index: u32, other: RawFd) -> Result<(), Failure> {
        let waker = state.waker.ok_or(Failure::BadDescriptor)?;
        if state.get(index).is_some_and(|m| m.place == NOWHERE) {
            state.remove(index)?;
            let place = sys::private_copy(sys::borrow(waker.fd()))?;
            if let Some(member) = state.get_mut(index) {
                (member.place, member.fd) = (place, other);
            }
            let (epfd, token) = (state.epfd(), state.token(index));
            let events = state.get(index).map_or(0, |m| detector(m.wanted()));
            return state.through(index, |number| kernel::add(epfd, number, events, token));
        }
        Ok(())
    }

    /// A name of some file is about to be closed, by which members may go that outlive their own.
    pub(super) fn rename(&self, set: &Set<S>, state: &mut State<S>, fd: RawFd) {
        for at in (0..state.outliving.len()).rev() {
            let Some(index) = state.outliving.get(at).copied() else { continue };
            let Some(member) = state.get(index).filter(|m| m.fd == fd) else { continue };
            let slot = member.slot;
            match self.source.another_name(slot, fd) {
                Some(other) => {
                    if let Some(member) = state.get_mut(index) {
                        member.fd = other;
                    }
                    self.joined(set, other, slot);
                }
                None => {
                    // The file's last name: the entry goes with it.
                    state.drop_member(&self.source, index);
                    self.left(set, state, fd, slot);
                }
            }
        }
    }

    /// The member that was registered under this number of the same file, if it has outlived it.
    pub(super) fn readopt(
        &self,
        set: &Set<S>,
        state: &mut State<S>,
        fd: RawFd,
        slot: SlotId,
    ) -> Option<u32> {
        let found = |i: &&u32| {
            state.get(**i).is_some_and(|m| m.key == fd && m.slot == slot && m.place != NOWHERE)
        };
        let index = state.outliving.iter().find(found).copied()?;
        let _ = state.remove(index);
        let place = state.get(index).map_or(NOWHERE, |m| m.place);
        State::<S>::give_up_place(place);
        state.outliving.retain(|i| *i != index);
        let (epfd, token) = (state.epfd(), state.token(index));
        let member = state.get_mut(index)?;
        (member.place, member.fd) = (NOWHERE, fd);
        let (entry, events) = (member.entry, detector(member.wanted()));
        let added = match entry {
            Entry::Program => {
                kernel::add(epfd, fd, member.events & !kernel::EXCLUSIVE, member.data)
            }
            Entry::Between | Entry::Detector => kernel::add(epfd, fd, events, token),
        };
        if added.is_err() {
            state.drop_member(&self.source, index);
            return None;
        }
        state.name(index);
        self.joined(set, fd, slot);
        if entry == Entry::Between {
            state.set_between(&self.source, index);
        }
        Some(index)
    }
}
