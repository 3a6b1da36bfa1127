//! When the kernel is asked whether a connection has ended, and what it has said after a sleep.
//!
//! Must not know who sleeps. Entry points: [`is_kernel_due`], [`ask_kernel_next`], [`after_sleep`].

use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use crate::conn::slot::{Slot, flag};
use crate::failure::Failure;
use crate::handover::gone;
use crate::host::events::Events;
use crate::waiting::call_deadline::CallDeadline;
use crate::{fork_safe, sys};

/// How often, at most, the kernel is asked whether a connection has ended while nothing arrives, in
/// ticks of [`sys::ticks`]: some tens of microseconds.
pub(super) const ASK_EVERY: u64 = 60_000;

/// Whether it is time to ask the kernel if the connection has ended.
#[inline]
pub(crate) fn is_kernel_due(s: &Slot) -> bool {
    // Relaxed: a hint; asking once too often costs a system call, and a thread that needs the
    // kernel asked stores 0.
    sys::ticks().wrapping_sub(s.asked_at.load(Ordering::Relaxed)) >= ASK_EVERY
}

/// The same; a caller that is told so asks the kernel.
#[inline]
pub(crate) fn kernel_due(s: &Slot) -> bool {
    let due = is_kernel_due(s);
    if due {
        s.asked_at.store(sys::ticks(), Ordering::Relaxed);
    }
    due
}

/// The last sleep heard something from the kernel that no thread has asked it about yet.
#[inline]
pub(crate) fn kernel_was_heard(s: &Slot) -> bool {
    s.asked_at.load(Ordering::Relaxed) == 0
}

/// The next attempt to receive asks the kernel first.
pub(crate) fn ask_kernel_next(s: &Slot) {
    s.asked_at.store(0, Ordering::Relaxed);
}

/// What a sleep has told, for the call that goes on or ends.
pub(super) fn after_sleep(
    s: &Slot,
    fd: RawFd,
    interest: Events,
    slept: Result<i16, Failure>,
    deadline: &CallDeadline,
) -> Result<(), Failure> {
    match slept {
        Err(Failure::Interrupted) if deadline.goes_on() => deadline.still(s),
        Err(e) => Err(e),
        Ok(revents) => {
            if revents & libc::POLLNVAL != 0 {
                return Err(Failure::BadDescriptor);
            }
            let said = Events::from_bits_truncate(u32::from(revents as u16));
            let revents = fork_safe::confirmed(s, fd, said).bits() as i16;
            if interest == Events::IN && revents != 0 {
                ask_kernel_next(s);
            }
            if interest == Events::OUT && revents & !libc::POLLOUT != 0 {
                s.set(flag::PEER_FIN);
            }
            if interest == Events::OUT && s.has(flag::PEER_FIN) && gone::peer_gone(s, fd, revents) {
                s.set(flag::PEER_GONE);
            }
            Ok(())
        }
    }
}
