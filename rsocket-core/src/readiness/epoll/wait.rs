//! `epoll_wait`: user space first, the kernel on a time basis and before every sleep. Each return
//! of the kernel is judged before the program sees it.
//!
//! One descriptor yields at most one event for each call. What the kernel says under a token is
//! only noted at the member, and members are judged once, after the kernel was asked.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::os::fd::RawFd;

use libc::{c_int, epoll_event};

use super::gather::Out;
use super::kernel;
use super::registry::{Registry, Set};
use super::set::{State, WARM};
use crate::failure::Failure;
use crate::given::epoll::{Pwait, Wait};
use crate::readiness::deadline::{Deadline, sooner};
use crate::readiness::scratch::Room;
use crate::readiness::source::{Events, SlotId, Source};
use crate::readiness::spin_polls::SpinPolls;
use crate::sync::signals::{self, Seen, Since};
use crate::sys;

/// Sleep at most so long when there is no waker to be had, or a member says both "ready" and
/// "nothing".
const NAP: Duration = Duration::from_millis(5);
/// How often a wait spins at most. A spin may end with a ring that was meant for an earlier sleep.
const SPINS: u32 = 3;
/// The most events that the kernel takes.
const MOST: c_int = c_int::MAX / size_of::<epoll_event>() as c_int;

/// A wait on a set that has a mirror.
#[derive(Clone, Copy)]
struct Call<'a> {
    wait: Wait<'a>,
    real: Pwait,
}

impl Call<'_> {
    /// Sleeps in the kernel. A cancellation point: no lock is held.
    fn sleep(&self, time: Option<Duration>) -> Result<usize, Failure> {
        self.real.wait(&self.wait, time)
    }
}

/// What a thread takes with it into its sleep.
struct Sleep {
    ready: bool,
    nap: Option<Duration>,
    life: u32,
    changes: u32,
}

impl Sleep {
    /// How long at most; what is ready and then brings nothing must not keep the thread running.
    fn nap(&self) -> Option<Duration> {
        if self.ready { sooner(self.nap, Some(NAP)) } else { self.nap }
    }
}

impl<S: Source> Registry<S> {
    /// See [`super::wait`].
    ///
    /// # Errors
    /// As the kernel.
    pub fn wait(&'static self, wait: Wait<'_>, real: Pwait) -> Result<usize, Failure> {
        let (timeout, max) = (wait.timeout(), wait.max());
        let Some(set) = self.get(wait.epfd()) else {
            return real.wait(&wait, timeout);
        };
        let call = Call { wait, real };
        self.saw_wait(set);
        if max <= 0 || max > MOST {
            return Err(Failure::Invalid);
        }
        if set.dormant.load(Ordering::Relaxed) {
            self.enter(set, |state| self.awaken(set, state));
        }
        if set.nests.load(Ordering::Relaxed) {
            self.peek_inside(set);
        }
        self.looks_for_taken(set);
        // Relaxed: `wait_plain` looks again when it is counted as a sleeper, and after the sleep.
        if !set.special.load(Ordering::Relaxed) && self.source.attaching().is_none() {
            return self.wait_plain(set, call, timeout);
        }
        self.wait_special(set, call, Deadline::after(timeout))
    }

    /// The program waits for the set's members by calls that are seen.
    #[inline]
    pub(super) fn saw_wait(&'static self, set: &'static Set<S>) {
        if set.unwaited.load(Ordering::Relaxed) {
            self.tell_members(set);
        }
    }

    #[cold]
    fn tell_members(&'static self, set: &'static Set<S>) {
        set.unwaited.store(false, Ordering::Relaxed);
        self.enter(set, |state| {
            state.members.iter().flatten().for_each(|member| self.source.waited(member.slot));
        });
    }

    /// The kernel's own set: its call, and a look whether it still was its own at the end.
    fn wait_plain(
        &'static self,
        set: &'static Set<S>,
        call: Call<'_>,
        timeout: Option<Duration>,
    ) -> Result<usize, Failure> {
        let mut deadline = Deadline::after(timeout);
        deadline.begin();
        // SeqCst, here and below: the thread that makes the set special stores that and then reads
        // this count. If it found no sleeper, nothing is armed, and this thread must not sleep
        // before it has looked.
        set.sleepers.fetch_add(1, Ordering::SeqCst);
        if set.special.load(Ordering::SeqCst) {
            set.sleepers.fetch_sub(1, Ordering::SeqCst);
            return self.wait_special(set, call, deadline);
        }
        let result = match self.looks_for_taken(set) {
            None => call.sleep(timeout),
            Some(pause) => self.sleep_in_parts(set, call, deadline, pause),
        };
        set.sleepers.fetch_sub(1, Ordering::SeqCst);
        if !set.special.load(Ordering::SeqCst) {
            return result;
        }
        let n = result?;
        let found = self.enter(set, |state| {
            let (n, woke) = state.sift(call.wait.events(), n);
            (state.outdated(call.wait.events(), n), woke)
        });
        let (n, woke) = found.unwrap_or((n, false));
        if woke {
            self.collect(set);
        }
        // What the kernel reported in the program's own words may be about a member that has
        // changed since: it goes out alone.
        if n > 0 {
            self.leave(set);
            return Ok(n);
        }
        self.wait_special(set, call, deadline)
    }

    /// The kernel's call, interrupted by looks for what siblings have done, of which one has just
    /// been.
    fn sleep_in_parts(
        &'static self,
        set: &'static Set<S>,
        call: Call<'_>,
        deadline: Deadline,
        mut pause: Duration,
    ) -> Result<usize, Failure> {
        let seen = signals::seen();
        loop {
            let left = deadline.left();
            let result = call.sleep(sooner(left, Some(pause)));
            if result != Ok(0)
                || left.is_some_and(|left| left <= pause)
                || set.special.load(Ordering::SeqCst)
            {
                return result;
            }
            let next = self.looks_for_taken(set);
            if set.special.load(Ordering::SeqCst) {
                return Ok(0);
            }
            if !matches!(seen.since(), Since::Nothing) {
                // A handler ran between two of them.
                return Err(Failure::Interrupted);
            }
            match next {
                Some(next) => pause = next,
                None => return call.sleep(deadline.left()),
            }
        }
    }

    fn wait_special(
        &'static self,
        set: &'static Set<S>,
        call: Call<'_>,
        mut deadline: Deadline,
    ) -> Result<usize, Failure> {
        if !set.has_room(&call.wait) || call.wait.signals_are_nowhere() {
            return Err(Failure::BadAddress);
        }
        let mut vain = 0;
        let mut spins = SPINS;
        let seen = signals::seen();
        loop {
            let left = deadline.left();
            let pause = self.looks_for_taken(set);
            let waits = left.is_none_or(|t| !t.is_zero());
            let n = match self.sweep(set, call, waits, spins == SPINS) {
                Some(result) => result?,
                // A signal handler inside a section of its own thread: the kernel's word must do.
                None => return call.sleep(left),
            };
            if n > 0 {
                return Ok(n);
            }
            deadline.begin();
            if left.is_some_and(|t| t.is_zero()) {
                return Ok(0);
            }
            if self.spin(set, (call, deadline), &mut spins) {
                continue;
            }
            if self.source.bits_serve() != 0 {
                self.collect(set);
            }
            let Some(sleep) = self.prepare(set) else { return call.sleep(left) };
            if sleep.ready && vain < 3 {
                set.sleepers.fetch_sub(1, Ordering::SeqCst);
                vain += 1;
                continue;
            }
            vain = 0;
            let limit = sooner(sooner(left, pause), self.source.wake_up_interval());
            let sleep = Sleep { nap: sooner(sleep.nap(), limit), ..sleep };
            let n = self.sleep_prepared(set, call, &sleep, seen)?;
            if n > 0 {
                return Ok(n);
            }
        }
    }

    /// Sleeps, and judges what that has brought: 0 where it has to be looked again.
    fn sleep_prepared(
        &'static self,
        set: &'static Set<S>,
        call: Call<'_>,
        sleep: &Sleep,
        seen: Seen,
    ) -> Result<usize, Failure> {
        // A handler ran while we were looking and spinning. As in the kernel, what is ready counts
        // more.
        let interrupted = !matches!(seen.since(), Since::Nothing);
        let result = call.sleep(if interrupted { Some(Duration::ZERO) } else { sleep.nap });
        set.sleepers.fetch_sub(1, Ordering::SeqCst);
        match self.digest(set, call, sleep, result?)? {
            0 if interrupted => Err(Failure::Interrupted),
            n => Ok(n),
        }
    }

    /// Everything that can be had without sleeping. The ready bits are collected first, but where
    /// the call `waits` and they were a moment ago. When a spin comes next (`may_spin`) and there
    /// is something to spin over, the kernel is asked on its time basis only. The sleep after the
    /// spin asks it anyway. `None` from inside.
    fn sweep(
        &'static self,
        set: &'static Set<S>,
        call: Call<'_>,
        waits: bool,
        may_spin: bool,
    ) -> Option<Result<usize, Failure>> {
        if !(waits && self.collected_lately()) {
            self.collect(set);
        }
        let lazy = waits && may_spin;
        let found = self.enter(set, |state| {
            let (n, woke) =
                state.ask_and_gather(&self.source, call.wait.epfd(), call.wait.events(), lazy)?;
            if !woke {
                self.pass_on(set, state);
            }
            Ok((n, woke))
        })?;
        let (n, woke) = match found {
            Ok(found) => found,
            Err(e) => return Some(Err(e)),
        };
        if woke {
            // The waker was the word for the threads that sleep on this set; now it is ours to pass
            // on.
            self.collect(set);
            if n == 0 {
                return Some(Ok(
                    self.enter(set, |state| self.harvest(set, state, call.wait.events(), 0))?
                ));
            }
            self.leave(set);
        }
        Some(Ok(n))
    }

    /// Arms what is awake and counts this thread among the sleepers.
    fn prepare(&'static self, set: &'static Set<S>) -> Option<Sleep> {
        // With no set's lock held: it goes on with pairings of all sets.
        let attaching = self.source.attaching();
        self.enter(set, |state| {
            // SeqCst, and before the lists are looked at: a thread that adds to them later, under
            // this lock, sees the count and wakes.
            set.sleepers.fetch_add(1, Ordering::SeqCst);
            if state.waker.is_none() {
                state.need_waker(&self.source);
            }
            let mut ready = !state.queue.is_empty();
            for i in 0..state.warm.len() {
                if let Some(index) = state.warm.get(i).copied() {
                    ready |= !state.park(&self.source, index);
                }
            }
            let mut nap = None;
            let mut patient = core::mem::take(&mut state.patient);
            patient.retain(|index| {
                let member = state.get(*index).filter(|m| m.present);
                let time = member.and_then(|m| self.source.recheck_after(m.slot));
                nap = sooner(nap, time);
                if time.is_none() && member.is_some() {
                    // It got on since it was judged, and no waker says so.
                    state.enqueue(*index);
                    ready = true;
                }
                time.is_some()
            });
            state.patient = patient;
            nap = sooner(nap, attaching);
            if state.waker.is_none() {
                (ready, nap) = (false, sooner(nap, Some(NAP)));
            }
            Sleep { ready, nap, life: state.life, changes: state.changes }
        })
    }

    /// Judges what a sleep has brought.
    fn digest(
        &'static self,
        set: &'static Set<S>,
        call: Call<'_>,
        sleep: &Sleep,
        n: usize,
    ) -> Result<usize, Failure> {
        let found = self.enter(set, |state| {
            if state.life != sleep.life {
                return Err(Failure::BadDescriptor);
            }
            // The sleep has asked the kernel.
            state.asked = sys::ticks();
            let (mut n, woke) = state.sift(call.wait.events(), n);
            let alone = state.changes != sleep.changes;
            if alone {
                n = state.outdated(call.wait.events(), n);
            }
            Ok((n, woke, n > 0 && alone))
        });
        let (n, woke, alone) = found.unwrap_or(Ok((n, false, true)))?;
        if woke {
            self.collect(set);
        }
        if alone {
            // As in `wait_plain`.
            self.leave(set);
            return Ok(n);
        }
        Ok(self.enter(set, |state| self.harvest(set, state, call.wait.events(), n)).unwrap_or(n))
    }

    fn harvest(&self, set: &Set<S>, state: &mut State<S>, out: Out<'_>, n: usize) -> usize {
        let n = state.gather(&self.source, out, n);
        self.pass_on(set, state);
        n
    }

    /// Passes on what this thread leaves behind: to other sleepers, and to threads that poll the
    /// set itself.
    fn pass_on(&self, set: &Set<S>, state: &mut State<S>) {
        let mut wake = state.early && set.sleepers.load(Ordering::SeqCst) > 0;
        state.early = false;
        if state.watched {
            wake |= !state.queue.is_empty();
            for i in 0..state.warm.len() {
                if let Some(index) = state.warm.get(i).copied() {
                    wake |= !state.park(&self.source, index);
                }
            }
        }
        if let (true, Some(waker)) = (wake, state.waker_id()) {
            self.source.wake(waker);
        }
    }

    /// The kernel's events go out alone; what is ours is left to others, or to the next wait.
    fn leave(&'static self, set: &'static Set<S>) {
        self.enter(set, |state| {
            state.early |= !state.queue.is_empty();
            self.pass_on(set, state);
        });
    }

    /// Spins over the warm members, if there are any, until one of them is ready, or the kernel has
    /// an event. So many `spins` are left; a spin in vain is the last.
    fn spin(
        &'static self,
        set: &'static Set<S>,
        (call, deadline): (Call<'_>, Deadline),
        spins: &mut u32,
    ) -> bool {
        let Some(left) = core::mem::take(spins).checked_sub(1) else { return false };
        let Some(none) = SlotId::from_raw(1) else { return false };
        let Some(mut slots) = Room::<_, 0>::new(WARM, none) else { return false };
        let spun =
            Room::<_, 0>::new(WARM, (0, Events::empty(), false, 0_u64)).is_some_and(|mut ask| {
                let found = self.spin_over(set, (call, deadline), slots.slice(), ask.slice());
                ask.release();
                found
            });
        slots.release();
        if spun {
            *spins = left;
        }
        spun
    }

    /// The same, with room for what is known of them.
    fn spin_over(
        &'static self,
        set: &'static Set<S>,
        (call, deadline): (Call<'_>, Deadline),
        slots: &mut [SlotId],
        ask: &mut [(RawFd, Events, bool, u64)],
    ) -> bool {
        let taken = self.enter(set, |state| {
            let live = state.warm.iter().filter_map(|i| state.get(*i)).filter(|m| m.live());
            let mut n = 0;
            for ((member, slot), ask) in live.zip(slots.iter_mut()).zip(ask.iter_mut()) {
                *slot = member.slot;
                *ask = (member.fd, member.wanted(), member.edge_triggered(), member.seen.received);
                n += 1;
            }
            n
        });
        let n = taken.unwrap_or(0);
        let (Some(slots), Some(ask)) = (slots.get(..n), ask.get(..n)) else { return false };
        if slots.is_empty() {
            return false;
        }
        let source = &self.source;
        let near = deadline.near();
        let (epfd, mut polls) = (call.wait.epfd(), SpinPolls::new());
        let mut probe = || {
            let ready = slots.iter().zip(ask).any(|(slot, (fd, wanted, edge, seen))| {
                if *edge {
                    source.progress(*slot).received != *seen
                } else {
                    source.look(*slot, *fd).ready.intersects(*wanted)
                }
            });
            ready
                || polls.is_due(slots.len()) && kernel::has_events(epfd)
                || near && deadline.left().is_some_and(|t| t.is_zero())
        };
        source.spin(&mut probe, slots)
    }
}
