//! How soon a waiter must look again because no wake will come; and where TCP is excluded, the
//! pairings that it goes on with meanwhile.
//!
//! Must not know how it waits. Entry points: [`recheck_after`], [`attaching`].

use core::time::Duration;

use super::rest;
use crate::attach::retry;
use crate::config::policy;
use crate::conn::fork_group;
use crate::conn::machine::Phase;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::{fork_safe, pairing};

/// Where TCP is excluded, pairing is all that a process can wait for, and it takes both ends. So
/// any wait, on whatever descriptors, goes on with all pairings of the process. How soon it must
/// come back, if at all.
pub fn attaching() -> Option<Duration> {
    attaching_beside(None)
}

/// How soon a thread that polls a pairing's own socket looks again: what that does not say is
/// seldom.
const WATCHED: Duration = Duration::from_millis(5);

/// The same for a thread that polls [`pairing::awaited`] of this connection.
pub(super) fn attaching_beside(watched: Option<SlotId>) -> Option<Duration> {
    if !policy::strict() {
        return None;
    }
    let mut soonest: Option<Duration> = None;
    fork_group::each_local(|id, s| {
        if recheck_after(id, s).is_some() {
            pairing::advance_unasked(id, s);
            let is_watched = watched == Some(id) && pairing::awaited(s) >= 0;
            let least = if is_watched { WATCHED } else { Duration::ZERO };
            if let Some(d) = recheck_after(id, s).map(|d| d.max(least)) {
                soonest = Some(soonest.map_or(d, |x| x.min(d)));
            }
        }
    });
    soonest
}

/// A step that is due is taken by a thread that is taking one now.
const SOONEST_NS: u64 = 20_000;

/// How soon a waiter must look again because no wake will come. That is so while a strict
/// connection attaches, and where two carriers have what is waited for.
#[must_use]
pub fn recheck_after(_id: SlotId, s: &Slot) -> Option<Duration> {
    if s.has(flag::UNDECIDED) {
        return fork_safe::recheck_after(s);
    }
    if !s.has(flag::STRICT) {
        return rest::recheck_after(s);
    }
    match s.phase() {
        Phase::Young | Phase::Offered | Phase::Greeted | Phase::HelloSent => {
            Some(Duration::from_nanos(retry::due_in(s).max(SOONEST_NS)))
        }
        // From here on the peer wakes.
        _ => rest::recheck_after(s),
    }
}
