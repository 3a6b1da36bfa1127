//! Back to TCP (`life-of-a-connection §5`), and the loud end when something does not add up.
//!
//! A way back is one-sided. For the bytes it sends, a side marks "the window ends at M, the rest is
//! TCP". For the bytes it receives, it asks the peer to set that mark at its next call, and reads
//! up to it: what is in the channel is never lost, whatever becomes of the peer. Only where the
//! next reader knows nothing of this library does it say how many bytes it took; the peer then
//! sends what is unread by TCP, and everything after it too ([`Scope`]).

use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use super::guard;
use super::link::{self, Ends};
use super::{awaited, cause, marks, pairing};
use crate::config::policy;
use crate::conn::family;
use crate::conn::machine::{Phase, ReceiveMode, SendMode};
use crate::conn::slot::{Slot, SlotId, flag};
use crate::device::shm::channel::RecvState;
use crate::device::shm::channel::banks::locate;
use crate::errno::Errno;
use crate::host::counters;
use crate::host::kernel;
use crate::reason::Reason;
use crate::socket::{reader, receive, send, stand_in};
use crate::stats::{self, Counter};
use crate::sys::sandbox;

/// Ends the connection for both sides with `ECONNRESET`: an inconsistency after the switch. From
/// now on this process attaches nothing more.
pub fn break_connection(s: &Slot, fd: RawFd, reason: Reason) {
    mark_broken(s, reason);
    kernel::reset_on_close(fd);
    kernel::shut_both(fd);
    tell_broken(s);
}

fn mark_broken(s: &Slot, reason: Reason) {
    s.set(flag::BROKEN | flag::PEER_GONE);
    s.reason.store(reason as u32, Ordering::Relaxed);
    cause::count(s, reason);
    stats::add(Counter::Resets, 1);
    if reason == Reason::Inconsistent {
        link::distrust();
    }
    crate::log_warn!("connection reset: {}", reason.text());
}

fn tell_broken(s: &Slot) {
    if let Some(ends) = link::ends(s) {
        marks::close(&ends.incoming, &ends.outgoing);
        ends.wake_writer();
        ends.wake_reader();
    }
}

/// The connection stays on TCP for good, or has gone back to it. Where that is not wanted, it ends
/// here.
#[inline]
pub fn insist(id: SlotId, s: &Slot, fd: RawFd) {
    if policy::required() && fd >= 0 && !s.has(flag::BROKEN | flag::STRICT) {
        let reason =
            Reason::from_u8(s.reason.load(Ordering::Relaxed) as u8).unwrap_or(Reason::PolicyTcp);
        end_instead(id, s, fd, reason);
    }
}

/// Ends a connection that would be TCP's from here on, where that was excluded (`RSOCKET_REQUIRE`):
/// both directions fail, in this process by our own word, so that a stream that was cut short does
/// not look like one that has ended.
#[cold]
fn end_instead(id: SlotId, s: &Slot, fd: RawFd, reason: Reason) {
    let errno = crate::sys::errno();
    s.set(flag::BROKEN | flag::PEER_GONE);
    s.set_receive_mode(ReceiveMode::Asked);
    s.set_send_mode(SendMode::Asked);
    break_connection(s, fd, reason);
    crate::conn::listeners::mode_changed(id);
    crate::sys::set_errno(errno);
}

/// How much of a connection goes back to TCP, and who reads afterwards what the channel still has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// What this side sends. Receiving stays as it is.
    Sending,
    /// Both directions. This library goes on reading, first what is in the channel.
    Both,
    /// Both directions, for a reader that has only the kernel: another program, or a thread of
    /// libc's.
    Stranger,
}

/// Goes back to TCP as far as `scope` says, or never leaves it.
pub fn refuse(id: SlotId, s: &Slot, fd: RawFd, reason: Reason, scope: Scope) {
    if s.has(flag::RELAYED) {
        if s.has(flag::BESIDE) {
            leave_relay(s, fd, reason);
        } else {
            leave_window(id, s, fd, reason, scope);
        }
        return;
    }
    pairing::refuse(s, reason);
    let first = s.phase() == Phase::Paired;
    if !first && !has_more_to_return(s, scope) {
        // Already back; but the peer may have asked for its unread bytes since.
        give_tail_away(id, s, fd, reason);
        return;
    }
    let Some(ends) = link::ends(s) else { return };
    cause::say(s, &ends, reason);
    if first {
        cause::count(s, reason);
        stats::add(Counter::Detached, 1);
        s.reason.store(reason as u32, Ordering::Relaxed);
    }
    return_outgoing(s, fd, &ends);
    let awaited = match scope {
        Scope::Sending | Scope::Both => {
            end_incoming(s, &ends, scope);
            None
        }
        Scope::Stranger => return_incoming(s, fd, &ends, reason),
    };
    s.set_phase(Phase::Refused);
    give_tail_away(id, s, fd, reason);
    ends.wake_reader();
    ends.wake_writer();
    // Other threads and relatives sleep until the window has something for them: from here on it is
    // TCP that has.
    ends.wake_own();
    crate::conn::listeners::mode_changed(id);
    if let Some(all) = awaited
        && matches!(reason, Reason::Executed | Reason::PassedAway)
    {
        serve_own_returns();
        if !awaited::comes(fd, all) {
            cut_off(s, fd);
        }
    }
}

/// The peer that is to send by TCP may be this process, which makes no other call while it waits
/// for itself.
fn serve_own_returns() {
    family::each_local(|id, s| {
        if let Some(ends) = link::ends(s) {
            serve_return(id, s, family::descriptor(id), &ends);
        }
    });
}

/// Whether an earlier way back left the receiving direction on its device, and this one goes
/// further.
fn has_more_to_return(s: &Slot, scope: Scope) -> bool {
    let receives = || matches!(s.receive_mode(), ReceiveMode::Device | ReceiveMode::Acknowledged);
    match scope {
        Scope::Sending => false,
        Scope::Both => {
            receives() && link::ends(s).is_some_and(|ends| marks::is_undecided(&ends.incoming))
        }
        Scope::Stranger => receives() && link::has_window(s),
    }
}

/// What the window still has has nowhere to go: a stream that was cut short must not look like one
/// that has ended. To whoever has the descriptor next, and knows nothing of us, the kernel has to
/// say so.
fn cut_short(s: &Slot, fd: RawFd, reason: Reason) {
    if matches!(reason, Reason::Executed | Reason::PassedAway) {
        cut_off(s, fd);
    } else {
        break_connection(s, fd, Reason::ShutDownEarly);
    }
}

/// The same, for whoever has either end.
fn cut_off(s: &Slot, fd: RawFd) {
    mark_broken(s, Reason::ShutDownEarly);
    // Not shut down as well: of a connection that both sides have ended a reader would hear of an
    // end.
    kernel::disconnect(fd);
    tell_broken(s);
}

/// Between hosts the way back is the sender's alone: our bytes go by TCP from here on. What the
/// peer sends stays on the device, where this process can still read it; a stranger to the relay
/// could not, and gets a reset.
fn leave_relay(s: &Slot, fd: RawFd, reason: Reason) {
    let Some(ends) = link::ends(s) else { return };
    if s.send_mode() != SendMode::Returned {
        cause::count(s, reason);
        stats::add(Counter::Detached, 1);
        return_outgoing(s, fd, &ends);
        crate::relay::carry_out(s, &ends);
    }
    if matches!(reason, Reason::Executed | Reason::PassedAway)
        && s.receive_mode() != ReceiveMode::Kernel
    {
        break_connection(s, fd, reason);
    }
}

/// Without a TCP connection to the peer there is still the loopback connection to the relay, which
/// carries on what the program sends by it, and brings what comes to a reader who has only the
/// kernel. Otherwise what is received stays on the device.
fn leave_window(id: SlotId, s: &Slot, fd: RawFd, reason: Reason, scope: Scope) {
    let sends = s.send_mode() == SendMode::Device;
    let receives = scope == Scope::Stranger && s.receive_mode() == ReceiveMode::Device;
    let Some(ends) = link::ends(s).filter(|_| sends || receives) else { return };
    if sends {
        stats::fell_back(reason);
        stats::add(Counter::Detached, 1);
        return_outgoing(s, fd, &ends);
    }
    let awaited = if receives { return_incoming(s, fd, &ends, reason) } else { None };
    crate::relay::carry_out(s, &ends);
    crate::relay::carry_back(s, &ends);
    // From here on threads of the program's sleep in the kernel.
    crate::relay::hearing::by_service(s);
    ends.wake_own();
    crate::conn::listeners::mode_changed(id);
    if let Some(all) = awaited
        && matches!(reason, Reason::Executed | Reason::PassedAway)
        && !awaited::comes(fd, all)
    {
        cut_off(s, fd);
    }
}

/// Our bytes go by TCP from here on.
fn return_outgoing(s: &Slot, fd: RawFd, ends: &Ends) {
    let Some(guard) = guard::SendGuard::take(s, ends) else { return };
    match s.send_mode() {
        SendMode::Device => {
            if marks::publish_end(&ends.outgoing, guard.view().total()) {
                s.set_send_mode(SendMode::Returned);
            } else {
                // The peer has asked for the same, with unread bytes: those go first.
                let _ = give_way(&guard, fd);
            }
        }
        SendMode::Kernel | SendMode::Asked => {
            send::stay(&guard);
            s.set_send_mode(SendMode::Returned);
        }
        SendMode::Returned => {}
    }
}

/// The peer's next bytes are to come by TCP, if both directions go back. It learns that at its next
/// call; those that the channel has are read there.
fn end_incoming(s: &Slot, ends: &Ends, scope: Scope) {
    let Some(_guard) = guard::RecvGuard::take(s, ends) else { return };
    if !stays_in_kernel(s) && scope == Scope::Both {
        marks::want_end(&ends.incoming);
    }
}

/// Whether the receiving direction never leaves TCP, since its sender was not told yet that it may.
/// Before the direction is acknowledged there is nothing to tell the peer; but another thread may
/// be about to, under a lock that is not ours.
fn stays_in_kernel(s: &Slot) -> bool {
    loop {
        match s.receive_mode() {
            ReceiveMode::Device | ReceiveMode::Acknowledged => return false,
            mode if s.shift_receive_mode(mode, ReceiveMode::Returned) => return true,
            _ => {}
        }
    }
}

/// What the peer sent and we did not read comes by TCP: how many bytes TCP will have brought in
/// all, if there are any.
fn return_incoming(s: &Slot, fd: RawFd, ends: &Ends, reason: Reason) -> Option<u64> {
    let mut guard = guard::RecvGuard::take(s, ends)?;
    let back = if stays_in_kernel(s) { Back::Nothing } else { ask_back(&mut guard, fd, reason) };
    drop(guard);
    match back {
        Back::Nothing => None,
        Back::Bytes(n) => {
            // A loopback connection has carried nothing before.
            let cut = if s.has(flag::RELAYED) { Some(0) } else { marks::cut(&ends.incoming) };
            cut.map(|cut| cut.saturating_add(n as u64))
        }
        Back::Lost => {
            if matches!(reason, Reason::Executed | Reason::PassedAway | Reason::OddUse) {
                cut_short(s, fd, reason);
            }
            None
        }
    }
}

/// What becomes of the window's unread bytes.
enum Back {
    /// There are none.
    Nothing,
    /// The peer sends so many by TCP.
    Bytes(usize),
    /// TCP cannot carry them any more. They stay in the window, where our own calls still find
    /// them, but nobody else's.
    Lost,
}

/// Tells the peer what was taken of the device; before the cut was reached, that is nothing.
fn ask_back(guard: &mut guard::RecvGuard<'_>, fd: RawFd, reason: Reason) -> Back {
    let (s, ends) = (guard.s, guard.ends);
    let mut state = *guard.view();
    let unread = receive::in_window(&state, ends);
    // The sender has shut down, or is gone: its FIN ends what TCP can carry.
    let fin = || matches!(counters::fin_received(fd), Ok(true) | Err(Errno::NOTCONN));
    let returned = marks::end(&ends.incoming).is_some();
    if unread > 0 && (fin() || !returned && over(&state, ends)) {
        if may_stand_in(s, fd, reason) && stand_in::replace(guard, fd, unread) {
            // What was unread has been taken.
            state = *guard.view();
        } else if !returned {
            return Back::Lost;
        }
    }
    if marks::want_return(&ends.incoming, state.total()) {
        s.set_receive_mode(ReceiveMode::Returned);
        kernel::acknowledge_at_once(fd);
        // Pairs with the fence in say_shutdown.
        core::sync::atomic::fence(Ordering::SeqCst);
        let unread = receive::in_window(&state, ends);
        return match unread {
            0 => Back::Nothing,
            _ if over(&state, ends) => Back::Lost,
            n => Back::Bytes(n),
        };
    }
    // The peer has gone back itself; then its end mark stands, and we read up to it.
    if marks::end(&ends.incoming) == Some(state.total()) {
        s.set_receive_mode(ReceiveMode::Returned);
        kernel::acknowledge_at_once(fd);
        return Back::Nothing;
    }
    Back::Lost
}

/// Whether another socket may take the number from one whose stream is over. It leads nowhere:
/// where the next reader is likely to answer by the same number, the peer must have gone.
fn may_stand_in(s: &Slot, fd: RawFd, reason: Reason) -> bool {
    let nobody_listens = || reader::peer_gone(s, fd, 0);
    !sandbox::inside()
        && match reason {
            Reason::Executed => true,
            Reason::PassedAway => nobody_listens(),
            _ => false,
        }
}

/// Whether the sender has ended the stream, as the lane says.
fn over(state: &RecvState, ends: &Ends) -> bool {
    state.ended != 0 || receive::ended_ahead(state, ends)
}

/// The peer wants to go back: what it did not read is sent by TCP, then everything; or it reads up
/// to the mark that is set now.
///
/// # Errors
/// As [`send_tail`].
pub(crate) fn give_way(guard: &guard::SendGuard<'_>, fd: RawFd) -> Result<(), Errno> {
    let (s, ends) = (guard.s, guard.ends);
    let total = guard.view().total();
    // Refused when the peer has said how many bytes it read, which the tail goes by.
    let _ =
        marks::return_wanted(&ends.outgoing).is_some() || marks::publish_end(&ends.outgoing, total);
    cause::heard(s, ends);
    s.set_send_mode(SendMode::Returned);
    send_tail(guard, fd)
}

/// Sends by TCP what the peer said it had not read, as far as TCP takes it now. Nothing of the
/// program's may be sent before all of it has gone.
///
/// # Errors
/// `EAGAIN` while TCP takes no more; what send(2) says.
pub(crate) fn send_tail(guard: &guard::SendGuard<'_>, fd: RawFd) -> Result<(), Errno> {
    let (s, ends) = (guard.s, guard.ends);
    if s.has(flag::TAIL_SENT) {
        return Ok(());
    }
    let Some(taken) = marks::return_wanted(&ends.outgoing) else { return Ok(()) };
    let state = *guard.view();
    let total = state.total();
    if taken > total {
        break_connection(s, fd, Reason::Inconsistent);
        return Err(Errno::CONNRESET);
    }
    // Asked before the kernel, who does not say any more how much it took once our FIN has gone.
    if taken == total {
        s.set(flag::TAIL_SENT);
        return Ok(());
    }
    // How far the tail has been sent is what TCP took since it began: the kernel's own counter,
    // which a holder that comes after our death finds right.
    let connecting = s.has(flag::CONNECTING);
    let base = match marks::tail_base(&ends.outgoing) {
        Some(base) => base,
        None => {
            let base = counters::put(fd, connecting)?;
            marks::begin_tail(&ends.outgoing, base);
            base
        }
    };
    loop {
        let sent = counters::put(fd, connecting)?.saturating_sub(base);
        let at = taken.saturating_add(sent);
        if at >= total {
            s.set(flag::TAIL_SENT);
            return Ok(());
        }
        let Some((offset, len)) = locate(&state, &ends.outgoing, at, link::beyond(s)) else {
            break_connection(s, fd, Reason::Inconsistent);
            return Err(Errno::CONNRESET);
        };
        let Some(base) = ends.outgoing.payload(offset, len as usize) else {
            break_connection(s, fd, Reason::Inconsistent);
            return Err(Errno::CONNRESET);
        };
        let v = libc::iovec { iov_base: base.cast(), iov_len: len as usize };
        kernel::send(fd, &[v], 0)?;
    }
}

/// Before others go on with the connection by TCP: they know nothing of a tail, and would send
/// before it.
fn give_tail_away(id: SlotId, s: &Slot, fd: RawFd, reason: Reason) {
    if !finish_tail(id, s, fd) && matches!(reason, Reason::Executed | Reason::PassedAway) {
        cut_off(s, fd);
    }
}

/// Before the direction ends: sends what is left of the tail, or ends the connection with an error
/// for the peer, that would take an end before it for the end of the stream.
pub fn tail_or_reset(id: SlotId, s: &Slot, fd: RawFd) {
    if !finish_tail(id, s, fd) {
        cut_off(s, fd);
    }
}

/// Sends what is left of the tail, waiting for TCP to take it, but not for ever. False if there is
/// still some.
pub fn finish_tail(id: SlotId, s: &Slot, fd: RawFd) -> bool {
    if !link::has_window(s) {
        return true;
    }
    let Some(ends) = link::ends(s) else { return true };
    let done =
        || marks::return_wanted(&ends.outgoing).is_none() || s.has(flag::TAIL_SENT | flag::BROKEN);
    for _ in 0..20 {
        if done() {
            return true;
        }
        serve_return(id, s, fd, &ends);
        if !s.has(flag::TAIL_SENT) {
            let mut fds = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
            let time = libc::timespec { tv_sec: 0, tv_nsec: 50_000_000 };
            let _ = crate::sys::wait(&mut fds, Some(&time), core::ptr::null());
        }
    }
    done()
}

/// The peer asked for its bytes by TCP and nobody here is sending: does it now. Called by whoever
/// was woken.
pub fn serve_return(id: SlotId, s: &Slot, fd: RawFd, ends: &Ends) {
    if !marks::is_asked_back(&ends.outgoing) {
        return;
    }
    let Some(guard) = guard::SendGuard::take(s, ends) else { return };
    let changed = s.send_mode() != SendMode::Returned;
    let _ = if changed { give_way(&guard, fd) } else { send_tail(&guard, fd) };
    guard.unlock_then(|| {
        if changed {
            // The receiver sleeps until the channel has something for it: from here on it is TCP
            // that has.
            ends.wake_reader();
        }
    });
    if changed {
        crate::conn::listeners::mode_changed(id);
    }
}
