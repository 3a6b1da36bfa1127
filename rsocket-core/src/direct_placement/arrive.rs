//! Putting into place what the peer has written, over shared memory.
//!
//! Runs in the process whose memory it is, under the lock of the connection's [`Place`], and copies
//! only what lies in a mapping. Entry points: [`Placer`] for a thread that receives, [`all`] for a
//! thread that has the connection's [`Maps`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::sync::atomic::Ordering;

use std::os::fd::RawFd;

use super::table::{Entry, Map, Maps, Place};
use crate::channel::broken;
use crate::channel::link::Ends;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::device::shm::layout::PLACES;
use crate::device::shm::places::{Header, Nonsense};
use crate::reason::Reason;
use crate::stats::{self, Transport};

/// What became of the bytes that wait to be placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Placed {
    /// All are in place that were there when it began.
    All,
    /// This very thread is at it, interrupted by a signal handler.
    NotNow,
    /// The peer wrote what cannot be.
    Broken,
}

/// For a thread that receives: puts into place what was written before what it is about to take up.
#[derive(Clone, Copy)]
pub(crate) struct Placer<'a> {
    place: &'static Place,
    s: &'a Slot,
    fd: RawFd,
}

impl<'a> Placer<'a> {
    /// `None` where nothing of this process's is mapped, or the device places by itself.
    #[inline]
    pub(crate) fn of(id: SlotId, s: &'a Slot, fd: RawFd) -> Option<Self> {
        if !s.has(flag::MAPPED) || s.has(flag::BRIDGED) {
            return None;
        }
        Place::of(id).map(|place| Self { place, s, fd })
    }

    /// Puts into place all that is there now. The thread that holds the receive lock is to wake a
    /// sender that waits for room, once that lock is free.
    pub(crate) fn place(&self, ends: &Ends) -> Placed {
        if !ends.incoming.places_waiting(self.s.placement.taken.load(Ordering::Relaxed)) {
            return Placed::All;
        }
        match self.place.with(|maps| if maps.held { all(self.s, ends, maps) } else { Ok(false) }) {
            None => Placed::NotNow,
            Some(Err(Nonsense)) => {
                broken::break_connection(self.s, self.fd, Reason::BadPlacement);
                Placed::Broken
            }
            Some(Ok(any)) => {
                if any {
                    self.s.wake_sender_soon();
                }
                Placed::All
            }
        }
    }
}

/// Puts into place all that was there when it began, and perhaps more; whether there was anything.
///
/// # Errors
/// The peer wrote a piece that is none, or beyond the end of a mapping. The place it says is not
/// written.
pub(crate) fn all(s: &Slot, ends: &Ends, maps: &Maps) -> Result<bool, Nonsense> {
    // Relaxed: only a thread that has the connection's `maps` changes it, and so is under the
    // place's lock.
    let began = s.placement.taken.load(Ordering::Relaxed);
    let (mut taken, mut bytes, mut pieces) = (began, 0, 0);
    // What was there when we began is no more than the ring holds; a sender that goes on must not
    // keep us here.
    while taken.wrapping_sub(began) < PLACES as u64 {
        let Some(header) = ends.incoming.next_place(taken)? else { break };
        let entry = Some(Entry { index: header.index, generation: header.generation });
        // One that was unmapped meanwhile takes its bytes along.
        if let Some(map) = maps.list.iter().find(|m| m.entry == entry) {
            land(ends, taken, &header, map)?;
            (bytes, pieces) = (bytes + u64::from(header.len), pieces + 1);
        }
        taken = taken.wrapping_add(header.extent());
        s.placement.taken.store(taken, Ordering::Relaxed);
        ends.incoming.publish_taken(taken);
    }
    if pieces > 0 {
        stats::received(Transport::Shm, bytes, pieces);
    }
    Ok(taken != began)
}

fn land(ends: &Ends, taken: u64, header: &Header, map: &Map) -> Result<(), Nonsense> {
    if header.at.checked_add(header.len).is_none_or(|end| end > map.len) {
        return Err(Nonsense);
    }
    let to = core::ptr::with_exposed_provenance_mut::<u8>(map.at + header.at as usize);
    // SAFETY: it lies inside the mapping (checked above, with a header that was read once). Its
    // memory stays until the mapping was taken out of the list (iomap::map), which needs the list
    // that `map` is borrowed from.
    unsafe { ends.incoming.land(taken, to, header.len as usize) };
    Ok(())
}
