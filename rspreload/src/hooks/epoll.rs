//! epoll: `epoll_create`, `epoll_ctl`, `epoll_wait` and their relatives. What they do is
//! [`crate::ops::epoll`]'s.

use core::ffi::c_int;
use core::ptr::null;

use libc::{epoll_event, sigset_t, timespec};
use rsocket_edge::readiness::epoll::{Change, Ctl, Pwait, Wait};
use rsocket_host::given::In;

use crate::edge::{millis, span};
use crate::ops::epoll as ops;
use crate::real;
use crate::room::with_room;
use crate::shadow::{self, Entry};

// SAFETY: the next definition of that function, which has its contract.
const CTL: Ctl = unsafe { Ctl::new(real::epoll_ctl) };
// SAFETY: as above.
const PWAIT: Pwait = unsafe { Pwait::new(real::epoll_pwait) };

hook! {
    fn epoll_create(size: c_int) -> c_int {
        ops::made(with_room(|| real::epoll_create(size)))
    }

    fn epoll_create1(flags: c_int) -> c_int {
        ops::made(with_room(|| real::epoll_create1(flags)))
    }
}

hook! {
    fn epoll_ctl(
        set: c_int,
        op: c_int,
        fd: c_int,
        event: *mut epoll_event,
    ) -> c_int, when shadow::tracked(set) || shadow::tracked(fd) => {
        let change = Change { epfd: set, op, fd, event: In::new(event) };
        ops::ctl(change, CTL, || real::epoll_ctl(set, op, fd, event))
    }

    fn epoll_wait(
        set: c_int,
        events: *mut epoll_event,
        most: c_int,
        timeout: c_int,
    ) -> c_int, when shadow::tracked(set) => {
        match shadow::entry(set) {
            Entry::Set => ops::wait(Wait::new(set, events, most, millis(timeout), null()), PWAIT),
            _ => real::epoll_wait(set, events, most, timeout),
        }
    }

    fn epoll_pwait(
        set: c_int,
        events: *mut epoll_event,
        most: c_int,
        timeout: c_int,
        mask: *const sigset_t,
    ) -> c_int, when shadow::tracked(set) => {
        match shadow::entry(set) {
            Entry::Set => ops::wait(Wait::new(set, events, most, millis(timeout), mask), PWAIT),
            _ => real::epoll_pwait(set, events, most, timeout, mask),
        }
    }

    fn epoll_pwait2(
        set: c_int,
        events: *mut epoll_event,
        most: c_int,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int, when shadow::tracked(set) => {
        match (shadow::entry(set), span(In::new(timeout))) {
            (Entry::Set, Ok(time)) => ops::wait(Wait::new(set, events, most, time, mask), PWAIT),
            _ => real::epoll_pwait2(set, events, most, timeout, mask),
        }
    }
}
