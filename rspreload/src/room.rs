//! Calls of the program's that make descriptors: where it meets its limit, descriptors of ours give
//! way.
//!
//! Must not know which those are (`rsocket_edge::headroom`). Entry points: [`with_room`],
//! [`pointer_with_room`], [`made`].

use core::ffi::c_int;

use rsocket_edge::headroom;
use rsocket_host::sys;
use rsocket_host::sys::sandbox;

use crate::edge::keeping_errno;
use crate::shadow;

/// The program's call, once more if there was no descriptor for it, and there can be one.
#[inline(always)]
pub(crate) fn with_room(call: impl Fn() -> c_int) -> c_int {
    let fd = call();
    if fd < 0 && no_room() { call() } else { fd }
}

/// The same for a call that gives a pointer.
#[inline(always)]
pub(crate) fn pointer_with_room<T>(call: impl Fn() -> *mut T) -> *mut T {
    let made = call();
    if made.is_null() && no_room() { call() } else { made }
}

/// The call that has just failed has met the limit, and can succeed now. Preserves `errno`.
#[cold]
fn no_room() -> bool {
    sys::errno() == libc::EMFILE && is_ours() && keeping_errno(headroom::used_up)
}

fn is_ours() -> bool {
    shadow::any() && !sandbox::inside() && shadow::mine()
}

/// The program has a new descriptor. If that nears the limit there is to be room for the next ones,
/// which the program may make where no hook sees it.
#[inline(always)]
pub(crate) fn made(fd: c_int) {
    if headroom::is_crowded(fd) {
        nearly_full();
    }
}

#[cold]
fn nearly_full() {
    if is_ours() {
        keeping_errno(headroom::make_room);
    }
}
