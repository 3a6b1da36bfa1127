//! Back to TCP (`life-of-a-connection §5`).
//!
//! A fallback is one-sided. For the bytes it sends, a side marks "the channel ends at M, the rest
//! is TCP". For the bytes it receives, it asks the peer to set that mark at its next call, and
//! reads up to it. What is in the channel is never lost, whatever becomes of the peer. A side says
//! how many bytes it took only where the next reader knows nothing of this library. The peer then
//! sends what is unread by TCP, and everything after it too ([`Scope`]).

use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use super::gone;
use super::{awaited, stand_in};
use crate::attach::phase;
use crate::channel::broken::{break_connection, cut_off, cut_short};
use crate::channel::link::{self, Ends};
use crate::channel::residual::{give_residual_away, give_way, serve_return};
use crate::channel::{guard, handover_state, said, switch, unread};
use crate::conn::kind::Kind;
use crate::conn::machine::{Phase, ReceiveMode, SendMode};
use crate::conn::slot::{Slot, SlotId};
use crate::conn::{cause, fork_group};
use crate::device::shm::channel::RecvState;
use crate::failure::Failure;
use crate::host::{counters, kernel};
use crate::reason::Reason;
use crate::stats::{self, Counter};
use crate::sys::sandbox;

/// How much of a connection goes back to TCP, and which reader then reads what the channel still
/// has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// What this side sends. Receiving stays as it is.
    Sending,
    /// Both directions. This library goes on reading, first what is in the channel.
    Both,
    /// Both directions, for a reader that has only the kernel: another program, or a thread of
    /// libc's.
    Stranger,
}

/// Goes back to TCP as far as `scope` says, or never leaves it.
pub fn refuse(id: SlotId, s: &Slot, fd: RawFd, reason: Reason, scope: Scope) {
    match s.kind() {
        Kind::RdmaBesideTcp => leave_bridge(s, fd, reason),
        Kind::NativeRdma => leave_channel(id, s, fd, reason, scope),
        Kind::Tcp | Kind::SharedMemory | Kind::RdmaListener | Kind::Datagram => {
            leave_peer(id, s, fd, reason, scope);
        }
    }
}

/// Beyond the channel, if there is one, is the peer itself: both ends agree where the directions
/// leave it.
fn leave_peer(id: SlotId, s: &Slot, fd: RawFd, reason: Reason, scope: Scope) {
    phase::refuse(s, reason);
    let first = s.phase() == Phase::Paired;
    if !first && !has_more_to_return(s, scope) {
        // Already back; but the peer may have asked for its unread bytes since.
        give_residual_away(id, s, fd, reason);
        return;
    }
    let Some(ends) = link::ends(s) else { return };
    said::say(s, &ends, reason);
    if first {
        cause::count(s, reason);
        stats::add(Counter::Detached, 1);
        s.reason.store(reason as u32, Ordering::Relaxed);
    }
    return_outgoing(s, fd, &ends);
    let awaited = match scope {
        Scope::Sending | Scope::Both => {
            end_incoming(s, &ends, scope);
            None
        }
        Scope::Stranger => return_incoming(s, fd, &ends, reason),
    };
    s.set_phase(Phase::Refused);
    give_residual_away(id, s, fd, reason);
    ends.wake_reader();
    ends.wake_writer();
    // Other threads and siblings sleep until the channel has something for them: from here on it is
    // TCP that has.
    ends.wake_own();
    crate::conn::listeners::mode_changed(id);
    if let Some(all) = awaited
        && matches!(reason, Reason::Executed | Reason::PassedAway)
    {
        serve_own_returns();
        if !awaited::comes(fd, all) {
            cut_off(s, fd);
        }
    }
}

/// The peer that is to send by TCP may be this process, which makes no other call while it waits
/// for itself.
fn serve_own_returns() {
    fork_group::each_local(|id, s| {
        if let Some(ends) = link::ends(s) {
            serve_return(id, s, fork_group::descriptor(id), &ends);
        }
    });
}

/// Whether an earlier fallback left the receiving direction on its device, and this one goes
/// further.
fn has_more_to_return(s: &Slot, scope: Scope) -> bool {
    let receives = || matches!(s.receive_mode(), ReceiveMode::Device | ReceiveMode::Acknowledged);
    match scope {
        Scope::Sending => false,
        Scope::Both => {
            receives()
                && link::ends(s).is_some_and(|ends| handover_state::is_undecided(&ends.incoming))
        }
        Scope::Stranger => receives() && link::has_channel(s),
    }
}

/// Between hosts the fallback is the sender's alone: our bytes go by TCP from here on. What the
/// peer sends stays on the device, where this process can still read it. A stranger to the bridge
/// could not read it, and gets a reset.
fn leave_bridge(s: &Slot, fd: RawFd, reason: Reason) {
    let Some(ends) = link::ends(s) else { return };
    if s.send_mode() != SendMode::Returned {
        cause::count(s, reason);
        stats::add(Counter::Detached, 1);
        return_outgoing(s, fd, &ends);
        crate::bridge::carry_out(s, &ends);
    }
    if matches!(reason, Reason::Executed | Reason::PassedAway)
        && s.receive_mode() != ReceiveMode::Kernel
    {
        break_connection(s, fd, reason);
    }
}

/// Without a TCP connection to the peer there is still the loopback connection to the bridge. It
/// carries on what the program sends by it, and brings what comes to a reader that has only the
/// kernel. Otherwise what is received stays on the device.
fn leave_channel(id: SlotId, s: &Slot, fd: RawFd, reason: Reason, scope: Scope) {
    let sends = s.send_mode() == SendMode::Device;
    let receives = scope == Scope::Stranger && s.receive_mode() == ReceiveMode::Device;
    let Some(ends) = link::ends(s).filter(|_| sends || receives) else { return };
    if sends {
        stats::fell_back(reason);
        stats::add(Counter::Detached, 1);
        return_outgoing(s, fd, &ends);
    }
    let awaited = if receives { return_incoming(s, fd, &ends, reason) } else { None };
    crate::bridge::carry_out(s, &ends);
    crate::bridge::carry_back(s, &ends);
    // From here on threads of the program's sleep in the kernel.
    crate::bridge::cq_ownership::by_service(s);
    ends.wake_own();
    crate::conn::listeners::mode_changed(id);
    if let Some(all) = awaited
        && matches!(reason, Reason::Executed | Reason::PassedAway)
        && !awaited::comes(fd, all)
    {
        cut_off(s, fd);
    }
}

/// Our bytes go by TCP from here on.
fn return_outgoing(s: &Slot, fd: RawFd, ends: &Ends) {
    let Some(guard) = guard::SendGuard::take(s, ends) else { return };
    match s.send_mode() {
        SendMode::Device => {
            if handover_state::publish_end(&ends.outgoing, guard.view().total()) {
                s.set_send_mode(SendMode::Returned);
            } else {
                // The peer has asked for the same, with unread bytes: those go first.
                let _ = give_way(&guard, fd);
            }
        }
        SendMode::Kernel | SendMode::Asked => {
            switch::stay(&guard);
            s.set_send_mode(SendMode::Returned);
        }
        SendMode::Returned => {}
    }
}

/// The peer's next bytes are to come by TCP, if both directions go back. It learns that at its next
/// call; those that the channel has are read there.
fn end_incoming(s: &Slot, ends: &Ends, scope: Scope) {
    let Some(_guard) = guard::RecvGuard::take(s, ends) else { return };
    if !stays_in_kernel(s) && scope == Scope::Both {
        handover_state::want_end(&ends.incoming);
    }
}

/// Whether the receiving direction never leaves TCP, since its sender was not told yet that it may.
/// Before the direction is acknowledged there is nothing to tell the peer. But another thread may
/// be about to acknowledge it, under a lock that is not ours.
fn stays_in_kernel(s: &Slot) -> bool {
    loop {
        match s.receive_mode() {
            ReceiveMode::Device | ReceiveMode::Acknowledged => return false,
            mode if s.shift_receive_mode(mode, ReceiveMode::Returned) => return true,
            _ => {}
        }
    }
}

/// What the peer sent and we did not read comes by TCP: how many bytes TCP will have brought in
/// all, if there are any.
fn return_incoming(s: &Slot, fd: RawFd, ends: &Ends, reason: Reason) -> Option<u64> {
    let mut guard = guard::RecvGuard::take(s, ends)?;
    let back = if stays_in_kernel(s) { Back::Nothing } else { ask_back(&mut guard, fd, reason) };
    drop(guard);
    match back {
        Back::Nothing => None,
        Back::Bytes(n) => {
            // A loopback connection has carried nothing before.
            let switch_offset = if s.has_bridge() {
                Some(0)
            } else {
                handover_state::switch_offset(&ends.incoming)
            };
            switch_offset.map(|switch_offset| switch_offset.saturating_add(n as u64))
        }
        Back::Lost => {
            if matches!(reason, Reason::Executed | Reason::PassedAway | Reason::OddUse) {
                cut_short(s, fd, reason);
            }
            None
        }
    }
}

/// What becomes of the channel's unread bytes.
enum Back {
    /// There are none.
    Nothing,
    /// The peer sends so many by TCP.
    Bytes(usize),
    /// TCP cannot carry them any more. They stay in the channel, where only our own calls still
    /// find them.
    Lost,
}

/// Tells the peer what was taken of the device; before the switch offset was reached, that is
/// nothing.
fn ask_back(guard: &mut guard::RecvGuard<'_>, fd: RawFd, reason: Reason) -> Back {
    let (s, ends) = (guard.s, guard.ends);
    let mut state = *guard.view();
    let unread = unread::in_channel(&state, ends);
    // The sender has shut down, or is gone: its FIN ends what TCP can carry.
    let fin = || matches!(counters::fin_received(fd), Ok(true) | Err(Failure::NotConnected));
    let returned = handover_state::end(&ends.incoming).is_some();
    if unread > 0 && (fin() || !returned && over(&state, ends)) {
        if may_stand_in(s, fd, reason) && stand_in::replace(guard, fd, unread) {
            // What was unread has been taken.
            state = *guard.view();
        } else if !returned {
            return Back::Lost;
        }
    }
    if handover_state::want_return(&ends.incoming, state.total()) {
        s.set_receive_mode(ReceiveMode::Returned);
        kernel::acknowledge_at_once(fd);
        // Pairs with the fence in say_shutdown.
        core::sync::atomic::fence(Ordering::SeqCst);
        let unread = unread::in_channel(&state, ends);
        return match unread {
            0 => Back::Nothing,
            _ if over(&state, ends) => Back::Lost,
            n => Back::Bytes(n),
        };
    }
    // The peer has gone back itself; then its end mark stands, and we read up to it.
    if handover_state::end(&ends.incoming) == Some(state.total()) {
        s.set_receive_mode(ReceiveMode::Returned);
        kernel::acknowledge_at_once(fd);
        return Back::Nothing;
    }
    Back::Lost
}

/// Whether another socket may take the number from one whose stream is over. It leads nowhere:
/// where the next reader is likely to answer by the same number, the peer must have gone.
fn may_stand_in(s: &Slot, fd: RawFd, reason: Reason) -> bool {
    let nobody_listens = || gone::peer_gone(s, fd, 0);
    !sandbox::inside()
        && match reason {
            Reason::Executed => true,
            Reason::PassedAway => nobody_listens(),
            _ => false,
        }
}

/// Whether the sender has ended the stream, as the ring says.
fn over(state: &RecvState, ends: &Ends) -> bool {
    state.ended != 0 || unread::ended_ahead(state, ends)
}
