//! What the kernel said of a socket that matters before each sleep: whether calls may sleep, and
//! for how long.
//!
//! The kernel is the authority: another owner of the descriptor may change that at any time. So it
//! is asked before each sleep, and what it has said is a hint for what comes before. But the
//! descriptor of an rsocket means something to the calls of this library alone. Those say when they
//! have changed something: there an answer holds until then.
//!
//! Must not know how the kernel is asked. Entry points: [`OptionCache::holds`] and
//! [`OptionCache::held`], [`OptionCache::change`].
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU32, Ordering};

/// Something that is so of most sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Fact {
    /// `O_NONBLOCK` is not set.
    Blocks = 1,
    /// `SO_RCVTIMEO` is not set.
    WaitsForData = 2,
    /// `SO_SNDTIMEO` is not set.
    WaitsForRoom = 4,
    /// The last sleep for data was brief. The kernel is not asked for that; see
    /// [`crate::socket::brief`].
    SleepsBriefly = 8,
    /// A peer has not woken a thread that slept so: the peer is in a sandbox, or does not know how.
    NotWoken = 16,
}

/// All of them. Above them the word counts the changes.
const FACTS: u32 = 31;

/// Facts that held when the kernel was last asked. Zero: it was not.
#[derive(Default)]
pub struct OptionCache(AtomicU32);

impl OptionCache {
    /// Whether the fact held when the kernel was last asked.
    #[inline]
    pub fn held(&self, fact: Fact) -> bool {
        // Relaxed: a hint.
        self.0.load(Ordering::Relaxed) & fact as u32 != 0
    }

    /// Whether all of them held when the kernel was last asked, with nothing changed since by a
    /// call of ours.
    #[inline]
    pub fn all_held(&self, facts: &[Fact]) -> bool {
        let wanted = facts.iter().fold(0, |bits, fact| bits | *fact as u32);
        // Acquire: as in holds().
        self.0.load(Ordering::Acquire) & wanted == wanted
    }

    /// Notes a fact that the kernel need not be asked for.
    #[inline]
    pub fn keep(&self, fact: Fact, holds: bool) {
        let before = self.0.load(Ordering::Relaxed);
        self.note(before, fact, holds);
    }

    /// An answer that may be older than a change is not kept.
    fn note(&self, before: u32, fact: Fact, holds: bool) {
        let after = if holds { before | fact as u32 } else { before & !(fact as u32) };
        if after != before {
            // Relaxed: nothing is published by it.
            let _ = self.0.compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Whether the fact holds: `ask` asks the kernel, unless its last answer was yes and is
    /// `lasting`.
    #[inline]
    pub fn holds(&self, fact: Fact, lasting: bool, ask: impl FnOnce() -> bool) -> bool {
        // Acquire: pairs with the release in change(), before which the kernel was told.
        let before = self.0.load(Ordering::Acquire);
        if lasting && before & fact as u32 != 0 {
            return true;
        }
        let holds = ask();
        self.note(before, fact, holds);
        holds
    }

    /// The kernel was told something else, or the socket is another one.
    pub fn change(&self) {
        let next = |word: u32| Some((word | FACTS).wrapping_add(1));
        // Release: pairs with the acquire in holds().
        let _ = self.0.fetch_update(Ordering::Release, Ordering::Relaxed, next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_lasts_is_asked_for_once() {
        let cache = OptionCache::default();
        let mut asked = 0;
        for lasting in [true, false] {
            for _ in 0..3 {
                assert!(cache.holds(Fact::Blocks, lasting, || {
                    asked += 1;
                    true
                }));
            }
        }
        assert_eq!(asked, 1 + 3);
        assert!(cache.held(Fact::Blocks) && !cache.held(Fact::WaitsForData));
    }

    #[test]
    fn what_does_not_hold_is_asked_for_each_time() {
        let cache = OptionCache::default();
        assert!(cache.holds(Fact::WaitsForRoom, true, || true));
        assert!(!cache.holds(Fact::WaitsForRoom, false, || false));
        assert!(!cache.held(Fact::WaitsForRoom));
        assert!(cache.holds(Fact::WaitsForRoom, true, || true), "it was not asked");
    }

    #[test]
    fn several_are_forgotten_together() {
        let cache = OptionCache::default();
        let both = [Fact::Blocks, Fact::SleepsBriefly];
        assert!(cache.holds(Fact::Blocks, false, || true) && !cache.all_held(&both));
        cache.keep(Fact::SleepsBriefly, true);
        assert!(cache.all_held(&both));
        cache.keep(Fact::SleepsBriefly, false);
        assert!(!cache.all_held(&both) && cache.held(Fact::Blocks));
        cache.keep(Fact::SleepsBriefly, true);
        cache.change();
        assert!(!cache.all_held(&[Fact::SleepsBriefly]) && !cache.held(Fact::Blocks));
    }

    #[test]
    fn an_answer_from_before_a_change_is_not_kept() {
        let cache = OptionCache::default();
        assert!(cache.holds(Fact::WaitsForData, true, || true));
        cache.change();
        assert!(!cache.holds(Fact::WaitsForData, true, || false));
        let answered_late = cache.holds(Fact::Blocks, true, || {
            cache.change();
            true
        });
        assert!(answered_late && !cache.held(Fact::Blocks));
    }
}
