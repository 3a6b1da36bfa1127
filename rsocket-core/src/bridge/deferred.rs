//! Bytes that stay in the device's memory although the channel has room for them.
//!
//! A receiving call that has taken what its buffers hold leaves the rest where the device has put
//! it: most likely the next call takes that as well, and it need not be copied into the channel
//! first. No event tells of such bytes, and nobody but calls of this process finds them. So they
//! stay only while nobody of the program's side has a waker in the channel, and no other process
//! holds the connection; and until they are taken the bridge bears a mark, for which everybody who
//! looks waits his turn, and everybody who is about to sleep lets the bridge run.
//!
//! Must not know what the bytes are. Entry points: [`may_stay`]; [`out`] before others can hold
//! connections, [`out_of`] for one that is about to be asked what is unread.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{Ordering, fence};

use super::connection::Connection;
use super::cq_ownership::others;
use super::table::{self, Bridge};
use crate::channel::link;
use crate::conn::fork_group;
use crate::conn::slot::Slot;

/// Whether what a call has left may stay where it is; if not, the caller lets the bridge run.
pub(super) fn may_stay(bridge: &Bridge, c: &Connection) -> bool {
    bridge.keeps.store(1, Ordering::Relaxed);
    // Pairs with the one in bridge::arm, behind the waker of whoever sleeps, and with that in
    // out(), behind the new holder: either they see the mark, or we see them.
    fence(Ordering::SeqCst);
    c.program().is_some_and(|(id, s)| {
        link::ends(s).is_some_and(|ends| !others(&ends, 0)) && !fork_group::shared(id)
    })
}

/// None has stayed: all were taken, or the bridge has run, whose connection this is. Release: who
/// finds no mark, and the lock taken, finds in the channel what has gone there.
#[inline]
pub(super) fn none(bridge: &Bridge, _: &Connection) {
    if bridge.keeps_any() {
        bridge.keeps.store(0, Ordering::Release);
    }
}

/// Others hold connections of this process from now on, or may: what has stayed goes into their
/// channels.
pub(super) fn out() {
    // Pairs with the one in may_stay().
    fence(Ordering::SeqCst);
    table::all().for_each(out_of_bridge);
}

/// The same of one connection.
pub fn out_of(s: &Slot) {
    if let Some(bridge) = super::of(s) {
        out_of_bridge(bridge);
    }
}

fn out_of_bridge(bridge: &Bridge) {
    if bridge.keeps_any() {
        let ran = bridge.with(|slot| slot.as_mut().map(|c| super::run(bridge, c)));
        if ran.flatten() == Some(false) {
            super::service::nudge();
        }
    }
}
