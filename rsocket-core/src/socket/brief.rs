//! Sleeps that are likely to be brief: those of two ends that ask and answer while others want the
//! CPU.
//!
//! A sleep is dear by what surrounds it. The kernel is asked for `O_NONBLOCK` and `SO_RCVTIMEO`,
//! and polls the TCP socket and a waker, which is a socket, too. Then the waker is read. None of
//! that changes from one answer to the next. So if the last sleep was brief and nothing was changed
//! since, the next one is on the waiter slot itself ([`on_word`]). It lasts [`LONGEST`] at most. A
//! thread that changes something by a call of this library changes the connection's `option_cache`.
//! What is changed in another way, and what TCP alone says (a peer that was killed), is heard that
//! much later. That happens once: a whole sleep follows one that was not brief.
//!
//! Must not know what is waited for. Entry points: [`sleep`] in place of a whole sleep,
//! [`poll_sleep`] in place of one of poll or select, [`over`] after one.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::os::fd::RawFd;

use super::{asking, ready};
use crate::channel::{handover_state, link, waiters};
use crate::conn::fork_group;
use crate::conn::machine::{Phase, ReceiveMode};
use crate::conn::option_cache::Fact;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::device::shm::park;
use crate::failure::Failure;
use crate::host::events::Events;
use crate::live_segment::{self, layout::record};
use crate::stats::{self, Counter};
use crate::sync::on_word::{self, Woken};
use crate::sync::spin::Adaptive;
use crate::sync::thread;
use crate::sys::{self, sandbox};
use crate::waiting::call_deadline::{self, CallDeadline};
use crate::waiting::{sleep, spinning};

/// How long such a sleep lasts at most, in nanoseconds: a tick or two of the scheduler.
const LONGEST: u32 = 4_000_000;

/// What is brief, in nanoseconds. A peer that takes longer does not gain by what is left out.
const BRIEF: u64 = 4_000_000;

/// Whether the next sleep for data may be on the word alone. All that the kernel would be asked for
/// must be known. This process alone must have the connection, over shared memory, and the peer
/// must wake a thread that sleeps so.
#[inline]
fn expected(id: SlotId, s: &Slot, deadline: &CallDeadline) -> bool {
    s.option_cache.all_held(&[Fact::SleepsBriefly, Fact::Blocks, Fact::WaitsForData])
        && deadline.has_all_time(s)
        && may_be_brief(id, s)
}

/// What of that is not the call's: this process alone has the connection, over shared memory, and
/// the peer wakes a thread that sleeps so.
#[inline]
fn may_be_brief(id: SlotId, s: &Slot) -> bool {
    !s.option_cache.held(Fact::NotWoken)
        && !s.has(flag::UNCOMMON | flag::TCP_ANCHORED | flag::PEER_FIN | flag::TRAVELS)
        && s.is_settled()
        && s.phase() == Phase::Paired
        && !fork_group::may_be_shared(id)
        && super::attaching().is_none()
        && !sandbox::entered()
}

/// A sleep for data is over, which has lasted so many nanoseconds; `woken` by the peer alone.
#[inline]
pub(super) fn over(s: &Slot, ns: u64, woken: bool) {
    s.option_cache.keep(Fact::SleepsBriefly, woken && ns < BRIEF);
}

/// A sleep has lasted so many nanoseconds: how long the next spin may be.
pub(super) fn learn(learnt: &AtomicU32, ns: u64) {
    // Relaxed: what one thread learnt is a hint to the others.
    let mut adaptive = Adaptive::from_raw(learnt.load(Ordering::Relaxed));
    adaptive.slept(ns, call_deadline::polling());
    learnt.store(adaptive.to_raw(), Ordering::Relaxed);
}

/// Sleeps until data may have come, in place of a whole sleep. `None` where that is due.
///
/// # Errors
/// As [`super::wait::readable`].
pub(super) fn sleep(
    id: SlotId,
    s: &Slot,
    fd: RawFd,
    deadline: &mut CallDeadline,
    learnt: &AtomicU32,
) -> Option<Result<(), Failure>> {
    if fd < 0 || !expected(id, s, deadline) {
        return None;
    }
    // Acquire: pairs with the changes of the modes.
    let epoch = s.mode_epoch.load(Ordering::Acquire);
    let ends = link::ends(s)?;
    spinning::say_cpu(&ends);
    deadline.sleeps(id);
    let me = park::on_word(thread::tid());
    let waiters = ends.incoming.data_waiters();
    let word = waiters.word(waiters.arm(me)?)?;
    // A peer that closes says so before it wakes, and TCP's FIN comes after both: only a whole
    // sleep hears what ends this wait. The fence of arm() comes before this look, and the peer's
    // before it wakes: either it is seen here, or the word is taken.
    if handover_state::sender_closed(&ends.incoming) {
        waiters::disarm(s, me);
        return None;
    }
    // As in a whole sleep: a thread of either end that changed something may have woken before we
    // armed.
    let here = ready::look(id, s, -1).ready.intersects(Events::IN);
    if here || s.mode_epoch.load(Ordering::Acquire) != epoch {
        waiters::disarm(s, me);
        return Some(Ok(()));
    }
    match on(s, word, me, deadline, learnt) {
        Err(e) => Some(asking::after_sleep(s, fd, Events::IN, Err(e), deadline)),
        Ok(()) => Some(Ok(())),
    }
}

/// As [`sleep`], for a wait of poll or select on this connection alone, for at most `ns`: whether
/// the peer woke it. `None` where a whole sleep is due. `epoch` is the mode epoch before the look
/// that found nothing. The connection is not pinned: where it ends meanwhile, no thread wakes the
/// word, and the time passes.
///
/// # Errors
/// `EINTR` after a handler.
pub(crate) fn poll_sleep(id: SlotId, epoch: u32, ns: u64) -> Option<Result<bool, Failure>> {
    let s = fork_group::slot(id)?;
    let due = s.option_cache.all_held(&[Fact::SleepsBriefly])
        && s.receive_mode() == ReceiveMode::Device
        && may_be_brief(id, s);
    if !due {
        return None;
    }
    let ends = link::ends(s)?;
    spinning::say_cpu(&ends);
    let me = park::on_word(thread::tid());
    let waiters = ends.incoming.data_waiters();
    let word = waiters.word(waiters.arm(me)?)?;
    // As in sleep(), both.
    if handover_state::sender_closed(&ends.incoming) {
        waiters::disarm(s, me);
        return None;
    }
    let here = ready::look(id, s, -1).ready.intersects(Events::IN);
    if here || s.mode_epoch.load(Ordering::Acquire) != epoch {
        waiters::disarm(s, me);
        return Some(Ok(here));
    }
    let began = sys::now_ns();
    stats::add(Counter::Sleeps, 1);
    stats::add(Counter::BriefSleeps, 1);
    live_segment::count(s, record::SLEEPS);
    let slept = on_word::sleep(word, me, LONGEST.min(u32::try_from(ns).unwrap_or(LONGEST)));
    Some(awake(s, me, began, &s.receive_spin, slept))
}

/// A wait of poll or select on this connection alone has slept the whole way, for so many
/// nanoseconds; `woken` by the peer alone.
pub(crate) fn poll_slept(id: SlotId, ns: u64, woken: bool) {
    if let Some(s) = fork_group::slot(id) {
        over(s, ns, woken);
    }
}

/// After a sleep on a word in which `me` stood: whether the peer has taken it out.
fn awake(
    s: &Slot,
    me: u64,
    began: u64,
    learnt: &AtomicU32,
    slept: Result<Woken, Failure>,
) -> Result<bool, Failure> {
    let ns = sys::now_ns().saturating_sub(began);
    let taken = waiters::disarm(s, me) == 0;
    if slept == Ok(Woken::TimeOut) && taken {
        s.option_cache.keep(Fact::NotWoken, true);
    }
    if taken {
        stats::add(Counter::WakeupsReceived, 1);
        live_segment::count(s, record::WOKEN);
    }
    over(s, ns, taken);
    learn(learnt, ns);
    slept.map(|_| taken)
}

/// The sleep itself, on a word in which `me` stands.
fn on(
    s: &Slot,
    word: &AtomicU64,
    me: u64,
    deadline: &CallDeadline,
    learnt: &AtomicU32,
) -> Result<(), Failure> {
    if deadline.broken() {
        // While we were looking and spinning.
        waiters::disarm(s, me);
        return Err(Failure::Interrupted);
    }
    let began = sys::now_ns();
    stats::add(Counter::Sleeps, 1);
    stats::add(Counter::BriefSleeps, 1);
    live_segment::count(s, record::SLEEPS);
    let slept =
        sleep::asleep_at(s, on_word::place(word), deadline, || on_word::sleep(word, me, LONGEST));
    awake(s, me, began, learnt, slept).map(|_| ())
}
