//! Urgent data, which only TCP carries: a sender of some takes its direction back there first. So
//! the kernel knows the urgent byte and its mark, but not what the channel still has before it.
//!
//! Must not know how a direction goes back. Entry points: [`stands_before_mark`], [`refused`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::RawFd;

use super::send_patiently;
use crate::channel::{guard::RecvGuard, link, unread};
use crate::conn::fork_group::slot;
use crate::conn::machine::ReceiveMode;
use crate::conn::slot::{SlotId, flag};
use crate::failure::Failure;

/// Whether the device has bytes for the receiver. They stand before whatever the kernel has after
/// the switch offset. So the next byte is not the urgent one, whatever the kernel says of the mark.
#[must_use]
pub fn stands_before_mark(id: SlotId) -> bool {
    let Some(s) = slot(id) else { return false };
    if !matches!(s.receive_mode(), ReceiveMode::Acknowledged | ReceiveMode::Device) {
        return false;
    }
    let Some(ends) = link::ends(s) else { return false };
    RecvGuard::take(s, &ends).is_some_and(|guard| unread::in_channel(guard.view(), &ends) > 0)
}

/// Why urgent data cannot be sent, where TCP is excluded. What TCP says first is said first:
/// `EPIPE`, and the error of a reset.
#[must_use]
pub fn refused(id: SlotId, fd: RawFd) -> Failure {
    match send_patiently(id, fd, &[], libc::MSG_DONTWAIT) {
        Err(e) if e != Failure::Blocked => e,
        _ => Failure::Unsupported,
    }
}

/// Whether TCP is excluded for this connection, which then stays where it is.
#[must_use]
pub fn is_refused(id: SlotId) -> bool {
    slot(id).is_some_and(|s| s.has(flag::STRICT))
}
