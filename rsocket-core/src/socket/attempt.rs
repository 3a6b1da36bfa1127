//! One attempt to receive, under the receive lock: TCP's bytes up to the switch offset, and the
//! device's after it (`life-of-a-connection §4`).
//!
//! Must not know how long the call waits. Entry point: [`attempt`].

use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use super::boundary::{
    behind_the_end, by_kernel, has_failed, is_over, own_end, peek_behind_the_switch, the_end,
};
use super::bypass::{self, quiet};
use super::call::Call;
use super::returned::follow;
use super::switch_offset::bytes_ahead;
use super::taking::{Got, copying, from_kernel, take_messages};
use super::{asking, hints, tcp_anchored, verdict};
use crate::bridge::Unconnected;
use crate::channel::guard::RecvGuard;
use crate::channel::link::{self, Ends};
use crate::channel::room::follow_up;
use crate::channel::{broken, handover_state};
use crate::conn::machine::{ReceiveEvent, ReceiveMode};
use crate::conn::pending;
use crate::conn::slot::{Slot, after, flag};
use crate::device::shm::channel::RecvState;
use crate::direct_placement::{Placed, Placer};
use crate::failure::Failure;
use crate::host::kernel::{self, Ending};
use crate::host::{counters, tcp_state as state};
use crate::reason::Reason;
use crate::stats::{self, Counter};
use crate::sys::sandbox;
use crate::sys::vectors::Cursor;
use crate::waiting::call_deadline::CallDeadline;
use crate::{bridge, fork_safe, pairing};

/// One attempt, under the receive lock.
pub(super) fn attempt(
    call: &Call<'_>,
    to: &mut Cursor<'_>,
    deadline: &mut CallDeadline,
) -> Result<Got, Failure> {
    let Call { id, s, fd, flags } = *call;
    deadline.may_go_on(s)?;
    if s.has(flag::BROKEN) {
        return Err(Failure::Reset);
    }
    if s.has(flag::PENDING | flag::UNREACHED) {
        return unconnected(s);
    }
    if !fork_safe::settle(id, s, fd, fork_safe::Use::Receive) {
        return Ok(Got::Nothing);
    }
    pairing::advance(id, s, fd);
    if s.receive_mode().is_kernel() {
        return on_tcp(call, to);
    }
    let Some(ends) = link::ends(s) else { return without_channel(call, deadline) };
    if s.has(flag::BRIDGED) && !hints::data_waiting(s, &ends) {
        if bypass::may_receive(s, flags) {
            bridge::bypass::give_way(s);
        } else {
            bridge::look(s);
        }
    }
    let Some(mut guard) = RecvGuard::take(s, &ends) else {
        return deadline.may_go_on(s).and(Err(Failure::Blocked));
    };
    let before = s.receive_mode();
    let got = match before {
        _ if deadline.cut_short() => Err(Failure::Interrupted),
        ReceiveMode::Asked | ReceiveMode::Acknowledged => switching(&mut guard, call, to),
        ReceiveMode::Device => after_the_switch(&mut guard, call, to),
        ReceiveMode::Kernel | ReceiveMode::Returned => by_kernel(s, fd, to, flags),
    };
    if flags & libc::MSG_WAITALL != 0 {
        deadline.begin();
    }
    let moved = before != s.receive_mode();
    // Both change under the lock.
    if moved || s.after_receive.load(Ordering::Relaxed) & after::WAKE_SENDER != 0 {
        unlock_and_tell(guard, moved);
    }
    got
}

/// What a receive finds on a connection that does not stand.
#[cold]
fn unconnected(s: &Slot) -> Result<Got, Failure> {
    match bridge::not_connected(s) {
        Unconnected::Pending => Ok(Got::Nothing),
        Unconnected::Failed(e) => Err(e),
        Unconnected::Over => Ok(Got::End),
    }
}

/// TCP has this direction, which takes no lock.
fn on_tcp(call: &Call<'_>, to: &mut Cursor<'_>) -> Result<Got, Failure> {
    let Call { s, fd, flags, .. } = *call;
    if !s.has(flag::STRICT) || link::has_channel(s) {
        return by_kernel(s, fd, to, flags);
    }
    verdict::noticed(s, fd);
    match if sandbox::inside() { Ok(Got::Nothing) } else { by_kernel(s, fd, to, flags) } {
        // An error if the peer will never send anything that this end may take, or has not in the
        // time that a sender waits.
        Ok(Got::Nothing) => verdict::strict(s, fd).map(|()| Got::Nothing),
        got => got,
    }
}

/// A direction that is not TCP's has no channel. A connection that may not use TCP waits for it.
/// Any other connection was closed just now, or is broken.
fn without_channel(call: &Call<'_>, deadline: &CallDeadline) -> Result<Got, Failure> {
    let s = call.s;
    if s.has(flag::STRICT) && !link::has_channel(s) {
        return Ok(Got::Nothing);
    }
    deadline.may_go_on(s)?;
    broken::break_connection(s, call.fd, Reason::ResourceError);
    Err(Failure::Reset)
}

/// The direction is about to leave TCP.
fn switching(
    guard: &mut RecvGuard<'_>,
    call: &Call<'_>,
    to: &mut Cursor<'_>,
) -> Result<Got, Failure> {
    // Asked before the words are looked at: what the bridge brought before it broke is there then.
    let lost = call.s.has(flag::LOST);
    match up_to_the_switch(guard, call, to) {
        // The bridge is lost, and no word will come any more of where TCP was left, or whether it
        // was.
        Ok(Got::Nothing) if lost => Err(pending::take(call.s, Failure::Reset)),
        got => got,
    }
}

/// After the lock was released, since waking is a system call, but whatever a handler does that
/// came meanwhile. Most calls have neither a reader of this side nor the sender to tell.
#[inline(never)]
fn unlock_and_tell(guard: RecvGuard<'_>, moved: bool) {
    let (s, ends) = (guard.s, guard.ends);
    guard.unlock_then(|| {
        if moved {
            // Others of this side may have gone to sleep until TCP brings more, or the device,
            // which is the other's business now. A fence inside, after the new mode: pairs with the
            // one in ready::arm, whose caller sees that mode or is seen here.
            ends.wake_own_readers();
        }
        if s.takes_wake_of_sender() {
            bridge::carry_back(s, ends);
        }
    });
}

#[cold]
fn broken(s: &Slot, fd: RawFd, what: &str) -> Failure {
    // Unless it was broken for a reason of its own.
    if !s.has(flag::BROKEN) {
        crate::log_warn!("inconsistent: {}", what);
        broken::break_connection(s, fd, Reason::Inconsistent);
    }
    Failure::Reset
}

/// No switch offset was seen. What TCP has is looked at first and the switch offset after it. On
/// one host a switch offset is published before FIN. It is also published before any byte that
/// follows it can come by TCP (from a sender that has gone back already). Between hosts FIN may be
/// here before the word of the switch offset ([`tcp_anchored`]).
fn before_the_switch(
    guard: &mut RecvGuard<'_>,
    call: &Call<'_>,
    to: &mut Cursor<'_>,
) -> Result<Got, Failure> {
    let (s, ends, Call { fd, flags, .. }) = (guard.s, guard.ends, *call);
    let waiting = usize::try_from(counters::in_queue(fd)?).unwrap_or(usize::MAX);
    if waiting == 0 && to.done() > 0 && has_failed(fd) {
        // The error is the next call's, which may be one that the kernel does.
        return Ok(Got::End);
    }
    let ending = if waiting == 0 { kernel::ending(fd) } else { Ending::Bytes };
    // At an urgent byte nothing seems to wait. Its sender leaves TCP no more.
    let stays = waiting == 0 && counters::at_mark(fd)?;
    if handover_state::switch_offset(&ends.incoming).is_some() {
        return up_to_the_switch(guard, call, to);
    }
    match ending {
        Ending::Bytes if stays => from_kernel(s, fd, to, usize::MAX, flags),
        Ending::Bytes if waiting > 0 => from_kernel(s, fd, to, waiting, flags),
        Ending::Bytes | Ending::Open => Ok(Got::Nothing),
        Ending::Fin if tcp_anchored::fin_is_the_end(s, ends) => {
            if s.has(flag::TCP_ANCHORED) && !s.has(flag::READ_SHUT) {
                s.set(flag::ENDED);
            }
            Ok(Got::End)
        }
        Ending::Fin => {
            s.set(flag::FIN_FIRST);
            Ok(Got::Nothing)
        }
        Ending::Failed(e) => Err(e),
    }
}

/// Before the switch offset is reached: TCP has the bytes.
fn up_to_the_switch(
    guard: &mut RecvGuard<'_>,
    call: &Call<'_>,
    to: &mut Cursor<'_>,
) -> Result<Got, Failure> {
    let (s, ends, Call { fd, flags, .. }) = (guard.s, guard.ends, *call);
    // Acquire: pairs with the sender's release of the switch offset; all of its bytes before N are
    // in TCP.
    let Some(n) = handover_state::switch_offset(&ends.incoming) else {
        return before_the_switch(guard, call, to);
    };
    let before = to.done();
    if let Some(got) = tcps_share(guard, call, to, n)? {
        return Ok(got);
    }
    match s.receive_mode().after(ReceiveEvent::SwitchReached) {
        Some(mode) => s.set_receive_mode(mode),
        // Asked: the sender cut without our acknowledgement.
        None => return Err(broken(s, fd, "the sender has switched unasked")),
    }
    stats::add(Counter::SwitchedReceiving, 1);
    if to.done() == before {
        return after_the_switch(guard, call, to);
    }
    // To a program that waits for edges, a read that leaves room in its buffers has found all there
    // was.
    let mut taking = guard.receiver().take();
    let from_tcp = to.done();
    if !take_messages(&mut taking, to, copying(s, flags), placer(call, ends)) {
        return Err(broken(s, fd, "a message breaks the protocol"));
    }
    // The sender may have gone back already: then TCP has more behind the channel's last byte.
    let over = is_over(taking.commit(), ends);
    follow_up(guard, to.done() - from_tcp);
    let behind = if to.left() > 0 && over { behind_the_end(s, fd, to, flags) } else { 0 };
    Ok(Got::Bytes(to.done() - before + behind))
}

/// Takes what TCP has of the first `n` bytes of the direction; `None` once all of them were taken.
fn tcps_share(
    guard: &mut RecvGuard<'_>,
    call: &Call<'_>,
    to: &mut Cursor<'_>,
    n: u64,
) -> Result<Option<Got>, Failure> {
    let (s, ends, Call { fd, flags, .. }) = (guard.s, guard.ends, *call);
    let before = to.done();
    loop {
        let left = match bytes_ahead(fd, ends, n) {
            Ok(Some(0)) => return Ok(None),
            // The buffers are full: a receive of nothing would look like the end of the stream.
            Ok(Some(_)) if to.left() == 0 => return Ok(Some(Got::Bytes(to.done() - before))),
            Ok(Some(left)) => left,
            Ok(None) => {
                let what = "more was read from TCP than was sent before the switch";
                return Err(broken(s, fd, what));
            }
            _ if to.done() > before => return Ok(Some(Got::Bytes(to.done() - before))),
            Err(Failure::Blocked) => return Ok(Some(Got::Nothing)),
            Err(e) => return Err(e),
        };
        match from_kernel(s, fd, to, left, flags) {
            // A reset, whose error another call has taken: bytes may be missing.
            Ok(Got::End) if counters::tcp_state(fd) == Ok(state::CLOSE) => {
                return Err(Failure::Reset);
            }
            // The stream ended before the switch offset that its sender fixed: bytes are missing.
            Ok(Got::End) => return Err(broken(s, fd, "TCP has ended before the switch")),
            Ok(Got::Bytes(k)) if k == left && flags & libc::MSG_PEEK == 0 => {}
            Ok(Got::Bytes(k)) if k == left => {
                return Ok(Some(Got::Bytes(k + peek_behind_the_switch(guard, to, flags))));
            }
            got if to.done() > before => {
                if let Err(e) = got {
                    pending::note(s, e);
                }
                return Ok(Some(Got::Bytes(to.done() - before)));
            }
            got => return got.map(Some),
        }
    }
}

/// What most looks find out without more: bytes that came past the channel, or nothing.
#[inline(always)]
fn at_a_glance(guard: &RecvGuard<'_>, call: &Call<'_>, to: &mut Cursor<'_>) -> Option<Got> {
    let (s, flags) = (guard.s, call.flags);
    // A call that may sleep need not ask the kernel: the sleep is on TCP's descriptor too. What was
    // heard there is asked for at once.
    let mut quiet_now = quiet(guard);
    if quiet_now && bypass::may_receive(s, flags) {
        match bypass::receive(guard, to) {
            0 => quiet_now = quiet(guard),
            n => return Some(Got::Bytes(n)),
        }
    }
    let at_once = flags & (libc::MSG_DONTWAIT | libc::MSG_PEEK) != 0;
    let asks = || asking::kernel_was_heard(s) || at_once && asking::is_kernel_due(s);
    (quiet_now && !asks()).then_some(Got::Nothing)
}

/// After the switch offset: the device has the bytes.
#[inline(always)]
fn after_the_switch(
    guard: &mut RecvGuard<'_>,
    call: &Call<'_>,
    to: &mut Cursor<'_>,
) -> Result<Got, Failure> {
    match at_a_glance(guard, call, to) {
        Some(got) => Ok(got),
        None => from_device(guard, call, to),
    }
}

/// The same, where a glance has not told.
fn from_device(
    guard: &mut RecvGuard<'_>,
    call: &Call<'_>,
    to: &mut Cursor<'_>,
) -> Result<Got, Failure> {
    let (s, ends, Call { fd, flags, .. }) = (guard.s, guard.ends, *call);
    let mut taking = guard.receiver().take();
    let copying = copying(s, flags);
    let placer = placer(call, ends);
    let before = to.done();
    let mut intact = take_messages(&mut taking, to, copying, placer);
    if to.done() == before && intact && taking.state().ended == 0 {
        let failed = before > 0 && fails_later(s, fd);
        let look_again = failed.then_some(Silence::LookAgain);
        match look_again.map_or_else(|| after_silence(s, fd, ends, taking.state()), Ok)? {
            Silence::Nothing => {}
            Silence::LookAgain => {
                // What came before it, and after the look above.
                intact = take_messages(&mut taking, to, copying, placer);
                if to.done() == before && intact && taking.state().ended == 0 {
                    return if failed { Ok(Got::End) } else { the_end(s, fd) };
                }
            }
            Silence::Left => {
                follow(guard, fd);
                return by_kernel(s, fd, to, flags);
            }
        }
    }
    let n = to.done() - before;
    // What was written before the end is in place when the end is seen.
    if !is_in_place(placer.filter(|_| n == 0)) || !intact {
        return Err(broken(s, fd, "a message or a placement breaks the protocol"));
    }
    let ended = taking.state().ended != 0;
    let over = n > 0 && to.left() > 0 && is_over(taking.state(), ends);
    if flags & libc::MSG_PEEK == 0 {
        taking.commit();
        follow_up(guard, n);
    }
    match n {
        0 if ended => Ok(Got::End),
        0 => if_not_shut(s, fd),
        n if over => Ok(Got::Bytes(n + behind_the_end(s, fd, to, flags))),
        n => Ok(Got::Bytes(n)),
    }
}

/// Nothing yet, unless this side has shut down what it receives.
fn if_not_shut(s: &Slot, fd: RawFd) -> Result<Got, Failure> {
    if s.has(flag::READ_SHUT) { own_end(s, fd) } else { Ok(Got::Nothing) }
}

/// Takes in what the peer has written to our mappings; false when it broke a rule.
fn is_in_place(placer: Option<(Placer<'_>, &Ends)>) -> bool {
    placer.is_none_or(|(placer, ends)| placer.place(ends) != Placed::Broken)
}

/// The [`Placer`] that takes in what the peer writes to our mappings, if there are any.
fn placer<'a>(call: &Call<'a>, ends: &'a Ends) -> Option<(Placer<'a>, &'a Ends)> {
    Placer::of(call.id, call.s, call.fd).map(|placer| (placer, ends))
}

/// The connection has failed, and the call has bytes to report. The kernel keeps the error for the
/// next call, which may be one that only the kernel does.
#[cold]
fn fails_later(s: &Slot, fd: RawFd) -> bool {
    !s.has(flag::BRIDGED | flag::ENDED) && asking::is_kernel_due(s) && has_failed(fd)
}

enum Silence {
    Nothing,
    /// The connection has ended: what is in the channel now is all there will be.
    LookAgain,
    /// The sender went back to TCP: the direction is to follow.
    Left,
}

/// The device has nothing. Has the connection ended, or the sender gone back to TCP?
fn after_silence(s: &Slot, fd: RawFd, ends: &Ends, at: &RecvState) -> Result<Silence, Failure> {
    // Acquire inside: pairs with the sender's release of its end mark, after its last message.
    if let Some(end) = handover_state::end(&ends.incoming)
        && ends.incoming.poll_data(at.data_position).is_none()
    {
        if end != at.total() {
            return Err(broken(s, fd, "the sender's end mark is not where its messages end"));
        }
        return Ok(Silence::Left);
    }
    if s.has(flag::LOST) {
        // Looked at before the ring: what the bridge put in came before.
        let more = ends.incoming.poll_data(at.data_position).is_some();
        return if more { Ok(Silence::LookAgain) } else { Err(pending::take(s, Failure::Reset)) };
    }
    if !s.has(flag::BRIDGED) && s.has(flag::ENDED) || pending::is_kernels(s) {
        return Ok(Silence::LookAgain);
    }
    if !asking::kernel_due(s) {
        return Ok(Silence::Nothing);
    }
    match kernel::ending(fd) {
        // TCP's word may overtake the device's. The end of the stream is what the bridge says.
        // Bytes beyond the offset are those of a sender whose fallback is still to be heard of.
        Ending::Fin if s.has(flag::TCP_ANCHORED) => {
            if !s.has(flag::FIN_FIRST) {
                s.set(flag::FIN_FIRST);
            }
            Ok(Silence::Nothing)
        }
        Ending::Bytes if s.has(flag::TCP_ANCHORED) => Ok(Silence::Nothing),
        Ending::Open => Ok(Silence::Nothing),
        Ending::Fin => Ok(Silence::LookAgain),
        // Bytes beyond the offset: only right when the sender has gone back, which it says first.
        Ending::Bytes if handover_state::end(&ends.incoming).is_some() => Ok(Silence::Nothing),
        Ending::Bytes => Err(broken(s, fd, "TCP has bytes behind the switch")),
        Ending::Failed(e) if ends.incoming.poll_data(at.data_position).is_some() => {
            // What came before the reset is read first; the kernel says the error only once.
            pending::note(s, e);
            Ok(Silence::LookAgain)
        }
        Ending::Failed(e) => {
            if !s.has(flag::BRIDGED) && counters::tcp_state(fd) == Ok(state::CLOSE) {
                s.set(flag::ENDED);
            }
            Err(pending::take(s, e))
        }
    }
}
