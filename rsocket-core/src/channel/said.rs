//! Why a direction went back to TCP, in the words of the channel: so that both ends name the same
//! cause.
//!
//! Must not know how a connection goes back. Entry points: [`say`], [`heard`].

use core::sync::atomic::Ordering;

use super::link::Ends;
use crate::conn::cause::{BY_PEER, DETAIL, count, detail};
use crate::conn::slot::Slot;
use crate::reason::Reason;

/// Before this side goes back for this reason: the other one is to know it.
pub fn say(s: &Slot, ends: &Ends, reason: Reason) {
    let why = reason as u32 | detail(s, reason) << 8;
    ends.outgoing.sender().why.store(why, Ordering::Relaxed);
}

/// The other end has gone back, and this one follows: it notes why, unless it has a reason of its
/// own.
#[cold]
pub fn heard(s: &Slot, ends: &Ends) {
    let said = ends.incoming.sender().why.load(Ordering::Relaxed);
    let reason = Reason::from_u8(said as u8)
        .filter(|r| *r != Reason::TooYoung)
        .unwrap_or(Reason::PeerReturned);
    let first = s.reason.compare_exchange(0, reason as u32, Ordering::Relaxed, Ordering::Relaxed);
    if first.is_ok() {
        s.cause.store(said >> 8 & DETAIL | BY_PEER, Ordering::Relaxed);
        count(s, reason);
        crate::log_info!("back to TCP, as the other end: {}", reason.text());
    }
}

/// A direction stays on TCP that was about to leave it.
pub fn stays(s: &Slot, ends: &Ends, reason: Reason) {
    say(s, ends, reason);
    let first = s.reason.compare_exchange(0, reason as u32, Ordering::Relaxed, Ordering::Relaxed);
    if first.is_ok() {
        count(s, reason);
    }
}
