//! How a receiver follows a sender that has gone back to TCP, without receiving.
//!
//! Must not know why the sender went. Entry points: [`follow_back`], for who looks; [`follow`], for who
//! holds the receive lock.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::RawFd;

use super::room::commit;
use super::slot::{RecvState, Slot, SlotId};
use super::{guard, kernel};
use crate::attach::link::Ends;
use crate::attach::machine::ReceiveMode;
use crate::attach::{cause, marks};
use crate::sync::thread::tid;

/// The sender has gone back to TCP: so does the receiver once the window is empty, before anybody takes the
/// sender's mark for something to read. One that says so without a cut has never left.
pub(crate) fn follow_back(id: SlotId, s: &Slot, fd: RawFd, ends: &Ends) {
    let on_device = || s.receive_mode() == ReceiveMode::Device;
    // The end before the cut, which is published first.
    let stays = || s.receive_mode() == ReceiveMode::Acknowledged && marks::cut(&ends.incoming).is_none();
    if !(on_device() || stays()) || !guard::take_receive(s, ends) {
        return;
    }
    // SAFETY: the lock was taken above.
    let state = unsafe { s.receive.load() };
    let empty = state.readable() == 0 && ends.incoming.poll_data(state.data_position).is_none();
    let done = empty && marks::end(&ends.incoming) == Some(state.total()) && (on_device() || stays());
    if done {
        follow(s, fd, ends, state);
    }
    s.receive.lock.unlock(tid());
    if done {
        crate::socket::mode_changed(id);
    }
}

/// The window is empty, up to the sender's mark: from here on TCP has the bytes.
pub(super) fn follow(s: &Slot, fd: RawFd, ends: &Ends, state: RecvState) {
    commit(s, ends, state, 0);
    cause::heard(s, ends);
    s.set_receive_mode(ReceiveMode::Returned);
    kernel::acknowledge_at_once(fd);
}
