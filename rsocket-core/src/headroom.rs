//! Room for the program's descriptors where the library's stand below the same limit: ours give
//! way.
//!
//! Where the limit can be gone beyond ([`crate::sys::above`]) nothing here ever happens. Must not
//! know what the descriptors are for. Entry points: [`is_crowded`], [`make_room`], [`used_up`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::RawFd;

use crate::channel::spare;
use crate::device::shm::waker;
use crate::sys;

/// Whether a number that the program has got shows that it nears its limit, and there are
/// descriptors of ours below that. One relaxed load.
#[inline]
#[must_use]
pub fn is_crowded(fd: RawFd) -> bool {
    fd >= sys::crowded_from()
}

/// Closes what can be made again, or done without, and stands below the limit; whether there was
/// any.
#[cold]
pub fn make_room() -> bool {
    if !sys::next_private(0).is_some_and(sys::is_below_limit) {
        return false;
    }
    sys::watch_for_crowds();
    waker::give_way() + spare::give_way() != 0
}

/// The program has no descriptors left; whether it may try again. For a while nothing attaches.
#[cold]
pub fn used_up() -> bool {
    let made = make_room();
    if made {
        sys::used_up();
    }
    made
}
