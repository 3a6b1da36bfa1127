//! Reads and writes of files and pipes that do not wait (preadv2(2), `RWF_NOWAIT`).
//!
//! Raw system calls, and so no cancellation points: the caller may hold a lock. They set `errno`.
//! Must not know whose memory it is. Entry points: [`read_at`], [`read`], [`write`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::RawFd;

use crate::failure::Failure;

/// Where what has no position is read or written.
const NO_POSITION: u64 = u64::MAX;

/// How such a call goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Without waiting; `EOPNOTSUPP` where the kernel cannot (pipes before Linux 6.4).
    AtOnce,
    /// As the descriptor says: for one that poll(2) has found ready.
    Ready,
}

/// # Safety
/// `call` is `SYS_preadv2` or `SYS_pwritev2`; `len` bytes at `at` are writable for the one,
/// readable for the other.
#[inline]
unsafe fn move_bytes(
    call: libc::c_long,
    fd: RawFd,
    (at, len): (*mut u8, usize),
    position: u64,
    how: How,
) -> Result<usize, Failure> {
    let place = libc::iovec { iov_base: at.cast(), iov_len: len };
    let flags = if how == How::AtOnce { libc::RWF_NOWAIT } else { 0 };
    // SAFETY: the caller's promise; the kernel reads one iovec, which lives until it is back.
    let n = unsafe { libc::syscall(call, fd, &raw const place, 1_usize, position, 0_usize, flags) };
    usize::try_from(n).map_err(|_| Failure::last())
}

/// Reads what a file has in memory from a position on.
///
/// # Errors
/// As preadv2(2): `EAGAIN` where it would wait for the disk.
///
/// # Safety
/// `len` bytes at `to` are writable.
#[inline]
pub unsafe fn read_at(fd: RawFd, at: u64, to: *mut u8, len: usize) -> Result<usize, Failure> {
    // SAFETY: the caller's promise.
    unsafe { move_bytes(libc::SYS_preadv2, fd, (to, len), at, How::AtOnce) }
}

/// Reads from a pipe or a stream.
///
/// # Errors
/// As preadv2(2).
///
/// # Safety
/// `len` bytes at `to` are writable.
#[inline]
pub unsafe fn read(fd: RawFd, to: *mut u8, len: usize, how: How) -> Result<usize, Failure> {
    // SAFETY: the caller's promise.
    unsafe { move_bytes(libc::SYS_preadv2, fd, (to, len), NO_POSITION, how) }
}

/// Writes into a pipe or a stream.
///
/// # Errors
/// As pwritev2(2).
///
/// # Safety
/// `len` bytes at `from` are readable.
#[inline]
pub unsafe fn write(fd: RawFd, from: *const u8, len: usize, how: How) -> Result<usize, Failure> {
    // SAFETY: the caller's promise.
    unsafe { move_bytes(libc::SYS_pwritev2, fd, (from.cast_mut(), len), NO_POSITION, how) }
}
