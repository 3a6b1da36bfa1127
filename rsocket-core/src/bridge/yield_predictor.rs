//! Whether a call that waits for an answer need look for it before it has given the only CPU away.
//!
//! Who answers needs the CPU for it, so that a look at the device before that is mostly in vain.
//! Mostly: some answers were there before the question, and some are made by the device. So this is
//! learnt, and tried again now and then. All of it is a hint; must not know what is sent. Entry
//! points: [`YieldPredictor::too_soon`] before the look, [`YieldPredictor::looked`] after it.
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Answers that are not looked for at once after one that was looked for in vain.
const PASSED: u32 = 16;

/// What the looks of one connection have shown.
#[derive(Default)]
pub struct YieldPredictor {
    /// Nonzero since something was sent, until something was received.
    asked: AtomicU32,
    /// How many answers more are not looked for at once.
    passed: AtomicU32,
}

// Relaxed, all of them: numbers of their own, which threads may mix up.
impl YieldPredictor {
    /// Nothing known yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { asked: AtomicU32::new(0), passed: AtomicU32::new(0) }
    }

    /// Forgets everything: another connection's.
    pub fn forget(&self) {
        self.asked.store(0, Relaxed);
        self.passed.store(0, Relaxed);
    }

    /// Something was sent.
    #[inline]
    pub fn sent(&self) {
        self.asked.store(1, Relaxed);
    }

    /// Something was received.
    #[inline]
    pub fn received(&self) {
        self.asked.store(0, Relaxed);
    }

    /// Whether to leave the next look out; to be asked once before each that could be.
    #[inline]
    #[must_use]
    pub fn too_soon(&self) -> bool {
        let left = self.passed.load(Relaxed);
        if left == 0 || self.asked.load(Relaxed) == 0 {
            return false;
        }
        self.passed.store(left - 1, Relaxed);
        true
    }

    /// A look that could have been left out was taken, and has found something or not. Where
    /// nothing was asked for, finding nothing means nothing.
    pub fn looked(&self, found: bool) {
        if found {
            self.passed.store(0, Relaxed);
        } else if self.asked.load(Relaxed) != 0 {
            self.passed.store(PASSED, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call that receives, where the answer is there `at_once` or after the CPU was given away;
    /// whether it looked before.
    fn receive(predictor: &YieldPredictor, at_once: bool) -> bool {
        let looks = !predictor.too_soon();
        if looks {
            predictor.looked(at_once);
        }
        predictor.received();
        looks
    }

    #[test]
    fn answers_that_take_the_cpu_are_seldom_looked_for_at_once() {
        let predictor = YieldPredictor::new();
        let looks = |at_once| {
            predictor.sent();
            receive(&predictor, at_once)
        };
        assert!(looks(false), "nothing is known");
        assert_eq!((0..17 * 10).filter(|_| looks(false)).count(), 10);
        // The answers come at once from now on.
        let missed = (0..100).filter(|_| !looks(true)).count();
        assert!(missed <= PASSED as usize, "{missed}");
        assert!((0..100).all(|_| looks(true)));
        // And again they do not.
        assert!(looks(false) && !looks(false));
        predictor.forget();
        assert!(looks(false));
    }

    #[test]
    fn what_nobody_asked_for_is_looked_for() {
        let predictor = YieldPredictor::new();
        assert!((0..100).all(|_| receive(&predictor, false)));
        predictor.sent();
        assert!(receive(&predictor, false));
        // The rest of the answer, and what comes unasked.
        assert!((0..100).all(|_| receive(&predictor, false)));
        predictor.sent();
        assert!(!receive(&predictor, false));
    }
}
