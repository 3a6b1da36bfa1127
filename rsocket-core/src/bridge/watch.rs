//! When a silent peer is asked whether it is there, and when it is given up: the keep-alive of TCP,
//! for a device.
//!
//! A machine without I/O: it is shown what has happened since the last look, and says what to do.
//! Must not know how a peer is asked. Entry points: [`Watch::look`], [`Watch::next`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use crate::conn::timers::Rules;

/// Silence before a peer is asked where the program did not say, in nanoseconds.
pub const USUAL_IDLE_NS: u64 = 10_000_000_000;

/// What is seen of a connection at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Changes with every sign of life of the peer.
    pub signs: u64,
    /// When the last one was, where that is known better than by the change of `signs`.
    pub heard_at: Option<u64>,
    /// Something is on its way, or waits to be sent.
    pub waiting: bool,
    /// Changes when less is on its way than before.
    pub progress: u64,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing now.
    Nothing,
    /// Ask the peer.
    Ask,
    /// It is gone.
    GiveUp,
}

/// What is remembered from look to look. Times are nanoseconds of one clock.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    signs: u64,
    progress: u64,
    looked_at: u64,
    /// Not later than the last sign of life.
    heard_at: u64,
    /// The first and the last question that no answer has followed.
    asked: Option<(u64, u64)>,
    /// Since when nothing has got on that should.
    stuck_since: Option<u64>,
}

impl Watch {
    /// Of a connection that stands since `now`.
    #[must_use]
    pub const fn new(now: u64) -> Self {
        Self {
            signs: 0,
            progress: 0,
            looked_at: now,
            heard_at: now,
            asked: None,
            stuck_since: None,
        }
    }

    /// Looks; to be called at [`Self::next`], or earlier.
    pub fn look(&mut self, now: u64, seen: &Seen, rules: &Rules) -> Step {
        let before = core::mem::replace(&mut self.looked_at, now);
        let mut heard = seen.heard_at.map_or(self.heard_at, |at| at.max(self.heard_at));
        if core::mem::replace(&mut self.signs, seen.signs) != seen.signs {
            // Some time since the last look: too early is one question too many, too late would be
            // too late.
            heard = heard.max(before);
        }
        if heard > self.heard_at {
            self.heard_at = heard;
            self.asked = self.asked.filter(|(first, _)| *first > heard);
        }
        let stuck =
            seen.waiting && core::mem::replace(&mut self.progress, seen.progress) == seen.progress;
        self.stuck_since = if stuck { self.stuck_since.or(Some(before)) } else { None };
        if let (Some(limit), Some(since)) = (rules.user_timeout, self.stuck_since)
            && now >= since.saturating_add(limit)
        {
            return Step::GiveUp;
        }
        if self.given_up_at(rules).is_some_and(|at| now >= at) {
            return Step::GiveUp;
        }
        if now >= self.ask_at(rules) {
            self.asked = Some((self.asked.map_or(now, |(first, _)| first), now));
            return Step::Ask;
        }
        Step::Nothing
    }

    /// Whether it has been asked and has not answered.
    #[must_use]
    pub const fn asked(&self) -> bool {
        self.asked.is_some()
    }

    /// When it is to be looked next.
    #[must_use]
    pub fn next(&self, rules: &Rules) -> u64 {
        let mut at = self.ask_at(rules);
        if let Some(limit) = rules.user_timeout {
            // Half of it, since it is not known when something begins to wait.
            at = at.min(match self.stuck_since {
                Some(since) => since.saturating_add(limit),
                None => self.looked_at.saturating_add((limit / 2).max(1_000_000)),
            });
        }
        at.min(self.given_up_at(rules).unwrap_or(u64::MAX))
    }

    fn ask_at(&self, rules: &Rules) -> u64 {
        let keep = rules.keep_alive;
        let idle = keep.map_or(USUAL_IDLE_NS, |k| k.idle.min(USUAL_IDLE_NS));
        match (self.asked, keep) {
            (None, _) => self.heard_at.saturating_add(idle),
            (Some((_, last)), Some(keep)) => last.saturating_add(keep.interval),
            (Some((_, last)), None) => last.saturating_add(USUAL_IDLE_NS),
        }
    }

    /// When a peer that has been asked is given up. As with TCP, the user's time-out counts where
    /// there is one.
    fn given_up_at(&self, rules: &Rules) -> Option<u64> {
        let (keep, (first, last)) = (rules.keep_alive?, self.asked?);
        Some(match rules.user_timeout {
            Some(limit) => self.heard_at.saturating_add(limit).max(last),
            // Asked earlier than the program wants, the peer has the time until then.
            None => {
                let due = self.heard_at.saturating_add(keep.idle).max(first);
                due.saturating_add(keep.interval.saturating_mul(keep.count.into()))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::timers::KeepAlive;

    const S: u64 = 1_000_000_000;
    const KEEP: Rules = Rules {
        keep_alive: Some(KeepAlive { idle: 4 * S, interval: 2 * S, count: 3 }),
        user_timeout: None,
    };

    /// Runs by the clock that the machine asks for; when it was asked, and when given up.
    fn run(rules: Rules, until: u64, seen: impl Fn(u64) -> Seen) -> (Vec<u64>, Option<u64>) {
        let (mut watch, mut asked) = (Watch::new(0), Vec::new());
        let mut looks = 0;
        loop {
            let now = watch.next(&rules);
            looks += 1;
            assert!(looks < 10_000, "it does not come to rest");
            if now > until {
                return (asked, None);
            }
            match watch.look(now, &seen(now), &rules) {
                Step::Nothing => {}
                Step::Ask => asked.push(now / S),
                Step::GiveUp => return (asked, Some(now)),
            }
        }
    }

    #[test]
    fn silence_is_asked_about_and_given_up_in_the_time_configured() {
        assert_eq!(run(KEEP, 100 * S, |_| Seen::default()), (vec![4, 6, 8], Some(10 * S)));
    }

    #[test]
    fn a_peer_that_answers_is_never_given_up() {
        let answers = |now: u64| Seen { signs: now / S, ..Seen::default() };
        let (asked, gone) = run(KEEP, 1000 * S, answers);
        assert_eq!(gone, None);
        // Once, before anything was known of it: who speaks every second needs no question.
        assert_eq!(asked, [4]);
        // Also where the time of the last sign is known.
        let told = |now: u64| Seen { heard_at: Some(now - now % S), ..Seen::default() };
        assert_eq!(run(KEEP, 1000 * S, told).1, None);
    }

    #[test]
    fn it_is_given_up_in_time_after_its_last_sign() {
        for last in [1, 3, 5, 17] {
            let signs = |now: u64| Seen { signs: now.min(last * S) / (S / 10), ..Seen::default() };
            let (_, gone) = run(KEEP, 100 * S, signs);
            let gone = gone.unwrap();
            assert!(gone > last * S && gone <= last * S + 10 * S, "{last}: {gone}");
        }
    }

    #[test]
    fn without_keep_alive_a_peer_is_asked_but_never_given_up() {
        let (asked, gone) = run(Rules::default(), 100 * S, |_| Seen::default());
        assert_eq!((asked, gone), ((1..=10).map(|n| n * 10).collect(), None));
        // A long idle time does not put the usual question off.
        let long = KeepAlive { idle: 7200 * S, interval: 75 * S, count: 9 };
        let (asked, gone) =
            run(Rules { keep_alive: Some(long), user_timeout: None }, 20_000 * S, |_| {
                Seen::default()
            });
        assert_eq!((asked[0], gone), (10, Some((7200 + 9 * 75) * S)));
    }

    #[test]
    fn what_is_on_its_way_may_take_the_users_time() {
        let rules = Rules { keep_alive: None, user_timeout: Some(3 * S) };
        let stuck = |_| Seen { waiting: true, ..Seen::default() };
        let (_, gone) = run(rules, 100 * S, stuck);
        assert!(gone.is_some_and(|at| (3 * S..=5 * S).contains(&at)), "{gone:?}");
        let moving = |now: u64| Seen { waiting: true, progress: now, ..Seen::default() };
        assert_eq!(run(rules, 100 * S, moving).1, None);
        assert_eq!(run(rules, 100 * S, |_| Seen::default()).1, None, "nothing waits");
    }

    #[test]
    fn what_a_closed_program_has_left_may_wait_for_two_minutes() {
        // It answers every question, and reads nothing.
        let unread = |now: u64| Seen { signs: now / S, waiting: true, ..Seen::default() };
        let long = KeepAlive { idle: 7200 * S, interval: 75 * S, count: 9 };
        let short = Rules { user_timeout: Some(3 * S), ..KEEP };
        for rules in [Rules::default(), KEEP, Rules { keep_alive: Some(long), user_timeout: None }]
        {
            assert_eq!(run(rules, 1000 * S, unread).1, None, "while the program is there");
            let orphaned = rules.orphaned();
            assert_eq!(orphaned.orphaned(), orphaned);
            let (_, gone) = run(orphaned, 1000 * S, unread);
            assert!(gone.is_some_and(|at| (120 * S..=135 * S).contains(&at)), "{gone:?}");
            let slow = |now: u64| Seen { progress: now / (100 * S), ..unread(now) };
            assert_eq!(run(orphaned, 1000 * S, slow).1, None, "a peer that reads now and then");
        }
        assert_eq!(short.orphaned(), short);
    }

    #[test]
    fn the_users_time_overrides_the_count() {
        let rules = Rules { user_timeout: Some(7 * S), ..KEEP };
        assert_eq!(run(rules, 100 * S, |_| Seen::default()).1, Some(7 * S));
    }
}
