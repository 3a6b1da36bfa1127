//! The edge between C and Rust: return values and `errno`, times, `SIGPIPE`.
//!
//! For the libraries that export C functions; nothing else in here uses it. Must not know what a
//! call does. Entry points: [`count`], [`fail`], [`keeping_errno`], [`leaving_errno`].

use core::ffi::c_int;
use core::time::Duration;

use libc::{iovec, ssize_t, timespec, timeval};
use rsocket_host::failure::Failure;
use rsocket_host::given::{In, Place};
pub use rsocket_host::probe::readable;
use rsocket_host::sys;
pub use rsocket_host::sys::keeping_errno;
pub use rsocket_host::sys::vectors::one;

pub use crate::message::nowhere;

/// A byte count or an error, as C wants it.
#[inline]
pub fn count(result: Result<usize, Failure>) -> ssize_t {
    match result {
        Ok(n) => isize::try_from(n).unwrap_or(isize::MAX),
        Err(e) => fail(e) as ssize_t,
    }
}

/// As [`count`], for calls that answer with an `int`.
#[inline]
pub fn small(result: Result<usize, Failure>) -> c_int {
    match result {
        Ok(n) => c_int::try_from(n).unwrap_or(c_int::MAX),
        Err(e) => fail(e),
    }
}

/// 0, or -1 and `errno`.
#[inline]
pub fn done(result: Result<(), Failure>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(e) => fail(e),
    }
}

/// What a function of libc's returns.
pub trait Returned: Copy {
    /// Whether it says that the call has failed.
    fn has_failed(self) -> bool;
}

impl Returned for c_int {
    #[inline]
    fn has_failed(self) -> bool {
        self < 0
    }
}

impl Returned for ssize_t {
    #[inline]
    fn has_failed(self) -> bool {
        self < 0
    }
}

impl Returned for i64 {
    #[inline]
    fn has_failed(self) -> bool {
        self < 0
    }
}

impl Returned for usize {
    #[inline]
    fn has_failed(self) -> bool {
        self.cast_signed() < 0
    }
}

/// Runs a call that may set `errno` on its way. One that succeeds leaves it as it was, as the
/// kernel's calls do. A program may look there first and believe in a signal (Guile does).
#[inline]
pub fn leaving_errno<R: Returned>(call: impl FnOnce() -> R) -> R {
    let before = sys::errno();
    let returned = call();
    if !returned.has_failed() {
        sys::set_errno(before);
    }
    returned
}

/// Sets `errno` and gives -1.
#[cold]
pub fn fail(e: Failure) -> c_int {
    sys::set_errno(e.code());
    -1
}

/// A result of `socket::send` for the program. A broken pipe also raises `SIGPIPE` in the calling
/// thread, as the kernel does, unless the call said not to.
pub fn sent(result: Result<usize, Failure>, flags: c_int) -> ssize_t {
    if result == Err(Failure::Ended) && flags & libc::MSG_NOSIGNAL == 0 {
        sys::raise(libc::SIGPIPE);
    }
    count(result)
}

/// The bytes that a scatter list describes.
pub fn length(list: &[iovec]) -> usize {
    list.iter().fold(0, |sum, one| sum.saturating_add(one.iov_len))
}

/// A `timespec` as the kernel would understand it.
///
/// # Errors
/// `EINVAL` and `EFAULT` where the kernel would say so.
#[inline]
pub fn span(t: In<'_, timespec>) -> Result<Option<Duration>, Failure> {
    let Some(t) = t.read()? else { return Ok(None) };
    match (u64::try_from(t.tv_sec), u32::try_from(t.tv_nsec)) {
        (Ok(s), Ok(ns)) if ns < 1_000_000_000 => Ok(Some(Duration::new(s, ns))),
        _ => Err(Failure::Invalid),
    }
}

/// The millisecond time-out of `poll` and `epoll_wait`: negative means for ever.
pub fn millis(ms: c_int) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

/// As [`span`], for a `timeval`.
///
/// # Errors
/// As there.
#[inline]
pub fn micros(t: In<'_, timeval>) -> Result<Option<Duration>, Failure> {
    let Some(t) = t.read()? else { return Ok(None) };
    match (u64::try_from(t.tv_sec), u64::try_from(t.tv_usec)) {
        (Ok(s), Ok(us)) => {
            Ok(Some(Duration::from_secs(s).saturating_add(Duration::from_micros(us))))
        }
        _ => Err(Failure::Invalid),
    }
}

/// Linux's `select` leaves in the time-out what was not slept.
pub fn leave_rest(t: Place<'_, timeval>, given: Option<Duration>, taken_ns: u64) {
    if let Some(given) = given {
        let left = given.saturating_sub(Duration::from_nanos(taken_ns));
        t.set(timeval {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_usec: i64::from(left.subsec_micros()),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_times_are_errors() {
        let bad = timespec { tv_sec: -1, tv_nsec: 0 };
        let good = timespec { tv_sec: 1, tv_nsec: 5 };
        // SAFETY: pointers to locals.
        let (bad, good) = unsafe { (In::new(&raw const bad), In::new(&raw const good)) };
        assert!(span(bad).is_err());
        assert_eq!(span(good), Ok(Some(Duration::new(1, 5))));
        assert_eq!(span(In::NULL), Ok(None));
        assert_eq!(millis(-1), None);
        assert_eq!(millis(20), Some(Duration::from_millis(20)));
    }

    #[test]
    fn what_select_did_not_sleep_is_left() {
        let mut t = timeval { tv_sec: 2, tv_usec: 0 };
        // SAFETY: a pointer to a local.
        let (before, place) = unsafe { (In::new(&raw const t), Place::new(&raw mut t)) };
        leave_rest(place, micros(before).unwrap(), 500_000_000);
        assert_eq!((t.tv_sec, t.tv_usec), (1, 500_000));
    }
}
