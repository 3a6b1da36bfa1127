//! What two ends tell each other while they connect: private data, and what a connection may ask of
//! the peer.
//!
//! Copied out of librdmacm's own memory. Entry points: [`Private`], [`Parameters`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::fmt;

/// The most private data that a peer can send while connecting, in bytes: a reply over InfiniBand.
pub const MAX_PRIVATE: usize = 196;

/// A peer's private data. InfiniBand and RoCE pad it with zeroes to the size of their message.
#[derive(Clone, Copy)]
pub struct Private {
    bytes: [u8; MAX_PRIVATE],
    len: u8,
}

impl Private {
    /// None at all.
    pub const EMPTY: Self = Self { bytes: [0; MAX_PRIVATE], len: 0 };

    /// Copies what a library points to.
    ///
    /// # Safety
    /// `from` is null, or readable for `len` bytes.
    pub(super) unsafe fn copied(from: *const u8, len: u8) -> Self {
        let mut private = Self::EMPTY;
        let len = usize::from(len).min(MAX_PRIVATE);
        if !from.is_null() {
            // SAFETY: the caller's promise; the array is at least as long.
            unsafe { core::ptr::copy_nonoverlapping(from, private.bytes.as_mut_ptr(), len) };
            private.len = len as u8;
        }
        private
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl fmt::Debug for Private {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Private").field(&self.bytes()).finish()
    }
}

/// What the peer's end of a connection was asked to hold (`wire-protocol §2.5`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// RDMA reads that we may have to answer at once.
    pub responder_resources: u8,
    /// RDMA reads that we may have under way.
    pub initiator_depth: u8,
    /// Whether the transport may use flow control, 0 or 1.
    pub flow_control: u8,
    /// How often a sender without a receive tries again; 7 is for ever.
    pub rnr_retry_count: u8,
}
