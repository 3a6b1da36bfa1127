//! What two ends that meet say to one another: knock, answer, welcome (`life-of-a-connection §3`).
//!
//! One message goes each way over the channel between them, and each is believed only as far as the
//! kernel says the same. Must not know when a step is due ([`super::retry`]), nor which comes next.
//! Entry points: [`knock`] and [`finish`] of the end that accepted, [`answer`] of the other.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;
use std::os::fd::{BorrowedFd, RawFd};

use super::arenas;
use super::hello::{self, Id, Knock, Welcome};
use super::link::{self, Beyond};
use super::machine::PhaseEvent;
use super::mail::open_mail;
use super::pairing::{close_pairing_fd, elsewhere, enter, hold, lapse, lapse_if_orphaned, required_by_now};
use super::rendezvous::{self, Channel};
use super::retry::{self, later};
use super::trust::{self, Tuple};
use super::visitors::{self, trusted};
use crate::device::shm::bell::{self, Rang};
use crate::device::shm::home;
use crate::errno::Errno;
use crate::reason::{Reason, refused};
use crate::socket::slot::{Slot, SlotId, flag};
use crate::stats::{self, Counter};
use crate::sys;

/// Looks for an offer before the accepting side stops looking.
const KNOCK_TRIES: u32 = 14;

/// The end that accepted looks for the other one's offer.
pub(super) fn knock(s: &Slot, fd: RawFd, tuple: &Tuple) -> Result<(), Reason> {
    stats::add(Counter::Knocks, 1);
    let channel = match rendezvous::knock(tuple) {
        Ok(Some(channel)) => channel,
        // Or so many have knocked that there is no room for another one.
        Ok(None) | Err(Errno::AGAIN) => {
            let tries = later(s);
            let strict = s.has(flag::STRICT);
            if strict {
                s.reason.store(Reason::NoOffer as u32, Ordering::Relaxed);
            }
            let late = tries >= KNOCK_TRIES || required_by_now(s);
            return if late && !strict { Err(Reason::NoOffer) } else { Ok(()) };
        }
        Err(Errno(libc::EPERM | libc::EACCES)) => return Err(Reason::Sandboxed),
        Err(Errno(libc::EPROTOTYPE)) => return Err(Reason::NameTaken),
        Err(e) => return Err(refused("a knock")(e)),
    };
    let sent = introduce(fd, tuple, &channel);
    if let Err(reason) = sent {
        channel.close();
        return Err(reason);
    }
    hold(s, channel.fd);
    s.tries.store(0, Ordering::Relaxed);
    retry::now(s);
    enter(s, PhaseEvent::KnockSent)
}

/// Who we are: process and socket.
fn introduction(fd: RawFd) -> Result<(Id, (u32, u64)), Reason> {
    let process = hello::process_id().map_err(refused("random bits"))?;
    Ok((process, trust::own_identity(fd).map_err(refused("the socket's identity"))?))
}

/// The accepting side's message, once it is sure that its reader owns the other end of the connection.
fn introduce(fd: RawFd, tuple: &Tuple, channel: &Channel) -> Result<(), Reason> {
    trusted(tuple, channel).map_err(|e| if e == Reason::UidMismatch { Reason::NameTaken } else { e })?;
    at_home(fd)?;
    let (process, identity) = introduction(fd)?;
    let (bell, event) = bell::front::offered();
    let knock = Knock::new(process, identity, bell);
    channel.send(knock.bytes(), event.as_slice()).map_err(|_| Reason::OfferLapsed)
}

/// The process's threads can wake the peer, and be found by it, wherever they go.
fn at_home(fd: RawFd) -> Result<(), Reason> {
    home::settle(fd)
        .map_err(|e| if e == home::ELSEWHERE { Reason::PeerElsewhere } else { Reason::ResourceError })
}

/// The end that connected reads what its visitor says, and answers.
pub(super) fn answer(id: SlotId, s: &Slot, fd: RawFd) -> Result<(), Reason> {
    if elsewhere(s) {
        return lapse_if_orphaned(s);
    }
    let channel = Channel { fd: s.pairing_fd.load(Ordering::Relaxed) };
    let Some(mut mail) = open_mail(s, &channel)? else { return Ok(()) };
    let knock = Knock::parse(mail.text()).map_err(|_| Reason::LayoutMismatch)?;
    let tuple = Tuple::of(fd).ok_or(Reason::ShutDownEarly)?;
    let owner = trusted(&tuple, &channel)?;
    visitors::identified(&owner, (knock.inode, knock.cookie))?;
    at_home(fd)?;
    // Before anybody could sleep who cannot be woken.
    let reached = bell::meet(knock.bell, mail.take(0));
    if reached == Rang::Forbidden {
        return Err(Reason::Sandboxed);
    }
    let (process, identity) = introduction(fd)?;
    let claim = arenas::claim(knock.process, channel.peer_pid())?;
    link::start(id, s, claim.record, claim.window, 0, Beyond::Peer)?;
    if reached == Rang::Yes {
        arenas::note_bell(claim.record, knock.bell);
    }
    let (bell, event) = bell::front::offered();
    let welcome = Welcome::new(process, claim.id, claim.window, identity, true).with_bell(bell);
    let arena: BorrowedFd<'_> = sys::borrow(claim.fd);
    let sent = match event {
        Some(event) => channel.send(welcome.bytes(), &[arena, event]),
        None => channel.send(welcome.bytes(), &[arena]),
    };
    if sent.is_err() {
        link::abandon(s);
        // Whoever knocked has handed the connection over, or become another program, or closed.
        if s.has(flag::STRICT) {
            return Err(Reason::OfferLapsed);
        }
        lapse(s)?;
        later(s);
        return Ok(());
    }
    close_pairing_fd(s);
    enter(s, PhaseEvent::KnockAnswered)?;
    stats::add(Counter::WelcomesSent, 1);
    stats::add(Counter::AttachedShm, 1);
    crate::log_info!("attached over shared memory (connecting side)");
    Ok(())
}

/// The end that accepted reads the answer.
pub(super) fn finish(id: SlotId, s: &Slot, fd: RawFd) -> Result<(), Reason> {
    if elsewhere(s) {
        return lapse_if_orphaned(s);
    }
    let channel = Channel { fd: s.pairing_fd.load(Ordering::Relaxed) };
    let Some(mut mail) = open_mail(s, &channel)? else { return Ok(()) };
    let welcome = Welcome::parse(mail.text()).map_err(|_| Reason::LayoutMismatch)?;
    let tuple = Tuple::of(fd).ok_or(Reason::ShutDownEarly)?;
    let owner = trusted(&tuple, &channel)?;
    visitors::identified(&owner, (welcome.inode, welcome.cookie))?;
    let (pid, arena) = (channel.peer_pid(), mail.take(0));
    let record = arenas::open(welcome.process, pid, welcome.arena, arena, welcome.window)?;
    link::start(id, s, record, welcome.window, 1, Beyond::Peer)?;
    if bell::meet(welcome.bell, mail.take(1)) == Rang::Yes {
        arenas::note_bell(record, welcome.bell);
    }
    close_pairing_fd(s);
    enter(s, PhaseEvent::WelcomeRead)?;
    stats::add(Counter::WelcomesTaken, 1);
    stats::add(Counter::AttachedShm, 1);
    crate::log_info!("attached over shared memory (accepting side)");
    Ok(())
}
