//! Sockets that are handed to libc's own input and output, where no hook sees the bytes: they stay
//! on, or go back to, TCP. One that has no TCP gets a stream whose bytes come by our hooks.

use core::ffi::{CStr, c_int};
use core::ptr;

use libc::FILE;
use rsocket_edge::socket;
use rsocket_host::failure::Failure;
use rsocket_host::reason::Reason;
use rsocket_host::stdio::{Stream, cookie};

use super::life::before_close;
use super::standard;
use crate::edge::{fail, keeping_errno};
use crate::shadow::{self, Entry};

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
pub(crate) fn before_stream_closes(stream: Option<Stream<'_>>) {
    if shadow::any()
        && let Some(stream) = stream
    {
        let fd = keeping_errno(|| stream.descriptor());
        if shadow::entry(fd) != Entry::Foreign {
            keeping_errno(|| {
                stream.flush();
                before_close(fd);
            });
        }
    }
}

/// `real` opens the stream anew. Of ours libc can do that with those in whose place it has one of
/// its own. Any other is closed, as one that cannot be opened is.
pub(crate) fn opened_anew(
    stream: Option<Stream<'_>>,
    close: impl FnOnce(*mut FILE) -> c_int,
    real: impl FnOnce(*mut FILE) -> *mut FILE,
) -> *mut FILE {
    let stream = stream.and_then(standard::own);
    before_stream_closes(stream);
    let file = stream.map_or(ptr::null_mut(), Stream::as_ptr);
    if stream.is_some_and(cookie::is_ours) {
        close(file);
        fail(Failure::Unsupported);
        return ptr::null_mut();
    }
    real(file)
}

/// `fdopen`.
pub(crate) fn fdopen(
    fd: c_int,
    mode: Option<&CStr>,
    real: impl FnOnce() -> *mut FILE,
) -> *mut FILE {
    if let Some(slot) = shadow::connection(fd) {
        if let Some(mode) = mode
            && keeping_errno(|| socket::without_tcp(slot, fd) || socket::on_device(slot))
        {
            return cookie::open(fd, mode).map_or(ptr::null_mut(), Stream::as_ptr);
        }
        keeping_errno(|| socket::refuse(slot, fd, Reason::OddUse));
    }
    real()
}
