//! What stands before the next definitions of `read` and `write` in a sandbox, and shows the bytes
//! that they move. What becomes of those is [`crate::first_bytes_tap`]'s.

use core::ffi::{c_int, c_void};
use core::mem::transmute;

use libc::{size_t, ssize_t};

use crate::edge::one;
use crate::{first_bytes_tap as tap, real};

/// From the constructor.
pub(crate) fn install() {
    // SAFETY: they do what the next definitions do, and look.
    unsafe { tap::install(read, write) };
}

unsafe extern "C-unwind" fn read(fd: c_int, to: *mut c_void, size: size_t) -> ssize_t {
    // SAFETY: begin() stored the next definition of this name before this function could be called;
    // the arguments are the caller's promise.
    let r = unsafe { transmute::<*mut (), real::read::Type>(tap::read_before())(fd, to, size) };
    tap::saw(fd, true, &one(to, size), r);
    r
}

unsafe extern "C-unwind" fn write(fd: c_int, from: *const c_void, size: size_t) -> ssize_t {
    // SAFETY: as in read().
    let r = unsafe { transmute::<*mut (), real::write::Type>(tap::write_before())(fd, from, size) };
    tap::saw(fd, false, &one(from, size), r);
    r
}
