//! The first step of a pairing with a peer on another host.
//!
//! How the two ends reach each other is the bridge's ([`crate::bridge::tcp_anchored`]); what
//! becomes of it the connection is told ([`crate::attach::remote`]). Entry point: [`begin`].

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use core::sync::atomic::Ordering;

use crate::attach::fingerprint::{Proof, Who};
use crate::attach::reach::possible;
use crate::attach::remote::later;
use crate::attach::retry;
use crate::bridge::tcp_anchored;
use crate::conn::machine::PhaseEvent;
use crate::conn::pairing_lock::PairingGuard;
use crate::conn::slot::{SlotId, flag};
use crate::failure::Failure;
use crate::host::tuple::{End, Tuple};
use crate::reason::Reason;
use crate::sys;

/// The ends of a connection as addresses: ours and the peer's.
pub(crate) fn names(tuple: &Tuple) -> [SocketAddr; 2] {
    let name = |end: &End| match tuple.family {
        4 => {
            let [a, b, c, d, ..] = end.addr;
            SocketAddr::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), end.port)
        }
        _ => SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(end.addr), end.port, 0, tuple.scope)),
    };
    [name(&tuple.local), name(&tuple.remote)]
}

/// The peer is not on this host. Asks it, or makes sure that it can ask.
///
/// # Errors
/// Why the connection stays on TCP.
pub(crate) fn begin(id: SlotId, s: &PairingGuard<'_>, tuple: &Tuple) -> Result<(), Reason> {
    if !possible() {
        return Err(Reason::PeerElsewhere);
    }
    let [ours, theirs] = names(tuple);
    for (name, known) in s.names.iter().zip([ours, theirs]) {
        name.set(Some(known));
    }
    if s.has(flag::CONNECTING) {
        if tcp_anchored::is_closed(&theirs) {
            retry::put_off(s);
            return Ok(());
        }
        let [sent, received] = &s.fingerprint;
        let Some(proof) = Proof::most(Who::Asks, sent, received) else { return later(s) };
        let expected =
            Proof::of(Who::Answers, proof.seen, sent, received).ok_or(Reason::Inconsistent)?;
        s.set_phase(s.phase().after(PhaseEvent::Dialled).ok_or(Reason::Inconsistent)?);
        return match tcp_anchored::ask(id, s, [ours, theirs], proof, expected) {
            Err(Failure::Blocked) => {
                s.set_phase(s.phase().after(PhaseEvent::Lapsed).ok_or(Reason::Inconsistent)?);
                later(s)
            }
            asked => asked.map_err(|_| Reason::NoRoute),
        };
    }
    match tcp_anchored::be_asked(&ours) {
        Ok(port) => {
            s.bridge_pid.store(sys::pid(), Ordering::Relaxed);
            // Release: pairs with the acquire in recognise(): names and fingerprints are there.
            s.asked_at_port.store(u32::from(port), Ordering::Release);
            // The peer is the one to go on.
            s.next_step.store(u64::MAX, Ordering::Relaxed);
            Ok(())
        }
        Err(_) => Err(Reason::NoRoute),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_tuple() {
        let end = |first: u8, port| {
            let mut addr = [0; 16];
            addr[0] = first;
            addr[3] = 1;
            End { addr, port }
        };
        let tuple = Tuple { family: 4, scope: 0, local: end(10, 80), remote: end(11, 9) };
        assert_eq!(names(&tuple), ["10.0.0.1:80".parse().unwrap(), "11.0.0.1:9".parse().unwrap()]);
        let six = Tuple { family: 6, ..tuple };
        assert!(names(&six).iter().all(SocketAddr::is_ipv6));
    }
}
