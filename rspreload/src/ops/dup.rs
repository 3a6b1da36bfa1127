//! More names for one socket: `dup` in every spelling. The names share one slot; the last close
//! ends it.

use core::ffi::c_int;

use rsocket_edge::{readiness, socket};
use rsocket_host::failure::Failure;
use rsocket_host::sys;

use super::exec::meant_for_next;
use super::life::before_close;
use super::standard;
use crate::edge::{fail, keeping_errno};
use crate::shadow::{self, Entry};

/// Makes another name of `old` by the real call. A vfork child's name is for its next program, for
/// which another socket may have to take the number of the old one first.
pub(crate) fn alias(old: c_int, real: impl FnOnce() -> c_int) -> c_int {
    meant_for_next(old);
    named(old, real())
}

/// After a real call made `new` another name of `old`.
fn named(old: c_int, new: c_int) -> c_int {
    if new < 0 || new == old {
        return new;
    }
    shadow::fresh(new);
    let entry = shadow::entry(old);
    if entry != Entry::Foreign && shadow::mine() {
        keeping_errno(|| {
            match entry {
                Entry::Connection(slot) | Entry::Listener(slot) => socket::duplicated(slot),
                Entry::Set => readiness::epoll::duplicated(old, new),
                Entry::Foreign => {}
            }
            shadow::put(new, entry);
            if matches!(entry, Entry::Connection(_)) {
                standard::stands(new);
            }
        });
    }
    new
}

/// Before a real call that puts another name of `old` on the number `new`, closing what is there.
/// An error if one of the two is a private descriptor of ours. To the program a private `old` does
/// not exist. A private `new` is a number that the kernel would call busy, or beyond the limit.
fn before_replacing(old: c_int, new: c_int) -> Result<(), Failure> {
    if sys::is_private(old) {
        return Err(Failure::BadDescriptor);
    }
    if sys::is_private(new) {
        return Err(if sys::is_below_limit(new) { Failure::Busy } else { Failure::BadDescriptor });
    }
    // Only a call that will succeed closes `new`.
    if old != new
        && shadow::entry(new) != Entry::Foreign
        && rustix::io::fcntl_getfd(sys::borrow(old)).is_ok()
    {
        before_close(new);
    }
    Ok(())
}

/// `dup`; `real` is the pass-through.
pub(crate) fn dup(fd: c_int, real: impl FnOnce() -> c_int) -> c_int {
    if sys::is_private(fd) { fail(Failure::BadDescriptor) } else { alias(fd, real) }
}

/// `dup2` and `dup3`; `real` is the pass-through.
pub(crate) fn replace(old: c_int, new: c_int, real: impl FnOnce() -> c_int) -> c_int {
    match before_replacing(old, new) {
        Ok(()) => alias(old, real),
        Err(e) => fail(e),
    }
}
