//! What libc calls for the bytes of a stream of ours ([`rsocket_host::stdio::cookie`]): what the
//! hooks of `read`, `write` and `close` do, which pass on what is no connection.

use core::ffi::{c_int, c_void};

use libc::{off64_t, size_t, ssize_t};
use rsocket_host::stdio::cookie::{self, Ways};

use crate::edge::{leaving_errno, one};
use crate::ops::{recv, send};
use crate::real;

/// By the descriptor that the stream is over.
static WAYS: Ways = Ways { read, write, seek, close };

/// From the constructor, and before a stream that is made earlier.
pub(crate) fn install() {
    // SAFETY: they do what the hooks of these names do.
    unsafe { cookie::install(&WAYS) };
}

unsafe fn read(fd: c_int, to: *mut c_void, length: size_t) -> ssize_t {
    // SAFETY: room for so many bytes, by the caller's promise.
    let real = || unsafe { real::read(fd, to, length) };
    leaving_errno(|| recv::read(fd, &one(to, length), real))
}

unsafe fn write(fd: c_int, from: *const c_void, length: size_t) -> ssize_t {
    // SAFETY: so many bytes, by the caller's promise.
    let real = || unsafe { real::write(fd, from, length) };
    leaving_errno(|| send::write(fd, &one(from, length), real))
}

fn seek(fd: c_int, position: off64_t, whence: c_int) -> off64_t {
    // SAFETY: takes integers alone.
    unsafe { libc::lseek64(fd, position, whence) }
}

fn close(fd: c_int) -> c_int {
    // SAFETY: the number is the stream's to close, which is gone after this.
    unsafe { real::close(fd) }
}
