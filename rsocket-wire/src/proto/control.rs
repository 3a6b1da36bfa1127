//! The work requests set aside for what is not data (`wire-protocol §5.5`).
//!
//! SGL and CTRL messages cost no credit of the peer, so their number on the way is bounded here
//! instead. Entry point: [`Control`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

/// How a word travels; the device says which (`wire-protocol §4.2`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As the immediate data of an RDMA write: one work request, with or without bytes.
    Immediate,
    /// As a 4-byte SEND after a plain RDMA write: two work requests, one if there are no bytes.
    /// iWARP.
    Message,
}

impl Mode {
    /// Work requests that a message takes.
    #[must_use]
    pub const fn cost(self, with_bytes: bool) -> u8 {
        match self {
            Self::Message if with_bytes => 2,
            _ => 1,
        }
    }
}

/// Control work requests that may still be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    free: u8,
}

impl Default for Control {
    fn default() -> Self {
        Self::new()
    }
}

impl Control {
    /// Upstream's number.
    pub const SLOTS: u8 = 4;

    /// All slots free.
    #[must_use]
    pub const fn new() -> Self {
        Self { free: Self::SLOTS }
    }

    /// Slots not in use.
    #[must_use]
    pub const fn free(&self) -> u8 {
        self.free
    }

    /// Takes slots for a message; false, and nothing taken, when there are too few.
    pub const fn take(&mut self, cost: u8) -> bool {
        if self.free < cost {
            return false;
        }
        self.free -= cost;
        true
    }

    /// A control work request completed. More than were taken come back as no more than there are.
    pub const fn give(&mut self, cost: u8) {
        let free = self.free.saturating_add(cost);
        self.free = if free > Self::SLOTS { Self::SLOTS } else { free };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_and_no_more() {
        let mut control = Control::new();
        assert!((0..4).all(|_| control.take(Mode::Immediate.cost(true))));
        assert!(!control.take(1));
        control.give(1);
        assert!(!control.take(Mode::Message.cost(true)), "an entry takes two in message mode");
        assert!(control.take(Mode::Message.cost(false)));
        control.give(200);
        assert_eq!(control.free(), 4);
    }
}
