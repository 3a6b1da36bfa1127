//! How a receiver follows a sender that has gone back to TCP, without receiving.
//!
//! Must not know why the sender went. Entry points: [`follow_back`], for a thread that looks;
//! [`follow`], under the receive lock.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::RawFd;

use crate::channel::link::Ends;
use crate::channel::room::follow_up;
use crate::channel::{guard::RecvGuard, handover_state, said};
use crate::conn::machine::ReceiveMode;
use crate::conn::slot::{Slot, SlotId};
use crate::host::kernel;

/// The sender has gone back to TCP. So does the receiver once the channel is empty, before any
/// thread takes the sender's mark for something to read. A sender that says so without a switch
/// offset has never left.
pub(crate) fn follow_back(id: SlotId, s: &Slot, fd: RawFd, ends: &Ends) {
    let on_device = || s.receive_mode() == ReceiveMode::Device;
    // The end before the switch offset, which is published first.
    let stays = || {
        s.receive_mode() == ReceiveMode::Acknowledged
            && handover_state::switch_offset(&ends.incoming).is_none()
    };
    if !(on_device() || stays()) {
        return;
    }
    let Some(mut guard) = RecvGuard::take(s, ends) else { return };
    let state = guard.view();
    let empty = state.readable() == 0 && ends.incoming.poll_data(state.data_position).is_none();
    let done = empty
        && handover_state::end(&ends.incoming) == Some(state.total())
        && (on_device() || stays());
    if done {
        follow(&mut guard, fd);
    }
    drop(guard);
    if done {
        crate::conn::listeners::mode_changed(id);
    }
}

/// The channel is empty, up to the sender's mark: from here on TCP has the bytes.
pub(super) fn follow(guard: &mut RecvGuard<'_>, fd: RawFd) {
    follow_up(guard, 0);
    said::heard(guard.s, guard.ends);
    guard.s.set_receive_mode(ReceiveMode::Returned);
    kernel::acknowledge_at_once(fd);
}
