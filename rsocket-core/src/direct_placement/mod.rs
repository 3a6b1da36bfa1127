//! Direct placement: memory of the program's that its peer may write, `riomap` and its relatives of
//! rsocket(7).
//!
//! One side maps a buffer at an offset; the other side writes to offsets, and the bytes appear in
//! the buffer. Nothing is received, and the side that mapped it is not told. But what is sent after
//! these bytes is received after they are in place.
//!
//! - *Over RDMA* the buffer is registered with the device, its address and key go to the peer
//!   (`wire-protocol §8`), and the peer's device writes there. The bridge does all that
//!   ([`crate::bridge::direct_placement`]).
//! - *Over shared memory* the buffer is memory of this process alone. The bytes lie in a ring of
//!   the channel until this process puts them into place. Before that, it checks that they are
//!   meant for a mapping and lie inside it ([`arrive`]). A thread of the program places them before
//!   it takes up what was sent after them. Or a thread of ours ([`thread`]) does so while the
//!   program computes. Letting the sender write here itself (`process_vm_writev`) would save a
//!   copy. But it takes a permission that hardened hosts do not give, and `riounmap` could not
//!   promise that no write is under way.
//!
//! A direct write takes the same way at its sender's end whatever carries it ([`depart`]). It goes
//! into the ring of the channel, whose other side is the peer process or the bridge. What the peer
//! has mapped stands in the channel too.
//!
//! A mapping belongs to the process that made it, and so does all placing on that connection:
//! memory is not a sibling's. Must not know C. The calls are [`crate::iomap`]'s. Entry
//! points: [`Placer`], [`closing`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;

use crate::channel::link::Ends;
use crate::conn::slot::{Slot, SlotId};
use crate::{bridge, sys};

pub(crate) mod arrive;
pub(crate) mod depart;
pub(crate) mod table;
#[cfg(test)]
mod tests;
pub(crate) mod thread;

pub(crate) use arrive::{Placed, Placer};
use table::Place;

/// The offset by which a program leaves the choice to us.
pub const ANY: i64 = -1;

/// This process closes its last descriptor of the connection: its memory is its own again.
pub fn closing(id: SlotId, s: &Slot) {
    let Some(place) = Place::of(id) else { return };
    let has_bridge = s.has_bridge();
    place.with(|maps| {
        if !has_bridge && let Some(ends) = crate::channel::link::ends(s) {
            let _ = arrive::all(s, &ends, maps);
            for i in 0..maps.list.len() {
                maps.hide(i, &ends, s);
            }
            ends.wake_writer();
        }
        maps.list.clear();
        thread::forget(id, maps);
    });
    if has_bridge {
        bridge::direct_placement::withdraw_all(s);
    }
    if s.placement.owner.load(Ordering::Acquire) == sys::pid() {
        s.placement.owner.store(0, Ordering::Release);
    }
}

/// Whether a direct write that found no room would find some now: then, and not before, is the
/// connection writable.
pub(crate) fn room_again(s: &Slot, ends: &Ends) -> bool {
    depart::room(s, ends).is_none_or(|n| n >= depart::WORTH)
}

/// In the child of a fork: mappings are the parent's.
pub fn forked() {
    table::forked();
    thread::forked();
}
