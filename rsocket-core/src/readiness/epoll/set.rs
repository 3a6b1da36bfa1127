//! The mirror of one epoll object: its members, and the lists that keep waiting O(ready).
//!
//! **The invariant of the lists.** It is about each member that the program wants events of
//! (present, not disabled) and whose socket is special. Such a member is always in at least one of:
//!
//! - the *queue*: the next wait judges it;
//! - the *warm* list: every wait judges it;
//! - *armed*: the other side wakes the set's waker and sets the socket's ready bit.
//!
//! So nothing that becomes ready is missed, and nothing else is looked at.
//!
//! It must not know how a wait is put together, nor which sets exist.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::RawFd;

use super::kernel;
use crate::readiness::source::{Events, Progress, SlotId, Source, Waker};

/// No place: the entry is under the member's own number.
pub(crate) const NOWHERE: RawFd = -1;

/// Members whose sockets are looked at directly by each wait.
pub(crate) const WARM: usize = 64;
/// A warm member that is armed and has reported nothing for so many waits is left to its waker.
const COOL: u32 = 256;

/// What the kernel's entry of a member is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    /// As the program made it: the kernel answers for this member.
    Program,
    /// Asks for what is not on the device yet, under a token.
    Between,
    /// Only listens for the end of the connection, and for urgent data where they are wanted,
    /// under a token. Stays so until close.
    Detector,
}

/// One descriptor of the program in one set.
#[derive(Debug)]
pub(crate) struct Member {
    /// A number of its file, to be used by us.
    pub(crate) fd: RawFd,
    /// The number that the program registered; closed, or another file's, while the member
    /// outlives it.
    pub(crate) key: RawFd,
    /// Where the kernel's entry is, if not under `fd` ([`super::outliving`]).
    pub(crate) place: RawFd,
    pub(crate) slot: SlotId,
    /// Conditions and flags as the program gave them.
    pub(crate) events: u32,
    pub(crate) data: u64,
    /// False after a DEL that left the kernel's entry in place.
    pub(crate) present: bool,
    /// One-shot, and it has fired.
    pub(crate) disabled: bool,
    pub(crate) entry: Entry,
    pub(crate) serial: u32,
    /// A one-shot kernel entry (state Between, level triggered) that has fired and must be set
    /// again.
    pub(crate) fired: bool,
    /// Something happened that edge triggering must report, beside what the progress counters say.
    pub(crate) edge: bool,
    /// The peer's FIN has come: to be reported like `edge`.
    pub(crate) fin: bool,
    /// What an edge-triggered member has told of an end that the device has brought: the kernel
    /// says the same of FIN.
    pub(crate) over: Events,
    /// The kernel's entry has spoken since the member was last judged.
    pub(crate) told: bool,
    /// Edge triggered, and back from its device: what the program was told there is not news when
    /// the kernel says it.
    pub(crate) returned: bool,
    /// The kernel's entry was set anew since, and will say at once what is known: that there is
    /// room, or urgent data, or an end.
    pub(crate) echo: bool,
    /// Edge triggered, and the sender has gone back to TCP behind unread bytes: the kernel is asked
    /// beside the device ([`super::behind`]).
    pub(crate) beside: bool,
    /// How much had come by TCP when it was last judged, while `beside`.
    pub(crate) arrived: u64,
    /// What the kernel has reported of an end of the connection.
    pub(crate) end: Events,
    /// The program was told of the connection's error, or is going to be.
    pub(crate) failed: bool,
    /// The kernel has reported urgent data. Each judgement asks again, until they are gone.
    pub(crate) urgent: bool,
    /// TCP has bytes while the device answers alone. They may have come around the library
    /// ([`Source::astray`](crate::readiness::source::Source::astray)).
    pub(crate) astray: bool,
    pub(crate) seen: Progress,
    pub(crate) was_out: bool,
    pub(crate) armed: Events,
    pub(crate) queued: bool,
    pub(crate) warm: bool,
    /// The last gathering that reported it.
    pub(crate) active: u32,
    pub(crate) epoch: u32,
    next_of_slot: u32,
}

/// What the program wants of a member: `struct epoll_event`.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    pub(crate) events: u32,
    pub(crate) data: u64,
}

impl Wish {
    /// After a DEL.
    pub(crate) const NONE: Self = Self { events: 0, data: 0 };
}

impl Member {
    /// As the kernel takes it first: nothing of it has been told.
    fn new(fd: RawFd, slot: SlotId, wish: Wish) -> Self {
        Self {
            fd,
            key: fd,
            place: NOWHERE,
            slot,
            events: wish.events,
            data: wish.data,
            present: true,
            disabled: false,
            entry: Entry::Program,
            serial: 0,
            fired: false,
            edge: true,
            fin: false,
            over: Events::empty(),
            told: false,
            end: Events::empty(),
            failed: false,
            urgent: false,
            astray: false,
            seen: Progress::default(),
            was_out: false,
            returned: false,
            echo: false,
            beside: false,
            arrived: 0,
            armed: Events::empty(),
            queued: false,
            warm: false,
            active: 0,
            epoch: 0,
            next_of_slot: 0,
        }
    }

    pub(crate) fn edge_triggered(&self) -> bool {
        self.events & kernel::EDGE != 0
    }

    pub(crate) fn wanted(&self) -> Events {
        crate::readiness::mixed::wanted(self.events)
    }

    /// The kernel has reported an end of the connection.
    #[inline(always)]
    pub(crate) fn dead(&self) -> bool {
        !self.end.is_empty()
    }

    /// What an edge-triggered member has told of what the kernel says.
    pub(crate) fn known(&self) -> Events {
        let mut known = self.end;
        known.set(Events::OUT, self.was_out);
        known.set(Events::PRI, self.urgent);
        // Behind the peer's FIN nothing comes.
        known.set(Events::IN, self.dead());
        known
    }

    pub(crate) fn live(&self) -> bool {
        self.present && !self.disabled && self.entry != Entry::Program
    }
}

/// The state of a set, under its lock.
pub(crate) struct State<S: Source> {
    /// The descriptors that stand for this object; the first is used for our own calls.
    pub(crate) fds: Vec<RawFd>,
    /// Counts the lives of this structure: they are reused.
    pub(crate) life: u32,
    pub(crate) members: Vec<Option<Member>>,
    free: Vec<u32>,
    /// Members whose number was closed.
    pub(crate) outliving: Vec<u32>,
    /// fd → member + 1.
    by_fd: Vec<u32>,
    /// slot → first member + 1.
    by_slot: Vec<u32>,
    by_serial: BTreeMap<u32, u32>,
    next_serial: u32,
    pub(crate) tag: u64,
    pub(crate) waker: Option<S::Waker>,
    pub(crate) queue: VecDeque<u32>,
    pub(crate) warm: Vec<u32>,
    pub(crate) warm_turn: usize,
    /// Members that have to be looked at again.
    pub(crate) patient: Vec<u32>,
    /// Counts gatherings: in one of them a member is reported once.
    pub(crate) call: u32,
    /// Counts waits.
    pub(crate) waits: u32,
    /// When the kernel was last asked, on the clock of `sys::ticks`.
    pub(crate) asked: u64,
    /// Since the kernel was last asked, an edge-triggered entry was set anew. The entry has its say
    /// before the member is judged: otherwise the member would tell its edge, and then the entry.
    /// Or the program has added something that the kernel answers for, or asked anew for it.
    pub(crate) entry_news: bool,
    /// The program polls the epoll descriptor itself, or has put it into another set.
    pub(crate) watched: bool,
    /// Sets that were put into this one.
    pub(crate) nested: Vec<RawFd>,
    /// A member could not be armed for want of a waker.
    pub(crate) blind: bool,
    /// Counts changes of kernel entries, so that a waiter knows what it may have slept through.
    pub(crate) changes: u32,
    /// The last gathering stopped for want of room.
    pub(crate) early: bool,
    /// The last gathering reported a member that the kernel has called dead. Each wait judges such
    /// a member by a call to the kernel, so the kernel may be asked for the others, too.
    pub(crate) dead_told: bool,
    /// The kernel had something to tell when it was last asked, and may have it still.
    pub(crate) kernel_told: bool,
    /// Whose turn it is, the kernel's or ours, when there is room for one.
    pub(crate) turn: usize,
}

impl<S: Source> State<S> {
    pub(crate) const fn new() -> Self {
        Self {
            fds: Vec::new(),
            life: 0,
            members: Vec::new(),
            free: Vec::new(),
            outliving: Vec::new(),
            by_fd: Vec::new(),
            by_slot: Vec::new(),
            by_serial: BTreeMap::new(),
            next_serial: 1,
            tag: 0,
            waker: None,
            queue: VecDeque::new(),
            warm: Vec::new(),
            warm_turn: 0,
            patient: Vec::new(),
            call: 0,
            waits: 0,
            asked: 0,
            entry_news: false,
            watched: false,
            nested: Vec::new(),
            blind: false,
            changes: 0,
            early: false,
            dead_told: false,
            kernel_told: false,
            turn: 0,
        }
    }

    /// Makes the set that of a new epoll object.
    pub(crate) fn begin(&mut self, epfd: RawFd) {
        let life = self.life.wrapping_add(1);
        *self = Self::new();
        self.life = life;
        self.fds.push(epfd);
        self.tag = kernel::tag(u64::from(life) << 32 | u64::from(epfd as u32));
    }

    pub(crate) fn epfd(&self) -> RawFd {
        self.fds.first().copied().unwrap_or(-1)
    }

    pub(crate) fn waker_id(&self) -> Option<u64> {
        self.waker.map(|b| b.id())
    }

    pub(crate) fn get(&self, index: u32) -> Option<&Member> {
        self.members.get(index as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Member> {
        self.members.get_mut(index as usize)?.as_mut()
    }

    pub(crate) fn find(&self, fd: RawFd) -> Option<u32> {
        usize::try_from(fd).ok().and_then(|fd| self.by_fd.get(fd)).and_then(|i| i.checked_sub(1))
    }

    pub(crate) fn first_of(&self, slot: SlotId) -> Option<u32> {
        self.by_slot.get(slot.raw() as usize).and_then(|i| i.checked_sub(1))
    }

    pub(crate) fn next_of(&self, index: u32) -> Option<u32> {
        self.get(index)?.next_of_slot.checked_sub(1)
    }

    pub(crate) fn insert(&mut self, fd: RawFd, slot: SlotId, wish: Wish) -> Option<u32> {
        let key = usize::try_from(fd).ok()?;
        let place = slot.raw() as usize;
        if self.by_fd.len() <= key {
            self.by_fd.resize(key + 1, 0);
        }
        if self.by_slot.len() <= place {
            self.by_slot.resize(place + 1, 0);
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.members.push(None);
            self.members.len() as u32 - 1
        });
        let first = self.by_slot.get_mut(place)?;
        let next_of_slot = core::mem::replace(first, index + 1);
        *self.by_fd.get_mut(key)? = index + 1;
        let member = Member { next_of_slot, ..Member::new(fd, slot, wish) };
        *self.members.get_mut(index as usize)? = Some(member);
        Some(index)
    }

    /// The member is not found by its number any more.
    pub(crate) fn unname(&mut self, index: u32) {
        let key = self.get(index).map_or(-1, |m| m.key);
        if let Some(place) = self.by_fd.get_mut(key as usize).filter(|i| **i == index + 1) {
            *place = 0;
        }
    }

    /// It is found by it again.
    pub(crate) fn name(&mut self, index: u32) {
        let key = self.get(index).map_or(-1, |m| m.key);
        if let Some(place) = self.by_fd.get_mut(key as usize) {
            *place = index + 1;
        }
    }

    /// Forgets a member; the kernel's entry is the caller's business.
    pub(crate) fn drop_member(&mut self, source: &S, index: u32) {
        let Some(member) = self.members.get_mut(index as usize).and_then(Option::take) else {
            return;
        };
        Self::give_up_place(member.place);
        self.outliving.retain(|i| *i != index);
        if let Some(place) = self.by_fd.get_mut(member.key as usize).filter(|i| **i == index + 1) {
            *place = 0;
        }
        let place = member.slot.raw() as usize;
        if self.by_slot.get(place) == Some(&(index + 1)) {
            if let Some(first) = self.by_slot.get_mut(place) {
                *first = member.next_of_slot;
            }
        } else {
            let mut at = self.first_of(member.slot);
            while let Some(i) = at {
                at = self.next_of(i);
                if at == Some(index) || at.is_none() {
                    if let Some(before) = self.get_mut(i) {
                        before.next_of_slot = member.next_of_slot;
                    }
                    break;
                }
            }
        }
        if member.serial != 0 {
            self.by_serial.remove(&member.serial);
        }
        if member.warm {
            self.warm.retain(|i| *i != index);
        }
        if member.queued {
            self.queue.retain(|i| *i != index);
        }
        self.patient.retain(|i| *i != index);
        self.free.push(index);
        if !member.armed.is_empty() {
            self.unarm(source, member.slot);
        }
    }

    /// The member's token, given on first need.
    pub(crate) fn token(&mut self, index: u32) -> u64 {
        let known = self.get(index).map_or(0, |m| m.serial);
        let serial = if known == 0 { self.new_serial(index) } else { known };
        if let Some(member) = self.get_mut(index) {
            member.serial = serial;
        }
        self.tag | u64::from(serial)
    }

    fn new_serial(&mut self, index: u32) -> u32 {
        loop {
            let serial = self.next_serial;
            self.next_serial = if serial + 1 < kernel::EVENT { serial + 1 } else { 1 };
            // There are far fewer members than serials (descriptors end at 2^20), so this ends.
            if let std::collections::btree_map::Entry::Vacant(place) = self.by_serial.entry(serial)
            {
                place.insert(index);
                return serial;
            }
        }
    }

    pub(crate) fn of_serial(&self, serial: u32) -> Option<u32> {
        self.by_serial.get(&serial).copied()
    }

    pub(crate) fn enqueue(&mut self, index: u32) {
        if let Some(member) = self.get_mut(index)
            && !member.queued
        {
            member.queued = true;
            self.queue.push_back(index);
        }
    }

    /// Takes the waker out of all of the slot's words. It stood there for every member of that
    /// slot: a socket can be in a set under several descriptors. So all of them have to be judged
    /// anew.
    pub(crate) fn unarm(&mut self, source: &S, slot: SlotId) {
        if let Some(waker) = self.waker_id() {
            source.disarm(slot, waker);
        }
        let mut at = self.first_of(slot);
        while let Some(index) = at {
            at = self.next_of(index);
            let Some(member) = self.get_mut(index) else { continue };
            member.armed = Events::empty();
            if member.live() && !member.warm {
                self.enqueue(index);
            }
        }
    }

    /// The directions into whose words this process has put the set's waker for the slot, and not
    /// heard of it since.
    pub(crate) fn armed(&self, slot: SlotId) -> Events {
        core::iter::successors(self.first_of(slot), |index| self.next_of(*index))
            .filter_map(|index| self.get(index))
            .fold(Events::empty(), |all, member| all | member.armed)
    }

    /// The other side has woken for this slot: whatever was armed may not be armed any more.
    pub(crate) fn woken(&mut self, source: &S, slot: SlotId) {
        let waker = self.waker_id();
        let mut at = self.first_of(slot);
        while let Some(index) = at {
            at = self.next_of(index);
            let Some(member) = self.get_mut(index) else { continue };
            if member.entry == Entry::Program {
                continue;
            }
            if let (true, Some(waker)) = (member.armed == Events::IN | Events::OUT, waker) {
                // One direction woke; the other's word may still be there, and is put in anew
                // later.
                source.disarm(slot, waker);
            }
            member.armed = Events::empty();
            if !member.warm {
                self.enqueue(index);
            }
        }
    }

    /// Puts a member that was just active into the warm list; false when it is full of others.
    pub(crate) fn warm_up(&mut self, source: &S, index: u32) -> bool {
        let call = self.call;
        let Some(member) = self.get_mut(index) else { return false };
        if member.warm {
            return true;
        }
        if member.entry != Entry::Detector || member.dead() || member.urgent || member.beside {
            // Judging it takes a system call: not by every wait.
            return false;
        }
        if self.warm.len() < WARM {
            self.warm.push(index);
        } else {
            // Only one that has gone quiet, and whose waker will speak for it, makes room.
            let quiet = |m: &Member| call.wrapping_sub(m.active) > COOL / 4 && !m.armed.is_empty();
            let Some(place) = self.warm.iter().position(|i| self.get(*i).is_none_or(quiet)) else {
                return false;
            };
            let Some(place) = self.warm.get_mut(place) else { return false };
            let old = core::mem::replace(place, index);
            self.cooled(source, old);
        }
        if let Some(member) = self.get_mut(index) {
            member.warm = true;
        }
        true
    }

    fn cooled(&mut self, source: &S, index: u32) {
        if let Some(member) = self.get_mut(index) {
            member.warm = false;
        }
        // Its waker speaks for it from here on.
        if !self.park(source, index) {
            self.enqueue(index);
        }
    }

    /// Takes a member out of the warm list when it has been quiet for long.
    pub(crate) fn cool(&mut self, source: &S, index: u32) -> bool {
        let call = self.call;
        let quiet = self.get(index).is_none_or(|m| {
            !m.live() || m.dead() || call.wrapping_sub(m.active) > COOL && !m.armed.is_empty()
        });
        if quiet {
            self.warm.retain(|i| *i != index);
            self.cooled(source, index);
        }
        quiet
    }
}
