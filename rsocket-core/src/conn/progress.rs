//! How far the two directions have come, for callers that wait for edges.
//!
//! Must not know who waits. Entry point: [`Progress`].
#![forbid(unsafe_code)]

/// In [`Progress::received`]: the sender has gone back to TCP.
pub(crate) const BEHIND: u64 = 1 << 63;

/// In [`Progress::received`]: the end of the stream has come, whatever is unread before it.
pub(crate) const OVER: u64 = 1 << 62;

/// How far the two directions have come, for edge triggering.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Changes whenever something new became receivable (bytes, end of stream).
    pub received: u64,
    /// Changes whenever the sending direction turned writable after a send had found it full.
    pub room: u64,
}

impl Progress {
    /// Whether the sender has gone back to TCP: what it sends from here on the kernel knows of.
    #[inline]
    #[must_use]
    pub fn is_behind(self) -> bool {
        self.received & BEHIND != 0
    }

    /// Whether the end of the stream has come, whatever is unread before it.
    #[inline]
    #[must_use]
    pub fn is_over(self) -> bool {
        self.received & OVER != 0
    }

    /// Changes whenever something new came by the device.
    #[inline]
    #[must_use]
    pub fn by_device(self) -> u64 {
        self.received & !(BEHIND | OVER)
    }
}
