//! Waiting for a connection that is not plain TCP: spin a little, then sleep in the kernel on the
//! TCP socket and a waker together.
//!
//! No lock is held here and nothing with a destructor is alive across the sleep, which is a
//! cancellation point. Before sleeping the kernel is asked what it is the authority on:
//! `O_NONBLOCK`, time-outs.

use core::sync::atomic::{AtomicU32, Ordering};
use std::os::fd::RawFd;

use super::asking::after_sleep;
use super::call::Call;
use super::{brief, gather, hints, reader, ready, soon, switching, tcp_anchored, verdict};
use crate::bridge::cq_ownership::CqOwnership;
use crate::channel::link::{self, Ends};
use crate::channel::{handover_state, waiters};
use crate::config::policy;
use crate::conn::machine::{Phase, ReceiveMode, SendMode};
use crate::conn::option_cache::Fact;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::device::shm::waker::{self, WakerRef};
use crate::failure::Failure;
use crate::host::events::Events;
use crate::host::kernel;
use crate::live_segment::layout::record;
use crate::stats::{self, Counter};
use crate::sync::spin::Adaptive;
use crate::sync::thread;
use crate::waiting::call_deadline::{CallDeadline, polling};
use crate::waiting::close_while_blocked;
use crate::waiting::sleep::nap;
use crate::waiting::spinning::{Spin, spin, spin_before_paired, spin_on};
use crate::{bridge, fork_safe, live_segment, pairing, sys};

/// How long a thread sleeps that no other thread will wake, in nanoseconds.
const CROWDED_NS: u64 = 2_000_000;

/// The same while no other thread could wake it, since the connection is TCP's, in nanoseconds.
const LONELY_NS: u64 = 50_000_000;

/// A spin of at most so long delays no time-out noticeably, in nanoseconds.
pub(super) const SHORT_SPIN_NS: u32 = 50_000;

/// Waits until receiving may bring something. `take` is called before each look at the channel,
/// while that pays, and may end the wait: by then it has received.
///
/// # Errors
/// `EAGAIN` (non-blocking, or out of time), `EINTR`, `EBADF` when the descriptor was closed
/// meanwhile.
#[inline]
pub(crate) fn readable(
    call: &Call<'_>,
    deadline: &mut CallDeadline,
    take: impl FnMut(&Ends) -> bool,
) -> Result<(), Failure> {
    let asked_later = blocked(call.s, call.flags);
    if !asked_later {
        blocks(call.s, call.fd, call.flags)?;
    }
    until_readable(call, deadline, take, asked_later)
}

fn until_readable(
    call: &Call<'_>,
    deadline: &mut CallDeadline,
    mut take: impl FnMut(&Ends) -> bool,
    asked_later: bool,
) -> Result<(), Failure> {
    let Call { id, s, fd, flags } = *call;
    let ends = connected(s).filter(|_| s.receive_mode() == ReceiveMode::Device);
    let probe = || ends.as_ref().is_some_and(|ends| take(ends) || hints::data_waiting(s, ends));
    deadline.waits(s)?;
    if let Some(ends) = &ends
        && spin_on(
            s,
            &Spin { learnt: &s.receive_spin, ends, cap: deadline.spin(s, fd)? },
            || handover_state::sender_cpu(&ends.incoming),
            probe,
        )
    {
        return Ok(());
    }
    if ends.is_none() && (briefly(s, switching::receiver(s)) || step_comes(s)) {
        return Ok(());
    }
    if asked_later {
        if ends.is_some()
            && let Some(slept) = brief::sleep(id, s, fd, deadline, &s.receive_spin)
        {
            return slept;
        }
        blocks(s, fd, flags)?;
    }
    sleep(call, &Aim { interest: Events::IN, seen: None, learnt: &s.receive_spin }, deadline)
}

/// Waits until something came that was not there when [`hints::progress`] said that it had `seen`
/// so much. It is for a call that needs more than it has found.
///
/// # Errors
/// As [`readable`].
pub(crate) fn more(call: &Call<'_>, seen: u64, deadline: &mut CallDeadline) -> Result<(), Failure> {
    let s = call.s;
    blocks(s, call.fd, call.flags)?;
    deadline.waits(s)?;
    let aim = Aim { interest: Events::IN, seen: Some(seen), learnt: &s.receive_spin };
    sleep(call, &aim, deadline)
}

/// Waits until sending may get something away.
///
/// # Errors
/// As [`readable`].
pub(crate) fn writable(call: &Call<'_>, deadline: &mut CallDeadline) -> Result<(), Failure> {
    let Call { s, fd, flags, .. } = *call;
    let ends = connected(s).filter(|_| s.send_mode() == SendMode::Device);
    let probe =
        || ends.as_ref().is_some_and(|ends| bridge::bring(s) || hints::room_waiting(s, ends));
    let asked_later = blocked(s, flags);
    if !asked_later {
        blocks(s, fd, flags)?;
    }
    deadline.waits(s)?;
    if let Some(ends) = &ends
        && spin_on(
            s,
            &Spin { learnt: &s.send_spin, ends, cap: deadline.spin(s, fd)? },
            || handover_state::receiver_cpu(&ends.outgoing),
            probe,
        )
    {
        return Ok(());
    }
    if ends.is_none() && (briefly(s, switching::sender(s)) || step_comes(s)) {
        return Ok(());
    }
    if asked_later {
        blocks(s, fd, flags)?;
    }
    sleep(call, &Aim { interest: Events::OUT, seen: None, learnt: &s.send_spin }, deadline)
}

/// The channel, unless its bridge is still connecting: no call may use its room yet.
fn connected(s: &Slot) -> Option<Ends> {
    link::ends(s).filter(|_| !s.has(flag::PENDING))
}

/// Whether a call may sleep.
///
/// # Errors
/// `EAGAIN` if not.
pub(super) fn blocks(s: &Slot, fd: RawFd, flags: i32) -> Result<(), Failure> {
    if flags & libc::MSG_DONTWAIT != 0 {
        return Err(not_now(s));
    }
    let blocks =
        s.option_cache.holds(Fact::Blocks, s.has(flag::RSOCKET), || !kernel::nonblocking(fd));
    if blocks { Ok(()) } else { Err(not_now(s)) }
}

fn not_now(s: &Slot) -> Failure {
    if !s.is_settled() {
        verdict::help(s);
    }
    Failure::Blocked
}

/// Whether the last call could sleep, so that this one asks only before it does. A program that has
/// changed that since gets its `EAGAIN` a spin later, once.
fn blocked(s: &Slot, flags: i32) -> bool {
    flags & libc::MSG_DONTWAIT == 0 && s.option_cache.held(Fact::Blocks)
}

/// Whether a call that receives over a bridge gives the only CPU away before it sleeps, and found
/// then what it waited for lately. (It looks at least once before it is told to sleep, or that it
/// may not.)
pub(super) fn gives_way(s: &Slot, flags: i32) -> bool {
    // Relaxed: as in spin.
    let adaptive = Adaptive::from_raw(s.receive_spin.load(Ordering::Relaxed));
    adaptive.pays() && blocked(s, flags) && thread::had_one_cpu()
}

/// As [`spin`], for no longer than a sleep and its end would take.
fn briefly(s: &Slot, word: Option<switching::Word>) -> bool {
    let cap = polling().min(SHORT_SPIN_NS);
    word.is_some_and(|w| {
        let by = Spin { learnt: w.learnt, ends: &w.ends, cap };
        spin(Some(s), &by, || w.cpu(), || w.has_come())
    })
}

/// The same, for the step of the pairing that the other end is about to take.
fn step_comes(s: &Slot) -> bool {
    let fd = pairing::awaited(s);
    let come = fd >= 0 && {
        let cap = polling().min(SHORT_SPIN_NS);
        spin_before_paired(cap, || !kernel::poll_now(fd, Events::IN).is_empty())
    };
    if come {
        pairing::has_come(s);
    }
    come
}

/// What a sleep waits for.
struct Aim<'a> {
    interest: Events,
    /// What had come by then does not end it.
    seen: Option<u64>,
    /// What it says to the next spin.
    learnt: &'a AtomicU32,
}

/// What was found out before a sleep.
struct Plan {
    /// How long it lasts at most, in nanoseconds; `None` for ever.
    left: Option<u64>,
    /// The connection's mode epoch before the look.
    epoch: u32,
    /// What the look left to the kernel.
    ask: Events,
    /// The peer sends no more, and perhaps no receiver is left to make room.
    half_closed: bool,
    /// TCP's part of what is waited for says nothing of itself when it grows.
    apart: bool,
}

impl Plan {
    fn at_most(&mut self, ns: u64) {
        self.left = Some(self.left.map_or(ns, |left| left.min(ns)));
    }

    /// The last look before the sleep; `None` when it has found what is waited for.
    fn make(
        call: &Call<'_>,
        aim: &Aim<'_>,
        deadline: &mut CallDeadline,
    ) -> Result<Option<Self>, Failure> {
        let Call { id, s, fd, .. } = *call;
        let left = deadline.left(s, fd)?;
        let attaching = soon::attaching_beside(Some(id));
        // Acquire: pairs with the changes of the modes.
        let epoch = s.mode_epoch.load(Ordering::Acquire);
        // The caller has just looked; and before it sleeps there will be another look.
        let look = ready::look_again(id, s, fd);
        if aim.seen.is_none_or(|seen| hints::progress(s).received != seen)
            && look.ready.intersects(aim.interest)
        {
            return Ok(None);
        }
        let half_closed = aim.interest == Events::OUT && s.has(flag::PEER_FIN);
        let apart =
            if aim.interest == Events::IN { gather::nap(s, aim.seen.is_some()) } else { None };
        let mut plan = Self { left, epoch, ask: look.ask, half_closed, apart: apart.is_some() };
        let again = half_closed.then_some(reader::LOOK_AGAIN);
        let limits = [attaching, again].into_iter().flatten().map(|d| d.as_nanos() as u64);
        limits.chain(apart).for_each(|ns| plan.at_most(ns));
        Ok(Some(plan))
    }

    /// What the kernel is asked about the TCP socket.
    fn tcp(&self, call: &Call<'_>, aim: &Aim<'_>, deadline: &CallDeadline) -> libc::pollfd {
        let mut tcp = asked(call.s, call.fd, aim.interest, self.ask, self.half_closed);
        tcp.events |= ended_by_urgent(aim.interest, self.ask, deadline);
        if self.apart && aim.seen.is_some() {
            tcp.events &= !libc::POLLIN;
        }
        tcp
    }

    /// Sleeps on the TCP socket, the waker and the device; what each of them has said.
    fn carry_out(
        &self,
        call: &Call<'_>,
        aim: &Aim<'_>,
        others: [RawFd; 3],
        deadline: &CallDeadline,
    ) -> Result<[i16; 4], Failure> {
        if deadline.broken() {
            // While we were looking and spinning.
            return Err(Failure::Interrupted);
        }
        let heard = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let [waker, event, device] = others.map(heard);
        let mut fds = [self.tcp(call, aim, deadline), waker, event, device];
        nap(call.s, &mut fds, self.left, deadline).map(|()| fds.map(|f| f.revents))
    }
}

/// One sleep in the kernel, armed and re-checked.
fn sleep(call: &Call<'_>, aim: &Aim<'_>, deadline: &mut CallDeadline) -> Result<(), Failure> {
    let Call { id, s, fd, .. } = *call;
    let Some(mut plan) = Plan::make(call, aim, deadline)? else { return Ok(()) };
    if fd >= 0 {
        deadline.sleeps(id);
    }
    let entered = deadline.entered();
    let waker = close_while_blocked::borrow_waker(entered, waker::borrow_front);
    let hearing = waker.and_then(|_| CqOwnership::begin(id, s));
    match waker.map(|b| (b, arm(call, aim, plan.epoch, b))) {
        Some((b, ready::Armed::Ready)) => {
            close_while_blocked::give_back_waker(entered, b);
            return Ok(());
        }
        Some((b, ready::Armed::Armed)) => match hearing {
            Some(hearing) => hearing.settle(id, s, b.id()),
            None => bridge::cq_ownership::by_service(s),
        },
        // No waker, or no place for one: look again soon.
        Some((_, ready::Armed::Crowded)) | None => plan.at_most(lonely(s).unwrap_or(CROWDED_NS)),
    }
    let began = sys::now_ns();
    stats::add(Counter::Sleeps, 1);
    live_segment::count(s, record::SLEEPS);
    let device = hearing.map_or_else(|| pairing::awaited(s), |h| h.fd);
    let others = [waker.map_or(-1, |b| b.fd()), waker.map_or(-1, |b| b.event()), device];
    let slept = plan.carry_out(call, aim, others, deadline);
    let ns = sys::now_ns().saturating_sub(began);
    if let Some(b) = waker {
        hear(s, aim, b, slept.ok().map(|[_, socket, event, _]| [socket != 0, event != 0]));
        close_while_blocked::give_back_waker(entered, b);
    }
    if let Ok([.., device]) = slept
        && device != 0
    {
        match hearing {
            Some(hearing) => hearing.heard(s, aim.interest == Events::OUT),
            None => pairing::has_come(s),
        }
    }
    if aim.interest == Events::IN {
        brief::over(s, ns, matches!(slept, Ok([0, socket, event, 0]) if socket | event != 0));
    }
    brief::learn(aim.learnt, ns);
    if deadline.descriptor(fd) != fd && slept != Err(Failure::Interrupted) {
        // The number that was slept on means nothing any more.
        return Ok(());
    }
    after_sleep(s, fd, aim.interest, slept.map(|[tcp, ..]| tcp), deadline)
}

/// Puts a waker where the thread that ends the sleep finds it, and looks once more.
fn arm(call: &Call<'_>, aim: &Aim<'_>, epoch: u32, waker: WakerRef) -> ready::Armed {
    let s = call.s;
    let armed = match aim.seen {
        None => ready::arm(call.id, s, aim.interest, waker.id(), false),
        Some(seen) if ready::arm_edge(s, seen, waker.id(), false) => ready::Armed::Armed,
        Some(seen) if hints::progress(s).received == seen => ready::Armed::Crowded,
        Some(_) => ready::Armed::Ready,
    };
    match armed {
        ready::Armed::Armed if s.mode_epoch.load(Ordering::Acquire) != epoch => {
            // What is to be asked of the kernel is out of date, and the thread that changed the
            // mode may have woken before we armed.
            waiters::disarm(s, waker.id());
            ready::Armed::Ready
        }
        armed => armed,
    }
}

/// Takes a waker out of where [`arm`] has put it. A thread that has taken it out before wakes it
/// once, which the sleep has heard if it `woke`: by its socket, by its eventfd.
fn hear(s: &Slot, aim: &Aim<'_>, waker: WakerRef, woke: Option<[bool; 2]>) {
    let places = if aim.interest.contains(Events::OUT) && aim.seen.is_none() { 2 } else { 1 };
    let taken = places - waiters::disarm(s, waker.id()).min(places);
    // A bridge's events make others wake as well.
    let due = if s.has(flag::BRIDGED) { u32::MAX } else { taken.max(1) as u32 };
    let woken = woke != Some([false; 2]);
    if (taken != 0 || woken) && waker.take_rung(woke.unwrap_or_default(), due) {
        stats::add(Counter::WakeupsReceived, 1);
        live_segment::count(s, record::WOKEN);
    }
}

/// How long a thread sleeps on a connection without a channel. A connection that has just turned
/// out to be TCP's was waited for here, and may attach before its first byte comes.
fn lonely(s: &Slot) -> Option<u64> {
    if s.has(flag::UNDECIDED) {
        return fork_safe::recheck_after(s).map(|d| d.as_nanos() as u64);
    }
    (s.migration.was_begun() && !s.has(flag::STRICT) && !link::has_channel(s)).then_some(LONELY_NS)
}

/// An urgent byte ends a call that has taken some bytes before it, and alone is nothing to read.
fn ended_by_urgent(interest: Events, ask: Events, deadline: &CallDeadline) -> i16 {
    let reads = interest == Events::IN && ask.contains(Events::IN);
    if reads && deadline.has_moved() { libc::POLLPRI } else { 0 }
}

/// What the kernel is asked about the TCP socket.
fn asked(s: &Slot, fd: RawFd, interest: Events, ask: Events, half_closed: bool) -> libc::pollfd {
    let mut events = 0;
    if interest == Events::IN {
        events |= libc::POLLIN | libc::POLLRDHUP;
    } else {
        if ask.contains(Events::OUT) {
            events |= libc::POLLOUT;
        }
        if !half_closed {
            events |= libc::POLLRDHUP;
        }
    }
    let deaf = interest == Events::IN && tcp_anchored::bridge_says(s) || fork_safe::is_deaf(s);
    libc::pollfd { fd: if deaf { -1 } else { fd }, events, revents: 0 }
}

/// How soon [`attached`] looks again, in nanoseconds.
const ATTACH_LOOK_NS: i64 = 200_000;

/// Waits, whatever the descriptor's flags say, until the connection has its channel and the peer
/// has said how it uses its own side.
///
/// # Errors
/// `ENOTCONN` for a connection that has ended, `ETIMEDOUT` and `ECONNREFUSED` as
/// [`verdict::strict`], `EINTR`.
pub(crate) fn attached(id: SlotId, s: &Slot, fd: RawFd) -> Result<Ends, Failure> {
    let over = flag::BROKEN
        | flag::LOST
        | flag::PENDING
        | flag::UNREACHED
        | flag::PEER_GONE
        | flag::CHANNEL_DONE;
    let mut opened = 0;
    loop {
        if s.has(over) || s.phase() == Phase::Unconnected {
            return Err(Failure::NotConnected);
        }
        if let Some(ends) = link::ends(s) {
            if s.has(flag::BRIDGED) || ends.incoming.offered().is_some() {
                return Ok(ends);
            }
            // The channel is ours already; the peer maps it, if it is still there.
            let now = sys::now_ns();
            opened = if opened == 0 { now } else { opened };
            if kernel::ending(fd) != kernel::Ending::Open {
                return Err(Failure::NotConnected);
            }
            if now.saturating_sub(opened) > policy::STRICT_PATIENCE_NS {
                return Err(Failure::TimedOut);
            }
        } else {
            verdict::strict(s, fd)?;
        }
        pairing::advance(id, s, fd);
        let time = libc::timespec { tv_sec: 0, tv_nsec: ATTACH_LOOK_NS };
        sys::wait(&mut [], Some(&time), core::ptr::null())?;
    }
}
