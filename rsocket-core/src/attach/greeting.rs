//! What two ends that meet say to one another: knock, answer, welcome (`life-of-a-connection §3`).
//!
//! One message goes each way over the channel between them, and each is believed only as far as the
//! kernel says the same. Where it says nothing at one end or at both, two more go before the last
//! one, by which they prove what both know ([`super::evidence`]). Must not know when a step is due
//! ([`super::retry`]), nor which comes next. Entry points: [`knock`] and [`finish`] of the end that
//! accepted, [`answer`] of the other.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;
use std::os::fd::{BorrowedFd, RawFd};

use super::arenas;
use super::evidence::{self, Next};
use super::hello::{self, Id, Knock, Welcome};
use super::link;
use super::machine::{Phase, PhaseEvent};
use super::mail::open_mail;
use super::pairing::{
    close_pairing_fd, elsewhere, enter, hold, lapse, lapse_if_orphaned, required_by_now,
};
use super::proof::{self, Joined, Proof};
use super::proving::{self, State};
use super::rendezvous::{self, Channel};
use super::retry::{self, later};
use super::trust::{self, Tuple};
use super::visitors::{Seen, seen};
use crate::device::shm::bell::{self, Rang};
use crate::device::shm::channel::Beyond;
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
    let sent = introduce(s, fd, tuple, &channel);
    if let Err(reason) = sent {
        proving::forget(channel.fd);
        channel.close();
        return unproved(s, reason, None);
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

/// The accepting side's message: all of it only if its reader is known to own the other end of the
/// connection.
fn introduce(s: &Slot, fd: RawFd, tuple: &Tuple, channel: &Channel) -> Result<(), Reason> {
    let seen = seen(tuple, channel)?;
    if matches!(seen, Seen::Another(_)) {
        return Err(Reason::NameTaken);
    }
    at_home(fd)?;
    if seen.is_sure() && trust::is_own_user(fd) {
        return say_who(s, fd, channel, None);
    }
    let (process, identity) = introduction(fd)?;
    let knock = Knock::new(process, identity, 0).with_stamp(evidence::told(s, fd));
    let proof = evidence::asks((s, fd), channel, tuple)?;
    say(channel, knock.bytes(), Some(&proof), &[])
}

/// Who we are, and by what we can be woken, with this proof behind it.
fn say_who(s: &Slot, fd: RawFd, channel: &Channel, proof: Option<&Proof>) -> Result<(), Reason> {
    let (process, identity) = introduction(fd)?;
    let (bell, event) = bell::front::offered();
    let knock = Knock::new(process, identity, bell).with_stamp(evidence::told(s, fd));
    say(channel, knock.bytes(), proof, event.as_slice())
}

fn say(
    channel: &Channel,
    message: &[u8],
    proof: Option<&Proof>,
    fds: &[BorrowedFd<'_>],
) -> Result<(), Reason> {
    channel.send(Joined::new(message, proof).bytes(), fds).map_err(|_| Reason::OfferLapsed)
}

/// Whoever is at the other end of the channel did not prove that he has the connection's: another
/// one may come.
fn unproved(s: &Slot, reason: Reason, seen: Option<&Seen>) -> Result<(), Reason> {
    let may_pass = match reason {
        Reason::TooManyOffers => true,
        // Of one who should not have been there so many are heard, and the right one may come then.
        Reason::NoEvidence => {
            let should_not = matches!(seen, Some(Seen::Another(_)));
            (should_not || evidence::meets_again(s)) && retry::set_back(s)
        }
        _ => false,
    };
    if !may_pass {
        return Err(reason);
    }
    if s.phase() != Phase::Young {
        lapse(s)?;
    }
    s.reason.store(reason as u32, Ordering::Relaxed);
    s.tries.store(0, Ordering::Relaxed);
    later(s);
    Ok(())
}

/// Looks for the next word of one who has proved nothing yet.
const SILENT_TRIES: u32 = 64;

/// Nothing has been heard. One of whom nothing is known is not waited for as long as the other end
/// would be.
fn wait(s: &Slot, fd: RawFd, channel: &Channel) -> Result<(), Reason> {
    if s.tries.load(Ordering::Relaxed) < SILENT_TRIES || proving::state(channel) == State::Proved {
        return Ok(());
    }
    let tuple = Tuple::of(fd).ok_or(Reason::ShutDownEarly)?;
    let seen = seen(&tuple, channel)?;
    if seen.is_sure() { Ok(()) } else { unproved(s, Reason::NoEvidence, Some(&seen)) }
}

/// Something was said, and the answer may be here soon.
fn has_said(s: &Slot) -> Result<(), Reason> {
    s.tries.store(0, Ordering::Relaxed);
    retry::now(s);
    Ok(())
}

/// The process's threads can wake the peer, and be found by it, wherever they go.
fn at_home(fd: RawFd) -> Result<(), Reason> {
    home::settle(fd).map_err(|e| {
        if e == home::ELSEWHERE { Reason::PeerElsewhere } else { Reason::ResourceError }
    })
}

/// What a visitor says, and what is to go behind his welcome; nothing where more has to be said
/// first, or he is not welcome.
fn weigh(
    s: &Slot,
    fd: RawFd,
    channel: &Channel,
    said: &[u8],
) -> Result<Option<(Knock, Option<Proof>)>, Reason> {
    let tuple = Tuple::of(fd).ok_or(Reason::ShutDownEarly)?;
    let seen = seen(&tuple, channel)?;
    let read = proof::split(said, size_of::<Knock>())
        .and_then(|(knock, theirs)| Ok((Knock::parse(knock)?, theirs)))
        .map_err(|_| Reason::LayoutMismatch)
        .and_then(|read| seen.identified((read.0.inode, read.0.cookie)).map(|()| read));
    let (knock, theirs) = match read {
        // It is the other end that says so.
        Err(reason) if seen.is_sure() => return Err(reason),
        Err(_) => return unproved(s, Reason::NoEvidence, Some(&seen)).map(|()| None),
        Ok(read) => read,
    };
    at_home(fd)?;
    let heard = (knock.hint, theirs.as_ref());
    match evidence::weighs((s, fd), channel, &tuple, heard, seen.is_sure()) {
        Ok(Next::Welcome(last)) => Ok(Some((knock, last))),
        Ok(Next::Say(proof)) => {
            say(channel, &[], Some(&proof), &[])?;
            has_said(s).map(|()| None)
        }
        Err(reason) => unproved(s, reason, Some(&seen)).map(|()| None),
    }
}

/// The end that connected reads what its visitor says, and answers.
pub(super) fn answer(id: SlotId, s: &Slot, fd: RawFd) -> Result<(), Reason> {
    if elsewhere(s) {
        return lapse_if_orphaned(s);
    }
    let channel = Channel { fd: s.pairing_fd.load(Ordering::Relaxed) };
    let Some(mut mail) = open_mail(s, &channel)? else { return wait(s, fd, &channel) };
    let Some((knock, last)) = weigh(s, fd, &channel, mail.text())? else { return Ok(()) };
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
    let welcome = Joined::new(welcome.bytes(), last.as_ref());
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
    let Some(mut mail) = open_mail(s, &channel)? else { return wait(s, fd, &channel) };
    let tuple = Tuple::of(fd).ok_or(Reason::ShutDownEarly)?;
    let seen = seen(&tuple, &channel)?;
    if let Ok(theirs) = Proof::parse(mail.text()) {
        return match evidence::hears((s, fd), &channel, &tuple, &theirs, seen.is_sure()) {
            Ok(proof) => say_who(s, fd, &channel, Some(&proof)).and_then(|()| has_said(s)),
            Err(reason) => unproved(s, reason, None),
        };
    }
    let (welcome, last) = proof::split(mail.text(), size_of::<Welcome>())
        .and_then(|(welcome, last)| Ok((Welcome::parse(welcome)?, last)))
        .map_err(|_| Reason::LayoutMismatch)?;
    seen.identified((welcome.inode, welcome.cookie))?;
    if let Err(reason) = evidence::believes(&channel, last.as_ref(), seen.is_sure()) {
        return unproved(s, reason, None);
    }
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
