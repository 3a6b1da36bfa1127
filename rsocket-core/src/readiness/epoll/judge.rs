//! What one member has to report, how it is put to sleep, and what its kernel entry has to be. All
//! under the set's lock; nothing here waits.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use super::set::{Entry, Member, State};
use super::{behind, kernel};
use crate::failure::Failure;
use crate::readiness::mixed::{listens_for_end, spelled};
use crate::readiness::source::{Events, Progress, Source, Waker};

/// A member's readiness at one moment.
#[derive(Clone, Copy)]
pub(crate) struct Verdict {
    /// What would be reported now, by level.
    pub(crate) level: u32,
    /// Whether it is to be reported: always for level triggering, after something new for edge
    /// triggering.
    pub(crate) due: bool,
    progress: Progress,
    out: bool,
    urgent: bool,
    /// Of the bytes that came around the library: they are there.
    astray: bool,
    /// What of it is the kernel's to say.
    asks: Events,
    /// What has come by TCP behind unread bytes, where that counts.
    pub(super) behind: Option<u64>,
}

/// Judges a member without changing anything.
pub(crate) fn judge<S: Source>(source: &S, member: &Member) -> Verdict {
    let wanted = member.wanted();
    // Progress before the look: what arrives in between is reported twice rather than never. By
    // level it counts for nothing but the end alone, which is armed by it.
    let counts = member.edge_triggered() || by_edge(member, wanted);
    let progress = if counts { source.progress(member.slot) } else { member.seen };
    let behind = behind::arrived(source, member, progress, wanted);
    let look = source.look(member.slot, member.fd);
    let mut ready = look.ready;
    let is_over = || if counts { progress.is_over() } else { source.is_over(member.slot) };
    if ready.contains(Events::IN) && wanted.contains(Events::RDHUP) && is_over() {
        ready |= Events::RDHUP;
    }
    let always = Events::ERR | Events::HUP;
    let device = spelled(ready) & (member.events | always.bits()) & 0xffff != 0;
    let ask = look.ask & wanted & (Events::IN | Events::OUT);
    let (mut urgent, mut astray) = (false, strays(source, member, wanted));
    let kernels = !ask.is_empty() | look.ask.contains(Events::RDHUP) | !astray.is_empty();
    if member.dead() | member.urgent | kernels {
        // Asked each time, since an error may have been fetched or the state moved on.
        let said = crate::host::kernel::poll_now(
            member.fd,
            ask | astray | end_of(wanted, ask) | wanted & Events::PRI,
        );
        urgent = said.contains(Events::PRI);
        astray &= only_bytes(said);
        if !said.is_empty() {
            ready |= source.heard(member.slot, member.fd, said);
        }
    }
    let level = spelled(ready) & (member.events | always.bits()) & 0xffff;
    // What the kernel answers for is news when its entry says so, and only then. The entry was set
    // anew with whatever set `edge`, and would tell the same once more.
    let told = member.told || member.entry != Entry::Between;
    let astray = !astray.is_empty();
    let out = ready.contains(Events::OUT)
        && (told || member.returned || look.ready.contains(Events::OUT));
    let news = member.edge
        || member.fin
        || astray
        || progress.by_device() != member.seen.by_device() && counts_as_news(wanted, progress)
        || behind.is_some_and(|arrived| behind::is_news(source, member, arrived))
        || wanted.contains(Events::OUT)
            && (progress.room != member.seen.room || out && !member.was_out);
    let due = level != 0 && (!member.edge_triggered() || news && (device || told));
    Verdict { level, due, progress, out, urgent, astray, asks: look.ask, behind }
}

/// Whether a member waits for new bytes, not for unread ones: with edge triggering, or if it wants
/// only the end.
fn by_edge(member: &Member, wanted: Events) -> bool {
    wanted.intersects(Events::IN | Events::RDHUP)
        && (member.edge_triggered() || !wanted.contains(Events::IN))
}

/// What has come by the device is news for a member that wants bytes, and the end alone for a
/// member that wants that.
#[inline(always)]
fn counts_as_news(wanted: Events, progress: Progress) -> bool {
    wanted.contains(Events::IN) || wanted.contains(Events::RDHUP) && progress.is_over()
}

/// What the kernel is asked about bytes that came around the library. The program is told that it
/// can receive, and then finds the connection broken.
#[inline(always)]
fn strays<S: Source>(source: &S, member: &Member, wanted: Events) -> Events {
    if member.astray && source.astray(member.slot) { wanted & Events::IN } else { Events::empty() }
}

/// IN, where it means bytes. At an end TCP says it, too.
#[inline(always)]
fn only_bytes(said: Events) -> Events {
    let end = Events::RDHUP | Events::HUP | Events::ERR;
    if said.intersects(end) { Events::empty() } else { said & Events::IN }
}

/// RDHUP, where it says something. An entry that has said it once is not asked for it again
/// ([`State::set_between`]). So a caller that waits for OUT alone is not woken by it for ever.
fn end_of(wanted: Events, ask: Events) -> Events {
    if listens_for_end(wanted, ask) { Events::RDHUP } else { Events::empty() }
}

impl Member {
    /// Where there is nothing to tell, what has come before is no edge any more: only what comes
    /// next is waited for.
    pub(super) fn spend(&mut self, verdict: &Verdict) {
        if verdict.level == 0 {
            self.seen.received = verdict.progress.received;
        }
    }

    /// Remembers what it showed; whether it has to be looked at again. Only what is not settled
    /// can, and what has no room in a channel that perhaps no process reads any more.
    #[inline(always)]
    fn take_note(&mut self, verdict: &Verdict) -> bool {
        self.note_end(verdict);
        self.seen = verdict.progress;
        (self.was_out, self.urgent) = (verdict.out, verdict.urgent);
        (self.edge, self.fin, self.told) = (false, false, false);
        if self.astray && self.wanted().contains(Events::IN) {
            // Said once where edges count.
            self.astray = verdict.astray && !self.edge_triggered();
        }
        if verdict.due {
            self.arrived = verdict.behind.unwrap_or(self.arrived);
            self.failed |= verdict.level & Events::ERR.bits() != 0;
        }
        let asks = self.entry == Entry::Between || !verdict.asks.is_empty();
        asks || self.dead() && self.wanted().contains(Events::OUT)
    }
}

impl Member {
    /// The end that the device has brought is told, before the kernel has heard of it. What the
    /// kernel has said already was about this side's own shutdown, if the device has brought the
    /// end since.
    #[inline(always)]
    fn note_end(&mut self, verdict: &Verdict) {
        let first = || !self.dead() || !self.told && !self.seen.is_over();
        let told = verdict.due && verdict.progress.is_over() && first();
        if told && self.edge_triggered() && self.wanted().intersects(Events::IN | Events::RDHUP) {
            self.over = Events::RDHUP | Events::from_bits_truncate(verdict.level) & Events::HUP;
        }
    }

    /// The kernel says so much; whether that is an end which was told, and nothing else.
    fn knows(&mut self, said: Events) -> bool {
        let end = said & (Events::HUP | Events::RDHUP | Events::ERR);
        self.end |= end;
        !end.is_empty() && core::mem::take(&mut self.over).contains(said - Events::IN)
    }
}

impl<S: Source> State<S> {
    /// Judges a member and takes note of what it showed.
    pub(crate) fn consult(&mut self, source: &S, index: u32) -> Option<Verdict> {
        let member = self.get(index)?;
        if !member.live() {
            return None;
        }
        if source.mode_epoch(member.slot) != member.epoch {
            self.refresh(source, index);
        }
        let member = self.get_mut(index)?;
        if !member.live() {
            return None;
        }
        let verdict = judge(source, member);
        // A look that has found the fallback asks the kernel.
        if !verdict.asks.is_empty() && source.mode_epoch(member.slot) != member.epoch {
            return self.consult_anew(source, index);
        }
        let asks_beside = verdict.behind.is_some() && !member.beside;
        if member.take_note(&verdict) {
            self.be_patient(source, index);
        }
        if asks_beside {
            self.ask_beside(source, index, verdict.due);
        }
        Some(verdict)
    }

    /// The look itself has found the fallback: what is the kernel's from here on its entry will
    /// say, once.
    #[cold]
    #[inline(never)]
    fn consult_anew(&mut self, source: &S, index: u32) -> Option<Verdict> {
        self.refresh(source, index);
        let member = self.get_mut(index).filter(|m| m.live())?;
        let verdict = judge(source, member);
        if member.take_note(&verdict) {
            self.be_patient(source, index);
        }
        Some(verdict)
    }

    fn be_patient(&mut self, source: &S, index: u32) {
        let Some(slot) = self.get(index).map(|m| m.slot) else { return };
        if source.recheck_after(slot).is_some() && !self.patient.contains(&index) {
            self.patient.push(index);
        }
    }

    /// Arms a member that has nothing to report. False when it became ready meanwhile (or cannot be
    /// armed).
    pub(crate) fn park(&mut self, source: &S, index: u32) -> bool {
        let Some(waker) = self.waker_id() else {
            self.blind = true;
            return false;
        };
        let Some(member) = self.get_mut(index) else { return true };
        if !member.live() {
            return true;
        }
        let wanted = member.wanted();
        let (slot, edge) = (member.slot, member.edge_triggered());
        let by_edge = by_edge(member, wanted);
        let mut level = wanted & (Events::IN | Events::OUT);
        if by_edge {
            level.remove(Events::IN);
        }
        if edge && member.was_out {
            // Writable and reported. It is armed when a send finds no room (`epoll::starved`).
            level.remove(Events::OUT);
        }
        level.remove(member.armed);
        if !level.is_empty() {
            if !source.arm(slot, level, waker, true) {
                self.unarm(source, slot);
                return false;
            }
            member.armed |= level;
        }
        if by_edge && !member.armed.contains(Events::IN) {
            if !source.arm_edge(slot, member.seen.received, waker, true) {
                self.unarm(source, slot);
                return false;
            }
            member.armed |= Events::IN;
        }
        // A dead member's entry would fire at once, and judging it asks the kernel each time
        // anyway.
        if member.entry == Entry::Between && member.fired && !member.dead() {
            self.set_between(source, index);
        }
        true
    }

    /// The kernel said something about a member of ours.
    pub(crate) fn told(&mut self, index: u32, said: Events) {
        let Some(member) = self.get_mut(index) else { return };
        let said = if member.entry == Entry::Detector && !member.beside {
            member.astray |= !only_bytes(said).is_empty();
            said - Events::IN
        } else {
            said
        };
        if said.is_empty() {
            if member.live() {
                self.enqueue(index);
            }
            return;
        }
        let echo = core::mem::take(&mut member.echo);
        if echo && member.known().contains(said) {
            return;
        }
        let told_before = if echo { member.known() | Events::IN } else { Events::IN };
        member.urgent |= said.contains(Events::PRI);
        let known = member.knows(said);
        member.fired = member.entry == Entry::Between && !member.edge_triggered();
        member.told = true;
        if known || member.beside && told_before.contains(said) {
            // Whether there are new bytes the count of what has come says.
        } else if said.difference(Events::IN | Events::RDHUP).is_empty() {
            member.fin = true;
        } else {
            member.edge = true;
        }
        if member.live() {
            self.enqueue(index);
        }
    }

    /// Makes the kernel's entry fit the socket's state. The member is judged by the next wait. The
    /// set was marked special before: a waiter that does not see that mark has its event before we
    /// look here.
    pub(crate) fn refresh(&mut self, source: &S, index: u32) {
        let set = self.epfd();
        self.changes = self.changes.wrapping_add(1);
        let Some(member) = self.get_mut(index) else { return };
        let (slot, fd) = (member.slot, member.fd);
        member.epoch = source.mode_epoch(slot);
        if !source.special(slot) {
            self.give_back(source, index);
            return;
        }
        let settled = source.settled(slot);
        // All that was there on the device has been told; what the kernel has beside that, its
        // entry will say. And behind an end nothing comes.
        let returned = member.returned || member.entry == Entry::Detector || member.dead();
        member.returned = member.edge_triggered() && !settled && returned;
        member.echo = member.returned && !member.known().is_empty();
        member.edge |= !member.returned;
        if member.entry == Entry::Program && member.events & kernel::ONESHOT != 0 {
            // The thread that got the event owns the socket until it sets the entry again.
            member.disabled = kernel::disarmed(set, fd);
        }
        if !member.armed.is_empty() {
            // Where there was no channel yet nothing was armed in truth.
            self.unarm(source, slot);
        }
        self.need_waker(source);
        if settled {
            self.set_detector(source, index);
        } else {
            if let Some(member) = self.get_mut(index)
                && !member.dead()
                && core::mem::take(&mut member.told)
            {
                // What the old entry said the new one says again; the program has not heard it yet.
                member.echo = false;
            }
            self.set_between(source, index);
        }
        self.enqueue(index);
    }

    /// The device answers alone from here on: the kernel only listens for the end.
    fn set_detector(&mut self, source: &S, index: u32) {
        let token = self.token(index);
        let Some(member) = self.get(index).filter(|m| m.entry != Entry::Detector) else { return };
        let events = member.detector();
        if self.change(index, events, token).is_err() {
            // Closed behind our back, or never in the kernel's set.
            self.drop_member(source, index);
            return;
        }
        if let Some(member) = self.get_mut(index) {
            member.entry = Entry::Detector;
            member.fired = false;
        }
    }

    /// Asks the kernel for what is not on the device yet. Level triggering is played with one-shot
    /// entries, so that an event which the program does not take cannot keep a waiter running.
    pub(crate) fn set_between(&mut self, source: &S, index: u32) {
        let token = self.token(index);
        let Some(member) = self.get_mut(index) else { return };
        let wanted = member.wanted();
        let mut ask = Events::empty();
        if member.present && !member.disabled {
            ask = source.look(member.slot, member.fd).ask & wanted & (Events::IN | Events::OUT);
            ask |= end_of(wanted, ask) | wanted & Events::PRI | member.asked_beside();
        }
        if member.dead() {
            // It has been heard, and judging asks again each time.
            ask.remove(Events::RDHUP);
        }
        let edge = member.edge_triggered();
        let how = if edge { kernel::EDGE } else { kernel::ONESHOT };
        member.entry = Entry::Between;
        member.fired = false;
        self.entry_news |= edge;
        if self.change(index, ask.bits() | how, token).is_err() {
            self.drop_member(source, index);
        }
    }

    /// The fallback: the kernel answers for the member again, as the program asked.
    fn give_back(&mut self, source: &S, index: u32) {
        let Some(member) = self.get_mut(index) else { return };
        if member.entry == Entry::Program {
            return;
        }
        if !member.present || member.disabled {
            // The kernel has no such state to be put back into; the next ADD or MOD comes by here.
            self.set_between(source, index);
            return;
        }
        member.entry = Entry::Program;
        let (slot, armed) = (member.slot, !member.armed.is_empty());
        let (events, data) = (member.events & !kernel::EXCLUSIVE, member.data);
        if self.change(index, events, data).is_err() {
            self.drop_member(source, index);
        }
        if armed {
            self.unarm(source, slot);
        }
    }

    /// Puts the set's waker into the kernel's object, once.
    pub(crate) fn need_waker(&mut self, source: &S) {
        if self.waker.is_some() {
            return;
        }
        let Some(waker) = source.borrow_set_waker() else {
            self.blind = true;
            return;
        };
        // Its last user may have left a ring behind.
        waker.drain();
        source.hear();
        if self.listen(&waker).is_ok() {
            self.waker = Some(waker);
            self.blind = false;
        } else {
            source.give_back_set_waker(waker);
            self.blind = true;
        }
    }

    /// Puts what a ring makes readable into the kernel's object: all of it, or nothing.
    fn listen(&self, waker: &S::Waker) -> Result<(), Failure> {
        let (set, how) = (self.epfd(), Events::IN.bits() | kernel::EDGE);
        kernel::add(set, waker.fd(), how, self.tag | u64::from(kernel::WAKER))?;
        if waker.event() < 0 {
            return Ok(());
        }
        kernel::add(set, waker.event(), how, self.tag | u64::from(kernel::EVENT)).inspect_err(
            |_| {
                let _ = kernel::remove(set, waker.fd());
            },
        )
    }

    /// Takes it out again.
    pub(super) fn listen_no_more(&mut self) {
        let Some(waker) = self.waker.take() else { return };
        let _ = kernel::remove(self.epfd(), waker.fd());
        if waker.event() >= 0 {
            let _ = kernel::remove(self.epfd(), waker.event());
        }
    }
}
