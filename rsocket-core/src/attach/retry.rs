//! When a connection that has not attached yet tries again, and whether what is in the way may pass.
//!
//! Must not know what a step does ([`super::pairing`]). Entry points: [`later`], [`put_off`], [`may_pass`].
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use super::machine::Phase;
use super::reason::Reason;
use crate::socket::policy;
use crate::socket::slot::Slot;

/// Where there is no TCP to stay on: whether what is in the way may pass, so that it is waited for as long as a peer is.
pub(super) fn may_pass(s: &Slot, reason: Reason) -> bool {
    match reason {
        // Whoever held the other end of the channel has ended, or given it up to a relative. (Had the peer closed, TCP
        // would say so.)
        Reason::OfferLapsed => true,
        // The welcome has been taken: nobody would answer another knock.
        _ if s.phase() == Phase::Knocked => false,
        // Of descriptors, memory, places in tables: others give some back.
        Reason::ResourceError | Reason::MemoryLimit | Reason::NameTaken => true,
        _ => false,
    }
}

/// Sets when the next step is due: soon at first, then at growing distances.
pub(super) fn later(s: &Slot) -> u32 {
    let tries = s.tries.fetch_add(1, Ordering::Relaxed);
    let now = s.position.load(Ordering::Relaxed);
    let distance = match s.phase() {
        // Whoever accepted looks again at positions that double.
        Phase::Young => now.max(policy::step_distance()),
        _ if tries < 16 => 0,
        _ => now / 4,
    };
    s.next_step.store(now + distance, Ordering::Relaxed);
    tries
}

/// Whoever would ask now looks again when the connection is twice as old; it has not tried.
pub(super) fn put_off(s: &Slot) {
    let now = s.position.load(Ordering::Relaxed);
    s.next_step.store(now.saturating_add(now.max(policy::step_distance())), Ordering::Relaxed);
}
