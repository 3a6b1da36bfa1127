//! What the hints that the two data paths leave behind say of a connection: whether there is
//! something to receive, or room to send.
//!
//! Must not know who asks. No lock is taken, but for what a receiver has given back. A hint that is
//! out of date makes a call that finds nothing, never a missed event. Entry points:
//! [`data_waiting`], [`room_waiting`], [`writable`], [`progress`].

use core::sync::atomic::Ordering;

use crate::channel::link::{self, Ends};
use crate::channel::{handover_state, room, unread};
use crate::conn::machine::ReceiveMode;
use crate::conn::progress::Progress;
use crate::conn::slot::{Slot, flag};
use crate::device::shm::channel::AMPLE;

/// Whether the channel has something for the receiver.
#[inline]
pub(crate) fn data_waiting(s: &Slot, ends: &Ends) -> bool {
    // Acquire: pairs with the release in room::follows.
    let hint = s.unread_hint.load(Ordering::Acquire);
    // Relaxed: a setting of the program; a call that races with it may see either.
    if s.low_water.load(Ordering::Relaxed) > 1 {
        return unread::reaches_low_water(s, ends);
    }
    hint as u32 != 0 || ends.incoming.poll_data((hint >> 32) as u32).is_some() || went_back(s, ends)
}

/// Whether the sender has gone back to TCP, and the receiver has not followed yet.
#[inline]
pub(super) fn went_back(s: &Slot, ends: &Ends) -> bool {
    handover_state::end(&ends.incoming).is_some() && s.receive_mode() == ReceiveMode::Device
}

/// Whether the sender has room, or news that may mean room.
#[inline]
pub(crate) fn room_waiting(s: &Slot, ends: &Ends) -> bool {
    has_room_by(s, ends, |hint| hint as u32 != 0 || has_news(hint, ends))
}

/// Whether poll calls the connection writable: a blocking write of a usual length does not sleep.
/// What the receiver has given back is taken first, where that matters.
pub(crate) fn writable(s: &Slot, ends: &Ends) -> bool {
    has_room_by(s, ends, |hint| {
        hint & AMPLE != 0
            || has_news(hint, ends)
                && (!room::refresh(s, ends) || s.room_hint.load(Ordering::Acquire) & AMPLE != 0)
    })
}

#[inline]
fn has_room_by(s: &Slot, ends: &Ends, by: impl FnOnce(u64) -> bool) -> bool {
    if s.has(flag::PLACES_FULL) && !handover_state::receiver_closed(&ends.outgoing) {
        return crate::direct_placement::room_again(s, ends);
    }
    // Acquire: pairs with the release in room::show_room.
    by(s.room_hint.load(Ordering::Acquire))
        || handover_state::receiver_closed(&ends.outgoing)
        || handover_state::is_asked_back(&ends.outgoing)
}

/// Whether the receiver has given back something that the hint does not count.
fn has_news(hint: u64, ends: &Ends) -> bool {
    ends.outgoing.poll_control((hint >> 32) as u32).is_some()
}

/// How far the two directions have come. `received` tells of the messages that were published for
/// us, read or not. `room` tells how often the sender found no room and then had some again.
pub fn progress(s: &Slot) -> Progress {
    let Some(ends) = link::ends(s) else { return Progress::default() };
    let received = unread::received(s, &ends);
    let room = s.room_epoch.load(Ordering::Relaxed) << 1 | u64::from(writable(s, &ends));
    Progress { received, room }
}
