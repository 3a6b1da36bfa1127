//! The words of a peer that cost it a credit, until their turn comes.
//!
//! Must not know what they say. Entry point: [`Inbox`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use alloc::boxed::Box;
use alloc::vec;

use super::Violation;
use crate::word::Word;

/// The peer's words that cost it a credit, in order, until their turn comes. It can have no more of
/// them than it has credits.
#[derive(Clone, Debug)]
pub(super) struct Inbox {
    words: Box<[Word]>,
    head: usize,
    len: usize,
}

impl Inbox {
    pub(super) fn new(queue: u16) -> Self {
        Self { words: vec![Word(0); usize::from(queue.max(1))].into_boxed_slice(), head: 0, len: 0 }
    }

    pub(super) fn push(&mut self, word: Word) -> Result<(), Violation> {
        if self.len == self.words.len() {
            return Err(Violation::CreditOverrun);
        }
        let at = (self.head + self.len) % self.words.len();
        *self.words.get_mut(at).ok_or(Violation::CreditOverrun)? = word;
        self.len += 1;
        Ok(())
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) fn front(&self) -> Option<Word> {
        if self.is_empty() { None } else { self.words.get(self.head).copied() }
    }

    pub(super) fn drop_front(&mut self) {
        self.head = (self.head + 1) % self.words.len();
        self.len -= 1;
    }
}
