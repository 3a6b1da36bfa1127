//! What is known, beside its [`Reason`], of why a connection is on TCP. That is which option it
//! was, or which system call a filter forbids, and whether the other end went back first. That end
//! leaves word in the channel, so that both name the same cause.
//!
//! Must not know how a connection goes back. Entry points: [`of_option`], [`of_filter`], [`count`],
//! [`at_the_end`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;

use super::machine::{Phase, ReceiveMode, SendMode};
use super::slot::{Slot, flag};
use crate::host::{option_table, trial};
use crate::reason::Reason;
use crate::stats;
use rsocket_stats::layout::Condition;

/// Bits of [`Slot::cause`]: the option's [`option_table::number`], or for [`Reason::Sandboxed`]
/// what is in the way by [`trial::obstacle`], plus one; 0 for none.
pub(crate) const DETAIL: u32 = 0xff;
/// The other end was first.
pub(crate) const BY_PEER: u32 = 1 << 8;
/// Looks of an end that accepted, which may come before the other one offers.
pub const LOOKS_BEFORE_SHOWN: u32 = 4;
/// The end of a connection that never attached was counted.
const ENDED: u32 = 1 << 9;

// Relaxed throughout: words for people, that order nothing. The word in the channel is stored
// before the mark by which the other end learns of the fallback. The release and acquire of that
// mark (`handover_state`) bring the word along.

/// The option that is about to bring the connection back, or to keep it on TCP. The first one is
/// remembered.
pub fn of_option(s: &Slot, level: i32, name: i32) {
    let word = u32::from(option_table::number(level, name)) + 1;
    let none_yet = |cause: u32| (cause & DETAIL == 0).then_some(cause | word);
    let _ = s.cause.fetch_update(Ordering::Relaxed, Ordering::Relaxed, none_yet);
}

/// What keeps the process's filter from being one under which connections leave TCP.
pub(crate) fn of_filter(s: &Slot, obstacle: u8) {
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
pub(crate) fn detail(s: &Slot, reason: Reason) -> u32 {
    match reason {
        Reason::OddOption | Reason::Sandboxed => s.cause.load(Ordering::Relaxed) & DETAIL,
        _ => 0,
    }
}

/// What people are shown: the reason, and whether the other end went back first.
#[must_use]
pub fn shown(s: &Slot) -> (Reason, bool) {
    let by_peer = s.cause.load(Ordering::Relaxed) & BY_PEER != 0;
    (noted(s), by_peer)
}

/// What became of the connection, for people.
#[must_use]
pub fn condition(s: &Slot) -> Condition {
    if s.has(flag::BROKEN | flag::LOST) {
        Condition::Broken
    } else {
        of_modes(s.receive_mode(), s.send_mode(), s.phase())
    }
}

fn of_modes(receives: ReceiveMode, sends: SendMode, phase: Phase) -> Condition {
    if receives == ReceiveMode::Returned || sends == SendMode::Returned {
        Condition::Returned
    } else if receives == ReceiveMode::Device || sends == SendMode::Device {
        Condition::Attached
    } else if matches!(phase, Phase::Refused | Phase::Young | Phase::Offered) {
        Condition::Tcp
    } else {
        Condition::Switching
    }
}

/// The name of the option, or of the system call, that the reason is about.
#[must_use]
pub fn detail_name(s: &Slot) -> Option<&'static str> {
    let reason = noted(s);
    let number = detail(s, reason).checked_sub(1)? as u8;
    Some(match reason {
        Reason::Sandboxed => trial::name(number),
        _ => option_table::name(number),
    })
}

/// Whether the other end has been looked for in vain for some time.
#[must_use]
pub fn is_in_vain(s: &Slot) -> bool {
    let for_long = s.has(flag::CONNECTING) || s.tries.load(Ordering::Relaxed) >= LOOKS_BEFORE_SHOWN;
    let nobody = matches!(noted(s), Reason::NoOffer | Reason::OfferLapsed | Reason::NobodyMet);
    let on_tcp = !s.has(flag::STRICT) && matches!(s.phase(), Phase::Young | Phase::Offered);
    for_long && nobody && on_tcp
}

/// The reason, or [`Reason::TooYoung`] where there is none yet.
fn noted(s: &Slot) -> Reason {
    Reason::from_u8(s.reason.load(Ordering::Relaxed) as u8).unwrap_or(Reason::TooYoung)
}

/// A connection ends: what it was that kept it on TCP until then is counted, once, if nothing was
/// yet.
pub fn at_the_end(s: &Slot, overdue: bool) {
    let noted =
        Reason::from_u8(s.reason.load(Ordering::Relaxed) as u8).filter(|r| *r != Reason::TooYoung);
    let reason = match s.phase() {
        Phase::Young | Phase::Offered | Phase::Greeted | Phase::HelloSent
            if noted.is_some() && !overdue =>
        {
            noted
        }
        // Where there is no TCP to stay on, it has not been on it.
        _ if noted.is_some() || s.has(flag::STRICT | flag::RSOCKET | flag::DATAGRAM) => None,
        Phase::Young if s.tries.load(Ordering::Relaxed) > 0 && !s.has(flag::CONNECTING) => {
            Some(Reason::NoOffer)
        }
        Phase::Young => Some(Reason::TooYoung),
        Phase::Offered => Some(Reason::OfferLapsed),
        Phase::Greeted | Phase::HelloSent => Some(Reason::ShutDownEarly),
        Phase::Paired if never_left(s) => Some(Reason::ShutDownEarly),
        _ => None,
    };
    if let Some(reason) = reason
        && s.cause.fetch_or(ENDED, Ordering::Relaxed) & ENDED == 0
    {
        count(s, reason);
    }
}

/// Whether a connection that has a channel has not used it in either direction.
fn never_left(s: &Slot) -> bool {
    let receives = matches!(
        s.receive_mode(),
        ReceiveMode::Kernel | ReceiveMode::Asked | ReceiveMode::Acknowledged
    );
    receives && matches!(s.send_mode(), SendMode::Kernel | SendMode::Asked) && !s.has_bridge()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_of_it() {
        use {Condition as C, ReceiveMode as R, SendMode as S};
        assert_eq!(of_modes(R::Kernel, S::Kernel, Phase::Refused), C::Tcp);
        assert_eq!(of_modes(R::Kernel, S::Kernel, Phase::Offered), C::Tcp);
        assert_eq!(of_modes(R::Kernel, S::Kernel, Phase::HelloSent), C::Switching);
        assert_eq!(of_modes(R::Asked, S::Kernel, Phase::Paired), C::Switching);
        assert_eq!(of_modes(R::Device, S::Kernel, Phase::Paired), C::Attached);
        assert_eq!(of_modes(R::Kernel, S::Device, Phase::Paired), C::Attached);
        assert_eq!(of_modes(R::Returned, S::Device, Phase::Refused), C::Returned);
    }
}
