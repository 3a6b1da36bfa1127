//! What is known of why a connection is on TCP beside its [`Reason`]: which option it was, or which
//! system call a filter forbids, and whether the other end went back first. That end leaves word in
//! the window, so that both name the same cause.
//!
//! Must not know how a connection goes back. Entry points: [`of_option`], [`of_filter`], [`count`],
//! [`say`], [`heard`], [`at_the_end`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;

use super::link::Ends;
use super::machine::{Phase, ReceiveMode, SendMode};
use crate::host::option_table;
use crate::host::trial;
use crate::reason::Reason;
use crate::socket::slot::{Slot, flag};
use crate::stats;

/// Bits of [`Slot::cause`]: the option's [`option_table::number`], or for [`Reason::Sandboxed`]
/// what is in the way by [`trial::obstacle`], plus one; 0 for none.
const DETAIL: u32 = 0xff;
/// The other end was first.
const BY_PEER: u32 = 1 << 8;
/// The end of a connection that never attached was counted.
const ENDED: u32 = 1 << 9;

// Relaxed throughout: words for people, that order nothing. The word in the window is stored before
// the mark by which the other end learns of the way back, whose release and acquire (`marks`) bring
// it along.

/// The option that is about to bring the connection back, or to keep it on TCP. The first one is
/// remembered.
pub fn of_option(s: &Slot, level: i32, name: i32) {
    let word = u32::from(option_table::number(level, name)) + 1;
    let none_yet = |cause: u32| (cause & DETAIL == 0).then_some(cause | word);
    let _ = s.cause.fetch_update(Ordering::Relaxed, Ordering::Relaxed, none_yet);
}

/// What keeps the process's filter from being one under which connections leave TCP.
pub(super) fn of_filter(s: &Slot, obstacle: u8) {
    let word = u32::from(obstacle) + 1;
    let with_word = |cause: u32| Some(cause & !DETAIL | word);
    let _ = s.cause.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with_word);
}

/// A connection from a listener whose options it has.
pub fn inherit(s: &Slot, listener: &Slot) {
    s.cause.fetch_or(listener.cause.load(Ordering::Relaxed) & DETAIL, Ordering::Relaxed);
}

/// Counts a connection that is, or is again, on TCP for this reason.
pub fn count(s: &Slot, reason: Reason) {
    stats::fell_back(reason);
    let Some(detail) = detail(s, reason).checked_sub(1) else { return };
    match reason {
        Reason::OddOption => stats::odd_option(detail as u8),
        _ => stats::forbidden(detail as u8),
    }
}

/// The bits that belong to the reason.
fn detail(s: &Slot, reason: Reason) -> u32 {
    match reason {
        Reason::OddOption | Reason::Sandboxed => s.cause.load(Ordering::Relaxed) & DETAIL,
        _ => 0,
    }
}

/// What a record shows in 16 bits: the reason, above it [`SHOWN_BY_PEER`], above that the option.
#[must_use]
pub fn shown(s: &Slot) -> u16 {
    let cause = s.cause.load(Ordering::Relaxed);
    let reason = s.reason.load(Ordering::Relaxed) as u16 & 0x7f;
    let by_peer = if cause & BY_PEER != 0 { SHOWN_BY_PEER } else { 0 };
    let detail = Reason::from_u8(reason as u8).map_or(0, |r| detail(s, r) as u16);
    reason | by_peer | detail << 8
}

/// In [`shown`]: the other end went back first.
pub const SHOWN_BY_PEER: u16 = 1 << 7;

/// A [`shown`] word in words; `None` where there is no reason yet.
#[must_use]
pub fn text(shown: u16) -> Option<(&'static str, Option<&'static str>, bool)> {
    let reason = Reason::from_u8((shown & 0x7f) as u8).filter(|r| *r != Reason::TooYoung)?;
    let detail = (shown >> 8).checked_sub(1).map(|number| match reason {
        Reason::Sandboxed => trial::name(number as u8),
        _ => option_table::name(number as u8),
    });
    Some((reason.name(), detail, shown & SHOWN_BY_PEER != 0))
}

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

/// A connection ends: what it was that kept it on TCP until then is counted, once, if nothing was
/// yet.
pub fn at_the_end(s: &Slot, overdue: bool) {
    let noted =
        Reason::from_u8(s.reason.load(Ordering::Relaxed) as u8).filter(|r| *r != Reason::TooYoung);
    let reason = match s.phase() {
        Phase::Young | Phase::Offered | Phase::Greeted | Phase::Knocked
            if noted.is_some() && !overdue =>
        {
            noted
        }
        // Where there is no TCP to stay on, it has not been on it.
        _ if noted.is_some()
            || s.has(flag::STRICT | flag::RSOCKET | flag::UNTRACKED | flag::DATAGRAM) =>
        {
            None
        }
        Phase::Young if s.tries.load(Ordering::Relaxed) > 0 && !s.has(flag::CONNECTING) => {
            Some(Reason::NoOffer)
        }
        Phase::Young => Some(Reason::TooYoung),
        Phase::Offered => Some(Reason::OfferLapsed),
        Phase::Greeted | Phase::Knocked => Some(Reason::ShutDownEarly),
        Phase::Paired if never_left(s) => Some(Reason::ShutDownEarly),
        _ => None,
    };
    if let Some(reason) = reason
        && s.cause.fetch_or(ENDED, Ordering::Relaxed) & ENDED == 0
    {
        count(s, reason);
    }
}

/// Whether a connection that has a window has not used it in either direction.
fn never_left(s: &Slot) -> bool {
    let receives = matches!(
        s.receive_mode(),
        ReceiveMode::Kernel | ReceiveMode::Asked | ReceiveMode::Acknowledged
    );
    receives && matches!(s.send_mode(), SendMode::Kernel | SendMode::Asked) && !s.has(flag::RELAYED)
}
