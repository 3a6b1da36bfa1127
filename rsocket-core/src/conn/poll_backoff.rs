//! How soon a receiver looks for the next messages, where messages come one way.
//!
//! Each look at the ring takes its line away from a sender that is just about to write to it. A
//! receiver that waits for an answer is right to look at once, since each look late is a round trip
//! longer. A receiver that has sent nothing for a while, and is back before a microsecond is over,
//! had better leave the sender alone until then. It finds several messages at each look, and both
//! ends get more done. The receiver does so as long as that holds.
//!
//! Must not know what is received. Entry points: [`PollBackoff::before`] and [`PollBackoff::after`]
//! each receive, [`PollBackoff::sent`].
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::sys;

/// Receives without a send between them, from which on messages are taken to come one way. The
/// number doubles after each time that this was not worth it, up to `SELDOM_TRIED`.
const ONE_WAY: u32 = 8;
const SELDOM_TRIED: u32 = 1024;
/// Messages that a receive must have brought which was made to wait, or the next ones are not.
const WORTH: u32 = 4;
/// From one look to the next, in ticks: about a microsecond.
const PAUSE: u64 = 2_000;
/// In place of a number of receives: they wait.
const WAITS: u32 = u32::MAX;

/// What the receives of one connection have shown. All of it is a hint, so that threads may mix it
/// up.
#[repr(C)]
#[derive(Default)]
pub struct PollBackoff {
    /// Receives since the last send, or [`WAITS`].
    receives: AtomicU32,
    /// How many of them are needed; 0 is [`ONE_WAY`].
    needed: AtomicU32,
    looked_at: AtomicU64,
}

impl PollBackoff {
    /// Something is sent.
    #[inline]
    pub fn sent(&self) {
        if self.receives.load(Relaxed) != 0 {
            self.receives.store(0, Relaxed);
        }
    }

    /// The program is about to receive: lets the moment pass until the next look is due.
    #[inline]
    pub fn before(&self) {
        if self.receives.load(Relaxed) == WAITS {
            self.let_pass();
        }
    }

    fn let_pass(&self) {
        let looked_at = self.looked_at.load(Relaxed);
        while sys::ticks().wrapping_sub(looked_at) < PAUSE {
            core::hint::spin_loop();
        }
    }

    /// So many messages were received.
    #[inline]
    pub fn after(&self, messages: u32) {
        let receives = self.receives.load(Relaxed);
        if receives < ONE_WAY {
            self.receives.store(receives + 1, Relaxed);
        } else {
            self.one_way(receives, messages);
        }
    }

    fn one_way(&self, receives: u32, messages: u32) {
        let needed = self.needed.load(Relaxed).max(ONE_WAY);
        let receives = match receives {
            WAITS if messages >= WORTH => {
                self.needed.store(ONE_WAY, Relaxed);
                WAITS
            }
            WAITS => {
                self.needed.store((needed * 2).min(SELDOM_TRIED), Relaxed);
                0
            }
            _ if receives < needed => receives + 1,
            _ => WAITS,
        };
        self.receives.store(receives, Relaxed);
        if receives == WAITS {
            self.looked_at.store(sys::ticks(), Relaxed);
        }
    }

    /// As for a connection that has just begun.
    pub fn reset(&self) {
        self.receives.store(0, Relaxed);
        self.needed.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receives until they wait; how many it took.
    fn until_it_waits(backoff: &PollBackoff) -> u32 {
        let mut n = 0;
        while backoff.receives.load(Relaxed) != WAITS {
            backoff.after(1);
            n += 1;
        }
        n
    }

    #[test]
    fn waits_where_nothing_is_sent_and_as_long_as_much_comes() {
        let backoff = PollBackoff::default();
        for _ in 0..ONE_WAY {
            backoff.after(1);
        }
        backoff.sent();
        assert_eq!(until_it_waits(&backoff), ONE_WAY + 1);
        for _ in 0..3 {
            let looked_at = backoff.looked_at.load(Relaxed);
            backoff.before();
            assert!(sys::ticks().wrapping_sub(looked_at) >= PAUSE);
            backoff.after(WORTH);
        }
        backoff.after(WORTH - 1);
        assert_eq!(until_it_waits(&backoff), 2 * ONE_WAY + 1, "it was not worth it");
        backoff.after(WORTH);
        backoff.after(1);
        assert_eq!(until_it_waits(&backoff), 2 * ONE_WAY + 1, "it was worth it before it was not");
        for _ in 0..20 {
            backoff.after(1);
            until_it_waits(&backoff);
        }
        backoff.after(1);
        assert_eq!(until_it_waits(&backoff), SELDOM_TRIED + 1);
        backoff.sent();
        assert_eq!(backoff.receives.load(Relaxed), 0, "it does not wait after a send");
    }
}
