//! The loud end of a connection, when something does not add up (`life-of-a-connection §5`).
//!
//! Must not know who found out. Entry points: [`break_connection`], [`insist`].

use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use super::{handover_state, link};
use crate::config::policy;
use crate::conn::cause;
use crate::conn::machine::{ReceiveMode, SendMode};
use crate::conn::slot::{Slot, SlotId, flag};
use crate::host::kernel;
use crate::reason::Reason;
use crate::stats::{self, Counter};

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
        handover_state::close(&ends.incoming, &ends.outgoing);
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

/// Ends a connection that would be TCP's from here on, where that was excluded (`RSOCKET_REQUIRE`).
/// Both directions fail, in this process by our own word. So a stream that was cut short does not
/// look like one that has ended.
#[cold]
fn end_instead(id: SlotId, s: &Slot, fd: RawFd, reason: Reason) {
    crate::sys::keeping_errno(|| {
        s.set(flag::BROKEN | flag::PEER_GONE);
        s.set_receive_mode(ReceiveMode::Asked);
        s.set_send_mode(SendMode::Asked);
        break_connection(s, fd, reason);
        crate::conn::listeners::mode_changed(id);
    });
}

/// What the channel still has has nowhere to go: a stream that was cut short must not look like one
/// that has ended. The kernel has to say so to the process that has the descriptor next, and knows
/// nothing of us.
pub(crate) fn cut_short(s: &Slot, fd: RawFd, reason: Reason) {
    if matches!(reason, Reason::Executed | Reason::PassedAway) {
        cut_off(s, fd);
    } else {
        break_connection(s, fd, Reason::ShutDownEarly);
    }
}

/// The same, for the processes that have either end.
pub(crate) fn cut_off(s: &Slot, fd: RawFd) {
    mark_broken(s, Reason::ShutDownEarly);
    // Not shut down as well: of a connection that both sides have ended a reader would hear of an
    // end.
    kernel::disconnect(fd);
    tell_broken(s);
}
