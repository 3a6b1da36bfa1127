//! POSIX asynchronous I/O. libc's own threads do the reading and writing, by its own names, so that no hook sees them: such
//! sockets are on TCP.

use core::ffi::c_int;

use libc::{aiocb, sigevent};

use super::stdio::unseen;
use crate::real;

/// # Safety
/// `block` is null or the caller's control block.
unsafe fn seen(block: *const aiocb) {
    if !block.is_null() {
        // SAFETY: the caller's promise.
        unseen(unsafe { (&raw const (*block).aio_fildes).read_unaligned() });
    }
}

/// # Safety
/// `list` is null or points to `length` pointers, each null or to a control block.
unsafe fn each(list: *const *mut aiocb, length: c_int) {
    if !list.is_null() {
        for i in 0..usize::try_from(length).unwrap_or(0) {
            // SAFETY: below the length, by the caller's promise.
            unsafe { seen(list.add(i).read()) };
        }
    }
}

hook! {
    fn aio_read(block: *mut aiocb) -> c_int {
        seen(block);
        real::aio_read(block)
    }

    fn aio_read64(block: *mut aiocb) -> c_int {
        seen(block);
        real::aio_read64(block)
    }

    fn aio_write(block: *mut aiocb) -> c_int {
        seen(block);
        real::aio_write(block)
    }

    fn aio_write64(block: *mut aiocb) -> c_int {
        seen(block);
        real::aio_write64(block)
    }

    fn lio_listio(mode: c_int, list: *const *mut aiocb, length: c_int, event: *mut sigevent) -> c_int {
        each(list, length);
        real::lio_listio(mode, list, length, event)
    }

    fn lio_listio64(mode: c_int, list: *const *mut aiocb, length: c_int, event: *mut sigevent) -> c_int {
        each(list, length);
        real::lio_listio64(mode, list, length, event)
    }
}
