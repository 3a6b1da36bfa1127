//! `epoll_ctl`: which of the kernel and the mirror keeps a member, and the mirror's part of it.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, c_int};

use super::kernel::{self, EDGE, EXCLUSIVE, WAKEUP, detector};
use super::registry::{Registry, Set};
use super::set::{Entry, Member, State, Wish};
use crate::failure::Failure;
use crate::given::epoll::{Change, Ctl};
use crate::readiness::Finder;
use crate::readiness::mixed::wanted;
use crate::readiness::source::{Events, SlotId, Source};

/// What may stand beside EXCLUSIVE.
const EXCLUSIVE_OK: u32 = 0x1 | 0x4 | 0x8 | 0x10 | WAKEUP | EDGE | EXCLUSIVE;

/// A change of a member that is a socket of ours.
#[derive(Clone, Copy)]
struct Call<'a> {
    change: Change<'a>,
    slot: SlotId,
    real: Ctl,
}

impl Call<'_> {
    fn kernel(&self) -> Result<(), Failure> {
        self.real.change(&self.change)
    }

    /// `EFAULT` when there is no wish.
    fn wish(&self) -> Result<Wish, Failure> {
        let event = self.change.event.read()?.ok_or(Failure::BadAddress)?;
        Ok(Wish { events: event.events, data: event.u64 })
    }
}

impl<S: Source> Registry<S> {
    /// See [`super::ctl`].
    ///
    /// # Errors
    /// As the kernel.
    pub fn ctl(&'static self, change: Change<'_>, find: Finder, real: Ctl) -> Result<(), Failure> {
        let Change { epfd, op, fd, .. } = change;
        let Some(slot) = find(fd) else {
            if self.housed(fd) {
                // The number was closed where no hook saw it, and stands for another file now.
                self.member_closing(fd);
            }
            real.change(&change)?;
            if op != EPOLL_CTL_DEL {
                self.kernel_has_news(epfd);
            }
            if op == EPOLL_CTL_ADD && self.is_set(fd) {
                self.watch(fd);
                self.nest(epfd, fd);
            }
            return Ok(());
        };
        let call = Call { change, slot, real };
        let Some(set) = self.get(epfd) else {
            // Errors for what is no epoll descriptor are the kernel's, so it goes first.
            call.kernel()?;
            if op == EPOLL_CTL_ADD {
                self.note_added(call);
            }
            return Ok(());
        };
        // From inside (a signal handler that interrupted this set's section) the kernel alone is
        // told.
        self.enter(set, |state| self.ctl_inside(set, state, call)).unwrap_or_else(|| call.kernel())
    }

    /// The kernel has another entry, or a new one, of a file that is ready perhaps. The next wait
    /// asks the kernel, however much else there is to tell.
    fn kernel_has_news(&'static self, epfd: RawFd) {
        // Relaxed: a set that becomes special meanwhile asks the kernel first.
        if let Some(set) = self.get(epfd).filter(|set| set.special.load(Ordering::Relaxed)) {
            self.enter(set, |state| state.entry_news = true);
        }
    }

    /// A set of which no hook saw the making: the kernel has taken the member.
    fn note_added(&'static self, call: Call<'_>) {
        if let (Some(set), Ok(wish)) = (self.make(call.change.epfd), call.wish()) {
            self.enter(set, |state| self.mirrored(set, state, call, wish));
        }
    }

    /// Takes into the mirror what the kernel has in the program's words.
    fn mirrored(&'static self, set: &Set<S>, state: &mut State<S>, call: Call<'_>, wish: Wish) {
        let (fd, slot) = (call.change.fd, call.slot);
        let known = state.find(fd);
        let Some(index) = known.or_else(|| state.insert(fd, slot, wish)) else { return };
        if let Some(member) = state.get_mut(index) {
            (member.events, member.data) = (wish.events, wish.data);
        }
        set.unwaited.store(true, Ordering::Relaxed);
        if state.watched {
            self.source.waited(slot);
        }
        self.joined(set, fd, slot);
        if self.source.may_be_taken(slot) {
            self.related(set);
        }
        // After the note: a change of mode is seen here, or finds the member.
        if self.source.special(slot) {
            self.mark(set, slot);
            state.refresh(&self.source, index);
            self.nudge(set, state, index, true);
        }
    }

    fn ctl_inside(
        &'static self,
        set: &Set<S>,
        state: &mut State<S>,
        call: Call<'_>,
    ) -> Result<(), Failure> {
        let (Change { op, fd, .. }, slot) = (call.change, call.slot);
        self.awaken(set, state);
        let mut known = state.find(fd);
        if let Some(index) = known
            && state.get(index).is_some_and(|m| m.slot != slot)
        {
            // The number was closed and given again where no hook saw it.
            let old = state.get(index).map_or(slot, |m| m.slot);
            state.drop_member(&self.source, index);
            self.left(set, state, fd, old);
            known = None;
        }
        if known.is_none() && !state.outliving.is_empty() {
            known = self.readopt(set, state, fd, slot);
        }
        match known {
            Some(index) if state.get(index).is_some_and(|m| m.entry != Entry::Program) => {
                self.in_mirror(set, state, call, index)
            }
            None if op == EPOLL_CTL_ADD && self.source.special(slot) => {
                self.add_special(set, state, call)
            }
            _ => {
                call.kernel()?;
                match op {
                    EPOLL_CTL_DEL => {
                        if let Some(index) = known {
                            state.drop_member(&self.source, index);
                            self.left(set, state, fd, slot);
                        }
                    }
                    _ => {
                        let wish = call.wish()?;
                        state.entry_news = true;
                        self.mirrored(set, state, call, wish);
                    }
                }
                Ok(())
            }
        }
    }

    /// The kernel's entry is under a token: the mirror alone decides.
    fn in_mirror(
        &'static self,
        set: &Set<S>,
        state: &mut State<S>,
        call: Call<'_>,
        index: u32,
    ) -> Result<(), Failure> {
        let op = call.change.op;
        let wish = if op == EPOLL_CTL_DEL { Wish::NONE } else { call.wish()? };
        let Some(member) = state.get_mut(index) else { return Err(Failure::Missing) };
        check(op, wish, member)?;
        let before = (member.wanted(), member.edge_triggered());
        (member.events, member.data) = (wish.events, wish.data);
        member.present = op != EPOLL_CTL_DEL;
        member.disabled = false;
        // What the entry says from here on is told anew.
        (member.edge, member.echo) = (true, false);
        let after = (member.wanted(), member.edge_triggered());
        let (slot, entry) = (member.slot, member.entry);
        let beside = core::mem::take(&mut member.beside);
        if member.present && before != after && !member.armed.is_empty() {
            // Armed for other conditions: what is wanted now is armed anew.
            state.unarm(&self.source, slot);
        }
        if entry == Entry::Between {
            state.set_between(&self.source, index);
        } else if beside || (before.0 ^ after.0).contains(Events::PRI) {
            let token = state.token(index);
            state.change(index, detector(after.0), token)?;
        }
        self.nudge(set, state, index, false);
        Ok(())
    }

    /// A socket that is on device already: one kernel call, under a token from the start.
    fn add_special(
        &'static self,
        set: &Set<S>,
        state: &mut State<S>,
        call: Call<'_>,
    ) -> Result<(), Failure> {
        let (Change { epfd, fd, .. }, slot) = (call.change, call.slot);
        let wish = call.wish()?;
        check_exclusive(wish.events)?;
        state.need_waker(&self.source);
        let Some(index) = state.insert(fd, slot, wish) else {
            return Err(Failure::NoMemory);
        };
        let token = state.token(index);
        if let Err(e) = kernel::add(epfd, fd, detector(wanted(wish.events)), token) {
            state.drop_member(&self.source, index);
            return Err(e);
        }
        if let Some(member) = state.get_mut(index) {
            member.entry = Entry::Detector;
            member.epoch = self.source.mode_epoch(slot);
        }
        self.joined(set, fd, slot);
        if !self.source.settled(slot) {
            state.set_between(&self.source, index);
        }
        self.nudge(set, state, index, false);
        Ok(())
    }

    /// A set is a member of this one from now on. (It stays in the list when it is taken out or
    /// closed: a look too many does no harm.)
    fn nest(&'static self, epfd: RawFd, inner: RawFd) {
        if let Some(set) = self.make(epfd) {
            self.enter(set, |state| {
                if !state.nested.contains(&inner) {
                    state.nested.push(inner);
                }
            });
            set.nests.store(true, Ordering::Relaxed);
        }
    }

    /// The epoll descriptor itself is a member of another set from now on.
    fn watch(&'static self, epfd: RawFd) {
        if let Some(set) = self.get(epfd) {
            self.enter(set, |state| state.watched = true);
            set.unwaited.store(true, Ordering::Relaxed);
            self.saw_wait(set);
            self.peek(epfd);
        }
    }
}

/// What the kernel would say of a change of its own entry.
fn check(op: c_int, wish: Wish, member: &Member) -> Result<(), Failure> {
    match op {
        EPOLL_CTL_ADD => {
            check_exclusive(wish.events)?;
            if member.present { Err(Failure::Exists) } else { Ok(()) }
        }
        EPOLL_CTL_MOD if wish.events & EXCLUSIVE != 0 => Err(Failure::Invalid),
        EPOLL_CTL_MOD | EPOLL_CTL_DEL if !member.present => Err(Failure::Missing),
        EPOLL_CTL_MOD if member.events & EXCLUSIVE != 0 => Err(Failure::Invalid),
        EPOLL_CTL_MOD | EPOLL_CTL_DEL => Ok(()),
        _ => Err(Failure::Invalid),
    }
}

fn check_exclusive(events: u32) -> Result<(), Failure> {
    if events & EXCLUSIVE != 0 && events & !EXCLUSIVE_OK != 0 {
        Err(Failure::Invalid)
    } else {
        Ok(())
    }
}

// The kernel's numbers, of which only three are known here.
const _: () = assert!(EPOLL_CTL_ADD == 1 && EPOLL_CTL_DEL == 2 && EPOLL_CTL_MOD == 3);
