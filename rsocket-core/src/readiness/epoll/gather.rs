//! What one wait tells the program: the kernel's events without those under a token, then what the
//! members that are awake have to report. All under the set's lock; nothing here waits. Enter at
//! [`State::ask_and_gather`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::RawFd;

use libc::epoll_event;

use super::judge::judge;
use super::kernel::{self, EVENT, ONESHOT, SERIAL_BITS, WAKER};
use super::set::{State, WARM};
use crate::failure::Failure;
use crate::given::Places;
use crate::readiness::source::{Events, Source, Waker};
use crate::sys;

/// The kernel is asked by every so many-th wait, and after this many ticks (about 50 µs at 2 to 3
/// GHz).
const CALLS: u32 = 8;
const TICKS: u64 = 125_000;
/// How many members ahead of the one that is judged are foreseen.
const AHEAD: usize = 4;

/// The program's array.
pub(super) type Out<'a> = Places<'a, epoll_event>;

impl<S: Source> State<S> {
    /// Whether a member would report something; if not, it is armed. Uses up no edge.
    pub(crate) fn tempt(&mut self, source: &S, index: u32) -> bool {
        let Some(member) = self.get_mut(index) else { return false };
        if !member.live() {
            return false;
        }
        let verdict = judge(source, member);
        member.spend(&verdict);
        verdict.due || !self.park(source, index)
    }

    /// One look at everything: the kernel, when it is due or nothing else is found, and what is
    /// awake. The count of events, and whether the waker woke. See `Registry::sweep` for `lazy`.
    pub(super) fn ask_and_gather(
        &mut self,
        source: &S,
        epfd: RawFd,
        out: Out<'_>,
        lazy: bool,
    ) -> Result<(usize, bool), Failure> {
        self.waits = self.waits.wrapping_add(1);
        for i in 0..self.patient.len() {
            if let Some(index) = self.patient.get(i).copied() {
                self.enqueue(index);
            }
        }
        let (mut n, mut woke, mut asked) = (0, false, lazy && !self.warm.is_empty());
        if self.kernel_due(source) {
            // Half of the room, so that neither side starves the other. All of it when ours is
            // empty, or for an entry that has its say first.
            self.turn ^= 1;
            let none = self.queue.is_empty() && self.warm.is_empty();
            let limit =
                if none || self.entry_news { out.len() } else { (out.len() + self.turn) / 2 };
            asked |= limit > 0;
            (n, woke) = self.ask_kernel(epfd, out, limit)?;
        }
        n = self.gather(source, out, n);
        if n == 0 && !asked {
            let again;
            (n, again) = self.ask_kernel(epfd, out, out.len())?;
            woke |= again;
            if n == 0 {
                n = self.gather(source, out, n);
            }
        }
        Ok((n, woke))
    }

    fn kernel_due(&mut self, source: &S) -> bool {
        core::mem::take(&mut self.dead_told)
            || self.entry_news
            || self.kernel_told
            || source.own_news() > self.asked
            || self.waits.is_multiple_of(CALLS)
            || sys::ticks().wrapping_sub(self.asked) > TICKS
    }

    /// Asks the kernel without waiting; the count of the program's events, and whether the waker
    /// woke.
    fn ask_kernel(
        &mut self,
        epfd: RawFd,
        out: Out<'_>,
        limit: usize,
    ) -> Result<(usize, bool), Failure> {
        if limit > 0 {
            self.asked = sys::ticks();
            (self.entry_news, self.kernel_told) = (false, false);
        }
        let limit = limit.min(out.len());
        let mut woke = false;
        loop {
            let n = kernel::events_now(epfd, out, limit)?;
            let (kept, waker) = self.sift(out, n);
            woke |= waker;
            // Ours alone may have filled the room, with the program's behind them. It ends: an
            // event under a token is edge-triggered or one-shot, so each comes once.
            if kept > 0 || n < limit || n == 0 {
                return Ok((kept, woke));
            }
        }
    }

    /// Takes what is ours out of the first `n` events and notes it at the members.
    pub(super) fn sift(&mut self, out: Out<'_>, n: usize) -> (usize, bool) {
        let mut kept = 0;
        let mut woke = false;
        for i in 0..n.min(out.len()) {
            let Some(event) = out.get(i) else { break };
            let (data, said) = (event.u64, event.events);
            let serial = data as u32 & ((1 << SERIAL_BITS) - 1);
            if data ^ u64::from(serial) != self.tag {
                out.set(kept, event);
                kept += 1;
            } else if serial == WAKER || serial == EVENT {
                match self.waker {
                    // Who polls the set must not find it readable for what was heard.
                    Some(waker) if self.watched => waker.drain(),
                    Some(waker) if serial == WAKER => waker.make_room(),
                    _ => {}
                }
                woke = true;
            } else if let Some(index) = self.of_serial(serial) {
                self.told(index, Events::from_bits_truncate(said));
            }
            // Anything else belonged to a member that is gone.
        }
        self.kernel_told |= kept > 0;
        (kept, woke)
    }

    /// Takes out what the kernel reported in the program's words before the member came under a
    /// token. Such an event is judged like everything else now, and another thread may have it
    /// already. What the program's data do not tell apart stays.
    pub(super) fn outdated(&mut self, out: Out<'_>, n: usize) -> usize {
        let mut kept = 0;
        for i in 0..n.min(out.len()) {
            let Some(event) = out.get(i) else { break };
            let data = event.u64;
            let same = || self.members.iter().flatten().filter(|m| m.present && m.data == data);
            if same().next().is_none() || same().any(|m| !m.live()) {
                out.set(kept, event);
                kept += 1;
            }
        }
        kept
    }

    /// Judges everything awake and appends what is to be reported; the new count.
    pub(super) fn gather(&mut self, source: &S, out: Out<'_>, mut n: usize) -> usize {
        self.call = self.call.wrapping_add(1);
        let mut warm = [0; WARM];
        let count = self.warm.len().min(WARM);
        let (behind, first) =
            self.warm.split_at_checked(self.warm_turn % count.max(1)).unwrap_or_default();
        for (to, from) in warm.iter_mut().zip(first.iter().chain(behind)) {
            *to = *from;
        }
        self.warm_turn = self.warm_turn.wrapping_add(1);
        // Alternately first, so that with little room neither list starves the other.
        let queue_first = self.warm_turn.is_multiple_of(2);
        if queue_first {
            n = self.gather_queue(source, out, n);
        }
        let warm = warm.get(..count).unwrap_or_default();
        // One alone is looked at at once.
        let mut ahead = if count > 1 { warm } else { &[] }.iter();
        ahead.by_ref().take(AHEAD).for_each(|index| self.foresee(source, *index));
        for index in warm.iter().copied() {
            if let Some(index) = ahead.next() {
                self.foresee(source, *index);
            }
            if n >= out.len() {
                self.early = true;
                break;
            }
            // One that the queue has just warmed up is not among these: the list was copied before.
            n = self.report(source, out, n, index);
            if self.waits.is_multiple_of(CALLS) {
                self.cool(source, index);
            }
        }
        if !queue_first {
            n = self.gather_queue(source, out, n);
        }
        n
    }

    fn foresee(&self, source: &S, index: u32) {
        if let Some(member) = self.get(index) {
            source.foresee(member.slot);
        }
    }

    fn gather_queue(&mut self, source: &S, out: Out<'_>, mut n: usize) -> usize {
        for _ in 0..self.queue.len() {
            if n >= out.len() {
                self.early = true;
                break;
            }
            let Some(index) = self.queue.pop_front() else { break };
            let Some(member) = self.get_mut(index) else { continue };
            member.queued = false;
            // Warm members are judged where they are, once.
            if !member.warm {
                n = self.report(source, out, n, index);
            }
        }
        n
    }

    /// Judges one member; reports it, or leaves it to its waker.
    fn report(&mut self, source: &S, out: Out<'_>, n: usize, index: u32) -> usize {
        if self.get(index).is_some_and(|m| m.active == self.call) {
            // It has been reported, and then changed lists.
            self.enqueue(index);
            return n;
        }
        let Some(verdict) = self.consult(source, index) else { return n };
        let call = self.call;
        let Some(member) = self.get_mut(index) else { return n };
        if !verdict.due {
            // Warm ones stay unarmed while the program is awake.
            if !member.warm && !self.park(source, index) {
                self.enqueue(index);
            }
            return n;
        }
        out.set(n, epoll_event { events: verdict.level, u64: member.data });
        member.active = call;
        if member.events & ONESHOT != 0 {
            member.disabled = true;
        }
        let (edge, disabled, dead) = (member.edge_triggered(), member.disabled, member.dead());
        self.dead_told |= dead;
        if !self.warm_up(source, index) && !disabled && (!edge || !self.park(source, index)) {
            self.enqueue(index);
        }
        n + 1
    }
}
