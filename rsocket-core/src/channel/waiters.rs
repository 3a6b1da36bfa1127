//! Waiter slots of a connection, of both directions.
//!
//! Must not know who waits. Entry point: [`disarm`].

use super::link;
use crate::conn::slot::Slot;
use crate::device::shm::layout::SLEEPERS;
use crate::device::shm::park::MARK_READY;

/// Takes `waker` out again; in how many places it still was. One that it was taken from has been
/// rung, or is about to be.
pub fn disarm(s: &Slot, waker: u64) -> usize {
    let Some(ends) = link::ends(s) else { return 0 };
    let mut found = 0;
    for sleepers in [ends.incoming.data_waiters(), ends.outgoing.room_waiters()] {
        for i in 0..SLEEPERS {
            found +=
                usize::from(sleepers.disarm(i, waker) || sleepers.disarm(i, waker | MARK_READY));
        }
    }
    found
}
