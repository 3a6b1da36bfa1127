//! What the kernel keeps with a descriptor: whether it is open, stays across `exec`, waits.
//!
//! Must not know what it names. Entry points: [`is_open`], [`closes_on_exec`], [`modes`],
//! [`set_modes`], [`copy`].
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd, RawFd};

use rustix::fs::OFlags;
use rustix::io::FdFlags;

use super::borrow;
use crate::failure::Failure;

/// Whether the number names anything.
#[must_use]
pub fn is_open(fd: RawFd) -> bool {
    rustix::io::fcntl_getfd(borrow(fd)).is_ok()
}

/// Whether `exec` closes it.
///
/// # Errors
/// `EBADF` for a number that names nothing.
pub fn closes_on_exec(fd: RawFd) -> Result<bool, Failure> {
    Ok(rustix::io::fcntl_getfd(borrow(fd))?.contains(FdFlags::CLOEXEC))
}

/// How it was opened: `O_ACCMODE`, `O_NONBLOCK` and the other status flags of fcntl(2).
///
/// # Errors
/// As `F_GETFL`.
pub fn modes(fd: RawFd) -> Result<OFlags, Failure> {
    Ok(rustix::fs::fcntl_getfl(borrow(fd))?)
}

/// Sets those of the status flags that can be changed.
///
/// # Errors
/// As `F_SETFL`.
pub fn set_modes(fd: impl AsFd, modes: OFlags) -> Result<(), Failure> {
    Ok(rustix::fs::fcntl_setfl(fd, modes)?)
}

/// Another number for what `fd` names, close-on-exec. It counts as the program's.
///
/// # Errors
/// As `F_DUPFD_CLOEXEC`.
pub fn copy(fd: RawFd) -> Result<OwnedFd, Failure> {
    Ok(rustix::io::fcntl_dupfd_cloexec(borrow(fd), 0)?)
}
