//! `select` and `pselect` over sockets of both kinds. They are translated into the wait of `mixed`
//! and back exactly as Linux does it (`POLLIN_SET`, `POLLOUT_SET` and `POLLEX_SET` of
//! `fs/select.c`).
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::time::Duration;
use std::os::fd::RawFd;

use libc::{
    POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, POLLRDBAND, POLLRDNORM, POLLWRBAND,
    POLLWRNORM,
};

use super::Finder;
use super::epoll::{REGISTRY, Registry};
use super::mixed::{self, Entry, FEW};
use super::scratch::Room;
use super::source::Source;
use crate::failure::Failure;
use crate::given::{Bits, Sets};
use crate::sys;

const IN_SET: i16 = POLLRDNORM | POLLRDBAND | POLLIN | POLLHUP | POLLERR | POLLNVAL;
const OUT_SET: i16 = POLLWRBAND | POLLWRNORM | POLLOUT | POLLERR | POLLNVAL;
const EX_SET: i16 = POLLPRI | POLLNVAL;
const BITS: usize = libc::c_ulong::BITS as usize;

/// As `pselect6`. The three sets are written only on success. `timeout`, when given, becomes what
/// is left of it: the hook for `select` hands that to the program, the one for `pselect` does not.
///
/// # Errors
/// `EBADF` for a descriptor that is not open, `EINVAL`, `EINTR`, `ENOMEM`.
pub fn select(
    sets: Sets<'_>,
    timeout: Option<&mut Duration>,
    mask: *const libc::sigset_t,
    find: Finder,
) -> Result<usize, Failure> {
    select_with(&REGISTRY, sets, timeout, mask, find)
}

/// [`select`] over any source.
///
/// # Errors
/// As [`select`].
pub fn select_with<S: Source>(
    registry: &'static Registry<S>,
    sets: Sets<'_>,
    timeout: Option<&mut Duration>,
    mask: *const libc::sigset_t,
    find: Finder,
) -> Result<usize, Failure> {
    let Ok(nfds) = usize::try_from(sets.nfds()) else { return Err(Failure::Invalid) };
    let [read, write, except] = sets.each();
    let asks = |fd: usize| {
        let bit = |set: Bits<'_>, mask: i16| if set.has(fd) { mask } else { 0 };
        bit(read, IN_SET) | bit(write, OUT_SET) | bit(except, EX_SET)
    };
    let any = |fd: &usize| asks(*fd) != 0;
    let Some(mut entries) = Room::<_, FEW>::new((0..nfds).filter(any).count(), Entry::NONE) else {
        return Err(Failure::NoMemory);
    };
    for (entry, fd) in entries.slice().iter_mut().zip((0..nfds).filter(any)) {
        let accept = asks(fd);
        // In poll's words: never ask for more than the program looks at.
        let events = accept
            & (POLLIN | POLLRDNORM | POLLRDBAND | POLLOUT | POLLWRNORM | POLLWRBAND | POLLPRI);
        *entry = Entry::new(fd as RawFd, events, accept);
    }
    let start = sys::now_ns();
    let time = timeout.as_deref().copied();
    let mut result = mixed::wait(registry, entries.slice(), time, mask, find).map(|_| 0);
    if let Some(left) = timeout {
        *left = left.saturating_sub(Duration::from_nanos(sys::now_ns().saturating_sub(start)));
    }
    if entries.slice().iter().any(|e| e.revents & POLLNVAL != 0) && result.is_ok() {
        result = Err(Failure::BadDescriptor);
    }
    if let Ok(count) = &mut result {
        *count = report(entries.slice(), sets.each());
    }
    entries.release();
    result
}

/// Writes the three sets; the count of all bits, as Linux counts. The entries are in the order of
/// their descriptors.
fn report(entries: &[Entry], sets: [Bits<'_>; 3]) -> usize {
    let mut count = 0;
    for (set, mask) in sets.into_iter().zip([IN_SET, OUT_SET, EX_SET]) {
        let mut rest = entries.iter().peekable();
        for i in 0..set.words() {
            let mut found = 0;
            while let Some(e) = rest.next_if(|e| e.fd as usize / BITS == i) {
                if e.revents & mask != 0 {
                    found |= 1 << (e.fd as usize % BITS);
                }
            }
            let after = set.word(i) & found;
            set.set_word(i, after);
            count += after.count_ones() as usize;
        }
    }
    count
}
