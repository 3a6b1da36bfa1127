//! When a wait of poll, select or epoll ends, read from a clock that is not asked before it has to
//! be.
//!
//! Must not know what is waited for. Entry point: [`Deadline`].
#![forbid(unsafe_code)]

use core::time::Duration;

use crate::config::policy;
use crate::sys;

/// When a wait ends. The clock is not read before [`Deadline::begin`]: a wait that finds something
/// at once needs none.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    timeout: Option<Duration>,
    /// Monotonic nanoseconds; 0 before the time runs.
    end: u64,
}

impl Deadline {
    pub(crate) fn after(timeout: Option<Duration>) -> Self {
        Self { timeout, end: 0 }
    }

    /// From here on the time runs, if it does not yet.
    pub(crate) fn begin(&mut self) {
        if let (Some(t), 0) = (self.timeout, self.end)
            && !t.is_zero()
        {
            self.end =
                sys::now_ns().saturating_add(u64::try_from(t.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    /// Whether it may come before the end of a spin, which lasts as long as is configured
    /// (`polling_time`).
    pub(crate) fn near(self) -> bool {
        self.left().is_some_and(|t| t <= Duration::from_nanos(policy::polling_ns()))
    }

    /// What is left; `None` for ever.
    pub(crate) fn left(self) -> Option<Duration> {
        match (self.timeout, self.end) {
            (timeout, 0) => timeout,
            (_, end) => Some(Duration::from_nanos(end.saturating_sub(sys::now_ns()))),
        }
    }
}

/// The shorter of two waits.
pub(crate) fn sooner(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
