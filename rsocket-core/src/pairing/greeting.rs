//! What two ends that meet say to one another: hello, answer, hello-ack (`life-of-a-connection
//! §3`).
//!
//! One message goes each way over the channel between them, and each is believed only as far as the
//! kernel says the same. Where it says nothing at one end or at both, two more go before the last
//! one, by which they prove what both know ([`crate::attach::evidence`]). Must not know when a step
//! is due ([`crate::attach::retry`]), nor which comes next. Entry points: [`knock`] and [`finish`]
//! of the end that accepted, [`answer`] of the other.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;
use std::os::fd::{AsFd, BorrowedFd, RawFd};

use crate::attach::connect_requests::{Seen, behind, seen};
use crate::attach::evidence::{self, Next};
use crate::attach::hello::{Hello, HelloAck};
use crate::attach::mail::{Mail, open_mail};
use crate::attach::meet::names::Name;
use crate::attach::meet::offers::{self, Called};
use crate::attach::meet::{listing, who};
use crate::attach::phase::{
    close_pairing_fd, elsewhere, enter, hold, lapse, lapse_if_orphaned, required_by_now,
};
use crate::attach::proof::{self, Joined, Proof};
use crate::attach::proving::{self, FirstWord, State};
use crate::attach::rendezvous;
use crate::attach::retry::{self, later};
use crate::attach::trust::{self, Owner};
use crate::channel::arenas::{self, Peer};
use crate::channel::identity::{Id, process_id};
use crate::channel::link;
use crate::conn::cause;
use crate::conn::machine::{Phase, PhaseEvent};
use crate::conn::pairing_lock::PairingGuard;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::device::shm::channel::Beyond;
use crate::device::shm::netns;
use crate::device::shm::waker::{self, Woke, far};
use crate::failure::Failure;
use crate::host::tuple::Tuple;
use crate::reason::{Reason, not_there, refused};
use crate::seqpacket::Channel;
use crate::stats::{self, Counter};
use crate::sys;

/// Looks for an offer before the accepting side stops looking.
const KNOCK_TRIES: u32 = 14;
/// The same in the directory, where it is looked for more often.
const LOOKS_THERE: u32 = 40;
/// So many of them are for an offer that says the right port, which few translations change.
const LOOKS_FOR_PORT: u32 = 4;
/// The same where there is no TCP to stay on. There the end that connected may not have run yet,
/// and each call at another end's offer is in that one's way. Together they take 50 ms or more.
const STRICT_LOOKS_FOR_PORT: u32 = 25;

/// The end that accepted looks for the other one's offer. If it will have to prove who it is, its
/// first word is made before it is seen there. Where the kernel was asked for the owner of the
/// other end in this step, it is not asked again.
pub(crate) fn say_hello(
    (s, fd): (&PairingGuard<'_>, RawFd),
    tuple: &Tuple,
    owner: Option<Owner>,
    proves: bool,
) -> Result<(), Reason> {
    stats::add(Counter::Knocks, 1);
    let first = if proves { prepare(s, fd, Some(tuple)).ok() } else { None };
    let knocked_at =
        if first.is_some() { rendezvous::knock_ready(tuple) } else { rendezvous::knock(tuple) };
    let channel = match knocked_at {
        Ok(Some(channel)) => channel,
        // Or so many have knocked that there is no room for another one.
        Ok(None) | Err(Failure::Blocked) => {
            if owner.is_none() && evidence::may_be_there(s, fd) {
                return match say_hello_there(s, fd, tuple, Reason::NoOffer) {
                    Err(Reason::MeetRefused) => nobody_there(s, Reason::NoOffer),
                    said => said,
                };
            }
            let tries = later(s);
            return nobody(s, Reason::NoOffer, tries >= KNOCK_TRIES);
        }
        Err(Failure::NotPermitted | Failure::Denied) => return Err(Reason::Sandboxed),
        Err(Failure::WrongKind) => return Err(Reason::NameTaken),
        Err(e) => return Err(refused("a knock")(e)),
    };
    match introduce((s, fd), (tuple, owner), &channel, first) {
        Err(Reason::OfferLapsed) => {
            unheard(&channel);
            let tries = later(s);
            nobody(s, Reason::OfferLapsed, tries >= KNOCK_TRIES)
        }
        sent => hello_sent(s, &channel, sent),
    }
}

/// The same in the directory, where some offers may be the right one. `none` is the reason where
/// there is no such.
pub(crate) fn say_hello_there(
    s: &PairingGuard<'_>,
    fd: RawFd,
    tuple: &Tuple,
    none: Reason,
) -> Result<(), Reason> {
    stats::add(Counter::Knocks, 1);
    let stamp = evidence::stamp(s, fd).ok_or(Reason::NoHandshake)?;
    let for_port = if s.has(flag::STRICT) { STRICT_LOOKS_FOR_PORT } else { LOOKS_FOR_PORT };
    let others = s.tries.load(Ordering::Relaxed) >= for_port;
    let looked = listing::look(stamp, tuple.remote.port, others).map_err(not_there)?;
    let looked = looked.unwrap_or_default();
    if let Some(other) = looked.other {
        offers::reap_if_forgotten(&other);
    }
    let Some(name) = looked.offer else { return nobody_there(s, none) };
    let first = match prepare(s, fd, None) {
        Ok(first) => first,
        Err(reason) => return unproved(s, reason, None),
    };
    stats::add(Counter::MeetCalls, 1);
    let channel = match offers::call(&name) {
        Called::Here(fd) => Channel { fd },
        Called::Nobody => {
            // Of a new name its owner is about to listen.
            if offers::reap(&name) {
                listing::refuse(&name, stamp);
            }
            return nobody_there(s, none);
        }
        Called::NotNow => return nobody_there(s, none),
    };
    match first.say(&channel) {
        Err(Reason::OfferLapsed) => {
            unheard(&channel);
            nobody_there(s, Reason::OfferLapsed)
        }
        sent => hello_sent(s, &channel, sent),
    }
}

/// The process at the other end of the channel closed it before it heard a word. It may be the
/// right one all the same: it sends a visitor away that has said nothing yet, since this process
/// was not run for a moment.
fn unheard(channel: &Channel) {
    proving::forget(channel.fd);
    channel.close();
}

fn nobody_there(s: &PairingGuard<'_>, none: Reason) -> Result<(), Reason> {
    let tries = retry::soon(s);
    // What is said if the connection ends before.
    s.reason.store(none as u32, Ordering::Relaxed);
    nobody(s, none, tries >= LOOKS_THERE)
}

fn nobody(s: &Slot, reason: Reason, late: bool) -> Result<(), Reason> {
    let strict = s.has(flag::STRICT);
    if strict || s.tries.load(Ordering::Relaxed) >= cause::LOOKS_BEFORE_SHOWN {
        s.reason.store(reason as u32, Ordering::Relaxed);
    }
    if (late || required_by_now(s)) && !strict { Err(reason) } else { Ok(()) }
}

fn hello_sent(
    s: &PairingGuard<'_>,
    channel: &Channel,
    sent: Result<(), Reason>,
) -> Result<(), Reason> {
    if let Err(reason) = sent {
        unheard(channel);
        return unproved(s, reason, None);
    }
    hold(s, channel.fd);
    s.tries.store(0, Ordering::Relaxed);
    retry::now(s);
    enter(s, PhaseEvent::HelloSent)
}

/// The accepting side's message where it does not say all, and its first word of a proof.
struct First {
    hello: Hello,
    word: FirstWord,
}

/// Without a tuple the two ends meet in the directory.
fn prepare(s: &PairingGuard<'_>, fd: RawFd, tuple: Option<&Tuple>) -> Result<First, Reason> {
    at_home(fd)?;
    let (process, identity) = introduction(fd)?;
    let hello = Hello::new(process, identity, 0).with_stamp(evidence::told(s, fd));
    Ok(First { hello, word: evidence::prepares((s, fd), tuple)? })
}

impl First {
    fn say(&self, channel: &Channel) -> Result<(), Reason> {
        let proof = self.word.over(channel)?;
        say(channel, self.hello.bytes(), Some(&proof), &[])
    }
}

/// Who we are: process and socket.
fn introduction(fd: RawFd) -> Result<(Id, (u32, u64)), Reason> {
    let process = process_id().map_err(refused("random bits"))?;
    Ok((process, trust::own_identity(fd).map_err(refused("the socket's identity"))?))
}

/// The accepting side's message: all of it only if its reader is known to own the other end of the
/// connection.
fn introduce(
    (s, fd): (&PairingGuard<'_>, RawFd),
    (tuple, owner): (&Tuple, Option<Owner>),
    channel: &Channel,
    first: Option<First>,
) -> Result<(), Reason> {
    let seen = owner.map_or_else(|| seen(tuple, channel), |owner| behind(owner, channel))?;
    if matches!(seen, Seen::Another(_)) {
        return Err(Reason::NameTaken);
    }
    if let Some(first) = first {
        return first.say(channel);
    }
    at_home(fd)?;
    if seen.is_sure() && trust::is_own_user(fd) {
        return say_who(s, fd, channel, None);
    }
    prepare(s, fd, Some(tuple))?.say(channel)
}

/// Who we are, and by what we can be woken, with this proof behind it.
fn say_who(
    s: &PairingGuard<'_>,
    fd: RawFd,
    channel: &Channel,
    proof: Option<&Proof>,
) -> Result<(), Reason> {
    let (process, identity) = introduction(fd)?;
    let (waker, event) = waker::front::offered();
    let hello = Hello::new(process, identity, waker).with_stamp(evidence::told(s, fd));
    if evidence::is_in_directory(channel) {
        return by_envoy(|envoy| say(channel, hello.with_envoy(true).bytes(), proof, &[envoy]));
    }
    say(channel, hello.bytes(), proof, event.as_slice())
}

/// With a socket of this namespace, by which a peer of another one signals our wakers.
fn by_envoy<R>(say: impl FnOnce(BorrowedFd<'_>) -> Result<R, Reason>) -> Result<R, Reason> {
    let envoy = netns::envoy().map_err(refused("a way to wake us"))?;
    let said = say(envoy.as_fd());
    sys::discard(envoy);
    said
}

/// How the peer is woken.
struct Reached {
    woke: Woke,
    /// A socket of its namespace, if that is another one than ours, a private descriptor.
    there: Option<RawFd>,
}

/// Finds out whether the peer's waker can be woken, by what has come with its message from `at` on.
/// That is a socket of the peer's namespace, if the peer says so, or the waker's eventfd.
fn reach(waker: u64, has_envoy: bool, mail: &mut Mail, at: usize) -> Result<Reached, Reason> {
    let came = mail.take(at);
    if !has_envoy {
        return Ok(Reached { woke: waker::meet(waker, came), there: None });
    }
    let Some(envoy) = came.and_then(far::accept) else {
        return Ok(Reached { woke: waker::meet(waker, None), there: None });
    };
    let there = sys::make_private(envoy).map_err(refused("a way to wake the other end"))?;
    let woke = far::wake(waker, there);
    if woke == Woke::Yes || waker == 0 {
        return Ok(Reached { woke, there: Some(there) });
    }
    sys::close_private(there);
    Err(if woke == Woke::Forbidden { Reason::Sandboxed } else { Reason::OfferLapsed })
}

impl Reached {
    /// The peer is that of this arena.
    fn note(&self, record: u32, waker: u64) {
        if let Some(there) = self.there {
            arenas::note_there(record, there);
        }
        if self.woke == Woke::Yes {
            arenas::note_waker(record, waker);
        }
    }

    /// It comes to nothing.
    fn give_up(&self) {
        self.there.into_iter().for_each(sys::close_private);
    }
}

fn say(
    channel: &Channel,
    message: &[u8],
    proof: Option<&Proof>,
    fds: &[BorrowedFd<'_>],
) -> Result<(), Reason> {
    channel.send(Joined::new(message, proof).bytes(), fds).map_err(|_| Reason::OfferLapsed)
}

/// The process at the other end of the channel did not prove that it has the connection's other
/// end: another process may come.
fn unproved(s: &PairingGuard<'_>, reason: Reason, seen: Option<&Seen>) -> Result<(), Reason> {
    let may_pass = match reason {
        Reason::TooManyOffers => true,
        // No process is heard for a while.
        Reason::NoEvidence if !proving::can_afford() => true,
        // Processes that should not have been there are heard only so often, and the right one may
        // come then.
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

/// Looks for the next word of a peer that has proved nothing yet; and in the directory, where there
/// may be others to call at, if there is TCP to stay on. Without it the looks are at times, and the
/// other end may not have been run for a while.
const SILENT_TRIES: u32 = 64;
const SILENT_TRIES_THERE: u32 = 24;

/// The process that was called at in the directory, or has called, is not the other end, or has
/// gone. The next one may be it.
fn or_next(
    s: &PairingGuard<'_>,
    fd: RawFd,
    channel: &Channel,
    done: Result<(), Reason>,
) -> Result<(), Reason> {
    let Err(reason) = done else { return done };
    let unmet = matches!(s.phase(), Phase::Greeted | Phase::HelloSent);
    let may_pass = matches!(
        reason,
        Reason::NoEvidence
            | Reason::OfferLapsed
            | Reason::LayoutMismatch
            | Reason::IdentityMismatch
    );
    if !unmet || !may_pass || !evidence::is_in_directory(channel) {
        return done;
    }
    if let (Phase::HelloSent, Some(name)) = (s.phase(), offers::name_of(channel.fd))
        && let Some(stamp) = evidence::stamp(s, fd)
    {
        if has_left(s, fd, channel, &name, reason) {
            listing::put_off(&name, stamp);
        } else {
            listing::refuse(&name, stamp);
        }
    }
    if !retry::set_back(s) {
        return done;
    }
    let called = s.phase() == Phase::HelloSent;
    lapse(s)?;
    s.reason.store(reason as u32, Ordering::Relaxed);
    if called && s.has(flag::STRICT) {
        // Where it calls again at once, and its own client has not offered yet, it is in the way of
        // others.
        s.tries.store(0, Ordering::Relaxed);
        return Ok(());
    }
    has_said(s)
}

/// Whether the process behind the name, which says the right port, went away before it answered the
/// first word. The right one does so too: it does not wait for a visitor that is not run, and sends
/// it away where it looks between the call and the word.
fn has_left(s: &Slot, fd: RawFd, channel: &Channel, name: &Name, reason: Reason) -> bool {
    reason == Reason::OfferLapsed
        && s.tries.load(Ordering::Relaxed) < SILENT_TRIES_THERE
        && proving::state(channel) == State::Begun
        && Tuple::of(fd).is_some_and(|tuple| tuple.remote.port == name.port)
}

/// Nothing has been heard. A peer of which nothing is known is not waited for as long as the other
/// end would be.
fn wait(s: &PairingGuard<'_>, fd: RawFd, channel: &Channel) -> Result<(), Reason> {
    let tries = s.tries.load(Ordering::Relaxed);
    if tries < SILENT_TRIES_THERE || proving::state(channel) == State::Proved {
        return Ok(());
    }
    let there = evidence::is_in_directory(channel);
    if tries < SILENT_TRIES && (!there || s.has(flag::STRICT)) {
        return Ok(());
    }
    if there {
        return Err(Reason::OfferLapsed);
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
    netns::settle(fd).map_err(|e| {
        if e == netns::ELSEWHERE { Reason::PeerElsewhere } else { Reason::ResourceError }
    })
}

/// What a visitor says, and what is to go behind the hello-ack to it. Nothing where more has to be
/// said first, or the visitor is not welcome.
fn weigh(
    s: &PairingGuard<'_>,
    fd: RawFd,
    (channel, known): (&Channel, Option<Seen>),
    said: &[u8],
) -> Result<Option<(Hello, Option<Proof>)>, Reason> {
    let tuple = Tuple::of(fd).ok_or(Reason::ShutDownEarly)?;
    let seen = known.map_or_else(|| seen(&tuple, channel), Ok)?;
    let read = proof::split(said, size_of::<Hello>())
        .and_then(|(hello, theirs)| Ok((Hello::parse(hello)?, theirs)))
        .map_err(|_| Reason::LayoutMismatch)
        .and_then(|read| seen.identified((read.0.inode, read.0.cookie)).map(|()| read));
    let (hello, theirs) = match read {
        // It is the other end that says so.
        Err(reason) if seen.is_sure() => return Err(reason),
        Err(_) => return doubted(s, channel, Reason::NoEvidence, Some(&seen)).map(|()| None),
        Ok(read) => read,
    };
    at_home(fd)?;
    let heard = (hello.hint, theirs.as_ref());
    match evidence::weighs((s, fd), channel, &tuple, heard, seen.is_sure()) {
        Ok(Next::HelloAck(last)) => Ok(Some((hello, last))),
        Ok(Next::Say(proof)) => {
            // Of a word that no process will read nothing can be tried.
            say(channel, &[], Some(&proof), &[]).inspect_err(|_| proving::over(channel.fd))?;
            has_said(s).map(|()| None)
        }
        Err(reason) => doubted(s, channel, reason, Some(&seen)).map(|()| None),
    }
}

/// As [`unproved`], but for peers in the directory, of which [`or_next`] takes care.
fn doubted(
    s: &PairingGuard<'_>,
    channel: &Channel,
    reason: Reason,
    seen: Option<&Seen>,
) -> Result<(), Reason> {
    if evidence::is_in_directory(channel) { Err(reason) } else { unproved(s, reason, seen) }
}

/// The process at the other end of the channel, which calls itself this.
fn peer(channel: &Channel, id: Id) -> Peer {
    let pid = channel.peer_pid();
    let inode = if pid == 0 { who::inode_of(channel) } else { 0 };
    Peer { id, pid, inode }
}

/// The end that connected reads what its visitor says, and answers. A visitor that this step let in
/// has been seen already.
pub(crate) fn answer(
    id: SlotId,
    s: &PairingGuard<'_>,
    fd: RawFd,
    known: Option<Seen>,
) -> Result<(), Reason> {
    if elsewhere(s) {
        return lapse_if_orphaned(s);
    }
    let channel = Channel { fd: s.pairing.fd() };
    let done = answer_over((&channel, known), id, s, fd);
    or_next(s, fd, &channel, done)
}

fn answer_over(
    (channel, known): (&Channel, Option<Seen>),
    id: SlotId,
    s: &PairingGuard<'_>,
    fd: RawFd,
) -> Result<(), Reason> {
    let Some(mut mail) = open_mail(s, channel)? else { return wait(s, fd, channel) };
    let Some((hello, last)) = weigh(s, fd, (channel, known), mail.text())? else {
        return Ok(());
    };
    // Before a thread that cannot be woken could sleep.
    let reached = reach(hello.waker, hello.has_envoy(), &mut mail, 0)?;
    if reached.woke == Woke::Forbidden {
        return Err(Reason::Sandboxed);
    }
    let (process, identity) = introduction(fd)?;
    let claim = arenas::claim(&peer(channel, hello.process)).inspect_err(|_| reached.give_up())?;
    reached.note(claim.record, hello.waker);
    link::start(id, s, (claim.record, claim.channel), 0, Beyond::Peer)?;
    let (waker, event) = waker::front::offered();
    let in_directory = evidence::is_in_directory(channel);
    let hello_ack = HelloAck::new(process, claim.id, claim.channel, identity, true)
        .with_waker(waker)
        .with_envoy(in_directory);
    let arena: BorrowedFd<'_> = sys::borrow(claim.fd);
    let hello_ack = Joined::new(hello_ack.bytes(), last.as_ref());
    let send = |fds: &[BorrowedFd<'_>]| {
        channel.send(hello_ack.bytes(), fds).map_err(|_| Reason::OfferLapsed)
    };
    let sent = match event {
        _ if in_directory => by_envoy(|envoy| send(&[arena, envoy])),
        Some(event) => send(&[arena, event]),
        None => send(&[arena]),
    };
    if sent.is_err() {
        return unacknowledged(s);
    }
    close_pairing_fd(s);
    enter(s, PhaseEvent::HelloAnswered)?;
    stats::add(Counter::WelcomesSent, 1);
    stats::add(Counter::AttachedShm, 1);
    crate::log_info!("attached over shared memory (connecting side)");
    Ok(())
}

/// The hello-ack could not be sent: the process that knocked has handed the connection over, or
/// become another program, or closed.
fn unacknowledged(s: &PairingGuard<'_>) -> Result<(), Reason> {
    link::abandon(s);
    if s.has(flag::STRICT) {
        return Err(Reason::OfferLapsed);
    }
    lapse(s)?;
    later(s);
    Ok(())
}

/// The end that accepted reads the answer.
pub(crate) fn finish(id: SlotId, s: &PairingGuard<'_>, fd: RawFd) -> Result<(), Reason> {
    if elsewhere(s) {
        return lapse_if_orphaned(s);
    }
    let channel = Channel { fd: s.pairing.fd() };
    let done = finish_over(&channel, id, s, fd);
    or_next(s, fd, &channel, done)
}

fn finish_over(
    channel: &Channel,
    id: SlotId,
    s: &PairingGuard<'_>,
    fd: RawFd,
) -> Result<(), Reason> {
    let Some(mut mail) = open_mail(s, channel)? else { return wait(s, fd, channel) };
    let tuple = Tuple::of(fd).ok_or(Reason::ShutDownEarly)?;
    let seen = seen(&tuple, channel)?;
    if let Ok(theirs) = Proof::parse(mail.text()) {
        return match evidence::hears((s, fd), channel, &tuple, &theirs, seen.is_sure()) {
            Ok(proof) => say_who(s, fd, channel, Some(&proof)).and_then(|()| has_said(s)),
            Err(reason) => doubted(s, channel, reason, None),
        };
    }
    let (hello_ack, last) = proof::split(mail.text(), size_of::<HelloAck>())
        .and_then(|(hello_ack, last)| Ok((HelloAck::parse(hello_ack)?, last)))
        .map_err(|_| Reason::LayoutMismatch)?;
    seen.identified((hello_ack.inode, hello_ack.cookie))?;
    if let Err(reason) = evidence::believes(channel, last.as_ref(), seen.is_sure()) {
        return doubted(s, channel, reason, None);
    }
    let arena = mail.take(0);
    let reached = reach(hello_ack.waker, hello_ack.has_envoy(), &mut mail, 1)?;
    let record =
        arenas::open(&peer(channel, hello_ack.process), hello_ack.arena, arena, hello_ack.channel)
            .inspect_err(|_| reached.give_up())?;
    reached.note(record, hello_ack.waker);
    link::start(id, s, (record, hello_ack.channel), 1, Beyond::Peer)?;
    close_pairing_fd(s);
    enter(s, PhaseEvent::HelloAckRead)?;
    stats::add(Counter::WelcomesTaken, 1);
    stats::add(Counter::AttachedShm, 1);
    crate::log_info!("attached over shared memory (accepting side)");
    Ok(())
}
