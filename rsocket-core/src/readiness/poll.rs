//! `poll` and `ppoll` over sockets of both kinds. The wait itself is `mixed`; this is the spelling.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::time::Duration;

use libc::{POLLERR, POLLHUP, POLLNVAL, pollfd};

use super::Finder;
use super::epoll::{REGISTRY, Registry};
use super::mixed::{self, Entry, FEW};
use super::scratch::Room;
use super::source::Source;
use crate::failure::Failure;

/// As `ppoll`. Call it when one of `fds` is on device, has to be looked at again, or is an epoll
/// set of which [`polled`](super::epoll::polled) is true. Otherwise it is right, but slower than
/// the kernel. A null `mask` leaves the signal mask alone.
///
/// # Errors
/// `EINTR`, `ENOMEM`, `EINVAL` as the kernel.
pub fn poll(
    fds: &mut [pollfd],
    timeout: Option<Duration>,
    mask: *const libc::sigset_t,
    find: Finder,
) -> Result<usize, Failure> {
    poll_with(&REGISTRY, fds, timeout, mask, find)
}

/// [`poll`] over any source.
///
/// # Errors
/// As [`poll`].
pub fn poll_with<S: Source>(
    sets: &'static Registry<S>,
    fds: &mut [pollfd],
    timeout: Option<Duration>,
    mask: *const libc::sigset_t,
    find: Finder,
) -> Result<usize, Failure> {
    let Some(mut entries) = Room::<_, FEW>::new(fds.len(), Entry::NONE) else {
        return Err(Failure::NoMemory);
    };
    for (entry, fd) in entries.slice().iter_mut().zip(fds.iter()) {
        *entry = Entry::new(fd.fd, fd.events, fd.events | POLLERR | POLLHUP | POLLNVAL);
    }
    let result = mixed::wait(sets, entries.slice(), timeout, mask, find);
    if result.is_ok() {
        for (entry, fd) in entries.slice().iter().zip(fds.iter_mut()) {
            fd.revents = entry.revents;
        }
    }
    entries.release();
    result
}
