//! Bytes that stay in the device's memory although the channel has room for them.
//!
//! A receiving call that has taken what its buffers hold leaves the rest where the device has put
//! it. Most likely the next call takes that as well, and it need not be copied into the channel
//! first. No event tells of such bytes, and only calls of this process find them. So they stay only
//! while no waiter of the program's side has a waker in the channel, and no other process holds the
//! connection. Until they are taken the bridge bears a mark. While it is there, a thread that looks
//! waits for its turn, and a thread that is about to sleep lets the bridge run.
//!
//! Must not know what the bytes are. Entry points: [`may_stay`]; [`out`] before other processes can
//! hold connections, [`out_of`] for a connection that is about to be asked what is unread.
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
    // Pairs with the one in bridge::arm, behind the waker of a thread that sleeps, and with that in
    // out(), behind the new holder. Either that thread sees the mark, or this one sees the waker or
    // the holder.
    fence(Ordering::SeqCst);
    c.program().is_some_and(|(id, s)| {
        link::ends(s).is_some_and(|ends| !others(&ends, 0)) && !fork_group::shared(id)
    })
}

/// No bytes have stayed: all were taken, or the bridge of this connection has run. Release: a
/// thread that finds no mark, and the lock taken, finds in the channel what has gone there.
#[inline]
pub(super) fn none(bridge: &Bridge, _: &Connection) {
    if bridge.keeps_any() {
        bridge.keeps.store(0, Ordering::Release);
    }
}

/// Other processes hold connections of this process from now on, or may: what has stayed goes into
/// the channels of those connections.
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
