//! How an end knows the owner of the other end. It goes by the kernel's word (`sock_diag`), or,
//! where one of the two ends cannot have that, by what both know of the handshake
//! ([`super::meet`]).
//!
//! Between the connection, which knows its handshake, and the proof of it ([`super::proving`]).
//! Must not know arenas or phases. Entry points: [`where_is`]; [`prepares`], [`hears`] and
//! [`believes`] of the end that accepted, [`weighs`] of the other.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::net::{SocketAddr, SocketAddrV6};
use core::sync::atomic::{AtomicBool, Ordering};
use std::os::fd::RawFd;

use super::meet::pake::Side;
use super::proof::Proof;
use super::rendezvous;
use super::{meet::offers, meet::place};
use super::{proving, proving::FirstWord, proving::Secret, proving::State};
use super::{trust, trust::Owner};
use crate::config::policy;
use crate::conn::dialled::Bounds;
use crate::conn::offsets;
use crate::conn::pairing_lock::PairingGuard;
use crate::conn::slot::{Slot, flag};
use crate::host::trial;
use crate::host::tuple::Tuple;
use crate::reason::{Reason, not_asked};
use crate::seqpacket::Channel;
use crate::sys::{identity, sockets};

/// Where the other end of a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// In this network namespace, and this is what the kernel says of it.
    Here(Owner),
    /// It has an address of this namespace's, as far as is seen here ([`may_be_there`]), and the
    /// ends have to prove the rest.
    Somewhere,
    /// In another namespace, or on another host.
    Elsewhere,
}

/// The kernel could not be asked when it last was to be. Relaxed: all threads of a process find the
/// same, and it only says where else to look.
static UNASKED: AtomicBool = AtomicBool::new(false);

/// Whether the other end of the connection is in this network namespace, and there is a way to know
/// it there.
///
/// # Errors
/// Why the connection stays on TCP.
pub(crate) fn where_is(s: &PairingGuard<'_>, fd: RawFd, tuple: &Tuple) -> Result<Peer, Reason> {
    let asked = trust::find(&tuple.reversed()).map_err(not_asked);
    UNASKED.store(asked == Err(Reason::NoNetlink), Ordering::Relaxed);
    let found = match asked {
        Ok(None) => return Ok(Peer::Elsewhere),
        Err(Reason::NoNetlink) if !is_address_here(tuple) => return Ok(Peer::Elsewhere),
        Err(Reason::NoNetlink) => None,
        other => other?,
    };
    if !policy::shm_allowed() {
        return Err(Reason::PolicyTcp);
    }
    // The accepting side's peer may have closed already; the connecting side's has not accepted
    // yet.
    if found.is_some_and(|o| !o.is_alive()) && !s.has(flag::CONNECTING) {
        return Err(Reason::ShutDownEarly);
    }
    match known_by_kernel(found) {
        Ok(owner) => Ok(Peer::Here(owner)),
        Err(_) if is_known(s, fd) => Ok(Peer::Somewhere),
        Err(reason) => Err(reason),
    }
}

/// The kernel's word, if it does at this end and at the other; else why it does not.
fn known_by_kernel(found: Option<Owner>) -> Result<Owner, Reason> {
    let owner = found.ok_or(Reason::NoNetlink)?;
    let nobody = trust::is_nobody(owner.uid) || trust::is_nobody(identity::user());
    if nobody { Err(Reason::UserNobody) } else { Ok(owner) }
}

/// Whether the peer's address is one of this network namespace's: only then a socket can have it.
fn is_address_here(tuple: &Tuple) -> bool {
    if tuple.peer_may_be_local() {
        return true;
    }
    let [a, b, c, d, ..] = tuple.remote.addr;
    let address = match tuple.family {
        4 => SocketAddr::from(([a, b, c, d], 0)),
        _ => SocketAddrV6::new(tuple.remote.addr.into(), 0, 0, tuple.scope).into(),
    };
    sockets::can_have(&address).is_ok()
}

/// Whether ends can meet in the directory.
pub(crate) fn has_directory() -> bool {
    place::is_there() && policy::shm_allowed() && !trial::directory_kills()
}

/// Whether the other end may be in the directory, although it has an address of this namespace's.
/// That address may be a rewritten one (`REDIRECT`), which only the kernel could have said.
pub(crate) fn may_be_there(s: &Slot, fd: RawFd) -> bool {
    UNASKED.load(Ordering::Relaxed) && has_directory() && is_known(s, fd)
}

/// Whether this end knows enough of its handshake.
pub(crate) fn is_known(s: &Slot, fd: RawFd) -> bool {
    if s.has(flag::CONNECTING) { bounds(s, fd).is_some() } else { stamp(s, fd).is_some() }
}

/// Whether a timestamp says which connection it is, and whether asking for it is not deadly.
fn is_usable(fd: RawFd) -> bool {
    !trial::handshake_kills() && offsets::are_each_ones_own(fd)
}

/// Where the timestamp of the SYN lies that this end has sent, if it says which connection it is.
pub(crate) fn bounds(s: &Slot, fd: RawFd) -> Option<Bounds> {
    if is_usable(fd) { s.handshake.dialled_bounds(fd) } else { None }
}

/// The timestamp of the SYN that this end was sent, for an end that is not sure and will find out
/// what it says.
pub(crate) fn told(s: &Slot, fd: RawFd) -> Option<u32> {
    if trial::handshake_kills() { None } else { s.handshake.accepted_timestamp(fd) }
}

/// As [`told`], if it says which connection it is.
pub(crate) fn stamp(s: &Slot, fd: RawFd) -> Option<u32> {
    told(s, fd).filter(|_| is_usable(fd))
}

/// What the end that connected knows, given the other one's hint.
fn dialled(s: &Slot, fd: RawFd, hint: u32) -> Option<u32> {
    bounds(s, fd)?.hinted(hint)
}

/// Whether a visitor that gives this hint may be the other end of the connection that this end has
/// made.
pub(crate) fn may_be(s: &Slot, fd: RawFd, hint: u32) -> bool {
    dialled(s, fd, hint).is_some()
}

/// Where two ends meet, as far as both of them know: their connection's addresses, or, where those
/// may differ, the directory.
enum Meeting {
    Addresses([u8; rendezvous::NAME_LEN]),
    Directory,
}

impl Meeting {
    /// Over this channel. `connecting` is the connection as the end sees it that connected.
    fn over(channel: &Channel, connecting: &Tuple) -> Self {
        if is_in_directory(channel) { Self::Directory } else { Self::at(connecting) }
    }

    fn at(connecting: &Tuple) -> Self {
        Self::Addresses(rendezvous::name(connecting))
    }

    fn name(&self) -> &[u8] {
        match self {
            Self::Addresses(name) => name,
            Self::Directory => b"rsockets directory",
        }
    }
}

/// Whether the ends have met in the directory.
pub(crate) fn is_in_directory(channel: &Channel) -> bool {
    place::is_there() && offers::name_of(channel.fd).is_some()
}

/// The first word of the proof of the end that accepted. That end is not sure which process it will
/// come to, or knows that the other end cannot be sure of it. Without a tuple the ends meet in the
/// directory.
pub(crate) fn prepares(
    (s, fd): (&PairingGuard<'_>, RawFd),
    tuple: Option<&Tuple>,
) -> Result<FirstWord, Reason> {
    let stamp = stamp(s, fd).ok_or(Reason::NoEvidence)?;
    let meeting = tuple.map_or(Meeting::Directory, |tuple| Meeting::at(&tuple.reversed()));
    proving::prepare(&Secret { side: Side::Accepting, stamp, place: meeting.name() })
}

/// The end that accepted has heard a proof: what it says to that.
pub(crate) fn hears(
    (s, fd): (&PairingGuard<'_>, RawFd),
    channel: &Channel,
    tuple: &Tuple,
    theirs: &Proof,
    sure: bool,
) -> Result<Proof, Reason> {
    match proving::state(channel) {
        State::Begun => proving::conclude(channel, Side::Accepting, theirs),
        // The end that answers first lets a process try a guess. So it answers only if it is sure
        // which process that is.
        State::Nothing if sure => {
            let stamp = stamp(s, fd).ok_or(Reason::NoEvidence)?;
            let meeting = Meeting::over(channel, &tuple.reversed());
            let place = meeting.name();
            proving::tell(channel, &Secret { side: Side::Accepting, stamp, place }, theirs)
        }
        _ => Err(Reason::NoEvidence),
    }
}

/// The end that accepted has its hello-ack: whether the right end has sent it.
pub(crate) fn believes(channel: &Channel, last: Option<&Proof>, sure: bool) -> Result<(), Reason> {
    match (proving::state(channel), last) {
        (State::Proved, _) => Ok(()),
        (State::Nothing, None) if sure => Ok(()),
        (State::Answered, Some(last)) => proving::check(channel, last),
        _ => Err(Reason::NoEvidence),
    }
}

/// What the end that connected says next.
pub(crate) enum Next {
    /// It welcomes its visitor, with this at the end.
    HelloAck(Option<Proof>),
    /// More has to be said before that.
    Say(Proof),
}

/// The end that connected has heard its visitor, which gives this hint.
pub(crate) fn weighs(
    (s, fd): (&PairingGuard<'_>, RawFd),
    channel: &Channel,
    tuple: &Tuple,
    (hint, theirs): (u32, Option<&Proof>),
    sure: bool,
) -> Result<Next, Reason> {
    let meeting = Meeting::over(channel, tuple);
    let secret = || {
        let stamp = dialled(s, fd, hint).ok_or(Reason::NoEvidence)?;
        Ok(Secret { side: Side::Connecting, stamp, place: meeting.name() })
    };
    match (proving::state(channel), theirs) {
        (State::Nothing, None) if sure => Ok(Next::HelloAck(None)),
        (State::Nothing, None) => Ok(Next::Say(proving::begin(channel, &secret()?)?)),
        (State::Nothing, Some(theirs)) => {
            Ok(Next::Say(proving::answer(channel, &secret()?, theirs)?))
        }
        (State::Begun, Some(theirs)) => {
            Ok(Next::HelloAck(Some(proving::conclude(channel, Side::Connecting, theirs)?)))
        }
        (State::Answered, Some(theirs)) => {
            proving::check(channel, theirs)?;
            Ok(Next::HelloAck(None))
        }
        _ => Err(Reason::NoEvidence),
    }
}

/// Wrong proofs that one connection bears before it stays on TCP.
const WRONG_MOST: u32 = 4;

/// Whether a connection that met a process which proved nothing may meet another process.
pub(crate) fn meets_again(s: &Slot) -> bool {
    s.has(flag::STRICT) || hears_others(s)
}

/// Whether the connection hears visitors that, as the kernel says, should not be there.
pub(crate) fn hears_others(s: &Slot) -> bool {
    s.set_backs.load(Ordering::Relaxed) < WRONG_MOST
}
