//! epoll: sets are tracked from their creation, since what was added before a connection switched
//! must be known after it. What a set is stands in `rsocket_edge::readiness::epoll`.

use core::ffi::c_int;
use core::time::Duration;

use libc::{epoll_event, sigset_t, timespec};
use rsocket_edge::readiness::epoll::{Change, Wait};
use rsocket_edge::{readiness, socket};
use rsocket_host::reason::Reason;

use super::name::about_to_wait;
use crate::edge::{fail, keeping_errno, small};
use crate::shadow::{self, Entry};
use crate::{policy, real};

/// Begins to track a set that the program has just made.
pub(crate) fn made(set: c_int) -> c_int {
    if set >= 0 {
        shadow::fresh(set);
        keeping_errno(|| {
            if policy::enabled() && shadow::claim() {
                shadow::put(set, Entry::Set);
                readiness::epoll::created(set);
            }
        });
    }
    set
}

/// `epoll_pwait` in the shape of `epoll_pwait2`: a program that called the older ones may run in a
/// sandbox that knows no other. Time is rounded up, as a sleep may last longer but not shorter.
unsafe extern "C-unwind" fn by_millis(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: null or the caller's.
    let ms = unsafe { time.as_ref() }.map_or(-1, |t| {
        let ms = t.tv_sec.saturating_mul(1000).saturating_add((t.tv_nsec + 999_999) / 1_000_000);
        c_int::try_from(ms).unwrap_or(c_int::MAX)
    });
    // SAFETY: passes on the caller's promises.
    unsafe { real::epoll_pwait(set, events, most, ms, mask) }
}

/// # Safety
/// The contract of `epoll_pwait`.
pub(crate) unsafe fn wait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> c_int {
    let wait = Wait { epfd: set, events, max: most, timeout, mask };
    // SAFETY: the caller's promises, passed on.
    small(unsafe { readiness::epoll::wait(wait, by_millis) })
}

/// `epoll_ctl`.
///
/// # Safety
/// The contract of epoll_ctl(2).
pub(crate) unsafe fn ctl(set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    if op != libc::EPOLL_CTL_DEL {
        about_to_wait(fd);
    }
    if shadow::entry(set) == Entry::Set {
        let change = Change { epfd: set, op, fd, event };
        // SAFETY: the caller's promise.
        return match unsafe { readiness::epoll::ctl(change, shadow::find, real::epoll_ctl) } {
            Ok(()) => 0,
            Err(e) => fail(e),
        };
    }
    // A set that we did not see being made: only the kernel will ever wait on it.
    if op != libc::EPOLL_CTL_DEL
        && let Some(slot) = shadow::connection(fd)
    {
        keeping_errno(|| socket::give_away(slot, fd, Reason::OddUse));
    }
    // SAFETY: as above.
    unsafe { real::epoll_ctl(set, op, fd, event) }
}
