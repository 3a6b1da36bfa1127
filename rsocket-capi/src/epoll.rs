//! repoll_create, repoll_ctl, repoll_wait: what epoll(7) is, over rsockets and any other
//! descriptors together. What a set is stands in `rsocket_edge::readiness::epoll`.
//!
//! The set is a kernel epoll object, which is made, changed and waited on through libc. Where the
//! preload library is loaded too, it answers for the sockets of its own among the members.

use core::ffi::c_int;

use libc::{epoll_event, sigset_t};
use rsocket_edge::descriptors;
use rsocket_edge::descriptors::Entry;
use rsocket_edge::edge::{done, fail, millis, small};
use rsocket_edge::readiness;
use rsocket_edge::readiness::epoll::{Change, Ctl, Pwait, Wait};
use rsocket_host::failure::Failure;
use rsocket_host::given::In;
use rsocket_host::sys;
use rustix::fs::OFlags;

use crate::init;

unsafe extern "C-unwind" {
    // libc's, or a preload library's; a thread that is cancelled in there unwinds through us. Safe
    // are those that take numbers alone.
    fn epoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    fn epoll_pwait(
        set: c_int,
        events: *mut epoll_event,
        most: c_int,
        ms: c_int,
        mask: *const sigset_t,
    ) -> c_int;
    safe fn epoll_create1(flags: c_int) -> c_int;
    #[link_name = "close"]
    safe fn close_by_libc(fd: c_int) -> c_int;
}

fn make(flags: c_int) -> Result<c_int, Failure> {
    if flags & !(libc::EPOLL_CLOEXEC | libc::O_NONBLOCK) != 0 {
        return Err(Failure::Invalid);
    }
    init::settle();
    let set = epoll_create1(flags & libc::EPOLL_CLOEXEC);
    if set < 0 {
        return Err(Failure::last());
    }
    if flags & libc::O_NONBLOCK != 0 {
        let _ = rustix::fs::fcntl_setfl(sys::borrow(set), OFlags::NONBLOCK);
    }
    descriptors::fresh(set);
    if descriptors::claim() {
        descriptors::put(set, Entry::Set);
        readiness::epoll::created(set);
    }
    Ok(set)
}

/// Whether the number stands for a set that was made here.
#[inline]
pub(crate) fn is_set(fd: c_int) -> bool {
    descriptors::entry(fd) == Entry::Set
}

/// Closes one descriptor of a set: the last one ends it, whatever members it has.
pub(crate) fn close(set: c_int) -> Result<(), Failure> {
    if descriptors::mine() {
        descriptors::let_go(set, descriptors::forget(set), set);
    }
    if close_by_libc(set) == 0 { Ok(()) } else { Err(Failure::last()) }
}

/// `new` is another descriptor of the set `old`.
pub(crate) fn duplicated(old: c_int, new: c_int) {
    descriptors::fresh(new);
    descriptors::put(new, Entry::Set);
    readiness::epoll::duplicated(old, new);
}

call! {
    fn repoll_create(flags: c_int) -> c_int {
        match make(flags) {
            Ok(set) => set,
            Err(e) => fail(e),
        }
    }

    fn repoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        let change = Change { epfd: set, op, fd, event: In::new(event) };
        done(readiness::epoll::ctl(change, descriptors::find, Ctl::new(epoll_ctl)))
    }

    fn repoll_wait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int {
        let wait = Wait::new(set, events, most, millis(timeout), core::ptr::null());
        small(readiness::epoll::wait(wait, Pwait::new(epoll_pwait)))
    }
}
