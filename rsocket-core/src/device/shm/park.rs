//! How a thread goes to sleep on a direction without missing what is published meanwhile.
//!
//! A sleeper puts its bell into a sleeper word, says in `any` that it did, fences, looks once more, and only
//! then sleeps. The other side publishes, fences, looks at `any`, and if somebody is there takes the words
//! and rings. Of the two fences one comes first; whoever comes second sees what the other did, so that either
//! the sleeper finds the data or the waker finds the sleeper.
//!
//! - The sleeper's fence is in [`Sleepers::arm`]; its partner is the waker's, in [`Sleepers::wake`]. There
//!   are no others.
//! - `arm` writes the word, then sets its bit in `any` (a read-modify-write, Release). `wake` clears `any` by
//!   a swap (Acquire) and then takes the words of the bits it got. Read-modify-writes continue each other's
//!   release sequence, so every bit that the swap returned comes with its word.
//! - `wake` takes a word before it rings it. The other order would let a sleeper that woke early arm the same
//!   word again and then be erased by the waker's belated clearing.
//!
//! A waker that is killed between taking a word and ringing leaves its sleeper asleep; the kernel's FIN or
//! reset on the TCP connection wakes it, unless a forked relative keeps that open: such sleeps need a bound.
//!
//! This module knows nothing of what is published, and is generic over its atomics for the models.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::layout::SLEEPERS;
use crate::sync::atom::{Word32, Word64, full_fence, full_fence_after_exchange};

/// In a sleeper word: also set the window's ready bit for the sleeper's side. Used by epoll sets, which find
/// by it what is ready.
pub const MARK_READY: u64 = 1 << 63;

/// The bits of a sleeper word that name the bell.
pub const BELL: u64 = (1 << 62) - 1;

/// The sleepers at one side of a direction.
#[derive(Debug)]
pub struct Sleepers<'a, A = AtomicU32, W = AtomicU64> {
    any: &'a A,
    words: &'a [W; SLEEPERS],
}

impl<A, W> Clone for Sleepers<'_, A, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A, W> Copy for Sleepers<'_, A, W> {}

impl<'a, A: Word32, W: Word64> Sleepers<'a, A, W> {
    /// Over the words of a direction (or of a model).
    #[must_use]
    #[inline(always)]
    pub fn new(any: &'a A, words: &'a [W; SLEEPERS]) -> Self {
        Self { any, words }
    }

    /// Says that the owner of the bell `id` (perhaps with [`MARK_READY`]) is about to sleep. After it the
    /// caller looks again for what it waits for, and sleeps if that is not there; then it calls
    /// [`Sleepers::disarm`], whatever woke it. `None` when all words are taken: the caller then sleeps for a
    /// short time only, and looks again.
    #[must_use]
    pub fn arm(&self, id: u64) -> Option<usize> {
        let slot = self.words.iter().position(|word| {
            // Relaxed success: the Release on `any` below publishes it.
            word.load(Ordering::Relaxed) == 0
                && word.compare_exchange(0, id, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        })?;
        // Release: pairs with the Acquire swap in `ring_all`, which must find the word behind the bit.
        self.any.fetch_or(1 << slot, Ordering::Release);
        // The sleeper's fence; its partner is the one in `wake`. The bit is visible before the caller's
        // second look.
        full_fence();
        Some(slot)
    }

    /// Takes the bell `id` out again. False when it is no longer there: it has been rung, or is just about to
    /// be, so that a byte may still arrive in the bell. The bit in `any` may stay behind; that costs the next
    /// waker one look.
    pub fn disarm(&self, slot: usize, id: u64) -> bool {
        self.words.get(slot).is_some_and(|word| {
            // Relaxed: nothing is published by leaving.
            word.compare_exchange(id, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        })
    }

    /// Whether there is a bell for which `but` does not hold.
    #[must_use]
    pub fn any_but(&self, but: impl Fn(u64) -> bool) -> bool {
        self.words.iter().any(|word| {
            // Relaxed: who must not be missed has armed before a fence that the caller's pairs with.
            let id = word.load(Ordering::Relaxed);
            id != 0 && !but(id)
        })
    }

    /// True when the word is still armed with `id`: an epoll set need not arm again.
    #[must_use]
    #[inline]
    pub fn armed(&self, slot: usize, id: u64) -> bool {
        self.words.get(slot).is_some_and(|word| word.load(Ordering::Relaxed) == id)
    }

    /// After publishing: wakes whoever sleeps, by `ring(id)` for each. `ready` is the window's ready bit for
    /// the sleepers' side ([`super::arena::Window::ready`]), set for those that asked for it. True when
    /// somebody was rung.
    #[inline(always)]
    pub fn wake_with(&self, ready: Option<(&W, u64)>, ring: impl FnMut(u64)) -> bool {
        // The waker's fence; its partner is the one in `arm`. What the caller published is visible before
        // the look at `any`.
        full_fence();
        self.wake_fenced(ready, ring)
    }

    /// As [`Self::wake_with`], right after the caller has given back the lock under which it published.
    #[inline(always)]
    pub fn wake_unlocked(&self, ready: Option<(&W, u64)>, ring: impl FnMut(u64)) -> bool {
        // As in `wake_with`.
        full_fence_after_exchange();
        self.wake_fenced(ready, ring)
    }

    #[inline(always)]
    fn wake_fenced(&self, ready: Option<(&W, u64)>, ring: impl FnMut(u64)) -> bool {
        // Relaxed: the fence orders it; an old 0 is impossible once the sleeper's fence came first.
        if self.any.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.ring_all(ready, ring)
    }

    #[cold]
    fn ring_all(&self, ready: Option<(&W, u64)>, mut ring: impl FnMut(u64)) -> bool {
        // Acquire: pairs with the Release in `arm`.
        let mask = self.any.swap(0, Ordering::Acquire);
        let mut rung = false;
        for (slot, word) in self.words.iter().enumerate() {
            if mask >> slot & 1 == 0 {
                continue;
            }
            // Relaxed: the word carries nothing but itself.
            let id = word.swap(0, Ordering::Relaxed);
            if id == 0 {
                continue;
            }
            if id & MARK_READY != 0
                && let Some((bits, bit)) = ready
            {
                // Release: pairs with the Acquire swap by which the set takes the bitmap.
                bits.fetch_or(bit, Ordering::Release);
            }
            ring(id & BELL);
            rung = true;
        }
        rung
    }
}

impl Sleepers<'_> {
    /// After publishing: wakes whoever sleeps. See [`Sleepers::wake_with`]; the bells are rung by
    /// [`super::bell::ring`].
    #[inline(always)]
    pub fn wake(&self, ready: Option<(&AtomicU64, u64)>) -> bool {
        self.wake_with(ready, super::bell::ring)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> (AtomicU32, [AtomicU64; SLEEPERS]) {
        (AtomicU32::new(0), [const { AtomicU64::new(0) }; SLEEPERS])
    }

    #[test]
    fn arm_wake_disarm() {
        let (any, words) = words();
        let s = Sleepers::new(&any, &words);
        assert!(!s.wake_with(None, |_| unreachable!()));
        assert_eq!(s.arm(5), Some(0));
        assert_eq!(s.arm(6 | MARK_READY), Some(1));
        assert!(s.armed(0, 5));
        let bits = AtomicU64::new(0);
        let mut rung = vec![];
        assert!(s.wake_with(Some((&bits, 8)), |id| rung.push(id)));
        assert_eq!((rung, bits.load(Ordering::Relaxed)), (vec![5, 6], 8));
        assert!(!s.disarm(0, 5));
        assert_eq!(s.arm(7), Some(0));
        assert!(s.disarm(0, 7));
        // The bit that stayed behind costs a look, and rings nobody.
        assert!(!s.wake_with(None, |_| unreachable!()));
        assert_eq!(any.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn full_house() {
        let (any, words) = words();
        let s = Sleepers::new(&any, &words);
        for i in 0..SLEEPERS as u64 {
            assert!(s.arm(i + 1).is_some());
        }
        assert_eq!(s.arm(99), None);
        assert!(s.disarm(2, 3));
        assert_eq!(s.arm(99), Some(2));
    }
}
