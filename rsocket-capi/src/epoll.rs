//! repoll_create, repoll_ctl, repoll_wait: what epoll(7) is, over rsockets and any other
//! descriptors together. What a set is stands in `rsocket_edge::readiness::epoll`.
//!
//! The set is a kernel epoll object, made, changed and waited on through libc: where the preload
//! library is loaded too, it answers for the sockets of its own among the members.

use core::ffi::c_int;

use libc::{epoll_event, sigset_t, timespec};
use rsocket_edge::descriptors;
use rsocket_edge::descriptors::Entry;
use rsocket_edge::edge::{done, fail, millis, small};
use rsocket_edge::readiness;
use rsocket_edge::readiness::epoll::{Change, Wait};
use rsocket_host::failure::Failure;

use crate::init;

/// `epoll_pwait` in the shape that the readiness layer wants. Time is rounded up: a sleep may last
/// longer, never shorter.
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
    // SAFETY: passes on the caller's promises. A cancellation point.
    unsafe { libc::epoll_pwait(set, events, most, ms, mask) }
}

unsafe extern "C-unwind" fn control(
    set: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: passes on the caller's promises.
    unsafe { libc::epoll_ctl(set, op, fd, event) }
}

fn make(flags: c_int) -> Result<c_int, Failure> {
    if flags & !(libc::EPOLL_CLOEXEC | libc::O_NONBLOCK) != 0 {
        return Err(Failure::Invalid);
    }
    init::settle();
    // SAFETY: no memory is passed.
    let set = unsafe { libc::epoll_create1(flags & libc::EPOLL_CLOEXEC) };
    if set < 0 {
        return Err(Failure::last());
    }
    if flags & libc::O_NONBLOCK != 0 {
        // SAFETY: no memory is passed.
        unsafe { libc::syscall(libc::SYS_fcntl, set, libc::F_SETFL, libc::O_NONBLOCK) };
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
    // SAFETY: the caller gives the number up.
    if unsafe { libc::close(set) } == 0 { Ok(()) } else { Err(Failure::last()) }
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
        let change = Change { epfd: set, op, fd, event };
        done(readiness::epoll::ctl(change, descriptors::find, control))
    }

    fn repoll_wait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int {
        let (timeout, mask) = (millis(timeout), core::ptr::null());
        let wait = Wait { epfd: set, events, max: most, timeout, mask };
        small(readiness::epoll::wait(wait, by_millis))
    }
}
