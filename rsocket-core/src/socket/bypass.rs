//! Sending and receiving past the channel, where a bridge of this process is beyond it
//! ([`crate::bridge::bypass`]).
//!
//! Here is what the socket layer has to say to that. The connection is in the middle of its life,
//! the lock of the direction is held, and the channel has nothing that comes first. Whatever is
//! otherwise is for [`super::send`] and [`super::receive`], which go on where this has stopped.
//! Must not know queue pairs. Entry points: [`send`], [`send_on`], [`send_at_once`] and [`first`]
//! before the ordinary way; [`receive`] in it; [`take`] for a thread that waits.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use super::call::Call;
use super::{asking, short, wait};
use crate::bridge;
use crate::bridge::cq_ownership::CqOwnership;
use crate::channel::guard::{RecvGuard, SendGuard};
use crate::channel::handover_state;
use crate::channel::link::{self, Ends};
use crate::conn::pending;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::device::shm::{layout, waker};
use crate::failure::Failure;
use crate::live_segment::layout::record;
use crate::live_segment::{self, conn_counters};
use crate::stats::{self, Counter};
use crate::sync::thread;
use crate::sys::vectors::Cursor;
use crate::waiting::call_deadline::CallDeadline;
use crate::waiting::{close_while_blocked, sleep};

/// With any of these set the bytes go by the channel, or nowhere.
const OTHERWISE: u32 = flag::UNCOMMON & !flag::BRIDGED | flag::TCP_ANCHORED;

/// How long a sender sleeps before it looks again, in nanoseconds.
const NAP_NS: u64 = 5_000_000;

/// Naps without news after which the sender uses the channel. A peer that does not read is given
/// that time once, and then the channel is filled as TCP's buffers would be.
const SOON: u32 = 4;

/// Whether the connection is in the middle of its life over a bridge.
#[inline]
fn common(s: &Slot) -> bool {
    s.has_just(flag::BRIDGED, flag::BRIDGED | OTHERWISE) && s.is_settled()
}

/// Whether what a receive with these flags wants may come straight from the device.
#[inline]
pub(super) fn may_receive(s: &Slot, flags: i32) -> bool {
    s.has_just(flag::BRIDGED, flag::BRIDGED | OTHERWISE | flag::MAPPED)
        && s.is_settled()
        && flags & (libc::MSG_PEEK | libc::MSG_TRUNC) == 0
        && s.low_water.load(Ordering::Relaxed) <= 1
}

/// Sends what the device takes now.
pub(super) fn send(s: &Slot, from: &mut Cursor<'_>) {
    if common(s) && from.left() > 0 {
        let born = s.generation.load(Ordering::Acquire);
        sent(s, born, |guard| bridge::bypass::send(guard, from));
    }
}

/// Goes on where [`send`] has stopped for want of room, in a call that may sleep on the only CPU.
/// It waits for the device, as long as that has some soon. What ran ahead by the channel would be
/// copied once more, and the thread that takes it from there waits for this CPU. The rest is for
/// the ordinary way, as are all errors: what ends a wait here ends it there.
pub(super) fn send_on(call: &Call<'_>, from: &mut Cursor<'_>, deadline: &mut CallDeadline) {
    let Call { id, s, fd, flags } = *call;
    if from.left() <= layout::SMALL || !thread::has_one_cpu() || !common(s) {
        return;
    }
    deadline.moved(from.done() > 0);
    if wait::blocks(s, fd, flags).is_err() {
        return;
    }
    let mut quiet = 0;
    while from.left() > 0 && common(s) && deadline.waits(s).is_ok() {
        let Some(hearing) = CqOwnership::begin(id, s) else { return };
        bridge::arm(s);
        let before = from.done();
        sent(s, deadline.born(), |guard| bridge::bypass::send(guard, from));
        deadline.moved(from.done() > 0);
        if from.done() > before {
            quiet = 0;
            continue;
        }
        if quiet >= SOON {
            bridge::bypass::waited_in_vain(s);
        }
        if !bridge::bypass::waits_for_room(s) {
            return;
        }
        match nap(id, s, fd, hearing, deadline) {
            Ok(true) => quiet = 0,
            Ok(false) => quiet += 1,
            Err(_) => return,
        }
    }
}

/// Sleeps until the device has news; false if it had none for a while.
///
/// # Errors
/// When the call is to end.
fn nap(
    id: SlotId,
    s: &Slot,
    fd: RawFd,
    hearing: CqOwnership,
    deadline: &mut CallDeadline,
) -> Result<bool, Failure> {
    let limit = deadline.left(s, fd)?.unwrap_or(u64::MAX).min(NAP_NS);
    hearing.settle(id, s, 0);
    deadline.sleeps(id);
    let call = deadline.entered();
    let waker = close_while_blocked::borrow_waker(call, waker::borrow);
    // A thread that receives may take the event, and with it the room that came.
    let waits = waker.is_none_or(|b| hearing.naps(b.id())) && !bridge::bypass::has_room(s);
    let heard = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds = [heard(hearing.fd), heard(waker.map_or(-1, |b| b.fd()))];
    let slept = if waits {
        stats::add(Counter::Sleeps, 1);
        live_segment::count(s, record::SLEEPS);
        sleep::sleep_on(s, &mut fds, Some(limit), deadline)
    } else {
        Ok(())
    };
    if let Some(b) = waker {
        if !hearing.woke(b.id()) || fds.iter().skip(1).any(|waker| waker.revents != 0) {
            b.drain();
        }
        close_while_blocked::give_back_waker(call, b);
    }
    slept?;
    let [device, woken] = fds.map(|f| f.revents != 0);
    if device {
        hearing.heard(s, true);
    }
    Ok(device || woken)
}

/// Sends at most [`layout::SMALL`] bytes, all of them; `None` if nothing has happened.
#[inline]
pub(super) fn send_at_once(s: &Slot, from: &[libc::iovec]) -> Option<usize> {
    if !common(s) {
        return None;
    }
    let all = short::few(from)?;
    let born = s.generation.load(Ordering::Acquire);
    (sent(s, born, |guard| bridge::bypass::send_whole(guard, from)) == all).then_some(all)
}

/// Lets `post` send, under the send lock, if the connection is the one that was `born` then; how
/// many bytes it sent.
#[inline]
fn sent(s: &Slot, born: u32, post: impl FnOnce(&SendGuard<'_>) -> usize) -> usize {
    let Some(ends) = link::ends(s) else { return 0 };
    let Some(guard) = SendGuard::take(s, &ends) else { return 0 };
    // Asked now that no other thread changes it.
    let own = s.generation.load(Ordering::Acquire) == born;
    let goes = own && common(s) && !handover_state::receiver_closed(&ends.outgoing);
    let n = if goes { post(&guard) } else { 0 };
    if n > 0 {
        conn_counters::sent_shm(s, live_segment::record(s), n);
    }
    n
}

/// Receives what the device has brought; how many bytes. The caller has found the channel empty
/// and nothing to be done about it ([`quiet`]), which is so no more after 0.
pub(super) fn receive(guard: &RecvGuard<'_>, to: &mut Cursor<'_>) -> usize {
    brought(guard, to)
}

#[inline(always)]
fn brought(guard: &RecvGuard<'_>, to: &mut Cursor<'_>) -> usize {
    let s = guard.s;
    let position = guard.view().data_position;
    let n =
        bridge::bypass::receive(guard, to, || guard.ends.incoming.poll_data(position).is_none());
    if n > 0 {
        conn_counters::received_shm(s, live_segment::record(s), n);
    }
    n
}

/// What a look has brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Looked {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing; and the channel has nothing, and nothing is to be done about it.
    Nothing,
    /// The ordinary way is to look.
    Otherwise,
}

/// The first look of a call that receives, or that after a wait. A `new` call on the only CPU may
/// have to give that away before it looks, which [`wait::readable`] does. In that case this says
/// that there is nothing.
#[inline]
pub(super) fn first(s: &Slot, to: &mut Cursor<'_>, flags: i32, born: u32, new: bool) -> Looked {
    if !may_receive(s, flags) || asking::kernel_was_heard(s) {
        return Looked::Otherwise;
    }
    past_the_channel(s, to, flags, born, new)
}

fn past_the_channel(s: &Slot, to: &mut Cursor<'_>, flags: i32, born: u32, new: bool) -> Looked {
    let gives_way = new && wait::gives_way(s, flags);
    if gives_way && bridge::bypass::is_too_soon(s) {
        return Looked::Nothing;
    }
    bridge::bypass::give_way(s);
    let Some(ends) = link::ends(s) else { return Looked::Otherwise };
    let Some(guard) = RecvGuard::take(s, &ends) else { return Looked::Otherwise };
    let looked = look(&guard, to, flags, born);
    drop(guard);
    if gives_way && looked != Looked::Otherwise {
        bridge::bypass::looked_at_once(s, looked != Looked::Nothing);
    }
    match looked {
        // The kernel may know of an end. A call that may sleep hears of it then.
        Looked::Nothing if flags & libc::MSG_DONTWAIT != 0 && asking::is_kernel_due(s) => {
            Looked::Otherwise
        }
        looked => looked,
    }
}

#[inline(never)]
fn look(guard: &RecvGuard<'_>, to: &mut Cursor<'_>, flags: i32, born: u32) -> Looked {
    let s = guard.s;
    let own = s.generation.load(Ordering::Acquire) == born;
    if !(own && may_receive(s, flags) && quiet(guard)) {
        return Looked::Otherwise;
    }
    match brought(guard, to) {
        0 if quiet(guard) => Looked::Nothing,
        0 => Looked::Otherwise,
        n => Looked::Bytes(n),
    }
}

/// A look at the connection by a thread that waits to receive, before it looks at the channel: true
/// when bytes came straight. The thread was called when the slot was `born`: another connection's
/// bytes are not for it.
#[inline]
pub(super) fn take(s: &Slot, ends: &Ends, to: &mut Cursor<'_>, flags: i32, born: u32) -> bool {
    s.has(flag::BRIDGED) && take_from_bridge(s, ends, to, flags, born)
}

fn take_from_bridge(s: &Slot, ends: &Ends, to: &mut Cursor<'_>, flags: i32, born: u32) -> bool {
    let mut looked = Looked::Otherwise;
    if may_receive(s, flags)
        && let Some(guard) = RecvGuard::take(s, ends)
    {
        looked = look(&guard, to, flags, born);
    }
    if looked == Looked::Otherwise {
        bridge::pump(s);
    }
    matches!(looked, Looked::Bytes(_))
}

/// What most looks of a receiver that spins find: nothing came, nothing is owed, nothing has
/// changed. The long way would find the same, and copy the state for it.
#[inline(always)]
pub(super) fn quiet(guard: &RecvGuard<'_>) -> bool {
    let (s, ends, state) = (guard.s, guard.ends, guard.view());
    state.ended == 0
        && state.owed == 0
        // Stored last by the holder that changed the state: one that died before that may have owed
        // something.
        && s.unread_hint.load(Ordering::Relaxed) == state.hint()
        && state.readable() == 0
        && ends.incoming.poll_data(state.data_position).is_none()
        && handover_state::end(&ends.incoming).is_none()
        && !s.has(flag::LOST | flag::READ_SHUT | flag::MAPPED | flag::ENDED)
        && !pending::is_kernels(s)
}
