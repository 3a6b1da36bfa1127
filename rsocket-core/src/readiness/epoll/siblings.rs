//! Sets whose sockets are a sibling's too. The sibling may take a socket out of TCP, and tells only
//! the sets of its own process ([`super::mode_changed`]). So while a set has such members that are
//! the kernel's, its waits look at them now and then. These waits sleep no longer than until the
//! next look.
//!
//! A thread that sleeps while another one forks is not told that there is a sibling: it looks
//! after its next wait began. Must not know who the siblings are. Entry points:
//! [`Registry::looks_for_taken`] before each sleep, [`Registry::related`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;
use core::time::Duration;

use super::registry::{Registry, Set};
use super::set::Entry;
use crate::readiness::source::Source;
use crate::sys;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);

impl<S: Source> Registry<S> {
    /// There may be siblings that hold members of this set, from now on. Relaxed, here and below:
    /// the thread that waits has added the member itself, or forked, or was told by the thread that
    /// did.
    pub(super) fn related(&self, set: &Set<S>) {
        set.related.store(true, Ordering::Relaxed);
        set.looked_at.store(0, Ordering::Relaxed);
    }

    /// Looks, if it is time to, whether a sibling has taken a member out of TCP, which is special
    /// then. How long a sleep may last at most; `None` where there are no siblings.
    #[inline]
    pub(super) fn looks_for_taken(&'static self, set: &'static Set<S>) -> Option<Duration> {
        if set.related.load(Ordering::Relaxed) { self.look_for_taken(set) } else { None }
    }

    #[cold]
    fn look_for_taken(&'static self, set: &'static Set<S>) -> Option<Duration> {
        let now = sys::now_ns();
        let since = Duration::from_nanos(now.saturating_sub(set.looked_at.load(Ordering::Relaxed)));
        if since < PAUSE {
            return Some(PAUSE.saturating_sub(since));
        }
        set.looked_at.store(now, Ordering::Relaxed);
        let related = self.enter(set, |state| {
            let mut related = false;
            for index in 0..state.members.len() as u32 {
                let Some(slot) =
                    state.get(index).filter(|m| m.entry == Entry::Program).map(|m| m.slot)
                else {
                    continue;
                };
                // In this order: a sibling that is seen no more has done what it did. One is
                // enough: whether a process lives is the kernel's to say, and there may be
                // thousands of members.
                related = related || self.source.may_be_taken(slot);
                if self.source.special(slot) {
                    self.mark(set, slot);
                    state.refresh(&self.source, index);
                    self.nudge(set, state, index, true);
                }
            }
            // Under the lock, as the note of a member that comes.
            set.related.store(related, Ordering::Relaxed);
            related
        });
        (related != Some(false)).then_some(PAUSE)
    }
}
