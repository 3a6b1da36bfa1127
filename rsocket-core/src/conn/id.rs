//! What a connection is called by all the processes that hold it: a number.
//!
//! Must not know what it stands for. Entry point: [`SlotId`].
#![forbid(unsafe_code)]

use core::num::NonZeroU32;

/// The number of a connection among those of this process and its fork siblings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(transparent)]
pub struct SlotId(NonZeroU32);

impl SlotId {
    /// Reads a stored number; 0 is no connection.
    #[must_use]
    #[inline]
    pub const fn from_raw(raw: u32) -> Option<Self> {
        match NonZeroU32::new(raw) {
            Some(n) => Some(Self(n)),
            None => None,
        }
    }

    /// The number, never 0.
    #[must_use]
    #[inline]
    pub const fn raw(self) -> u32 {
        self.0.get()
    }
}
