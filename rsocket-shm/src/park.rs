//! How a thread goes to sleep on a direction without missing what is published meanwhile.
//!
//! A sleeper puts its waker into a waiter slot, says in `any` that it did, fences, looks once
//! more, and only then sleeps. The other side publishes, fences, looks at `any`, and if a sleeper
//! is there takes the words and wakes. Of the two fences one comes first; the side whose fence
//! comes second sees what the other did. So either the sleeper finds the data or the waking thread
//! finds the sleeper.
//!
//! - The sleeper's fence is in [`Sleepers::arm`]; its partner is the waking thread's, before
//!   it looks at `any` (`wake_with`, `wake_unlocked`). There are no others.
//! - `arm` writes the word, then sets its bit in `any` (a read-modify-write, Release). `wake`
//!   clears `any` by a swap (Acquire) and then takes the words of the bits it got.
//!   Read-modify-writes continue each other's release sequence, so every bit that the swap returned
//!   comes with its word.
//! - `wake` takes a word before it wakes it. The other order would let a sleeper that woke early
//!   arm the same word again and then be erased by the waking thread's belated clearing.
//!
//! A waking thread that is killed between taking a word and waking leaves its sleeper asleep. The
//! kernel's FIN or reset on the TCP connection wakes the sleeper, unless a fork sibling keeps the
//! connection open. Such sleeps need a bound.
//!
//! This module knows nothing of what is published, and is generic over its atomics for the models.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::os::fd::RawFd;

use super::layout::{SLEEPERS, WOKEN_WORDS};
use super::waker::Woke;
use rsocket_host::stats::{self, Counter};
use rsocket_host::sys;
use rsocket_host::sys::on_word;
use rsocket_host::thread::tid;
use rsocket_sync::atom::{Word32, Word64, full_fence, full_fence_after_exchange};

pub use super::waiter_slot::{MARK_READY, ON_WORD, WAKER, on_word};

/// How an epoll set is told which channel it was woken for. Two things say it: a bit of the ready
/// bitmap of the set's side, and whether the set's waker is waking already.
///
/// A set whose thread sleeps is armed in each of its channels. If many of them become ready one
/// after the other, as when a server answers all its clients at once, one wake says it all. It
/// takes a system call, and the sleeper will look at all the bits. So the thread that wakes notes
/// that it did, and does not wake again while the note is there. The set's owner takes the notes
/// out ([`hear`]) before it looks at the bits. A thread goes by its own notes alone: another thread
/// may have been interrupted, or killed, between its note and its ring. What is written here is a
/// peer's word: false, it makes a ring too few for the peer itself, or one too many for us.
#[derive(Debug)]
pub struct Announce<'a, W = AtomicU64> {
    /// The word of the bitmap.
    pub word: &'a W,
    /// The channel's bit in it.
    pub bit: u64,
    /// The notes at that side.
    pub woken: &'a [W; WOKEN_WORDS],
}

impl<W> Clone for Announce<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Announce<'_, W> {}

impl<'a, W: Word64> Announce<'a, W> {
    /// Sets the bit. True when the waker has to be woken for it, false when this thread has woken
    /// it, unheard so far.
    fn must_wake(&self, id: u64) -> bool {
        // Release: pairs with the Acquire by which the set takes the bit.
        self.word.fetch_or(self.bit, Ordering::Release);
        // Release: pairs with the Acquire in `hear`. If that Acquire comes later, it brings the bit
        // with it, and our ring is there or was heard. If it was earlier, it has taken our note.
        let note = note(id);
        self.its_word(id).swap(note, Ordering::Release) != note
    }

    /// The waker could not be woken: the next one tries again.
    pub fn take_back(&self, id: u64) {
        // Relaxed: nothing is published by it.
        let _ =
            self.its_word(id).compare_exchange(note(id), 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Two wakers may have one word, and two threads one waker: each time they take turns one wake
    /// is sent for nothing.
    fn its_word(&self, id: u64) -> &'a W {
        let [first, ..] = self.woken;
        // The low bit of an id is always 1.
        self.woken.get((id >> 1) as usize % WOKEN_WORDS).unwrap_or(first)
    }
}

/// What this thread leaves when it signals the waker `id`: never 0, since the low bit of an id is
/// 1.
fn note(id: u64) -> u64 {
    id ^ u64::from(tid()) << 1
}

/// From here on the wakers of this side have to be woken again. To be called after a waker was
/// drained and before the ready bits are looked at. A thread that did not wake, since it found the
/// waker waking, has set its bit before.
#[inline]
pub fn hear<W: Word64>(woken: &[W; WOKEN_WORDS]) {
    for word in woken {
        // Relaxed first look: a note whose ring this thread has heard is visible.
        if word.load(Ordering::Relaxed) != 0 {
            // Acquire: pairs with the Release in `must_wake`.
            word.swap(0, Ordering::Acquire);
        }
    }
}

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

    /// Says that the owner of the waker `id` (perhaps with [`MARK_READY`]) is about to sleep. After
    /// it the caller looks again for what it waits for, and sleeps if that is not there; then it
    /// calls [`Sleepers::disarm`], whatever woke it. `None` when all words are taken: the caller
    /// then sleeps for a short time only, and looks again.
    #[must_use]
    pub fn arm(&self, id: u64) -> Option<usize> {
        let slot = self.words.iter().position(|word| {
            // Relaxed success: the Release on `any` below publishes it.
            word.load(Ordering::Relaxed) == 0
                && word.compare_exchange(0, id, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        })?;
        // Release: pairs with the Acquire swap in `wake_all`, which must find the word behind the
        // bit.
        self.any.fetch_or(1 << slot, Ordering::Release);
        // The sleeper's fence; its partner is the one in `wake`. The bit is visible before the
        // caller's second look.
        full_fence();
        Some(slot)
    }

    /// Takes the waker `id` out again. False when it is no longer there: it has been woken, or is
    /// just about to be. A byte may then still arrive in the waker. The bit in `any` may stay
    /// behind; that costs the next waking thread one look.
    pub fn disarm(&self, slot: usize, id: u64) -> bool {
        self.words.get(slot).is_some_and(|word| {
            // Relaxed: nothing is published by leaving, and only we put our own id there. Most
            // words have another one.
            word.load(Ordering::Relaxed) == id
                && word.compare_exchange(id, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        })
    }

    /// The word at this place, for the thread that sleeps on it.
    #[must_use]
    pub fn word(&self, slot: usize) -> Option<&'a W> {
        self.words.get(slot)
    }

    /// Whether there is a waker for which `but` does not hold.
    #[must_use]
    pub fn any_but(&self, but: impl Fn(u64) -> bool) -> bool {
        self.words.iter().any(|word| {
            // Relaxed: a sleeper that must not be missed has armed before a fence that the caller's
            // pairs with.
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

    /// After publishing: wakes all sleepers, by `wake(id)` for each. `ready` is where the sleepers
    /// that asked for it find what they were woken for ([`super::arena::Channel::announce`]). True
    /// when a sleeper was woken, or is being woken.
    #[inline(always)]
    pub fn wake_with(&self, ready: Option<Announce<'_, W>>, wake: impl FnMut(u64)) -> bool {
        // The waking thread's fence; its partner is the one in `arm`. What the caller published is
        // visible before the look at `any`.
        full_fence();
        self.wake_fenced(ready, wake)
    }

    /// As [`Self::wake_with`], right after the caller has given back the lock under which it
    /// published.
    #[inline(always)]
    pub fn wake_unlocked(&self, ready: Option<Announce<'_, W>>, wake: impl FnMut(u64)) -> bool {
        // As in `wake_with`.
        full_fence_after_exchange();
        self.wake_fenced(ready, wake)
    }

    #[inline(always)]
    fn wake_fenced(&self, ready: Option<Announce<'_, W>>, wake: impl FnMut(u64)) -> bool {
        // Relaxed: the fence orders it; an old 0 is impossible once the sleeper's fence came first.
        if self.any.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.wake_all(ready, wake)
    }

    #[cold]
    fn wake_all(&self, ready: Option<Announce<'_, W>>, mut wake: impl FnMut(u64)) -> bool {
        // Acquire: pairs with the Release in `arm`.
        let mask = self.any.swap(0, Ordering::Acquire);
        let mut woken = false;
        for (slot, word) in self.words.iter().enumerate() {
            if mask >> slot & 1 == 0 {
                continue;
            }
            // Relaxed: the word carries nothing but itself.
            let id = word.swap(0, Ordering::Relaxed);
            if id == 0 {
                continue;
            }
            if id & ON_WORD != 0 {
                wake_on_word(word);
                woken = true;
                continue;
            }
            let due = id & MARK_READY == 0 || ready.is_none_or(|ready| ready.must_wake(id & WAKER));
            if due {
                wake(id & WAKER);
            }
            woken = true;
        }
        woken
    }
}

impl Sleepers<'_> {
    /// Puts the word in, unless it is there already: an epoll set stays armed from one wait to the
    /// next. False when all places are taken.
    #[must_use]
    pub fn enlist(&self, word: u64) -> bool {
        (0..SLEEPERS).any(|i| self.armed(i, word)) || self.arm(word).is_some()
    }

    /// After publishing: wakes all sleepers. See [`Sleepers::wake_with`]; the wakers are woken by
    /// [`wake`].
    #[inline(always)]
    pub fn wake(&self, ready: Option<Announce<'_>>) -> bool {
        self.wake_with(ready, |id| wake(id, ready))
    }
}

/// Wakes the thread that sleeps on this word. In a sandbox it is woken by its time-out, and will
/// not do it again.
#[cold]
fn wake_on_word<W>(word: &W) {
    if !sys::is_sandboxed() {
        stats::add(Counter::WakeupsRung, 1);
        on_word::wake(word);
    }
}

/// Signals the waker, for which `ready` was announced.
#[cold]
pub fn wake(id: u64, ready: Option<Announce<'_>>) {
    is_heard(super::waker::try_wake(id), id, ready);
}

/// As [`wake`], of a waker that may be of the network namespace of which `there` is a socket.
#[cold]
pub fn wake_there(id: u64, there: RawFd, ready: Announce<'_>) {
    is_heard(super::waker::far::try_wake(id, there), id, Some(ready));
}

fn is_heard(woke: Woke, id: u64, ready: Option<Announce<'_>>) {
    if woke != Woke::Yes
        && let Some(ready) = ready
    {
        ready.take_back(id);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
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
        let (word, notes) = (AtomicU64::new(0), [const { AtomicU64::new(0) }; WOKEN_WORDS]);
        let ready = Announce { word: &word, bit: 8, woken: &notes };
        let mut woken = vec![];
        assert!(s.wake_with(Some(ready), |id| woken.push(id)));
        assert_eq!((woken, word.load(Ordering::Relaxed)), (vec![5, 6], 8));
        assert!(!s.disarm(0, 5));
        assert_eq!(s.arm(7), Some(0));
        assert!(s.disarm(0, 7));
        // The bit that stayed behind costs a look, and wakes no sleeper.
        assert!(!s.wake_with(None, |_| unreachable!()));
        assert_eq!(any.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_set_is_rung_once_for_all_its_channels() {
        let notes = [const { AtomicU64::new(0) }; WOKEN_WORDS];
        let word = AtomicU64::new(0);
        let ready = |channel: u32| Some(Announce { word: &word, bit: 1 << channel, woken: &notes });
        // A thread's waker (9) is woken for itself, whatever wakes; 39 shares the word of 7 as a
        // set's.
        let houses: [_; 4] = core::array::from_fn(|_| words());
        let mut woken = vec![];
        let mut publish = |set: u64, channel: u32| {
            let (any, words) = &houses[channel as usize];
            let s = Sleepers::new(any, words);
            assert!(s.arm(set | MARK_READY).is_some() && s.arm(9).is_some());
            woken.clear();
            assert!(s.wake_with(ready(channel), |id| woken.push(id)));
            woken.clone()
        };
        assert_eq!(publish(7, 0), [7, 9]);
        assert_eq!(publish(7, 1), [9], "the set's bell is ringing");
        assert_eq!(publish(39, 2), [39, 9]);
        assert_eq!(publish(7, 3), [7, 9], "whose ring was forgotten is rung again");
        assert_eq!(word.swap(0, Ordering::Relaxed), 15, "whether it was rung or not");
        hear(&notes);
        assert_eq!(publish(7, 0), [7, 9]);
        ready(0).unwrap().take_back(7);
        assert_eq!(publish(7, 1), [7, 9], "the last ring failed");
    }

    #[test]
    fn a_ring_that_reached_nobody_is_no_ring() {
        let (word, notes) = (AtomicU64::new(0), [const { AtomicU64::new(0) }; WOKEN_WORDS]);
        let ready = Announce { word: &word, bit: 1, woken: &notes };
        assert!(ready.must_wake(77) && !ready.must_wake(77));
        wake(77, Some(ready));
        assert!(ready.must_wake(77), "the next one tries again");
    }

    #[test]
    fn who_sleeps_on_its_word_is_woken_there() {
        let (any, words) = words();
        let s = Sleepers::new(&any, &words);
        let me = on_word(77);
        let word = s.word(s.arm(me).unwrap()).unwrap();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                while on_word::sleep(word, me, 900_000_000) != Ok(on_word::Woken::Rung) {}
            });
            assert!(s.wake_with(None, |_| unreachable!("it has no bell")));
            sleeper.join().unwrap();
        });
        assert!(!s.disarm(0, me) && !s.wake_with(None, |_| unreachable!()));
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
