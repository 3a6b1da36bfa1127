//! A direct write at its sender's end: into the ring of the channel, whatever is on its other side.
//!
//! Runs under the send lock, so that direct writes and what is sent have one order. Entry point:
//! [`into_ring`], from [`crate::socket::send`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use crate::channel::broken;
use crate::channel::guard::SendGuard;
use crate::channel::link::Ends;
use crate::conn::slot::{Slot, flag};
use crate::device::shm::layout::PLACES;
use crate::device::shm::places::Header;
use crate::failure::Failure;
use crate::live_segment::conn_counters;
use crate::reason::Reason;
use crate::sys::vectors::Cursor;

/// The most bytes of one piece: what was put is being placed while the rest is copied.
const PIECE: usize = 64 * 1024;
/// Room for which it is worth waking a writer that found none.
pub(crate) const WORTH: usize = PLACES / 4;

/// What one more piece can have; `None` when the receiver's count cannot be right.
pub(crate) fn room(s: &Slot, ends: &Ends) -> Option<usize> {
    ends.outgoing.place_room(s.placement.put.load(Ordering::Relaxed)).ok()
}

/// Puts what `from` has left into the ring, for the peer's mapping at `offset`, until it or the
/// room is used up.
///
/// # Errors
/// `EFAULT` where no mapping is; `ECONNRESET` when the receiver broke a rule.
pub(crate) fn into_ring(
    guard: &mut SendGuard<'_>,
    fd: RawFd,
    from: &mut Cursor<'_>,
    offset: u64,
) -> Result<(), Failure> {
    let (s, ends) = (guard.s, guard.ends);
    while from.left() > 0 {
        let at = offset.checked_add(from.done() as u64).ok_or(Failure::Invalid)?;
        let spot = ends.outgoing.find_map(at).ok_or(Failure::BadAddress)?;
        let Some(room) = room(s, ends) else {
            broken::break_connection(s, fd, Reason::BadPlacement);
            return Err(Failure::Reset);
        };
        let wanted = from.left().min(spot.left as usize).min(PIECE);
        // Small crumbs before a nearly full ring's end cost more than they carry.
        if room < wanted.min(PIECE / 4) {
            s.set(flag::PLACES_FULL);
            s.room_epoch.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let len = wanted.min(room);
        // Relaxed: changed under the send lock.
        let put = s.placement.put.load(Ordering::Relaxed);
        let header =
            Header { index: spot.index, generation: spot.generation, at: spot.at, len: len as u32 };
        ends.outgoing.write_header(put, &header);
        from.each(len, |bytes, n, done| {
            // SAFETY: the cursor's stretch is readable for n bytes, as the program vouched, and not
            // the arena. The pieces of it are no more than the room there is.
            unsafe { ends.outgoing.write_place(put, done, bytes, n) };
            true
        });
        // A holder that dies between the two leaves a whole piece, which the next one publishes
        // with its own.
        let put = put.wrapping_add(header.extent());
        s.placement.put.store(put, Ordering::Relaxed);
        ends.outgoing.publish_put(put);
        from.advance(len);
        conn_counters::sent_shm(s, crate::live_segment::record(s), len);
        if s.has(flag::PLACES_FULL) {
            s.clear(flag::PLACES_FULL);
        }
    }
    Ok(())
}
