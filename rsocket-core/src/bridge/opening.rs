//! The first moments of a connection over iWARP, where what is said too early may stay unheard.
//!
//! The accepting end must let the other end speak first (RFC 5044, 7.1.3). A stack may still miss
//! what comes just when it takes a connection over from TCP. Soft-iWARP then has the bytes, and
//! looks at them only when more arrive. So the accepting end waits for the first word, but not for
//! ever. Until a word has come from the peer, each end sends an empty write now and then, which no
//! program sees.
//!
//! What comes before the peer's own end of the connection stands fails the peer's attempt.
//! Soft-iWARP finds it behind the answer that it waits for, and says `EINVAL`. The answer may have
//! been lost and sent again, or the peer's processor be busy. One of ours speaks as soon as it is
//! connected, and again if it hears nothing. So it is waited for much longer than any other.
//!
//! Must not know pumps, pairs or clocks: times are the caller's, in nanoseconds. Entry point:
//! [`Opening`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

/// How long nothing is heard before the first empty write; each wait after it is twice as long.
pub const PATIENCE_NS: u64 = 20_000_000;
/// The same at the end that was asked. It is longer than TCP takes to send a lost answer again. It
/// is not longer still, since a peer's first word may have been missed here, and the peer may have
/// no other.
pub const STRANGER_NS: u64 = 300_000_000;
/// The same where the peer is one of ours.
pub const OURS_NS: u64 = 5_000_000_000;
/// Empty writes in all. The last is sent twenty seconds after the beginning, or a little later.
const MOST: u32 = 10;

/// A connection whose peer has not said anything yet.
#[derive(Debug)]
pub struct Opening {
    /// We were asked, and the peer speaks first.
    listens: bool,
    /// When the next empty write is due.
    next: u64,
    sent: u32,
}

impl Opening {
    /// One that begins now; `asked` at the accepting end, `ours` where the peer does as we do.
    #[must_use]
    pub const fn new(asked: bool, ours: bool, now: u64) -> Self {
        let patience = match (asked, ours) {
            (false, _) => PATIENCE_NS,
            (true, false) => STRANGER_NS,
            (true, true) => OURS_NS,
        };
        Self { listens: asked, next: now.saturating_add(patience), sent: 0 }
    }

    /// Whether anything may be sent.
    #[must_use]
    pub const fn may_speak(&self) -> bool {
        !self.listens
    }

    /// When to ask [`Self::knock`] again; `None` when it would always say no.
    #[must_use]
    pub const fn next(&self) -> Option<u64> {
        if self.sent < MOST { Some(self.next) } else { None }
    }

    /// Whether an empty write is due. From the first on, everything may be sent.
    pub fn knock(&mut self, now: u64) -> bool {
        if self.sent >= MOST || now < self.next {
            return false;
        }
        self.listens = false;
        self.sent += 1;
        self.next = now.saturating_add(PATIENCE_NS << self.sent);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_asked_is_silent_for_a_while() {
        for (ours, patience) in [(false, STRANGER_NS), (true, OURS_NS)] {
            let mut o = Opening::new(true, ours, 5);
            assert!(!o.may_speak());
            assert!(!o.knock(5 + patience - 1));
            assert!(!o.may_speak());
            assert!(o.knock(5 + patience));
            assert!(o.may_speak());
        }
        assert!(Opening::new(false, true, 5).may_speak());
    }

    #[test]
    fn the_waits_grow_and_end() {
        let mut o = Opening::new(false, true, 0);
        let mut times = Vec::new();
        while let Some(next) = o.next() {
            assert!(!o.knock(next - 1));
            assert!(o.knock(next));
            times.push(next / PATIENCE_NS);
        }
        assert_eq!(times, [1, 3, 7, 15, 31, 63, 127, 255, 511, 1023]);
        assert!(!o.knock(u64::MAX));
    }
}
