//! Says that a direction is over, and that two ends have met, which may be the same moment.
//!
//! Must not know when. Entry points: [`say_shutdown`], [`met`].

use core::sync::atomic::{Ordering, fence};
use std::os::fd::RawFd;

use crate::channel::guard::SendGuard;
use crate::channel::{handover_state, link, residual};
use crate::conn::fork_group;
use crate::conn::machine::{PhaseEvent, SendMode};
use crate::conn::pairing_lock::PairingGuard;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::device::shm::channel::Beyond;
use crate::stats::{self, Counter};
use crate::{bridge, live_segment, sys};

/// Says in the message ring that this direction is over. On one host a ring that has no place for
/// it is no harm: the FIN that follows says the same. Between hosts FIN alone says nothing to a
/// receiver that was ready to leave TCP. So the word is said wherever the direction's bytes went
/// (`tcp_anchored::fin_is_the_end`).
pub fn say_shutdown(id: SlotId, s: &Slot, fd: RawFd) {
    let Some(ends) = link::ends(s) else { return };
    if s.has(flag::BRIDGED) && s.has(flag::READ_SHUT) {
        // Before the word: the bridge says both to the peer as one (`wire-protocol §6.1`).
        handover_state::stop_reading(&ends.incoming);
    }
    let Some(mut guard) = SendGuard::take(s, &ends) else { return };
    let mode = s.send_mode();
    // After a fallback the end mark is the last word in the ring, and the rest is TCP's.
    if mode == SendMode::Device || s.has(flag::TCP_ANCHORED) && mode != SendMode::Returned {
        let mut sender = guard.sender();
        let first = sender.shut();
        s.room_hint.store(sender.state().hint(link::beyond(s)), Ordering::Release);
        if first {
            // Pairs with the fence in return_incoming. A receiver that asks for its bytes by TCP
            // sees the word above, or we see that it asked, while TCP can still carry them.
            fence(Ordering::SeqCst);
            if handover_state::is_asked_back(&ends.outgoing) {
                let _ = residual::give_way(&guard, fd);
            }
        }
    }
    guard.unlock_then(|| bridge::carry_out(s, &ends));
    residual::residual_or_reset(id, s, fd);
}

/// The two ends have met: the connection has its side of a channel now, and its directions may
/// switch. False when it has changed its mind, or is gone.
#[must_use]
pub fn met(id: SlotId, s: &Slot, bridge: u32, record: u32, channel: u32) -> bool {
    let Some(held) = PairingGuard::take(s) else { return false };
    // While a copy of its descriptor travels it stays on TCP, as before every other step.
    let next = s.phase().after(PhaseEvent::Met).filter(|_| !s.has(flag::TRAVELS));
    let started =
        next.is_some() && link::start(id, &held, (record, channel), 0, Beyond::Bridge).is_ok();
    if let (Some(next), true) = (next, started) {
        s.bridge_pid.store(sys::pid(), Ordering::Relaxed);
        s.bridge.store(bridge + 1, Ordering::Release);
        s.timers.learn(fork_group::descriptor(id));
        s.set(flag::BRIDGED | flag::TCP_ANCHORED);
        s.set_phase(next);
        stats::add(Counter::AttachedRdma, 1);
        live_segment::enter(id, s, -1);
        let side = if s.has(flag::CONNECTING) { "connecting" } else { "accepting" };
        crate::log_info!("attached over RDMA ({} side)", side);
    }
    drop(held);
    // Pairs with the fence in socket::shutdown: either that call found the bridge, or its flag is
    // found here.
    fence(Ordering::SeqCst);
    if started && s.has(flag::WRITE_SHUT) {
        say_shutdown(id, s, fork_group::descriptor(id));
    }
    started
}
