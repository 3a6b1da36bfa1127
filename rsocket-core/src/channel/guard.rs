//! The two locks of a connection: only a guard gives access to the state behind, and dropped it
//! gives the lock back. What a holder left that died inside is repaired where the guard is made.
//!
//! Publishing a message is two stores, the ring's and the state's. A holder that dies between them
//! has told the peer, so the state rolls forward. A holder that dies before the first has told no
//! other process, so the old state stands (`life-of-a-connection §6`).

use super::handover_state;
use super::link::{self, Ends};
use crate::conn::machine::{ReceiveMode, SendMode};
use crate::conn::slot::Slot;
use crate::device::shm::channel::{Receiver, RecvState, SendState, Sender};
use crate::device::shm::direction::Direction;
use crate::sync::guarded::{Held, Locked};

/// The send lock of a connection, held. Never across a sleep.
pub(crate) struct SendGuard<'a> {
    /// The connection.
    pub(crate) s: &'a Slot,
    /// Its channel, which it has while the lock is held.
    pub(crate) ends: &'a Ends,
    state: Locked<'a, SendState>,
}

impl<'a> SendGuard<'a> {
    /// Takes the lock. `None` when this very thread holds it: we are in a signal handler that
    /// interrupted it, and must not wait for ourselves. `None`, too, when the connection has not
    /// this channel any more.
    #[inline(always)]
    pub(crate) fn take(s: &'a Slot, ends: &'a Ends) -> Option<Self> {
        let state = s.send.lock(|held| send_of_the_dead(s, held))?;
        ends.are_of(s).then_some(Self { s, ends, state })
    }

    /// What the sending end knows.
    #[inline(always)]
    pub(crate) fn view(&self) -> &SendState {
        self.state.view()
    }

    /// The sending end.
    #[inline(always)]
    pub(crate) fn sender(&mut self) -> Sender<'_> {
        Sender::new(self.state.reborrow(), &self.ends.outgoing)
    }

    /// Gives the lock back, and then does what must not be left out ([`Locked::unlock_then`]).
    #[inline(always)]
    pub(crate) fn unlock_then<R>(self, then: impl FnOnce() -> R) -> R {
        self.state.unlock_then(then)
    }
}

/// The receive lock of a connection, held. Never across a sleep.
pub(crate) struct RecvGuard<'a> {
    /// The connection.
    pub(crate) s: &'a Slot,
    /// Its channel, which it has while the lock is held.
    pub(crate) ends: &'a Ends,
    state: Locked<'a, RecvState>,
}

impl<'a> RecvGuard<'a> {
    /// Takes the lock; as [`SendGuard::take`].
    #[inline(always)]
    pub(crate) fn take(s: &'a Slot, ends: &'a Ends) -> Option<Self> {
        let state = s.receive.lock(|held| receive_of_the_dead(s, held))?;
        ends.are_of(s).then_some(Self { s, ends, state })
    }

    /// What the receiving end knows.
    #[inline(always)]
    pub(crate) fn view(&self) -> &RecvState {
        self.state.view()
    }

    /// The receiving end.
    #[inline(always)]
    pub(crate) fn receiver(&mut self) -> Receiver<'_> {
        Receiver::new(self.state.reborrow(), &self.ends.incoming)
    }

    /// Gives the lock back, and then does what must not be left out ([`Locked::unlock_then`]).
    #[inline(always)]
    pub(crate) fn unlock_then<R>(self, then: impl FnOnce() -> R) -> R {
        self.state.unlock_then(then)
    }
}

/// The receive lock is ours now, of a holder that died. Whatever channel the caller means, the
/// state is that of this one.
#[cold]
fn receive_of_the_dead(s: &Slot, held: &mut Held<'_, RecvState>) {
    if let Some(ends) = link::ends(s) {
        repair_receive(s, held, &ends.incoming);
    }
}

/// As [`receive_of_the_dead`], of the send lock.
#[cold]
fn send_of_the_dead(s: &Slot, held: &mut Held<'_, SendState>) {
    if let Some(ends) = link::ends(s) {
        repair_send(s, held, &ends.outgoing);
    }
}

/// Rolls the receiving state forward if its last holder, which died, had published an update.
pub fn repair_receive(s: &Slot, held: &mut Held<'_, RecvState>, incoming: &Direction) {
    if incoming.control_published(held.view().control_position) {
        held.roll_forward();
    }
    if matches!(s.receive_mode(), ReceiveMode::Device | ReceiveMode::Acknowledged)
        && handover_state::return_wanted(incoming).is_some()
    {
        s.set_receive_mode(ReceiveMode::Returned);
    }
}

/// Rolls the sending state forward if its last holder, which died, had published a message.
pub fn repair_send(s: &Slot, held: &mut Held<'_, SendState>, outgoing: &Direction) {
    if outgoing.data_published(held.view().data_position) {
        held.roll_forward();
    }
    // A mark that was published is followed by its mode.
    if s.send_mode() == SendMode::Asked && handover_state::switch_offset(outgoing).is_some() {
        s.set_send_mode(SendMode::Device);
    }
    if s.send_mode() != SendMode::Returned && handover_state::end(outgoing).is_some() {
        s.set_send_mode(SendMode::Returned);
    }
}
