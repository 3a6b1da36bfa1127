//! Moving the directions of a paired connection to the device, as far as that goes without sending
//! or receiving.
//!
//! Must not know how a pairing came to be. Entry point: [`slowly`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{Ordering, fence};
use std::os::fd::RawFd;

use super::guard::SendGuard;
use super::{handover_state, link};
use crate::conn::listeners;
use crate::conn::machine::{Phase, ReceiveEvent, ReceiveMode, SendEvent, SendMode};
use crate::conn::pairing_lock::PairingGuard;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::host::counters;

/// A thread that finds the lock taken goes on, perhaps to sleep, before it has seen what the holder
/// is about to do. Then the holder looks once more, for it, and wakes it if anything has changed.
#[cold]
pub(crate) fn slowly(id: SlotId, s: &Slot, fd: RawFd) {
    let (mut changed, mut missed) = (false, false);
    while let Some(held) = take_or_note(s) {
        changed |= now(held, id, fd);
        if !s.pairing.was_missed() {
            break;
        }
        missed = true;
    }
    if changed
        && missed
        && let Some(ends) = link::ends(s)
    {
        ends.wake_own();
    }
}

/// Takes the lock, or leaves the note for its holder, which lets go and then looks for a note. So
/// either the holder finds this one, or the second try finds the lock free.
fn take_or_note(s: &Slot) -> Option<PairingGuard<'_>> {
    PairingGuard::try_take(s).or_else(|| {
        s.pairing.miss();
        PairingGuard::try_take(s)
    })
}

/// Under the lock, which it gives back, so that two threads do not take the same step; whether
/// anything changed.
fn now(s: PairingGuard<'_>, id: SlotId, fd: RawFd) -> bool {
    if s.phase() != Phase::Paired {
        return false;
    }
    let mut changed = false;
    let mut acknowledged = None;
    if s.receive_mode() == ReceiveMode::Kernel
        && (!s.has(flag::READ_SHUT) || s.has(flag::RSOCKET))
        && let Some(mode) = s.receive_mode().after(ReceiveEvent::Paired)
    {
        changed |= s.shift_receive_mode(ReceiveMode::Kernel, mode);
    }
    // SeqCst: pairs with enter_receive and enter_wait, which count themselves in and then look at
    // the mode.
    if s.receive_mode() == ReceiveMode::Asked
        && s.inside_receive.load(Ordering::SeqCst) == 0
        && s.inside_wait.load(Ordering::SeqCst) == 0
        && !may_have_heard_fin(&s, fd)
        && let Some(ends) = link::ends(&s)
        && let Some(mode) = s.receive_mode().after(ReceiveEvent::KernelEmpty)
        && s.shift_receive_mode(ReceiveMode::Asked, mode)
    {
        // Pairs with the fence in socket::has_shut: from here on the peer may send.
        fence(Ordering::SeqCst);
        if s.takes_nothing() {
            handover_state::stop_reading(&ends.incoming);
        }
        handover_state::acknowledge(&ends.incoming);
        changed = true;
        acknowledged = Some(ends);
    }
    if s.send_mode() == SendMode::Kernel
        && !s.has(flag::WRITE_SHUT)
        && let Some(ends) = link::ends(&s)
        && handover_state::acknowledged(&ends.outgoing)
        && let Some(mode) = s.send_mode().after(SendEvent::Acknowledged)
    {
        changed |= s.shift_send_mode(SendMode::Kernel, mode);
    }
    drop(s);
    if let Some(ends) = acknowledged {
        // A peer that may not use TCP sleeps until we say so.
        ends.wake_writer();
        ends.wake_reader();
    }
    if changed {
        listeners::mode_changed(id);
    }
    changed
}

/// Between hosts: whether the program may know by now that TCP has come to its end. From the
/// acknowledgement on FIN means nothing until a bridge has said what it means. A program that was
/// told by FIN that there is an end to read must find that end. A sender that was not told before
/// it sent FIN has left nothing on the device.
fn may_have_heard_fin(s: &Slot, fd: RawFd) -> bool {
    // Without a descriptor the kernel cannot be asked: the program's next call has one. A socket
    // that is not connected any more had FIN, or a reset.
    s.has(flag::TCP_ANCHORED) && (fd < 0 || counters::fin_received(fd).unwrap_or(true))
}

/// This direction never leaves TCP: between hosts the receiver, which waits for a word, must be
/// told. The caller sets the mode after it.
pub(crate) fn stay(guard: &SendGuard<'_>) {
    let outgoing = &guard.ends.outgoing;
    if guard.s.has(flag::TCP_ANCHORED) && handover_state::switch_offset(outgoing).is_none() {
        // A receiver on another host never asks for its bytes by TCP.
        let _ = handover_state::publish_end(outgoing, 0);
    }
}
