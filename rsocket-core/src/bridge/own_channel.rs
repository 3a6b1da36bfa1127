//! Channels whose both sides are in this process: the program's, and its bridge's.
//!
//! Must not know what a bridge does with its side. Entry points: [`channel`], [`enter`],
//! [`leave_channel`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use super::channel_port::ChannelPort;
use crate::channel::arenas::{self, Claim};
use crate::channel::link;
use crate::conn::machine::{Phase, ReceiveMode, SendMode};
use crate::conn::pairing_lock::PairingGuard;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::device::shm::channel;
use crate::failure::Failure;
use crate::sync::stack;
use crate::sys;

/// A channel whose both sides are in this process.
pub(crate) fn channel() -> Result<(Claim, ChannelPort), Failure> {
    let own = crate::channel::identity::process_id().map_err(|_| Failure::NoMemory)?;
    let claim = arenas::claim(&arenas::Peer { id: own, pid: sys::pid(), inode: 0 })
        .map_err(|_| Failure::NoMemory)?;
    let port = ChannelPort::new(&claim).map_err(|_| Failure::NoMemory)?;
    Ok((claim, port))
}

/// Gives a connection of the program's its side of the channel: from now on all its bytes go that
/// way.
pub(crate) fn enter(
    id: SlotId,
    s: &PairingGuard<'_>,
    (record, channel): (u32, u32),
    flags: u32,
) -> Result<(), Failure> {
    s.set(flags | flag::BRIDGED);
    stack::on_own(|| link::start(id, s, (record, channel), 0, channel::Beyond::Bridge))
        .map_err(|_| Failure::NoMemory)?;
    s.set_phase(Phase::Paired);
    s.set_receive_mode(ReceiveMode::Device);
    s.set_send_mode(SendMode::Device);
    crate::conn::listeners::mode_changed(id);
    Ok(())
}

/// As [`enter`], of a connection of which no pairing is under way.
pub(crate) fn enter_new(
    id: SlotId,
    s: &Slot,
    channel: (u32, u32),
    flags: u32,
) -> Result<(), Failure> {
    enter(id, &PairingGuard::take(s).ok_or(Failure::Blocked)?, channel, flags)
}

/// A connection of the program's has lost its channel: it is as before [`enter`].
pub(crate) fn leave_channel(s: &Slot) {
    s.set_phase(Phase::Unconnected);
    s.set_receive_mode(ReceiveMode::Kernel);
    s.set_send_mode(SendMode::Kernel);
}
