//! When a thread that spins over devices polls the kernel.
//!
//! A wait may be for what the kernel alone answers for, too: a listener, a timer, another thread's
//! eventfd. A sleeper is woken for it at once, and a spin must not be worse. To ask the kernel
//! takes as long as some ten looks at a device, so it is asked after many of them.
//!
//! Must not know what is waited for, nor how long a spin lasts. Entry point: [`SpinPolls::is_due`].
#![forbid(unsafe_code)]

/// Looks at sockets between two polls: some microseconds. A peer that answers at once has done so
/// before the first.
const LOOKS: usize = 256;

/// The looks of one spin.
pub(super) struct SpinPolls {
    since: usize,
}

impl SpinPolls {
    /// A spin begins.
    pub(super) const fn new() -> Self {
        Self { since: 0 }
    }

    /// So many sockets have been looked at, which were not ready: whether the kernel is asked now.
    #[inline]
    pub(super) const fn is_due(&mut self, sockets: usize) -> bool {
        self.since += sockets;
        let due = self.since >= LOOKS;
        if due {
            self.since = 0;
        }
        due
    }
}
