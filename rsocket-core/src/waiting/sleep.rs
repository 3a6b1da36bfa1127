//! Sleeps in the kernel, with the connection pinned and nothing alive that has a destructor.
//!
//! Must not know what is waited for. Entry points: [`nap`], [`sleep_on`], [`asleep_at`].

use core::sync::atomic::Ordering;

use super::call_deadline::CallDeadline;
use super::close_while_blocked;
use crate::conn::slot::Slot;
use crate::failure::Failure;
use crate::sys;

/// Sleeps in the kernel. Nothing with a destructor is alive in here: a cancelled thread unwinds
/// from inside `wait`, and another one jumps out of it.
pub(crate) fn nap(
    s: &Slot,
    fds: &mut [libc::pollfd],
    left: Option<u64>,
    deadline: &CallDeadline,
) -> Result<(), Failure> {
    let time = left.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    });
    let at = fds.as_ptr().addr();
    asleep_at(s, at, deadline, || sys::wait(fds, time.as_ref(), core::ptr::null()).map(|_| ()))
}

/// Sleeps by `sleep`, a system call with the memory at `at`. As [`nap`], nothing with a destructor
/// is alive in here.
pub(crate) fn asleep_at<T>(
    s: &Slot,
    at: usize,
    deadline: &CallDeadline,
    sleep: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let generation = s.generation.load(Ordering::Acquire);
    let call = deadline.entered();
    close_while_blocked::pin(call, s, at);
    let result = sleep();
    close_while_blocked::unpin(call, s);
    if !matches!(result, Err(Failure::Interrupted))
        && s.generation.load(Ordering::Acquire) != generation
    {
        return Err(Failure::BadDescriptor);
    }
    result
}

/// One sleep on whatever the caller says, for a socket without a waker.
pub(crate) fn sleep_on(
    s: &Slot,
    fds: &mut [libc::pollfd],
    left: Option<u64>,
    deadline: &mut CallDeadline,
) -> Result<(), Failure> {
    deadline.waits(s)?;
    match nap(s, fds, left, deadline) {
        Err(Failure::Interrupted) if deadline.goes_on() => deadline.still(s),
        Err(e) => Err(e),
        Ok(()) if fds.iter().any(|f| f.revents & libc::POLLNVAL != 0) => {
            Err(Failure::BadDescriptor)
        }
        Ok(()) => Ok(()),
    }
}
