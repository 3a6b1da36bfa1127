//! What could be received now, without receiving it.
//!
//! Nothing here changes any state. Entry point: [`unread`].

use std::os::fd::RawFd;

use super::switch_offset::all_here;
use crate::channel::guard::RecvGuard;
use crate::channel::link;
use crate::channel::unread::in_channel;
use crate::conn::machine::ReceiveMode;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::host::counters;
use crate::{bridge, channel::handover_state, pairing};

/// Bytes that could be received now: TCP's before the switch offset, plus the channel's.
#[must_use]
pub fn unread(id: SlotId, s: &Slot, fd: RawFd) -> Option<usize> {
    pairing::advance(id, s, fd);
    let mode = s.receive_mode();
    if mode.is_kernel() {
        return None;
    }
    let in_tcp = || counters::in_queue(fd).ok().map(|n| n as usize);
    let Some(ends) = link::ends(s) else {
        return if mode == ReceiveMode::Device { None } else { in_tcp() };
    };
    // Before the switch the channel's bytes follow as soon as all of TCP's are here.
    let here = |n| all_here(fd, n);
    let follows = match mode {
        ReceiveMode::Device => true,
        ReceiveMode::Acknowledged => {
            handover_state::switch_offset(&ends.incoming).is_some_and(here)
        }
        _ => false,
    };
    if !follows {
        return in_tcp();
    }
    if s.has(flag::BRIDGED) {
        // A program may do nothing else than to ask this, until there is as much as it wants.
        bridge::look(s);
    }
    let Some(guard) = RecvGuard::take(s, &ends) else { return Some(0) };
    let total = in_channel(guard.view(), &ends);
    drop(guard);
    // A sender that has gone back to TCP: what follows the channel's bytes is in the kernel
    // already. Otherwise the kernel, which some programs would have us ask after each receive, has
    // none.
    let kernels = mode != ReceiveMode::Device || handover_state::end(&ends.incoming).is_some();
    Some(total + if kernels { in_tcp()? } else { 0 })
}
