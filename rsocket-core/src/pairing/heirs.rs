//! A pairing that is not finished, and what goes on with it: another process of the fork group, or
//! the next program.
//!
//! What the phase holds open is one program's, of one process. The process that gives that up
//! finishes the pairing, if the peer has done its part, or sees to it that it can begin again. Must
//! not know how a pairing is made ([`super`]). Entry points: [`hand_over`]; [`fork_prepare`];
//! [`before_exec`], [`after_exec`].

use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use super::greeting::finish;
use crate::attach::phase::{elsewhere, lapse};
use crate::attach::{held, retry};
use crate::conn::fork_group;
use crate::conn::machine::Phase;
use crate::conn::pairing_lock::PairingGuard;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::seqpacket::Channel;
use crate::sync::stack;
use crate::sys;

/// Before `exec`, which closes what this process holds of an unfinished pairing: it begins again in
/// the next program. Blocks as [`crate::pairing::forget`].
pub fn before_exec(id: SlotId, s: &Slot, fd: RawFd) {
    if is_unfinished(s) && !elsewhere(s) {
        conclude(id, s, fd);
    }
}

/// After `exec`, in a process that has one thread. What the last program held open of pairings is
/// closed, though its threads may have begun one after [`before_exec`].
pub fn after_exec() {
    fork_group::each_used(|_, s| {
        if s.pairing.pid() == sys::pid() {
            s.pairing.was_closed();
        }
    });
}

/// This process gives the connection up, and siblings go on with it. What this process alone has of
/// an unfinished pairing is finished, if the peer has done its part, and begins again if not. `fd`
/// is still open. Blocks as [`crate::pairing::forget`].
pub fn hand_over(id: SlotId, s: &Slot, fd: RawFd) {
    conclude(id, s, fd);
}

/// Before a fork, while no step is under way: this process cannot know which of the two processes
/// will go on with a connection. The parent may well sleep until a program that its child becomes
/// has sent everything (a shell does). No process would then go on with its pairing. Where there is
/// no TCP meanwhile, and the peer has come already, the process that goes on waits for the parent
/// as for a peer.
pub fn fork_prepare() {
    if !held::any() {
        return;
    }
    sys::keeping_errno(|| {
        stack::on_own(|| {
            fork_group::each_local(|id, s| {
                let alone = s.phase() == Phase::Offered && !s.has(flag::RSOCKET);
                if is_unfinished(s) && (alone || !s.has(flag::STRICT)) {
                    conclude(id, s, fork_group::descriptor(id));
                }
            });
        });
    });
}

fn is_unfinished(s: &Slot) -> bool {
    matches!(s.phase(), Phase::Offered | Phase::Greeted | Phase::HelloSent)
}

/// An unfinished pairing of this process is finished, if the peer has done its part, or begins
/// again. Blocks as [`crate::pairing::forget`].
fn conclude(id: SlotId, s: &Slot, fd: RawFd) {
    let Some(s) = PairingGuard::take(s) else { return };
    if s.phase() == Phase::HelloSent && !elsewhere(&s) {
        // From here on the peer cannot send its hello-ack any more. Either the hello-ack is here,
        // or the peer learns that it has to begin again too.
        Channel { fd: s.pairing.fd() }.hear_no_more();
        let _ = stack::on_own_only(|| finish(id, &s, fd));
    }
    if is_unfinished(&s) && !elsewhere(&s) {
        let _ = lapse(&s);
        s.tries.store(0, Ordering::Relaxed);
        retry::now(&s);
    }
}
