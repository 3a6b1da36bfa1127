//! POSIX asynchronous I/O. libc's own threads do the reading and writing, by its own names, so that
//! no hook sees them: such sockets are on TCP.

use core::ffi::c_int;

use libc::aiocb;

use super::stdio::unseen;

/// # Safety
/// `block` is null or the caller's control block.
pub(crate) unsafe fn seen(block: *const aiocb) {
    if !block.is_null() {
        // SAFETY: the caller's promise.
        unseen(unsafe { (&raw const (*block).aio_fildes).read_unaligned() });
    }
}

/// # Safety
/// `list` is null or points to `length` pointers, each null or to a control block.
pub(crate) unsafe fn each(list: *const *mut aiocb, length: c_int) {
    if !list.is_null() {
        for i in 0..usize::try_from(length).unwrap_or(0) {
            // SAFETY: below the length, by the caller's promise.
            unsafe { seen(list.add(i).read()) };
        }
    }
}
