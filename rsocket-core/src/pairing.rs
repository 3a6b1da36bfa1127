//! Carrying out the pairing of two ends: offer, hello, answer, hello-ack (`life-of-a-connection
//! §3`).
//!
//! Every step is non-blocking and happens inside some hook of the program; one that finds nothing
//! is tried again later, at growing distances. Two messages are exchanged, one each way, over an
//! abstract UNIX socket; after them the two ends talk through words in shared memory only. The
//! connection works on TCP all the while.

pub mod abroad;
pub(crate) mod greeting;
pub mod heirs;

use core::sync::atomic::{AtomicU32, Ordering};
use std::os::fd::RawFd;

use crate::attach::meet::names::Name;
use crate::attach::meet::{absent, offers};
use crate::attach::permit::{permitted, sibling_in_sandbox};
use crate::attach::phase::{
    OPEN_OFFERS, close_pairing_fd, elsewhere, enter, give_up, hold, is_here, lapse,
    lapse_if_orphaned, required_by_now,
};
use crate::attach::rendezvous::Offer;
use crate::attach::retry::{self, later, may_pass, put_off};
use crate::attach::{
    connect_requests, evidence, evidence::Peer, held, own_waits, proving, reach, trust,
};
use crate::channel::{broken, link, switch};
use crate::config::policy;
use crate::conn::machine::{Phase, PhaseEvent, ReceiveMode, SendMode};
use crate::conn::pairing_lock::PairingGuard;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::conn::{cause, fork_group, waited};
use crate::failure::Failure;
use crate::host::tuple::Tuple;
use crate::host::{kernel, raw, trial};
use crate::reason::{Reason, not_there, refused};
use crate::stats::{self, Counter};
use crate::sync::stack;
use crate::sys::sandbox;
use crate::sys::settle::Settle;
use crate::{live_segment, sys};
use greeting::{answer, finish, say_hello, say_hello_there};

/// How many may be open at a time: each is a descriptor.
const MAX_OFFERS: u32 = 64;
/// Looks for a counterpart before people are shown that none has come, and it is looked for
/// elsewhere. The end that accepted has looked twice, at a position and at its double.
const TRIES_SHOWN: u32 = 20;
/// The same before an offer lapses.
const OFFER_TRIES: u32 = 200;
/// The same in the directory, where most counterparts that do not come at once are on other hosts.
const TRIES_THERE: u32 = 32;

/// Takes the next step that is due, if any. Called by hooks with no lock held; cheap when nothing
/// is due.
#[inline]
pub fn advance(id: SlotId, s: &Slot, fd: RawFd) {
    match s.phase() {
        Phase::Paired => switch(id, s, fd),
        Phase::Refused => broken::insist(id, s, fd),
        Phase::Unconnected | Phase::Dialling => {}
        Phase::Young | Phase::Offered | Phase::Greeted | Phase::HelloSent => {
            if fd >= 0 && retry::is_due(s) {
                step(id, s, Some(fd));
            }
        }
    }
}

/// As [`advance`] of a connection that attaches, by a thread that was given no descriptor. Another
/// thread may close the connection, and open another, at any moment.
pub fn advance_unasked(id: SlotId, s: &Slot) {
    let steps =
        matches!(s.phase(), Phase::Young | Phase::Offered | Phase::Greeted | Phase::HelloSent);
    if steps && retry::is_due(s) {
        step(id, s, None);
    }
}

/// The descriptor that a thread polls which waits for a connection without TCP to stay on. It is
/// readable once the other end has taken the step that this end waits for. -1 where nothing here
/// says so. Another thread may close it meanwhile, so that no wait is on this alone.
#[must_use]
pub fn awaited(s: &Slot) -> RawFd {
    let waits = matches!(s.phase(), Phase::Offered | Phase::Greeted | Phase::HelloSent);
    if waits && s.has(flag::STRICT) && is_here(s) { s.pairing.fd() } else { -1 }
}

/// It has become readable: the next step is due.
pub fn has_come(s: &Slot) {
    retry::now(s);
}

/// Before a descriptor is closed whose connection goes on: a step that uses it comes to its end
/// first.
pub fn let_finish(s: &Slot) {
    if matches!(s.phase(), Phase::Young | Phase::Offered | Phase::Greeted | Phase::HelloSent) {
        drop(PairingGuard::take(s));
    }
}

/// Moves the directions of a paired connection as far as they can go without sending or receiving.
#[inline]
fn switch(id: SlotId, s: &Slot, fd: RawFd) {
    let receive = s.receive_mode();
    let send = s.send_mode();
    if receive == ReceiveMode::Device && send == SendMode::Device {
        return;
    }
    if matches!(receive, ReceiveMode::Kernel | ReceiveMode::Asked) || send == SendMode::Kernel {
        switch::slowly(id, s, fd);
    }
}

/// Threads of this process that are inside a step, and forks that wait for them.
static STEPPING: AtomicU32 = AtomicU32::new(0);
static FORKING: AtomicU32 = AtomicU32::new(0);
/// How long a fork waits for steps of other threads, in nanoseconds: more than any step takes.
const FORK_PATIENCE_NS: u64 = 20_000_000;

/// Before a fork: a step of another thread may be about to open something. The child would keep a
/// copy of it without knowing of it, and a name that stays bound. New steps are put off until the
/// fork is over.
pub fn fork_prepare() {
    // SeqCst: pairs with step(), which counts itself in and then looks for forks.
    FORKING.fetch_add(1, Ordering::SeqCst);
    let end = sys::now_ns().saturating_add(FORK_PATIENCE_NS);
    // Bounded, since this may be a signal handler above a step of its own thread.
    while STEPPING.load(Ordering::SeqCst) != 0 && sys::now_ns() < end {
        crate::sync::thread::yield_now();
    }
}

/// In the parent after a fork, or after one that failed.
pub fn fork_parent() {
    FORKING.fetch_sub(1, Ordering::SeqCst);
}

#[cold]
fn step(id: SlotId, s: &Slot, fd: Option<RawFd>) {
    STEPPING.fetch_add(1, Ordering::SeqCst);
    if FORKING.load(Ordering::SeqCst) == 0 {
        // A proof takes some 12 KiB. Without memory for a stack there is none for an arena either.
        let _ = stack::on_own_only(|| step_now(id, s, fd));
    }
    STEPPING.fetch_sub(1, Ordering::SeqCst);
}

/// Without a descriptor the one that is known is looked up under the lock. A thread that closes it
/// takes the lock in between (`forget`, [`let_finish`]), so that it is the connection's until the
/// step is over.
#[cold]
fn step_now(id: SlotId, s: &Slot, fd: Option<RawFd>) {
    sys::keeping_errno(|| {
        if let Some(held) = PairingGuard::try_take(s) {
            let fd = fd.unwrap_or_else(|| fork_group::descriptor(id));
            let done = match s.phase() {
                // In fork mode it may leave TCP another way, which is decided under the same lock.
                _ if fd < 0 || s.has(flag::UNDECIDED) => Ok(()),
                Phase::Young => begin(id, &held, fd),
                Phase::Offered => greet(id, &held, fd),
                Phase::Greeted => answer(id, &held, fd, None),
                Phase::HelloSent => finish(id, &held, fd),
                Phase::Paired | Phase::Refused | Phase::Unconnected | Phase::Dialling => Ok(()),
            };
            match done {
                Ok(()) => {}
                Err(reason)
                    if s.has(flag::STRICT) && may_pass(s, reason) && begin_again(&held, reason) => {
                }
                Err(Reason::OfferLapsed)
                    if is_handed_over(s) && begin_again(&held, Reason::OfferLapsed) =>
                {
                    let _ = later(s);
                }
                Err(reason) => give_up(&held, reason),
            }
            let phase = s.phase();
            if fd >= 0 && (matches!(phase, Phase::Paired | Phase::Refused) || cause::is_in_vain(s))
            {
                live_segment::enter(id, s, fd);
                live_segment::name_pair(s, link::common(s));
            }
            drop(held);
            match phase {
                // What stands beside a bridge was not paired here, so that no descriptor is needed.
                Phase::Paired => switch::slowly(id, s, -1),
                // A thread that waited for it to attach has waited in vain.
                Phase::Refused if s.has(flag::STRICT) => {
                    s.next_epoch();
                    crate::conn::listeners::mode_changed(id);
                }
                _ => {}
            }
        }
    });
}

/// A connection that has no TCP to stay on has waited for its peer in vain; said once for each such
/// wait.
#[cold]
pub fn overdue(s: &Slot) {
    let noted =
        Reason::from_u8(s.reason.load(Ordering::Relaxed) as u8).filter(|r| *r != Reason::TooYoung);
    let reason = noted.unwrap_or(if s.has(flag::CONNECTING) {
        Reason::OfferLapsed
    } else {
        Reason::NoOffer
    });
    stats::fell_back(reason);
    crate::log_warn!("out of time, since TCP is excluded: {}", reason.text());
}

/// As [`lapse`], from any phase before the end, for this reason; false when there is no such way,
/// or it was gone often enough.
fn begin_again(s: &PairingGuard<'_>, reason: Reason) -> bool {
    let again = s.phase() == Phase::Young || lapse(s).is_ok();
    if again {
        s.reason.store(reason as u32, Ordering::Relaxed);
        crate::log_debug!("not attached yet: {}", reason.text());
    }
    again && retry::set_back(s)
}

/// Whether the other end, having met this one, gave up what it held of the pairing. It did so for
/// the process that goes on with the connection after a fork or `exec`, which will begin again. The
/// other end has not closed, or TCP would say so.
fn is_handed_over(s: &Slot) -> bool {
    !s.has(flag::STRICT) && matches!(s.phase(), Phase::Greeted | Phase::HelloSent)
}

/// Whether the program may wait for the socket where no hook sees it: no call of its blocks, and
/// none of the library's has waited. Where there is no TCP to stay on, nothing is asked: it would
/// fail instead.
fn is_unseen(s: &Slot, fd: RawFd) -> bool {
    !s.has(flag::WAITED | flag::STRICT | flag::RSOCKET) && kernel::nonblocking(fd)
}

/// A connection ends: what kept it on TCP is counted, if nothing was yet.
pub fn ended(s: &Slot) {
    cause::at_the_end(s, waited::is_overdue(s));
}

fn begin(id: SlotId, s: &PairingGuard<'_>, fd: RawFd) -> Result<(), Reason> {
    if is_too_early(id, s, fd)? {
        put_off(s);
        return Ok(());
    }
    let Some(tuple) = Tuple::of(fd) else {
        later(s);
        return Ok(());
    };
    if !retry::looks_anew(s) {
        return if s.has(flag::CONNECTING) {
            offer_somewhere(s, fd, &tuple)
        } else {
            say_hello((s, fd), &tuple, None, false)
        };
    }
    let peer = evidence::where_is(s, fd, &tuple)?;
    if peer == Peer::Elsewhere {
        return begin_elsewhere(id, s, fd, &tuple);
    }
    // The peer would take us for strangers, unless it is one that lets itself be shown that we are
    // not.
    let own = trust::is_own_user(fd);
    if !own && (s.has(flag::CONNECTING) || !evidence::is_known(s, fd)) {
        // Where there is no TCP meanwhile, for good.
        if s.has(flag::STRICT) {
            return Err(Reason::UidMismatch);
        }
        // Else for now: a server may act for another user for a moment.
        s.reason.store(Reason::UidMismatch as u32, Ordering::Relaxed);
        put_off(s);
        return Ok(());
    }
    if s.has(flag::CONNECTING) {
        return offer_somewhere(s, fd, &tuple);
    }
    let owner = if let Peer::Here(owner) = peer { Some(owner) } else { None };
    say_hello((s, fd), &tuple, owner, owner.is_none() || !own)
}

/// Whether something is in the way, in this process or its fork group, that may pass; what stays
/// there is an error.
fn is_too_early(id: SlotId, s: &Slot, fd: RawFd) -> Result<bool, Reason> {
    match permitted(s) {
        // It will be asked again whether the filter allows it.
        Err(Reason::Sandboxed) if !sandbox::entered() && !trial::is_settled(policy::seccomp()) => {
            s.reason.store(Reason::Sandboxed as u32, Ordering::Relaxed);
            return Ok(true);
        }
        other => other?,
    }
    if own_waits::concern(s) {
        return Err(Reason::UnseenWait);
    }
    if is_unseen(s, fd) {
        s.reason.store(Reason::UnseenWait as u32, Ordering::Relaxed);
        return Ok(true);
    }
    Ok(sibling_in_sandbox(id, s) || s.has(flag::TRAVELS))
}

/// Looks for an offer in the directory before another host is thought of, where there is RDMA.
const LOOKS_BEFORE_RDMA: u32 = 3;

/// The other end is in another network namespace, where only the directory is to be seen, or on
/// another host.
fn begin_elsewhere(
    id: SlotId,
    s: &PairingGuard<'_>,
    fd: RawFd,
    tuple: &Tuple,
) -> Result<(), Reason> {
    if !evidence::has_directory() {
        return abroad::begin(id, s, tuple);
    }
    let connecting = s.has(flag::CONNECTING);
    let known = evidence::is_known(s, fd);
    if reach::possible() && (!known || !comes_first(s, tuple)) {
        return abroad::begin(id, s, tuple);
    }
    if !known {
        return Err(Reason::NoHandshake);
    }
    if connecting {
        offer_there(s, fd, tuple)
    } else {
        say_hello_there(s, fd, tuple, Reason::NobodyMet)
    }
}

/// Where there is RDMA: whether the other end is looked for in the directory first.
fn comes_first(s: &Slot, tuple: &Tuple) -> bool {
    if s.has(flag::CONNECTING) {
        return absent::may_come(absent_key(tuple), sys::now_ns());
    }
    s.tries.load(Ordering::Relaxed) < LOOKS_BEFORE_RDMA
}

/// On this host each port is another program's.
fn absent_key(tuple: &Tuple) -> u64 {
    let key = absent::key(tuple.family, &tuple.remote.addr);
    if tuple.peer_may_be_local() { key ^ u64::from(tuple.remote.port) << 32 } else { key }
}

/// Where the other end looks, as far as is known: in this network namespace, or, if no peer came
/// there, in the directory.
fn offer_somewhere(s: &PairingGuard<'_>, fd: RawFd, tuple: &Tuple) -> Result<(), Reason> {
    if !s.has(flag::OFFERS_THERE) {
        return offer(s, tuple);
    }
    let now = sys::now_ns();
    if absent::may_come(absent_key(tuple), now) {
        match offer_there(s, fd, tuple) {
            Err(Reason::MeetRefused) => absent::did_not_come(absent_key(tuple), now),
            done => return done,
        }
    }
    s.clear(flag::OFFERS_THERE);
    offer(s, tuple)
}

fn offer(s: &PairingGuard<'_>, tuple: &Tuple) -> Result<(), Reason> {
    offer_by(s, || {
        // A stranger, or a sibling that held the connection and is still ending.
        let reason = |e| {
            if e == Failure::NameTaken { Reason::NameTaken } else { refused("an offer")(e) }
        };
        Offer::open(tuple).map_err(reason)
    })
}

/// In the directory. A peer that has not come some times is not waited for.
fn offer_there(s: &PairingGuard<'_>, fd: RawFd, tuple: &Tuple) -> Result<(), Reason> {
    if !absent::may_come(absent_key(tuple), sys::now_ns()) {
        s.reason.store(Reason::NobodyMet as u32, Ordering::Relaxed);
        put_off(s);
        return Ok(());
    }
    let bounds = evidence::bounds(s, fd).ok_or(Reason::NoHandshake)?;
    let noted = s.reason.load(Ordering::Relaxed);
    offer_by(s, || {
        let random = raw::random().map_err(refused("random bits"))?;
        let name = Name::new(bounds, tuple.local.port, random);
        offers::open(&name).map(|fd| Offer { fd }).map_err(not_there)
    })?;
    // What is shown until a peer comes.
    let shown = noted == Reason::NobodyMet as u32 || s.has(flag::OFFERS_THERE);
    if shown && s.phase() == Phase::Offered {
        s.reason.store(noted, Ordering::Relaxed);
    }
    Ok(())
}

fn offer_by(
    s: &PairingGuard<'_>,
    open: impl FnOnce() -> Result<Offer, Reason>,
) -> Result<(), Reason> {
    if OPEN_OFFERS.fetch_add(1, Ordering::Relaxed) >= MAX_OFFERS {
        OPEN_OFFERS.fetch_sub(1, Ordering::Relaxed);
        s.reason.store(Reason::TooManyOffers as u32, Ordering::Relaxed);
        later(s);
        return Ok(());
    }
    match open() {
        Ok(offer) => {
            hold(s, offer.fd);
            s.tries.store(0, Ordering::Relaxed);
            stats::add(Counter::Offers, 1);
            enter(s, PhaseEvent::OfferOpened)
        }
        Err(reason) => {
            OPEN_OFFERS.fetch_sub(1, Ordering::Relaxed);
            Err(reason)
        }
    }
}

fn greet(id: SlotId, s: &PairingGuard<'_>, fd: RawFd) -> Result<(), Reason> {
    if elsewhere(s) {
        return lapse_if_orphaned(s);
    }
    let offer = Offer { fd: s.pairing.fd() };
    if let Some((channel, seen)) = connect_requests::admit(&offer, (s, fd))? {
        close_pairing_fd(s);
        hold(s, channel.fd);
        s.tries.store(0, Ordering::Relaxed);
        if evidence::is_in_directory(&channel)
            && let Some(tuple) = Tuple::of(fd)
        {
            absent::came(absent_key(&tuple));
        }
        enter(s, PhaseEvent::PeerCame)?;
        // A thread waits for it, and mostly the visitor has said who it is by now. Where the
        // program goes on by TCP, each step is another call's.
        return if s.has(flag::STRICT) { answer(id, s, fd, Some(seen)) } else { Ok(()) };
    }
    let tries = later(s);
    let there = offers::is_one(offer.fd);
    // Without TCP, a peer that is elsewhere for sure is waited for.
    if there && tries >= TRIES_THERE && !s.has_just(flag::STRICT, MUST_COME) {
        return nobody_came(s, fd);
    }
    if !there && tries >= TRIES_SHOWN && may_come_there(s, fd) {
        return go_there(s);
    }
    if tries == TRIES_SHOWN && !s.has(flag::STRICT) {
        s.reason.store(not_come(s, there) as u32, Ordering::Relaxed);
    }
    let late = tries >= OFFER_TRIES || required_by_now(s);
    if !late || s.has(flag::STRICT) { Ok(()) } else { Err(Reason::OfferLapsed) }
}

/// Of [`flag`], what decides whether an offer in the directory ends.
const MUST_COME: u32 = flag::STRICT | flag::OFFERS_THERE;

/// Why an offer that no peer has taken up is on TCP.
fn not_come(s: &Slot, there: bool) -> Reason {
    if there && !s.has(flag::OFFERS_THERE) { Reason::NobodyMet } else { Reason::OfferLapsed }
}

/// Whether a peer that did not come in this network namespace may come in the directory.
fn may_come_there(s: &Slot, fd: RawFd) -> bool {
    evidence::may_be_there(s, fd)
        && Tuple::of(fd).is_some_and(|t| absent::may_come(absent_key(&t), sys::now_ns()))
}

/// The next offer is made in the directory, at once.
fn go_there(s: &PairingGuard<'_>) -> Result<(), Reason> {
    lapse(s)?;
    s.set(flag::OFFERS_THERE);
    s.reason.store(Reason::OfferLapsed as u32, Ordering::Relaxed);
    s.tries.store(0, Ordering::Relaxed);
    retry::now(s);
    Ok(())
}

/// In the directory no peer came for long: most likely the other end is on another host. The offer
/// is made again later, if not too many have been made in vain.
fn nobody_came(s: &PairingGuard<'_>, fd: RawFd) -> Result<(), Reason> {
    if let Some(tuple) = Tuple::of(fd) {
        absent::did_not_come(absent_key(&tuple), sys::now_ns());
    }
    let reason = not_come(s, true);
    lapse(s)?;
    s.clear(flag::OFFERS_THERE);
    s.reason.store(reason as u32, Ordering::Relaxed);
    s.tries.store(0, Ordering::Relaxed);
    put_off(s);
    Ok(())
}

/// In the child of a fork: names and channels are the parent's to go on with. A copy that stayed
/// open here would keep them alive after the parent has given them up.
pub fn fork_child() {
    for count in [&OPEN_OFFERS, &STEPPING, &FORKING] {
        count.settle(0);
    }
    held::let_all_go();
    proving::forked();
    offers::forked();
}

/// The attempt to connect failed: forgets what belonged to it. False when there is a channel, which
/// no failed attempt can have. Blocks only for another thread's step in progress.
pub fn restart(s: &Slot) -> bool {
    let Some(s) = PairingGuard::take(s) else { return false };
    let fresh = !link::has_channel(&s) && !s.has(flag::CHANNEL_DONE);
    if fresh {
        close_pairing_fd(&s);
        s.clear(
            flag::CONNECTING
                | flag::STRICT
                | flag::OFFERS_THERE
                | flag::PEER_FIN
                | flag::PEER_GONE
                | flag::CONNECT_NEWS,
        );
        s.tries.store(0, Ordering::Relaxed);
        s.set_backs.store(0, Ordering::Relaxed);
        retry::now(&s);
        for word in [&s.position, &s.answered, &s.waiting_since] {
            word.store(0, Ordering::Relaxed);
        }
        // What was refused was mostly so for what the program does with the socket, and stays
        // refused.
        if s.phase() != Phase::Refused {
            s.set_phase(Phase::Unconnected);
        }
    }
    fresh
}

/// The last descriptor goes: close what the pairing holds open. Blocks only for another thread's
/// step in progress.
pub fn forget(s: &Slot) {
    let Some(s) = PairingGuard::take(s) else { return };
    proving::over(s.pairing.fd());
    close_pairing_fd(&s);
    s.set_phase(Phase::Refused);
}
