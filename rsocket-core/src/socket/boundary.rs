//! Calls that receive across a boundary between TCP and the channel: a program sees one stream, and
//! gets from one call all that is there.
//!
//! Must not know how a boundary came to be. Entry points, for the holder of the receive lock:
//! [`is_over`], [`behind_the_end`], [`peek_behind_the_switch`], [`by_kernel`]; and where the stream
//! is over [`the_end`], [`own_end`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::RawFd;

use super::taking::{Got, copying, from_kernel, take_messages};
use crate::channel::guard::RecvGuard;
use crate::channel::handover_state;
use crate::channel::link::Ends;
use crate::conn::pending;
use crate::conn::slot::{Slot, flag};
use crate::device::shm::channel::RecvState;
use crate::failure::Failure;
use crate::host::{counters, kernel};
use crate::sys;
use crate::sys::vectors::Cursor;

/// Whether the sender has gone back to TCP, and the channel has no more than `state` has taken.
pub(super) fn is_over(state: &RecvState, ends: &Ends) -> bool {
    handover_state::end(&ends.incoming) == Some(state.total())
        && ends.incoming.poll_data(state.data_position).is_none()
}

/// What TCP has behind the channel's last byte belongs to the same call. An end or an error is the
/// next one's.
pub(super) fn behind_the_end(s: &Slot, fd: RawFd, to: &mut Cursor<'_>, flags: i32) -> usize {
    if !counters::in_queue(fd).is_ok_and(|n| n > 0) {
        return 0;
    }
    match from_kernel(s, fd, to, usize::MAX, flags) {
        Ok(Got::Bytes(n)) => n,
        _ => 0,
    }
}

/// TCP's last bytes before the switch offset were peeked at: what the channel has follows them.
/// Nothing of it is taken.
pub(super) fn peek_behind_the_switch(
    guard: &mut RecvGuard<'_>,
    to: &mut Cursor<'_>,
    flags: i32,
) -> usize {
    let before = to.done();
    let copying = copying(guard.s, flags);
    // The call that takes the bytes finds out a sender that breaks a rule. What is placed belongs
    // to rsockets, which take no bytes from TCP.
    let _ = take_messages(&mut guard.receiver().take(), to, copying, None);
    to.done() - before
}

/// What TCP has, of a direction that is not on a device. A call that has moved bytes leaves an
/// error where it is: the next one may be the kernel's own.
pub(super) fn by_kernel(
    s: &Slot,
    fd: RawFd,
    to: &mut Cursor<'_>,
    flags: i32,
) -> Result<Got, Failure> {
    if to.done() > 0 && has_failed(fd) {
        return Ok(Got::End);
    }
    match from_kernel(s, fd, to, usize::MAX, flags)? {
        // The kernel has said how it ended to a call that had bytes to report.
        Got::End if to.done() == 0 => pending::check(s).map(|()| Got::End),
        got => Ok(got),
    }
}

/// Whether an error is all that the kernel has.
pub(super) fn has_failed(fd: RawFd) -> bool {
    let mut one = [libc::pollfd { fd, events: 0, revents: 0 }];
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let looked = sys::wait(&mut one, Some(&at_once), core::ptr::null()).is_ok();
    let [one] = one;
    looked && one.revents & libc::POLLERR != 0 && counters::in_queue(fd) == Ok(0)
}

/// The kernel says that nothing more will come. From here on each call says so, however soon after
/// the kernel was asked.
pub(super) fn the_end(s: &Slot, fd: RawFd) -> Result<Got, Failure> {
    if s.has(flag::READ_SHUT) && !s.has(flag::ENDED) {
        return own_end(s, fd);
    }
    if !s.has(flag::BRIDGED) {
        s.set(flag::ENDED);
    }
    pending::check(s).map(|()| Got::End)
}

/// This side has shut down what it receives. A reset that comes behind that is said all the same,
/// once. (Behind a FIN the kernel has the error for senders alone.)
pub(super) fn own_end(s: &Slot, fd: RawFd) -> Result<Got, Failure> {
    pending::check(s)?;
    if s.has(flag::BRIDGED | flag::ENDED) {
        return Ok(Got::End);
    }
    kernel::receivers_error(fd).map_or(Ok(Got::End), Err)
}
