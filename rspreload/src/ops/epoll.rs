//! epoll: sets are tracked from their creation, since what was added before a connection switched
//! must be known after it. What a set is stands in `rsocket_edge::readiness::epoll`.

use core::ffi::c_int;

use rsocket_edge::readiness::epoll::{Change, Ctl, Pwait, Wait};
use rsocket_edge::{readiness, socket};
use rsocket_host::reason::Reason;

use super::name::about_to_wait;
use crate::edge::{done, keeping_errno, small};
use crate::policy;
use crate::shadow::{self, Entry};

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

/// A wait on a set of ours, whatever its spelling.
pub(crate) fn wait(wait: Wait<'_>, kernel: Pwait) -> c_int {
    small(readiness::epoll::wait(wait, kernel))
}

/// `epoll_ctl`; `real` passes it on.
pub(crate) fn ctl(change: Change<'_>, kernel: Ctl, real: impl FnOnce() -> c_int) -> c_int {
    let Change { epfd: set, op, fd, .. } = change;
    if op != libc::EPOLL_CTL_DEL {
        about_to_wait(fd);
    }
    if shadow::entry(set) == Entry::Set {
        return done(readiness::epoll::ctl(change, shadow::find, kernel));
    }
    // A set that we did not see being made: only the kernel will ever wait on it.
    if op != libc::EPOLL_CTL_DEL
        && let Some(slot) = shadow::connection(fd)
    {
        keeping_errno(|| socket::give_away(slot, fd, Reason::OddUse));
    }
    real()
}
