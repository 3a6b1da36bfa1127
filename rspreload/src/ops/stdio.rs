//! Sockets that are handed to libc's own input and output, where no hook sees the bytes: they stay
//! on, or go back to, TCP. One that has no TCP gets a stream whose bytes come by our hooks.

use core::ffi::{c_char, c_int};
use core::ptr;

use libc::FILE;
use rsocket_edge::socket;
use rsocket_host::failure::Failure;
use rsocket_host::reason::Reason;

use super::life::before_close;
use super::{standard, streams};
use crate::edge::{fail, keeping_errno};
use crate::real;
use crate::shadow::{self, Entry};

unsafe extern "C" {
    fn fileno_unlocked(file: *mut FILE) -> c_int;
}

/// No hook will see what happens on `fd` next.
#[inline(always)]
pub(crate) fn unseen(fd: c_int) {
    if let Some(slot) = shadow::connection(fd) {
        keeping_errno(|| socket::give_away(slot, fd, Reason::OddUse));
    }
}

/// No hook will see what is sent on `fd` next.
#[inline(always)]
pub(crate) fn sends_unseen(fd: c_int) {
    if let Some(slot) = shadow::connection(fd) {
        keeping_errno(|| socket::refuse_sending(slot, fd, Reason::OddUse));
    }
}

/// The close of the descriptor will be libc's own. What is still buffered goes out first, while the
/// socket stands.
///
/// # Safety
/// `file` is null or an open stream.
unsafe fn before_stream_closes(file: *mut FILE) {
    if shadow::any() && !file.is_null() {
        // SAFETY: the caller's promise.
        let fd = keeping_errno(|| unsafe { fileno_unlocked(file) });
        if shadow::entry(fd) != Entry::Foreign {
            keeping_errno(|| {
                // SAFETY: as above.
                unsafe { libc::fflush(file) };
                before_close(fd);
            });
        }
    }
}

/// `real` opens the stream anew. Of ours libc can do that with those in whose place it has one of
/// its own. Any other is closed, as one that cannot be opened is.
///
/// # Safety
/// `file` is null or an open stream.
pub(crate) unsafe fn opened_anew(
    file: *mut FILE,
    real: impl FnOnce(*mut FILE) -> *mut FILE,
) -> *mut FILE {
    // SAFETY: the caller's promise.
    unsafe {
        let file = standard::own(file);
        if streams::is_ours(file) {
            fclose(file);
            fail(Failure::Unsupported);
            return ptr::null_mut();
        }
        before_stream_closes(file);
        real(file)
    }
}

pub(crate) extern "C-unwind" fn before_dprintf(fd: c_int) -> *const () {
    sends_unseen(fd);
    real::dprintf()
}

pub(crate) extern "C-unwind" fn before_dprintf_chk(fd: c_int) -> *const () {
    sends_unseen(fd);
    real::__dprintf_chk()
}

/// `fdopen`.
///
/// # Safety
/// The contract of fdopen(3).
pub(crate) unsafe fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if let Some(slot) = shadow::connection(fd) {
        if keeping_errno(|| socket::without_tcp(slot, fd) || socket::on_device(slot)) {
            // SAFETY: the caller's promise.
            return unsafe { streams::open(fd, mode) };
        }
        keeping_errno(|| socket::refuse(slot, fd, Reason::OddUse));
    }
    // SAFETY: as above.
    unsafe { real::fdopen(fd, mode) }
}

/// `fclose`.
///
/// # Safety
/// The contract of fclose(3).
pub(crate) unsafe fn fclose(file: *mut FILE) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        before_stream_closes(file);
        real::fclose(file)
    }
}
