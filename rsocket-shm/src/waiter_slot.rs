//! The bits of a waiter slot: which waker wakes the sleeper, or that it sleeps on the word itself.
//!
//! Knows no waker. Entry points: [`WAKER`], [`MARK_READY`], [`ON_WORD`].
#![forbid(unsafe_code)]

/// In a waiter slot: also set the channel's ready bit for the sleeper's side. Used by epoll sets,
/// which find by it what is ready.
pub const MARK_READY: u64 = 1 << 63;

/// The bits of a waiter slot that name the waker.
pub const WAKER: u64 = (1 << 62) - 1;

/// In a waiter slot: there is no waker, the thread sleeps on the word itself.
pub const ON_WORD: u64 = 1 << 62;

/// What such a thread puts into it.
#[must_use]
pub fn on_word(tid: u32) -> u64 {
    ON_WORD | u64::from(tid) << 1 | 1
}
