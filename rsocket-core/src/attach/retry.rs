//! When a connection that has not attached yet tries again, and whether what is in the way may
//! pass.
//!
//! Where there is TCP to stay on, distances are counted in bytes, and the code that takes the step
//! counts the tries. Where there is none, the calls of a waiting program say nothing about how soon
//! a try may pay, so that distances are times. Must not know what a step does ([`crate::pairing`]).
//! Entry points: [`is_due`], [`later`], [`put_off`], [`set_back`].
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::config::policy;
use crate::conn::machine::Phase;
use crate::conn::slot::{Slot, flag};
use crate::reason::Reason;
use crate::sys;

/// Times that what is in the way is waited for where there is TCP to stay on, and the first and the
/// longest of these waits, in nanoseconds. Each wait is twice as long as the one before. All of
/// them together are longer than a connection's patience
/// ([`policy::STRICT_PATIENCE_NS`](crate::config::policy::STRICT_PATIENCE_NS)).
const SET_BACKS: u32 = 24;
const FIRST_WAIT_NS: u64 = 500_000;
const LONGEST_WAIT_NS: u64 = 512_000_000;

/// Tries after which a peer that has not come is looked for seldom.
const SELDOM_AFTER: u32 = 400;

/// Of [`soon`]: the shortest distance, which is that of a call.
const SOON: u64 = 1024;

/// Whether the next step may be taken now.
#[inline]
pub(crate) fn is_due(s: &Slot) -> bool {
    // Relaxed here and below: only times the attempt.
    if s.has(flag::STRICT) {
        let next = s.next_try.load(Ordering::Relaxed);
        return next == 0 || sys::now_ns() >= next;
    }
    s.position.load(Ordering::Relaxed) >= s.next_step.load(Ordering::Relaxed)
}

/// The next step is taken as soon as a thread can take it.
pub(crate) fn now(s: &Slot) {
    s.next_step.store(0, Ordering::Relaxed);
    s.next_try.store(0, Ordering::Relaxed);
}

/// How long until the next step may be taken, in nanoseconds, where there is no TCP.
#[must_use]
pub fn due_in(s: &Slot) -> u64 {
    s.next_try.load(Ordering::Relaxed).saturating_sub(sys::now_ns())
}

/// How long after so many tries in vain the next one is, in nanoseconds.
fn nap(tries: u32) -> u64 {
    let tries = u64::from(tries);
    if tries >= u64::from(SELDOM_AFTER) {
        return LONGEST_WAIT_NS;
    }
    (20_000 + tries * tries * 10_000).min(20_000_000)
}

/// Something was in the way that may pass: the next step is further away each time. False when it
/// has been so often enough. Where there is no TCP to stay on, the connection's patience says when
/// that is: what is in the way may be other connections of many.
pub(crate) fn set_back(s: &Slot) -> bool {
    let before = s.set_backs.fetch_add(1, Ordering::Relaxed);
    s.next_try.store(sys::now_ns().saturating_add(set_back_wait(before)), Ordering::Relaxed);
    before < SET_BACKS || s.has(flag::STRICT)
}

/// The wait after so many others, in nanoseconds.
fn set_back_wait(before: u32) -> u64 {
    (FIRST_WAIT_NS << before.min(SET_BACKS)).min(LONGEST_WAIT_NS)
}

/// Whether the peer's socket is to be looked for anew. An answer of the kernel's is good for as
/// many tries as it took to get to it. That is enough, since TCP itself says when that socket has
/// gone.
pub(crate) fn looks_anew(s: &Slot) -> bool {
    let noted = Reason::from_u8(s.reason.load(Ordering::Relaxed) as u8);
    let found = matches!(noted, Some(Reason::NoOffer | Reason::TooManyOffers));
    !(found && s.has(flag::STRICT)) || s.tries.load(Ordering::Relaxed).is_power_of_two()
}

/// Where there is no TCP to stay on: whether what is in the way may pass. Then it is waited for as
/// long as a peer is.
pub(crate) fn may_pass(s: &Slot, reason: Reason) -> bool {
    match reason {
        // The process that held the other end of the channel has ended, or given it up to a
        // sibling. (Had the peer closed, TCP would say so.)
        Reason::OfferLapsed => true,
        // The hello-ack has been taken: no process would answer another hello.
        _ if s.phase() == Phase::HelloSent => false,
        // Of descriptors, memory, places in tables: others give some back.
        Reason::ResourceError | Reason::MemoryLimit | Reason::NameTaken => true,
        _ => false,
    }
}

/// Sets when the next step is due: soon at first, then at growing distances. The tries before.
pub(crate) fn later(s: &Slot) -> u32 {
    let tries = s.tries.fetch_add(1, Ordering::Relaxed);
    if s.has(flag::STRICT) {
        s.next_try.store(sys::now_ns().saturating_add(nap(tries)), Ordering::Relaxed);
        return tries;
    }
    let now = s.position.load(Ordering::Relaxed);
    let distance = match s.phase() {
        // The accepting side looks again at positions that double.
        Phase::Young => now.max(policy::step_distance()),
        _ if tries < 16 => 0,
        _ => now / 4,
    };
    s.next_step.store(now + distance, Ordering::Relaxed);
    tries
}

/// As [`later`], for a caller whose look is cheap, and whose other end may come at any moment.
pub(crate) fn soon(s: &Slot) -> u32 {
    let tries = later(s);
    if !s.has(flag::STRICT) {
        let now = s.position.load(Ordering::Relaxed);
        s.next_step.store(now.saturating_add((now / 4).max(SOON)), Ordering::Relaxed);
    }
    tries
}

/// The caller, which would ask now, looks again when the connection is twice as old; it has not
/// tried.
pub(crate) fn put_off(s: &Slot) {
    if s.has(flag::STRICT) {
        s.next_try.store(sys::now_ns().saturating_add(nap(SELDOM_AFTER - 1)), Ordering::Relaxed);
        return;
    }
    let now = s.position.load(Ordering::Relaxed);
    s.next_step.store(now.saturating_add(now.max(policy::step_distance())), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patience_has_few_tries() {
        let all: u64 = (0..SET_BACKS).map(set_back_wait).sum();
        assert!((SET_BACKS..100).all(|n| set_back_wait(n) == LONGEST_WAIT_NS));
        assert!(all > policy::STRICT_PATIENCE_NS && all < 2 * policy::STRICT_PATIENCE_NS);
        let (mut at, mut tries) = (0, 0);
        while at < policy::STRICT_PATIENCE_NS {
            at += nap(tries);
            tries += 1;
        }
        assert!(tries < SELDOM_AFTER && tries > 100, "{tries}");
        assert!((0..tries).filter(|n| n.is_power_of_two()).count() < 10);
    }

    #[test]
    fn a_peer_that_is_there_soon_is_met_soon() {
        assert!((0..10).map(nap).sum::<u64>() < 5_000_000);
    }
}
