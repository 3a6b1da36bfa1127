//! epoll: sets are tracked from their creation, since what was added before a connection switched
//! must be known after it. What a set is stands in `rsocket_edge::readiness::epoll`.

use core::ffi::c_int;
use core::time::Duration;

use libc::{epoll_event, sigset_t};
use rsocket_edge::readiness::epoll::{Change, Ctl, Pwait, Wait};
use rsocket_edge::{readiness, socket};
use rsocket_host::given::In;
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

/// # Safety
/// The contract of `epoll_pwait`.
pub(crate) unsafe fn wait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promises, passed on.
    let (wait, real) =
        unsafe { (Wait::new(set, events, most, timeout, mask), Pwait::new(real::epoll_pwait)) };
    small(readiness::epoll::wait(wait, real))
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
        // SAFETY: the caller's promise; `real` has libc's own.
        let (event, real) = unsafe { (In::new(event.cast_const()), Ctl::new(real::epoll_ctl)) };
        let change = Change { epfd: set, op, fd, event };
        return match readiness::epoll::ctl(change, shadow::find, real) {
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
