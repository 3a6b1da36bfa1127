//! What TCP's FIN means where a bridge stands beside it, that is, between hosts.
//!
//! FIN overtakes what the bridges carry: bytes, their end, and the word by which a sender says
//! where it has left TCP. A receiver that has acknowledged that its direction may leave TCP
//! believes FIN only when a bridge has said what it means. A switch offset means that the bytes
//! behind it come first. An end in the ring or an end mark without a switch offset means that the
//! sender has never left TCP. Or the bridge says that the connection is lost. Every sender says one
//! of these whatever its mode ([`crate::bridge::meeting::say_shutdown`],
//! [`crate::channel::switch::stay`], the farewell of its bridge). A sender that ends without a word
//! breaks the pair of the bridges. Must not know locks or sleeping. Entry points:
//! [`fin_is_the_end`], [`heard`], [`ready`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::RawFd;

use crate::channel::handover_state;
use crate::channel::link::{self, Ends};
use crate::channel::unread::end_is_next;
use crate::conn::machine::ReceiveMode;
use crate::conn::slot::{Slot, flag};
use crate::host::counters;
use crate::host::events::Events;

/// Before the switch: whether FIN, which was seen on TCP with nothing before it, is the end of the
/// stream. Between hosts it overtakes what the bridges carry. A sender that was told that it may
/// leave TCP may have done so. Its FIN means nothing until its bridge has said where the sender
/// left TCP, or that it has not. The bridge says the latter by an end in the ring without a switch
/// offset, or by an end mark without one.
pub(super) fn fin_is_the_end(s: &Slot, ends: &Ends) -> bool {
    // The mode after FIN was seen: a sender that was not told before it sent FIN has cut nothing.
    if !s.has(flag::TCP_ANCHORED)
        || s.has(flag::READ_SHUT | flag::ENDED)
        || s.receive_mode() == ReceiveMode::Asked
    {
        return true;
    }
    // The words before the switch offset: it was published before them.
    let said = end_is_next(s, ends) || handover_state::end(&ends.incoming).is_some();
    said && handover_state::switch_offset(&ends.incoming).is_none()
}

/// FIN overtakes what is still on its way by the device, the word that there is such a thing
/// included. The bridge says when that is over. Room is TCP's to tell while we send by it. `None`:
/// what the kernel said is true as it is.
pub(super) fn heard(s: &Slot, fd: RawFd, kernel: Events) -> Option<Events> {
    match s.receive_mode() {
        ReceiveMode::Device => Some(kernel & (Events::OUT | Events::ERR | Events::PRI)),
        // After a reset nothing is waited for.
        ReceiveMode::Acknowledged if !kernel.contains(Events::ERR) => {
            let ends = link::ends(s)?;
            if fin_is_the_end(s, &ends) {
                return None;
            }
            let fin = kernel.intersects(Events::RDHUP | Events::HUP);
            if fin {
                // A thread that waits for edges hears of FIN from `ready` when the bridge has said
                // that it is true.
                s.set(flag::PEER_FIN);
            }
            let rest = kernel & (Events::OUT | Events::PRI);
            // FIN was seen first: what came before it has either been read or is counted here.
            if counters::in_queue(fd).is_ok_and(|n| n > 0) {
                return Some(rest | Events::IN);
            }
            if fin {
                s.set(flag::FIN_FIRST);
                return Some(rest);
            }
            Some(rest | kernel & Events::IN)
        }
        _ => None,
    }
}

/// Before the switch: what a FIN that was seen and not believed makes ready by now. No system call.
pub(super) fn ready(s: &Slot, ends: &Ends) -> Events {
    if !s.has(flag::TCP_ANCHORED) || !s.has(flag::FIN_FIRST | flag::PEER_FIN) {
        return Events::empty();
    }
    if fin_is_the_end(s, ends) {
        return Events::IN | Events::RDHUP;
    }
    // TCP has given all that it will. With the switch offset known it is the channel's turn, which
    // a call that has the descriptor finds out (`switch_offset::pass_the_switch`).
    let turn = s.has(flag::FIN_FIRST) && handover_state::switch_offset(&ends.incoming).is_some();
    if turn { Events::IN } else { Events::empty() }
}

/// Whether TCP, beside a bridge, has said the last that it will say to a reader. That is FIN, which
/// would end every sleep at once until the bridge has said what it means. A bridge that breaks
/// rings too.
pub(super) fn bridge_says(s: &Slot) -> bool {
    s.has(flag::TCP_ANCHORED)
        && s.has(flag::FIN_FIRST)
        && !s.has(flag::LOST)
        && matches!(s.receive_mode(), ReceiveMode::Acknowledged | ReceiveMode::Device)
}
