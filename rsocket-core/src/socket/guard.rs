//! Taking the two locks of a connection, and repairing what a holder left that died inside.
//!
//! Publishing a message is two stores, the lane's and the state's. A holder that dies between them has
//! told the peer, so the state rolls forward; one that dies before the first has told nobody, so the old
//! state stands (`life-of-a-connection §6`).

use super::slot::Slot;
use crate::attach::link::{self, Ends};
use crate::attach::machine::{ReceiveMode, SendMode};
use crate::attach::marks;
use crate::device::shm::direction::Direction;
use crate::sync::lock::Taken;
use crate::sync::thread::tid;

/// Takes the receive lock. False when this very thread holds it: we are in a signal handler that
/// interrupted it, and must not wait for ourselves; and when the connection has not this window any more.
#[inline]
pub(crate) fn take_receive(s: &Slot, ends: &Ends) -> bool {
    let taken = s.receive.lock.lock(tid());
    if matches!(taken, Taken::Own) {
        return false;
    }
    if matches!(taken, Taken::Broken)
        && let Some(now) = link::ends(s)
    {
        // SAFETY: the lock is ours now.
        unsafe { repair_receive(s, &now.incoming) };
    }
    let theirs = ends.are_of(s);
    if !theirs {
        s.receive.lock.unlock(tid());
    }
    theirs
}

/// Takes the send lock; as [`take_receive`].
#[inline]
pub(crate) fn take_send(s: &Slot, ends: &Ends) -> bool {
    let taken = s.send.lock.lock(tid());
    if matches!(taken, Taken::Own) {
        return false;
    }
    if matches!(taken, Taken::Broken)
        && let Some(now) = link::ends(s)
    {
        // SAFETY: the lock is ours now.
        unsafe { repair_send(s, &now.outgoing) };
    }
    let theirs = ends.are_of(s);
    if !theirs {
        s.send.lock.unlock(tid());
    }
    theirs
}

/// Rolls the receiving state forward if its last holder died after it had published an update.
///
/// # Safety
/// The caller has just taken the receive lock from a holder that died.
pub unsafe fn repair_receive(s: &Slot, incoming: &Direction) {
    // SAFETY: the lock is the caller's.
    let state = unsafe { s.receive.load() };
    if incoming.control_published(state.control_position) {
        s.receive.flip();
    }
    if matches!(s.receive_mode(), ReceiveMode::Device | ReceiveMode::Acknowledged)
        && marks::return_wanted(incoming).is_some()
    {
        s.set_receive_mode(ReceiveMode::Returned);
    }
}

/// Rolls the sending state forward if its last holder died after it had published a message.
///
/// # Safety
/// The caller has just taken the send lock from a holder that died.
pub unsafe fn repair_send(s: &Slot, outgoing: &Direction) {
    // SAFETY: the lock is the caller's.
    let state = unsafe { s.send.load() };
    if outgoing.data_published(state.data_position) {
        s.send.flip();
    }
    // A mark that was published is followed by its mode.
    if s.send_mode() == SendMode::Asked && marks::cut(outgoing).is_some() {
        s.set_send_mode(SendMode::Device);
    }
    if s.send_mode() != SendMode::Returned && marks::end(outgoing).is_some() {
        s.set_send_mode(SendMode::Returned);
    }
}
