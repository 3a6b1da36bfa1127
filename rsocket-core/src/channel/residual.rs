//! Residual bytes: what the peer had not read when it went back to TCP, which is sent there before
//! anything else is (`life-of-a-connection §5`).
//!
//! Must not know why a direction goes back. Entry points: [`give_way`] and [`send_residual`] for a
//! holder of the send lock, [`serve_return`], [`finish_residual`], [`residual_or_reset`].

use std::os::fd::RawFd;

use super::broken::{break_connection, cut_off};
use super::link::{self, Ends};
use super::{guard, handover_state, said};
use crate::conn::machine::SendMode;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::device::shm::channel::buffer_classes::locate;
use crate::failure::Failure;
use crate::host::{counters, kernel};
use crate::reason::Reason;

/// The peer wants to go back. What it did not read is sent by TCP, then everything; or it reads up
/// to the mark that is set now.
///
/// # Errors
/// As [`send_residual`].
pub(crate) fn give_way(guard: &guard::SendGuard<'_>, fd: RawFd) -> Result<(), Failure> {
    let (s, ends) = (guard.s, guard.ends);
    let total = guard.view().total();
    // Refused when the peer has said how many bytes it read, which the residual bytes go by.
    let _ = handover_state::return_wanted(&ends.outgoing).is_some()
        || handover_state::publish_end(&ends.outgoing, total);
    said::heard(s, ends);
    s.set_send_mode(SendMode::Returned);
    send_residual(guard, fd)
}

/// Sends by TCP what the peer said it had not read, as far as TCP takes it now. Nothing of the
/// program's may be sent before all of it has gone.
///
/// # Errors
/// `EAGAIN` while TCP takes no more; what send(2) says.
pub(crate) fn send_residual(guard: &guard::SendGuard<'_>, fd: RawFd) -> Result<(), Failure> {
    let (s, ends) = (guard.s, guard.ends);
    if s.has(flag::RESIDUAL_SENT) {
        return Ok(());
    }
    let Some(taken) = handover_state::return_wanted(&ends.outgoing) else { return Ok(()) };
    let state = *guard.view();
    let total = state.total();
    if taken > total {
        break_connection(s, fd, Reason::Inconsistent);
        return Err(Failure::Reset);
    }
    // Asked before the kernel, which does not say any more how much it took once our FIN has gone.
    if taken == total {
        s.set(flag::RESIDUAL_SENT);
        return Ok(());
    }
    // How far the residual bytes have been sent is what TCP took since it began. That is the
    // kernel's own counter, which a holder that comes after our death finds right.
    let connecting = s.has(flag::CONNECTING);
    let base = match handover_state::residual_base(&ends.outgoing) {
        Some(base) => base,
        None => {
            let base = counters::put(fd, connecting)?;
            handover_state::begin_residual(&ends.outgoing, base);
            base
        }
    };
    loop {
        let sent = counters::put(fd, connecting)?.saturating_sub(base);
        let at = taken.saturating_add(sent);
        if at >= total {
            s.set(flag::RESIDUAL_SENT);
            return Ok(());
        }
        let Some((offset, len)) = locate(&state, &ends.outgoing, at, link::beyond(s)) else {
            break_connection(s, fd, Reason::Inconsistent);
            return Err(Failure::Reset);
        };
        let Some(base) = ends.outgoing.payload(offset, len as usize) else {
            break_connection(s, fd, Reason::Inconsistent);
            return Err(Failure::Reset);
        };
        let v = libc::iovec { iov_base: base.cast(), iov_len: len as usize };
        kernel::send(fd, &[v], 0)?;
    }
}

/// Before others go on with the connection by TCP: they know nothing of residual bytes, and would
/// send before it.
pub(crate) fn give_residual_away(id: SlotId, s: &Slot, fd: RawFd, reason: Reason) {
    if !finish_residual(id, s, fd) && matches!(reason, Reason::Executed | Reason::PassedAway) {
        cut_off(s, fd);
    }
}

/// Before the direction ends: sends what is left of the residual bytes. Where that fails, ends the
/// connection with an error for the peer, which would take an end before them for the end of the
/// stream.
pub fn residual_or_reset(id: SlotId, s: &Slot, fd: RawFd) {
    if !finish_residual(id, s, fd) {
        cut_off(s, fd);
    }
}

/// Sends what is left of the residual bytes, waiting for TCP to take it, but not for ever. False if
/// there is still some.
pub fn finish_residual(id: SlotId, s: &Slot, fd: RawFd) -> bool {
    if !link::has_channel(s) {
        return true;
    }
    let Some(ends) = link::ends(s) else { return true };
    let done = || {
        handover_state::return_wanted(&ends.outgoing).is_none()
            || s.has(flag::RESIDUAL_SENT | flag::BROKEN)
    };
    for _ in 0..20 {
        if done() {
            return true;
        }
        serve_return(id, s, fd, &ends);
        if !s.has(flag::RESIDUAL_SENT) {
            let mut fds = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
            let time = libc::timespec { tv_sec: 0, tv_nsec: 50_000_000 };
            let _ = crate::sys::wait(&mut fds, Some(&time), core::ptr::null());
        }
    }
    done()
}

/// The peer asked for its bytes by TCP, and no thread of this side is sending: sends them now.
/// For a thread that was woken, and for one that has just stopped sending.
pub fn serve_return(id: SlotId, s: &Slot, fd: RawFd, ends: &Ends) {
    if !handover_state::is_asked_back(&ends.outgoing) {
        return;
    }
    let Some(guard) = guard::SendGuard::take(s, ends) else { return };
    let changed = s.send_mode() != SendMode::Returned;
    let _ = if changed { give_way(&guard, fd) } else { send_residual(&guard, fd) };
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
