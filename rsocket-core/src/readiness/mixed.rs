//! One wait over any mixture of descriptors: the kernel's own, sockets that are on device, and
//! epoll sets that have such members. `poll` and `select` are two spellings of it.
//!
//! 1. Look at every socket on device (no system call). Is anything wanted ready, ask the kernel
//!    about the rest without waiting, and return.
//! 2. Spin for as long as the sockets find that it pays.
//! 3. Borrow a waker, put it into the waiter slots of what is wanted, and look again. Then sleep on
//!    the kernel's descriptors, the TCP descriptors and the waker together.
//!
//! Nothing with a destructor is alive across the sleep, which is a cancellation point. A thread may
//! be cancelled there, or jump out of it: what it leaves behind is noted where the waker comes
//! from.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::time::Duration;
use std::os::fd::RawFd;

use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLPRI, POLLRDHUP, POLLRDNORM, POLLWRNORM, pollfd};

use super::Finder;
use super::deadline::{Deadline, sooner};
use super::epoll::Registry;
use super::scratch::Room;
use super::source::{Events, Look, SlotId, Source, Waker};
use super::spin_polls::SpinPolls;
use crate::failure::Failure;
use crate::host::kernel;
use crate::sync::signals::{self, Seen, Since};
use crate::sys;

/// Sleep at most so long where the kernel's word is unusable: a waker cannot be had, or an event is
/// always there and never wanted. Such a nap is rare, and better than a busy loop or a missed
/// event.
const NAP: Duration = Duration::from_millis(5);

/// No time.
const NOW: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 0 };

/// Descriptors of one wait for which there is room on the stack.
pub(crate) const FEW: usize = 8;

/// One descriptor of the wait.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) fd: RawFd,
    /// What is asked of the kernel for a descriptor of its own.
    pub(crate) events: i16,
    /// What may be reported, and ends the wait.
    pub(crate) accept: i16,
    pub(crate) revents: i16,
    slot: Option<SlotId>,
    /// The socket's readiness is not the kernel's alone.
    special: bool,
    set: bool,
    /// What the last look says must be asked of the kernel.
    ask: Events,
    /// The socket's mode epoch before that look.
    epoch: u32,
    /// RDHUP was heard and meant nothing to the caller: not asked again in this call.
    quiet: bool,
    /// The kernel repeats what the caller does not want: left out for a nap.
    deaf: bool,
}

impl Entry {
    pub(crate) const NONE: Self = Self::new(-1, 0, 0);

    pub(crate) const fn new(fd: RawFd, events: i16, accept: i16) -> Self {
        Self {
            fd,
            events,
            accept,
            revents: 0,
            slot: None,
            special: false,
            set: false,
            ask: Events::empty(),
            epoch: 0,
            quiet: false,
            deaf: false,
        }
    }

    fn wanted(&self) -> Events {
        wanted(u32::from(self.events as u16))
    }

    /// Whether bytes that TCP has came around the library.
    fn astray<S: Source>(&self, source: &S) -> bool {
        self.slot.is_some_and(|slot| source.astray(slot))
    }

    /// Whether the kernel is asked about it at all.
    fn asked(&self) -> bool {
        self.fd >= 0 && !self.deaf
    }
}

/// The directions and conditions that an event mask of poll or epoll asks about.
pub(crate) fn wanted(events: u32) -> Events {
    let mut wanted = Events::from_bits_truncate(events)
        & (Events::IN | Events::OUT | Events::PRI | Events::RDHUP);
    if events & POLLRDNORM as u32 != 0 {
        wanted |= Events::IN;
    }
    if events & POLLWRNORM as u32 != 0 {
        wanted |= Events::OUT;
    }
    wanted
}

/// Whether the kernel is to say when the peer sends no more. That is for a reader to see; to a
/// sender it is the first sign that there may be no process left to make room. Where the kernel is
/// asked for room, it answers for that itself.
pub(crate) fn listens_for_end(wanted: Events, ask: Events) -> bool {
    wanted.intersects(Events::IN | Events::RDHUP) || (wanted - ask).contains(Events::OUT)
}

/// What the kernel's TCP reports for such a condition: the old names beside the new ones.
pub(crate) fn spelled(ready: Events) -> u32 {
    let mut bits = ready.bits();
    if ready.contains(Events::IN) {
        bits |= POLLRDNORM as u32;
    }
    if ready.contains(Events::OUT) {
        bits |= POLLWRNORM as u32;
    }
    bits
}

fn timespec(d: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(d.subsec_nanos()),
    }
}

/// What a look has just found to be the kernel's business, which it was not asked about: said
/// beside what is `ready`. (Where nothing is, the next look asks.)
fn further<S: Source>(source: &S, e: &Entry, slot: SlotId, ask: Events, ready: Events) -> Events {
    let ask = (ask & e.wanted()).difference(e.ask);
    if ask.is_empty() || spelled(ready) as i16 & e.accept == 0 {
        return Events::empty();
    }
    match kernel::poll_now(e.fd, ask) {
        said if said.is_empty() => said,
        said => source.heard(slot, e.fd, said),
    }
}

/// Looks at a socket on its device. A set that the program asks next is to say the same of bytes
/// that are here.
fn look<S: Source>(source: &S, sets: &'static Registry<S>, slot: SlotId, fd: RawFd) -> Look {
    let look = source.look(slot, fd);
    if look.ready.contains(Events::IN) && source.sets_may_be_deaf(slot) {
        sets.found_unread(slot);
    }
    look
}

struct Wait<'a, S: Source> {
    source: &'a S,
    sets: &'static Registry<S>,
    find: Finder,
    entries: &'a mut [Entry],
    /// One for each entry that is [`asked`](Entry::asked) about, then one for the waker and one for
    /// its eventfd, if there is one. Behind them comes what else there is to sleep on.
    kernel: &'a mut [pollfd],
    recheck_after: Option<Duration>,
    /// What handlers had run when the wait began.
    seen: Seen,
}

/// Waits until an entry has something that it accepts; the count of those.
pub(crate) fn wait<S: Source>(
    sets: &'static Registry<S>,
    entries: &mut [Entry],
    timeout: Option<Duration>,
    mask: *const libc::sigset_t,
    find: Finder,
) -> Result<usize, Failure> {
    let none = pollfd { fd: -1, events: 0, revents: 0 };
    let Some(mut kernel) = Room::<_, { 2 * FEW + 2 }>::new(2 * entries.len() + 2, none) else {
        return Err(Failure::NoMemory);
    };
    let source = &sets.source;
    let mut wait = Wait {
        source,
        sets,
        find,
        entries,
        kernel: kernel.slice(),
        recheck_after: None,
        seen: signals::seen(),
    };
    let result = wait.run(timeout, mask);
    kernel.release();
    result
}

/// The sockets that the last look found on TCP alone.
fn plain(entries: &[Entry]) -> impl Iterator<Item = SlotId> {
    entries.iter().filter(|e| !e.special).filter_map(|e| e.slot)
}

impl<S: Source> Wait<'_, S> {
    fn run(
        &mut self,
        timeout: Option<Duration>,
        mask: *const libc::sigset_t,
    ) -> Result<usize, Failure> {
        let mut waker = None;
        let result = self.until_ready(&mut waker, Deadline::after(timeout), mask);
        if let Some(waker) = waker {
            self.source.give_back_waker(waker);
        }
        result
    }

    /// Looks and sleeps in turns; the waker is borrowed before the first sleep.
    fn until_ready(
        &mut self,
        waker: &mut Option<S::Waker>,
        mut deadline: Deadline,
        mask: *const libc::sigset_t,
    ) -> Result<usize, Failure> {
        let mut spun = false;
        let mut vain = 0_u32;
        loop {
            if let Some(told) = self.at_once(&mut deadline, mask) {
                return told;
            }
            if !spun {
                spun = true;
                match self.before_sleep() {
                    Ok(0) => {}
                    told => return told,
                }
                if self.spin(deadline) {
                    continue;
                }
            }
            match self.briefly(deadline, mask) {
                None => {}
                Some(Ok(0)) => continue,
                told => return told.unwrap_or(Ok(0)),
            }
            if waker.is_none() {
                *waker = self.source.borrow_waker(core::ptr::from_ref(self).addr());
            }
            let Some(nap) = self.before_nap(*waker, &mut vain) else { continue };
            match self.sleep(*waker, sooner(deadline.left(), self.at_most(nap)), mask) {
                Ok(0) if deadline.left().is_none_or(|t| !t.is_zero()) => {}
                // Time is up. What came in the very last moment is found by a look.
                Ok(0) if self.look() == 0 => return Ok(0),
                Ok(0) => {}
                told => return told,
            }
            if nap.is_some() {
                self.entries.iter_mut().for_each(|e| e.deaf = false);
                vain = 0;
            }
        }
    }

    /// Arms everything with the waker: how long the sleep may last at most, and `None` where
    /// something became ready meanwhile, for the first times.
    fn before_nap(&mut self, waker: Option<S::Waker>, vain: &mut u32) -> Option<Option<Duration>> {
        let nap = match waker {
            Some(b) if self.arm(b) => None,
            Some(b) if *vain < 3 => {
                self.disarm(b);
                *vain += 1;
                return None;
            }
            _ => Some(NAP),
        };
        Some(sooner(nap, self.entries.iter().any(|e| e.deaf).then_some(NAP)))
    }

    /// What is to be told without a sleep: of what is ready, or that time is up.
    fn at_once(
        &mut self,
        deadline: &mut Deadline,
        mask: *const libc::sigset_t,
    ) -> Option<Result<usize, Failure>> {
        if self.look() > 0 {
            return Some(self.ask_kernel(None, core::ptr::null()));
        }
        deadline.begin();
        // With the caller's mask: a signal that only this call lets in is delivered here.
        deadline.left().is_some_and(|t| t.is_zero()).then(|| self.ask_kernel(None, mask))
    }

    /// How long a sleep lasts at most, whatever the caller's time.
    fn at_most(&self, nap: Option<Duration>) -> Option<Duration> {
        let ours = self.entries.iter().any(|e| e.special || e.set);
        let limit = self.source.wake_up_interval().filter(|_| ours);
        sooner(sooner(nap, limit), self.recheck_after)
    }

    /// What the devices say; the count of entries that have what they accept.
    fn look(&mut self) -> usize {
        let mut count = 0;
        self.recheck_after = self.source.attaching();
        for e in &mut *self.entries {
            e.revents = 0;
            if e.fd < 0 {
                continue;
            }
            e.slot = (self.find)(e.fd);
            e.epoch = e.slot.map_or(0, |slot| self.source.mode_epoch(slot));
            let recheck_after = e.slot.and_then(|slot| self.source.recheck_after(slot));
            self.recheck_after = sooner(self.recheck_after, recheck_after);
            e.special =
                recheck_after.is_some() || e.slot.is_some_and(|slot| self.source.on_device(slot));
            e.set = e.slot.is_none() && self.sets.polled(e.fd);
            let mut ready = Events::empty();
            if let (true, Some(slot)) = (e.special, e.slot) {
                let look = look(self.source, self.sets, slot, e.fd);
                e.ask = look.ask & e.wanted();
                ready = look.ready;
            } else if e.set && self.sets.peek(e.fd) {
                ready = Events::IN;
            }
            e.revents = spelled(ready) as i16 & e.accept;
            count += usize::from(e.revents != 0);
        }
        count
    }

    /// Writes the kernel's share of the question: how long it is, and where the waker stands.
    /// Nothing that means nothing is among it: of as many entries as the process may have
    /// descriptors one more would be too many.
    fn fill(&mut self, waker: Option<S::Waker>) -> (usize, usize) {
        let heard = |fd| pollfd { fd, events: POLLIN, revents: 0 };
        let end = waker.map(|b| heard(b.fd()));
        let event = waker.map(|b| b.event()).filter(|fd| *fd >= 0).map(heard);
        let asked = self.entries.iter().filter(|e| e.asked());
        let place = asked.clone().count();
        let entries = asked.map(|e| {
            let mut events = e.events;
            if e.special {
                let wanted = e.wanted();
                events &= POLLPRI;
                events |= (e.ask & (Events::IN | Events::OUT)).bits() as i16;
                if wanted.contains(Events::IN) && e.astray(self.source) {
                    events |= POLLIN;
                }
                if listens_for_end(wanted, e.ask) && !e.quiet {
                    events |= POLLRDHUP;
                }
            }
            pollfd { fd: e.fd, events, revents: 0 }
        });
        let special = self.entries.iter().filter(|e| e.special).filter_map(|e| e.slot);
        let further = special.filter_map(|slot| self.source.events(slot));
        let further = further.map(heard);
        let mut used = 0;
        for (to, from) in self.kernel.iter_mut().zip(entries.chain(end).chain(event).chain(further))
        {
            *to = from;
            used += 1;
        }
        (used, place)
    }

    /// Merges what the kernel said into the entries, and looks at the devices again; the count of
    /// entries that have what they accept.
    fn merge(&mut self) -> usize {
        let mut count = 0;
        let mut answers = self.kernel.iter();
        for e in &mut *self.entries {
            let mut answer = if e.asked() { answers.next().map_or(0, |k| k.revents) } else { 0 };
            if e.special && !e.ask.contains(Events::IN) && !e.astray(self.source) {
                // The peer has gone back to TCP meanwhile: the look below finds that.
                answer &= !POLLIN;
            }
            let mut revents = answer | e.revents;
            if let (true, Some(slot)) = (e.special, e.slot) {
                let said = Events::from_bits_truncate(u32::from(answer as u16));
                let look = look(self.source, self.sets, slot, e.fd);
                let mut ready = look.ready;
                if !said.is_empty() {
                    ready |= self.source.heard(slot, e.fd, said);
                }
                ready |= further(self.source, e, slot, look.ask, ready);
                revents = (answer & libc::POLLNVAL) | spelled(ready) as i16 | e.revents;
            }
            e.revents = revents & e.accept;
            if e.revents != 0 {
                count += 1;
            } else if answer & POLLRDHUP != 0 && e.special {
                e.quiet = true;
            } else if answer & (POLLERR | POLLHUP | POLLIN | POLLOUT) != 0 {
                e.deaf = !e.slot.is_some_and(|slot| self.source.consumes(slot));
            }
        }
        count
    }

    /// A sleep for data on one socket that is on its device, and on nothing else; the count of
    /// entries that have what they accept. `None` where a whole sleep is due.
    fn briefly(
        &mut self,
        deadline: Deadline,
        mask: *const libc::sigset_t,
    ) -> Option<Result<usize, Failure>> {
        let slot = self.only()?;
        let [e] = &*self.entries else { return None };
        let wanted = e.wanted();
        let for_data = wanted.contains(Events::IN) && !wanted.contains(Events::OUT);
        let plain = mask.is_null() && self.recheck_after.is_none() && !e.quiet && !e.deaf;
        if !for_data || !plain || !e.ask.is_empty() || self.seen.since() != Since::Nothing {
            return None;
        }
        let limit = sooner(deadline.left(), self.source.wake_up_interval());
        match self.source.sleep_briefly(slot, e.epoch, limit)? {
            // Woken by what has come: what TCP has to say is for the next wait.
            Ok(true) => Some(Ok(self.look())),
            Ok(false) => Some(Ok(0)),
            // What has come counts more than a signal, as in the kernel.
            Err(e) => match self.look() {
                0 => Some(Err(e)),
                n => Some(Ok(n)),
            },
        }
    }

    /// The only socket of the wait, if it is on its device.
    fn only(&self) -> Option<SlotId> {
        match &*self.entries {
            [e] if e.special && e.fd >= 0 => e.slot,
            _ => None,
        }
    }

    /// Asks the kernel without waiting.
    fn ask_kernel(
        &mut self,
        waker: Option<S::Waker>,
        mask: *const libc::sigset_t,
    ) -> Result<usize, Failure> {
        self.sleep(waker, Some(Duration::ZERO), mask)
    }

    /// Sleeps, or only asks when the time is zero. Disarms afterwards.
    fn sleep(
        &mut self,
        waker: Option<S::Waker>,
        time: Option<Duration>,
        mask: *const libc::sigset_t,
    ) -> Result<usize, Failure> {
        let (used, place) = self.fill(waker);
        let spec = time.map(timespec);
        let waits = time.is_none_or(|t| !t.is_zero());
        let entered = if waits { self.enter() } else { Some(0) };
        // While we were looking and spinning. As in the kernel, what is ready counts more.
        let interrupted = waits && self.seen.since() != Since::Nothing;
        let (spec, mask) = if interrupted { (Some(NOW), core::ptr::null()) } else { (spec, mask) };
        let timed = self.only().filter(|_| waits && waker.is_some()).map(|s| (s, sys::now_ns()));
        let result = match entered {
            Some(_) => {
                sys::wait(self.kernel.get_mut(..used).unwrap_or_default(), spec.as_ref(), mask)
            }
            // One of them has just left TCP.
            None => Err(Failure::Blocked),
        };
        self.leave(entered.unwrap_or(0));
        if let Some(waker) = waker {
            self.disarm(waker);
            let said = |i: usize| self.kernel.get(i).is_some_and(|k| k.revents != 0);
            let rang = [said(place), waker.event() >= 0 && said(place + 1)];
            if rang != [false; 2] {
                waker.take_rung(rang);
            }
            if let Some((slot, began)) = timed {
                let alone = rang != [false; 2] && !said(0);
                self.source.slept(slot, sys::now_ns().saturating_sub(began), alone);
            }
        }
        match result {
            Ok(_) => match self.merge() {
                0 if interrupted => Err(Failure::Interrupted),
                n => Ok(n),
            },
            Err(Failure::Blocked) => Ok(0),
            // What the devices said before counts more than a signal, as in the kernel.
            Err(Failure::Interrupted) if self.entries.iter().any(|e| e.revents != 0) => {
                Ok(self.entries.iter().filter(|e| e.revents != 0).count())
            }
            Err(e) => Err(e),
        }
    }

    /// Counts this thread as waiting in the kernel on every socket that is still TCP's alone: none
    /// of them leaves TCP while it sleeps. How many there are, or `None` when one has left already.
    fn enter(&self) -> Option<usize> {
        let mut entered = 0;
        for slot in plain(self.entries) {
            if !self.source.enter_wait(slot) {
                self.leave(entered);
                return None;
            }
            entered += 1;
        }
        Some(entered)
    }

    fn leave(&self, entered: usize) {
        plain(self.entries).take(entered).for_each(|slot| self.source.leave_wait(slot));
    }

    /// Whether the kernel alone answers for some of them.
    fn asks_kernel(&self) -> bool {
        self.entries.iter().any(|e| e.fd >= 0 && (!e.special || !e.ask.is_empty()))
    }

    /// The kernel's own descriptors must not wait for the end of the spin.
    fn before_sleep(&mut self) -> Result<usize, Failure> {
        if self.asks_kernel() { self.ask_kernel(None, core::ptr::null()) } else { Ok(0) }
    }

    /// True when there is something to look at, or to ask the kernel for, or time is up.
    fn spin(&mut self, deadline: Deadline) -> bool {
        let mut few = [SlotId::from_raw(1); 16];
        let mut n = 0;
        for e in self.entries.iter().filter(|e| e.special) {
            if let (Some(place), Some(_)) = (few.get_mut(n), e.slot) {
                *place = e.slot;
                n += 1;
            }
        }
        let Some(first) = SlotId::from_raw(1) else { return false };
        let slots = few.map(|s| s.unwrap_or(first));
        let Some(slots) = slots.get(..n).filter(|s| !s.is_empty()) else { return false };
        let asked = if self.asks_kernel() { self.fill(None).0 } else { 0 };
        let asked = self.kernel.get(..asked).unwrap_or_default();
        let mut polls = SpinPolls::new();
        let (source, entries) = (self.source, &*self.entries);
        let near = deadline.near();
        let mut probe = || {
            let ready = entries.iter().any(|e| match e.slot {
                Some(slot) if e.special => {
                    spelled(source.look(slot, e.fd).ready) as i16 & e.accept != 0
                }
                _ => false,
            });
            ready
                || polls.is_due(slots.len()) && kernel::any_ready(asked)
                || near && deadline.left().is_some_and(|t| t.is_zero())
        };
        source.spin(&mut probe, slots)
    }

    /// Arms everything wanted; false when something became ready meanwhile.
    fn arm(&mut self, waker: S::Waker) -> bool {
        for e in self.entries.iter() {
            let armed = match e.slot {
                Some(slot) if e.special => {
                    let wanted = e.wanted();
                    let both = wanted & (Events::IN | Events::OUT);
                    // RDHUP without IN waits for the end of the stream, not for bytes: unread ones
                    // must not keep the caller awake.
                    let seen = self.source.progress(slot).received;
                    let end_only = wanted.contains(Events::RDHUP) && !both.contains(Events::IN);
                    // Spinning, or another thread, may have changed since the look whether the
                    // device or the kernel is to be asked. The thread that changed it has woken
                    // already.
                    (both.is_empty() || self.source.arm(slot, both, waker.id(), false))
                        && self.source.mode_epoch(slot) == e.epoch
                        && (!end_only || self.source.arm_edge(slot, seen, waker.id(), false))
                }
                _ => !e.set || !self.sets.peek(e.fd),
            };
            if !armed {
                return false;
            }
        }
        true
    }

    fn disarm(&self, waker: S::Waker) {
        for e in self.entries.iter().filter(|e| e.special) {
            if let Some(slot) = e.slot {
                self.source.disarm(slot, waker.id());
            }
        }
    }
}
