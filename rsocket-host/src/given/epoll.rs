//! The program's calls of epoll, and the next definitions of epoll's functions (behind the hooks of
//! a preload library), which answer for what is the kernel's.
//!
//! Must not know what a set is here. Entry points: [`Change`] with [`Ctl`], [`Wait`] with
//! [`Pwait`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::time::Duration;
use std::os::fd::RawFd;

use libc::{c_int, epoll_event, sigset_t};

use super::{In, Places};
use crate::failure::Failure;
use crate::probe::{present, signals_are_nowhere};

/// The arguments of one `epoll_ctl`.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The set.
    pub epfd: RawFd,
    /// `EPOLL_CTL_ADD` and so on.
    pub op: c_int,
    /// The member.
    pub fd: RawFd,
    /// Null, or what the program wants of it.
    pub event: In<'a, epoll_event>,
}

/// The arguments of one `epoll_pwait`, with a time in any units.
#[derive(Clone, Copy, Debug)]
pub struct Wait<'a> {
    epfd: RawFd,
    /// Room for `max`, if that is a number of them.
    events: Places<'a, epoll_event>,
    max: c_int,
    timeout: Option<Duration>,
    /// The signals that are blocked meanwhile, or null.
    mask: In<'a, sigset_t>,
}

impl<'a> Wait<'a> {
    /// # Safety
    /// `events` is null or has room for `max` of them, `mask` null or valid, for the time of the
    /// call.
    #[must_use]
    pub unsafe fn new(
        epfd: RawFd,
        events: *mut epoll_event,
        max: c_int,
        timeout: Option<Duration>,
        mask: *const sigset_t,
    ) -> Self {
        // SAFETY: the caller's promise.
        let (events, mask) =
            unsafe { (Places::new(events, usize::try_from(max).unwrap_or(0)), In::new(mask)) };
        Self { epfd, events, max, timeout, mask }
    }

    /// The set.
    #[inline]
    #[must_use]
    pub const fn epfd(&self) -> RawFd {
        self.epfd
    }

    /// Where the events go.
    #[inline]
    #[must_use]
    pub const fn events(&self) -> Places<'a, epoll_event> {
        self.events
    }

    /// Whether memory is there for the first event.
    #[must_use]
    pub fn has_room(&self) -> bool {
        present(self.events.as_ptr(), 1)
    }

    /// Whether signals are said, and no memory is there.
    #[inline]
    #[must_use]
    pub fn signals_are_nowhere(&self) -> bool {
        signals_are_nowhere(self.mask.as_ptr())
    }

    /// How many are wanted at most, as the program said it.
    #[inline]
    #[must_use]
    pub const fn max(&self) -> c_int {
        self.max
    }

    /// How long; `None` for ever.
    #[inline]
    #[must_use]
    pub const fn timeout(&self) -> Option<Duration> {
        self.timeout
    }
}

/// What `epoll_ctl` is in C.
pub type RealCtl = unsafe extern "C-unwind" fn(c_int, c_int, c_int, *mut epoll_event) -> c_int;

/// What `epoll_pwait` is in C. (Programs that called it, or `epoll_wait`, may run in a sandbox that
/// knows no other.)
pub type RealPwait =
    unsafe extern "C-unwind" fn(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int;

/// `epoll_ctl`.
#[derive(Clone, Copy, Debug)]
pub struct Ctl(RealCtl);

impl Ctl {
    /// # Safety
    /// It keeps the contract of epoll_ctl(2).
    #[must_use]
    pub const unsafe fn new(real: RealCtl) -> Self {
        Self(real)
    }

    /// Lets the kernel do it.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    #[inline]
    pub fn change(self, change: &Change<'_>) -> Result<(), Failure> {
        let Change { epfd, op, fd, event } = *change;
        // SAFETY: the event is null or valid, by its type; epoll_ctl does not write through the
        // pointer.
        let r = unsafe { (self.0)(epfd, op, fd, event.as_ptr().cast_mut()) };
        if r == 0 { Ok(()) } else { Err(Failure::last()) }
    }
}

/// `epoll_pwait`.
#[derive(Clone, Copy, Debug)]
pub struct Pwait(RealPwait);

impl Pwait {
    /// # Safety
    /// It keeps the contract of epoll_pwait(2).
    #[must_use]
    pub const unsafe fn new(real: RealPwait) -> Self {
        Self(real)
    }

    /// Lets the kernel do it, whatever it thinks of the arguments, for so long. A cancellation
    /// point.
    ///
    /// # Errors
    /// As epoll_wait(2).
    #[inline]
    pub fn wait(self, wait: &Wait<'_>, time: Option<Duration>) -> Result<usize, Failure> {
        let Wait { epfd, events, max, mask, .. } = *wait;
        // SAFETY: there is room for `max` events and the mask is null or valid, by their promises.
        // A `max` that makes no sense is the kernel's to refuse.
        let n = unsafe { (self.0)(epfd, events.as_ptr(), max, milliseconds(time), mask.as_ptr()) };
        usize::try_from(n).map_err(|_| Failure::last())
    }
}

/// Rounded up: a sleep may last longer, never shorter.
#[inline]
fn milliseconds(time: Option<Duration>) -> c_int {
    let Some(time) = time else { return -1 };
    let whole = c_int::try_from(time.as_secs()).ok().and_then(|s| s.checked_mul(1000));
    let part = time.subsec_nanos().div_ceil(1_000_000).cast_signed();
    whole.and_then(|whole| whole.checked_add(part)).unwrap_or(c_int::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_rounded_up() {
        assert_eq!(milliseconds(None), -1);
        assert_eq!(milliseconds(Some(Duration::ZERO)), 0);
        assert_eq!(milliseconds(Some(Duration::from_nanos(1))), 1);
        assert_eq!(milliseconds(Some(Duration::from_micros(1_000_001))), 1001);
        assert_eq!(milliseconds(Some(Duration::MAX)), c_int::MAX);
    }
}
