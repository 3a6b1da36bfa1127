//! `SO_RCVLOWAT` across a boundary. What is unread in the channel is too little, and what follows
//! it comes by TCP. Or what comes before it is still in TCP.
//!
//! Only the sum of both says whether the socket is readable. No wake tells when it is enough, since
//! the kernel knows of its own bytes alone. So a look adds up, and a thread that waits looks again
//! soon. Must not know who waits. Entry points: [`is_awaited`], [`is_enough`], [`recheck_after`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::os::fd::RawFd;

use super::switch_offset;
use crate::channel::link::{self, Ends};
use crate::channel::{handover_state, unread};
use crate::conn::machine::ReceiveMode;
use crate::conn::slot::{Slot, flag};
use crate::host::events::Events;
use crate::host::{counters, kernel};

/// How soon a waiter looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Whether the sender has gone back to TCP, and the program wants more at once than a byte.
fn is_divided(s: &Slot, ends: &Ends) -> bool {
    // Relaxed: a setting of the program; a call that races with it may see either.
    s.low_water.load(Ordering::Relaxed) > 1
        && !s.has(flag::BRIDGED)
        && s.receive_mode() == ReceiveMode::Device
        && handover_state::end(&ends.incoming).is_some()
}

/// Whether the sender has left TCP where the program has unread bytes, and it wants more at once
/// than a byte.
fn is_ahead(s: &Slot, ends: &Ends) -> bool {
    // Relaxed: a setting of the program; a call that races with it may see either.
    s.low_water.load(Ordering::Relaxed) > 1
        && !s.has(flag::BRIDGED)
        && s.receive_mode() == ReceiveMode::Acknowledged
        && handover_state::switch_offset(&ends.incoming).is_some()
}

/// Before the switch: whether TCP's bytes and the channel's, which follow them, are together as
/// many as the program wants at once. Without a descriptor this cannot be told, and the answer is
/// no.
pub(super) fn is_enough(s: &Slot, fd: RawFd, ends: &Ends) -> bool {
    if fd < 0 || !is_ahead(s, ends) {
        return false;
    }
    if !handover_state::switch_offset(&ends.incoming)
        .is_some_and(|n| switch_offset::all_here(fd, n))
    {
        return false;
    }
    let Some(here) = unread::in_channel_now(s, ends) else { return false };
    let in_tcp = counters::in_queue(fd).map_or(0, |n| n as usize);
    // Relaxed: as above.
    here > 0 && here.saturating_add(in_tcp) >= s.low_water.load(Ordering::Relaxed) as usize
}

/// The channel has unread bytes: whether these and TCP's are fewer than the program wants at once,
/// and more may come. Without a descriptor this cannot be told, and the answer is yes.
pub(super) fn is_awaited(s: &Slot, fd: RawFd, ends: Option<&Ends>) -> bool {
    let Some(ends) = ends.filter(|ends| is_divided(s, ends)) else { return false };
    let Some(here) = unread::in_channel_now(s, ends) else { return false };
    let wanted = s.low_water.load(Ordering::Relaxed) as usize;
    if here >= wanted {
        return false;
    }
    if fd < 0 {
        return true;
    }
    let in_tcp = counters::in_queue(fd).map_or(0, |n| n as usize);
    here.saturating_add(in_tcp) < wanted && kernel::poll_now(fd, Events::RDHUP).is_empty()
}

/// How soon a thread that waits must look again, where no wake will come.
pub(super) fn recheck_after(s: &Slot) -> Option<Duration> {
    // Relaxed: as above. First, since most connections want any byte.
    let may_be = s.low_water.load(Ordering::Relaxed) > 1;
    let divided = || link::ends(s).is_some_and(|ends| is_divided(s, &ends) || is_ahead(s, &ends));
    (may_be && divided()).then_some(LOOK_AGAIN)
}
