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
use crate::given::Polled;

/// As `ppoll`. Call it when one of the list is on device, has to be looked at again, or is an epoll
/// set of which [`polled`](super::epoll::polled) is true. Otherwise it is right, but slower than
/// the kernel. A null `mask` leaves the signal mask alone.
///
/// # Errors
/// `EINTR`, `ENOMEM`, `EINVAL` as the kernel.
pub fn poll(
    list: Polled<'_>,
    timeout: Option<Duration>,
    mask: *const libc::sigset_t,
    find: Finder,
) -> Result<usize, Failure> {
    poll_list(&REGISTRY, list, timeout, mask, find)
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
    poll_list(sets, fds.into(), timeout, mask, find)
}

fn poll_list<S: Source>(
    sets: &'static Registry<S>,
    list: Polled<'_>,
    timeout: Option<Duration>,
    mask: *const libc::sigset_t,
    find: Finder,
) -> Result<usize, Failure> {
    let Some(mut entries) = Room::<_, FEW>::new(list.len(), Entry::NONE) else {
        return Err(Failure::NoMemory);
    };
    for (i, entry) in entries.slice().iter_mut().enumerate() {
        if let (Some(fd), Some(events)) = (list.fd(i), list.events(i)) {
            *entry = Entry::new(fd, events, events | POLLERR | POLLHUP | POLLNVAL);
        }
    }
    let result = mixed::wait(sets, entries.slice(), timeout, mask, find);
    if result.is_ok() {
        for (i, entry) in entries.slice().iter().enumerate() {
            list.answer(i, entry.revents);
        }
    }
    entries.release();
    result
}
