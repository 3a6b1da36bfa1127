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
#[inline(always)]
pub(crate) fn take_receive(s: &Slot, ends: &Ends) -> bool {
    match s.receive.lock.lock(tid()) {
        Taken::Clean => {}
        Taken::Own => return false,
        Taken::Broken => receive_of_the_dead(s),
    }
    ends.are_of(s) || {
        s.receive.lock.unlock(tid());
        false
    }
}

/// Takes the send lock; as [`take_receive`].
#[inline(always)]
pub(crate) fn take_send(s: &Slot, ends: &Ends) -> bool {
    match s.send.lock.lock(tid()) {
        Taken::Clean => {}
        Taken::Own => return false,
        Taken::Broken => send_of_the_dead(s),
    }
    ends.are_of(s) || {
        s.send.lock.unlock(tid());
        false
    }
}

/// The receive lock is ours now, of a holder that died. Whatever window the caller means, the state is that of this one.
#[cold]
fn receive_of_the_dead(s: &Slot) {
    if let Some(ends) = link::ends(s) {
        // SAFETY: the lock is ours now.
        unsafe { repair_receive(s, &ends.incoming) };
    }
}

/// As [`receive_of_the_dead`], of the send lock.
#[cold]
fn send_of_the_dead(s: &Slot) {
    if let Some(ends) = link::ends(s) {
        // SAFETY: the lock is ours now.
        unsafe { repair_send(s, &ends.outgoing) };
    }
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
