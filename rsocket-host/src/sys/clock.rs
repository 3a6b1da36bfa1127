//! The kernel's clocks beside the monotonic one ([`super::now_ns`]), and a short sleep.
//!
//! Must not know what is timed. Entry points: [`since_epoch`], [`since_boot`], [`coarse_ms`],
//! [`pause`].
#![forbid(unsafe_code)]

use rustix::time::{ClockId, Timespec, clock_gettime};

const fn nanoseconds(t: Timespec) -> u64 {
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Nanoseconds since 1970, as the host's clock on the wall has it.
#[must_use]
pub fn since_epoch() -> u64 {
    nanoseconds(clock_gettime(ClockId::Realtime))
}

/// Nanoseconds since the host was booted, its sleep included.
#[must_use]
pub fn since_boot() -> u64 {
    nanoseconds(clock_gettime(ClockId::Boottime))
}

/// Milliseconds of the clock that takes no time to read: it advances with the timer's tick.
#[inline]
#[must_use]
pub fn coarse_ms() -> u64 {
    let t = clock_gettime(ClockId::MonotonicCoarse);
    t.tv_sec.cast_unsigned() * 1000 + t.tv_nsec.cast_unsigned() / 1_000_000
}

/// Sleeps for so many nanoseconds (below a second). A signal cuts it short. No cancellation point.
pub fn pause(ns: u32) {
    let _ = rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec: ns.into() });
}
