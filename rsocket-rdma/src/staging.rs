//! Which bytes of the staging memory are in use. The memory is a ring from which each post takes
//! one piece in a row. Pieces are given back in the order in which they were taken.
//!
//! Knows offsets only. Entry point: [`Staging`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

/// Pieces start at multiples of this, so that no two share a line.
const ALIGN: u32 = 64;

/// A piece: where it starts, and what it takes from the ring, padding included. The default takes
/// nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) at: u32,
    taken: u32,
}

/// The ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Staging {
    capacity: u32,
    /// Where the next piece starts; below the capacity, and a multiple of [`ALIGN`].
    head: u32,
    /// Bytes in use before the head, round the ring.
    used: u32,
}

impl Staging {
    /// All of `capacity` bytes free. It is cut to whole lines.
    pub(super) const fn new(capacity: u32) -> Self {
        Self { capacity: capacity / ALIGN * ALIGN, head: 0, used: 0 }
    }

    /// Free bytes in a row at the head, and at the start if the head's are given up.
    const fn gaps(&self) -> (u32, u32) {
        let free = self.capacity - self.used;
        let at_head = self.capacity - self.head;
        if free <= at_head { (free, 0) } else { (at_head, free - at_head) }
    }

    /// The longest piece that can be taken now.
    pub(super) fn room(&self) -> u32 {
        let (here, start) = self.gaps();
        here.max(start)
    }

    /// What [`take`](Self::take) would give, with nothing changed.
    pub(super) fn find(&self, len: u32) -> Option<Piece> {
        let lines = len.checked_next_multiple_of(ALIGN)?;
        let (here, start) = self.gaps();
        if lines <= here {
            Some(Piece { at: self.head, taken: lines })
        } else if lines <= start {
            Some(Piece { at: 0, taken: here + lines })
        } else {
            None
        }
    }

    /// Takes the piece that [`find`](Self::find) gave just now.
    pub(super) const fn take(&mut self, piece: Piece) {
        self.used += piece.taken;
        self.head = (self.head + piece.taken) % if self.capacity == 0 { 1 } else { self.capacity };
    }

    /// Gives the oldest piece back.
    pub(super) const fn give(&mut self, piece: Piece) {
        self.used = self.used.saturating_sub(piece.taken);
        if self.used == 0 {
            // The whole ring in a row again.
            self.head = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn two_halves_go_round_for_ever() {
        let mut staging = Staging::new(131_072);
        let first = staging.find(65536).unwrap();
        staging.take(first);
        for _ in 0..5 {
            let next = staging.find(65536).unwrap();
            staging.take(next);
            assert_eq!(staging.find(1), None);
            staging.give(first);
        }
    }

    proptest! {
        #[test]
        fn pieces_in_use_never_overlap(lines in 0_u32..40, ops in prop::collection::vec(0_u32..700, 1..200)) {
            let capacity = lines * ALIGN;
            let mut staging = Staging::new(capacity + 5);
            let mut live: VecDeque<(Piece, u32)> = VecDeque::new();
            for op in ops {
                if op % 3 == 0 {
                    if let Some((piece, _)) = live.pop_front() {
                        staging.give(piece);
                    }
                    continue;
                }
                let found = staging.find(op);
                prop_assert_eq!(found.is_some(), op.next_multiple_of(ALIGN) <= staging.room());
                if let Some(piece) = found {
                    prop_assert!(piece.at + op <= capacity);
                    for (other, len) in &live {
                        prop_assert!(piece.at + op <= other.at || other.at + len <= piece.at || op == 0 || *len == 0);
                    }
                    staging.take(piece);
                    live.push_back((piece, op));
                }
            }
            while let Some((piece, _)) = live.pop_front() {
                staging.give(piece);
            }
            prop_assert_eq!(staging.room(), capacity);
        }
    }
}
