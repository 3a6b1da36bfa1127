//! Attaching to a peer on another host: what of it is the connection's own business. How the two
//! ends reach each other is the bridge's ([`crate::bridge::tcp_anchored`]).
//!
//! The end that connected asks, in the background, at the port number of its TCP connection. The
//! end that accepted answers if it knows the connection and has seen the same bytes of it
//! ([`super::fingerprint`]). Until both have a channel with their bridges everything goes by TCP.
//! Then each direction switches as it does on one host. The first step is
//! [`crate::pairing::abroad`]'s. Entry points: [`recognise`], [`failed`], [`lost`].

use core::net::SocketAddr;
use core::sync::atomic::Ordering;

use super::{fingerprint::Proof, fingerprint::Who};
use super::{permit, phase, retry};
use crate::channel::{guard, handover_state, link};
use crate::conn::machine::{Phase, PhaseEvent, ReceiveMode, SendMode};
use crate::conn::pairing_lock::PairingGuard;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::conn::{fork_group, pending};
use crate::failure::Failure;
use crate::reason::Reason;
use crate::{live_segment, stats, sys};

/// Times that a peer is asked before the connection stays on TCP.
const ASK_TRIES: u32 = 8;

/// This process listens over RDMA no more: its connections that wait to be asked say anew where,
/// with their next step. Blocks only for another thread's step in progress.
pub fn ask_anew() {
    fork_group::each_used(|id, s| {
        let waits = || {
            s.asked_at_port.load(Ordering::Relaxed) != 0
                && s.bridge_pid.load(Ordering::Relaxed) == sys::pid()
                && s.phase() == Phase::Young
        };
        if !waits() || !fork_group::held_here(id) {
            return;
        }
        let Some(_held) = PairingGuard::take(s) else { return };
        if waits() {
            s.asked_at_port.store(0, Ordering::Release);
            s.next_step.store(0, Ordering::Relaxed);
        }
    });
}

pub(crate) fn later(s: &Slot) -> Result<(), Reason> {
    if retry::later(s) >= ASK_TRIES { Err(Reason::NoOffer) } else { Ok(()) }
}

/// Which connection was asked for.
pub enum Recognised {
    /// A connection of this process, whose peer has proved that it is at the other end; and our own
    /// proof.
    Here(SlotId, Proof),
    /// A connection of a sibling of this process, which is to be asked at this port.
    Elsewhere(u16),
    /// No connection, or none that would attach, or the proof is none.
    Nobody,
}

/// A peer at `theirs` asks for the connection between there and `ours`.
#[must_use]
pub fn recognise(ours: &SocketAddr, theirs: &SocketAddr, proof: &Proof) -> Recognised {
    let mut found = None;
    fork_group::each_used(|id, s| {
        // Acquire: pairs with the release in begin().
        let asked = s.asked_at_port.load(Ordering::Acquire) != 0;
        let [own, peer] = &s.names;
        if asked
            && own.get() == Some(*ours)
            && peer.get() == Some(*theirs)
            && s.phase() == Phase::Young
        {
            found = Some((id, s));
        }
    });
    let Some((id, s)) = found else { return Recognised::Nobody };
    if s.bridge_pid.load(Ordering::Relaxed) != sys::pid() || !fork_group::held_here(id) {
        let port = s.asked_at_port.load(Ordering::Relaxed);
        return u16::try_from(port).map_or(Recognised::Nobody, Recognised::Elsewhere);
    }
    let [sent, received] = &s.fingerprint;
    let seen = Proof::of(Who::Asks, proof.seen, received, sent);
    let own = Proof::of(Who::Answers, proof.seen, received, sent);
    match own {
        Some(own)
            if seen == Some(*proof)
                && permit::permitted(s).is_ok()
                && !permit::sibling_in_sandbox(id, s)
                && !s.has(flag::TRAVELS) =>
        {
            Recognised::Here(id, own)
        }
        _ => Recognised::Nobody,
    }
}

/// The peer could not be reached, or did not want. Asked again later, some times, if `again`.
pub fn failed(id: SlotId, s: &Slot, reason: Reason, again: bool) {
    let Some(s) = PairingGuard::take(s) else { return };
    if s.phase() == Phase::Dialling {
        crate::log_debug!("not attached over RDMA now: {}", reason.text());
        let lapsed = s.phase().after(PhaseEvent::Lapsed);
        match lapsed {
            Some(next) if again => {
                s.set_phase(next);
                if retry::later(&s) >= ASK_TRIES {
                    phase::give_up(&s, reason);
                }
            }
            _ => phase::give_up(&s, reason),
        }
        if s.phase() == Phase::Refused {
            live_segment::enter(id, &s, -1);
        }
    }
}

/// The connection over RDMA is gone without a farewell. Where no byte can have travelled on it, TCP
/// goes on as if it had never been. Else bytes may be missing, and the program is told
/// (`life-of-a-connection §1`).
pub fn lost(s: &Slot, committed: bool) {
    if committed || !back_to_tcp(s) {
        pending::note_reset(s, Failure::Reset);
        s.set(flag::LOST);
    }
}

/// The peer has closed, and takes nothing of what was sent last. Over TCP a reset behind its FIN
/// says so, of which the error is `EPIPE`.
pub fn unheard(s: &Slot) {
    pending::note_reset(s, Failure::Ended);
    s.set(flag::LOST);
}

/// Both directions are TCP's for good; false when one has left it. (Should the program acknowledge
/// at this moment, its bridge is gone, and does not tell the peer.)
fn back_to_tcp(s: &Slot) -> bool {
    let Some(ends) = link::ends(s) else { return false };
    let Some(guard) = guard::SendGuard::take(s, &ends) else { return false };
    let stays = handover_state::switch_offset(&ends.outgoing).is_none();
    if stays {
        s.set_send_mode(SendMode::Returned);
    }
    drop(guard);
    if !stays {
        return false;
    }
    let Some(guard) = guard::RecvGuard::take(s, &ends) else { return false };
    let stays = s.receive_mode() != ReceiveMode::Device;
    if stays {
        s.set_receive_mode(ReceiveMode::Returned);
    }
    drop(guard);
    if stays {
        stats::fell_back(Reason::PeerRefused);
        s.reason.store(Reason::PeerRefused as u32, Ordering::Relaxed);
        s.bridge.store(0, Ordering::Release);
        s.clear(flag::BRIDGED | flag::TCP_ANCHORED);
    }
    stays
}
