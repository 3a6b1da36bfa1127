//! Upstream's fork mode (`RDMAV_FORK_SAFE`, `wire-protocol §12.6`): TCP first, and RDMA in its
//! place before the first byte of the program's. So the process that uses the connection after a
//! `fork` is the one that has it.
//!
//! The end that accepted greets ([`greeting`]) on TCP. The end that connected comes by RDMA's own
//! manager to the same address and port. Both then close TCP. Here the program's descriptor stays
//! the same socket. The socket is dissolved, and tied to the bridge instead, as that of any
//! connection over RDMA ([`crate::native::rdma`]). So duplicates, fork siblings and epoll sets need
//! not be told. Until it is known what the peer is, no call goes to the kernel: each looks
//! ([`settle`]) and waits here. Doubt is TCP, to which nothing was added.
//!
//! The owners of the descriptor take the steps, under the pairing lock. The bridge may be another
//! process's ([`crate::bridge::migrate`]), and moves the state where it alone knows. A process that
//! moves the state compares first. Must not know queue pairs. Entry points: [`accepted`],
//! [`connected`], [`settle`]; for the bridge [`crate::conn::invitation`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::net::SocketAddr;
use core::sync::atomic::{Ordering, fence};
use core::time::Duration;
use std::os::fd::RawFd;

use crate::attach::reach;
use crate::bridge::{dial, loopback, own_channel};
use crate::channel::{broken, link};
use crate::config::policy;
use crate::conn::fork_group;
use crate::conn::pairing_lock::PairingGuard;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::conn::timers::Rules;
use crate::host::events::Events;
use crate::host::{counters, kernel};
use crate::reason::Reason;
use crate::stats::{self, Counter};
use crate::sys::{self, sockets};

pub mod greeting;

use crate::config::fork_peers::{self, Kind};
use crate::conn::fork_mode::{Happening, State};
use crate::conn::invitation::{move_on, over, same_way, tied};
use greeting::{GREETING, Heard};

/// How long a peer of which nothing is known is silent before it is greeted, in nanoseconds. An
/// ordinary client that speaks first has spoken by then.
const SILENCE_NS: u64 = 1_000_000_000;
/// How long the greeting of a peer of which nothing is known is waited for, in nanoseconds. That is
/// less than [`SILENCE_NS`], so that two of ours meet as ordinary programs do.
const LISTEN_NS: u64 = 500_000_000;
/// How long a peer that was greeted is expected, in nanoseconds. Meanwhile no other connection with
/// its host is greeted, and what the program sends waits.
const EXPECT_NS: u64 = 5_000_000_000;
/// How soon a thread that waits looks again, in nanoseconds: at first, and when nothing has come of
/// it for long.
const SOON_NS: u64 = 2_000_000;
const LATER_NS: u64 = 50_000_000;

/// What a call wants of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// To know whether it is ready.
    Look,
    /// Bytes.
    Receive,
    /// To send.
    Send,
}

/// Whether connections of this process begin in fork mode.
fn on() -> bool {
    policy::fork_safe() && reach::possible()
}

/// accept(2) has given a connection.
pub fn accepted(s: &Slot, fd: RawFd, listener: &Slot) {
    // Where no bridge listens over RDMA, the peer cannot be told to come.
    if !on() || !listener.has(flag::HEARD_TCP_ANCHORED) || s.has(flag::STRICT) {
        return;
    }
    if kind(s, fd) == Kind::Stranger {
        over(s);
        return;
    }
    s.migration.begin(State::Accepted);
    s.set(flag::UNDECIDED);
}

/// connect(2) has given a connection, or begun to.
pub fn connected(s: &Slot) {
    if on() && !s.has(flag::STRICT | flag::UNDECIDED) && s.migration.state() == State::Over {
        s.migration.begin(State::Connected);
        s.set(flag::UNDECIDED);
    }
}

/// Goes as far as it can without waiting; whether it is decided how the connection's bytes travel.
/// False also while another thread is at it. With `fd` below 0 the kernel cannot be asked, and
/// nothing is done. Preserves `errno`.
#[must_use]
pub fn settle(id: SlotId, s: &Slot, fd: RawFd, what: Use) -> bool {
    if !s.has(flag::UNDECIDED) {
        return true;
    }
    if fd < 0 {
        return false;
    }
    let Some(held) = PairingGuard::try_take(s) else { return false };
    sys::keeping_errno(|| {
        let mut moved = false;
        while s.has(flag::UNDECIDED) && step(id, &held, fd, what) {
            moved = true;
        }
        drop(held);
        if moved {
            s.next_epoch();
            crate::conn::listeners::mode_changed(id);
        }
    });
    !s.has(flag::UNDECIDED)
}

/// The program does something that only a connection whose way is decided can do. Waits for
/// nothing: what cannot be finished now stays on TCP.
pub fn insist(id: SlotId, s: &Slot, fd: RawFd) {
    if settle(id, s, fd, Use::Look) {
        return;
    }
    let Some(held) = PairingGuard::take(s) else { return };
    let state = s.migration.state();
    let moved = move_on(s, state, Happening::StaysTcp) || move_on(s, state, Happening::Failed);
    drop(held);
    if moved {
        s.next_epoch();
        crate::conn::listeners::mode_changed(id);
    }
}

/// The connection is none of fork mode's any more; TCP's attempt has failed.
pub fn forget(s: &Slot) {
    s.migration.reset();
    s.clear(flag::UNDECIDED);
}

/// What the kernel is to be asked while it is not decided.
#[must_use]
pub fn ask(s: &Slot) -> Events {
    match s.migration.state() {
        State::Accepted | State::Connected => Events::IN | Events::OUT,
        State::Claiming | State::Greeted | State::Listening => Events::IN,
        _ => Events::empty(),
    }
}

/// What the kernel said while it is not decided, as the program may see it.
#[must_use]
pub fn heard(s: &Slot) -> Option<Events> {
    match s.migration.state() {
        State::Over | State::Accepted | State::Connected => None,
        // A look has said what there is to say.
        _ => Some(Events::empty()),
    }
}

/// What of it is still so: what the kernel said of a connection that has left TCP meanwhile was
/// said of TCP's.
#[must_use]
pub fn confirmed(s: &Slot, fd: RawFd, kernel: Events) -> Events {
    let end = Events::RDHUP | Events::HUP | Events::ERR;
    if s.has(flag::UNDECIDED) {
        return kernel - end;
    }
    if tied(s).is_none() || !kernel.intersects(end) {
        kernel
    } else {
        kernel & (tcp_says(fd) | !end)
    }
}

/// Whether a sleeper is not to listen to TCP: its end is expected.
#[must_use]
pub fn is_deaf(s: &Slot) -> bool {
    s.has(flag::UNDECIDED) && s.migration.state().is_deaf()
}

/// How soon a waiter must look again, since no process wakes it.
#[must_use]
pub fn recheck_after(s: &Slot) -> Option<Duration> {
    let waited = s.migration.waited();
    let ns = match s.migration.state() {
        State::Over | State::Connected => return None,
        State::Accepted => SILENCE_NS.saturating_sub(waited).max(SOON_NS),
        State::Listening => LISTEN_NS.saturating_sub(waited).clamp(SOON_NS, LATER_NS),
        _ if waited > EXPECT_NS => LATER_NS,
        _ => SOON_NS,
    };
    Some(Duration::from_nanos(ns))
}

/// One step; whether there was one.
fn step(id: SlotId, s: &PairingGuard<'_>, fd: RawFd, what: Use) -> bool {
    let state = s.migration.state();
    match state {
        State::Over => {
            over(s);
            false
        }
        State::Accepted => first_words(s, fd, what),
        State::Claiming | State::Greeted if !tcp_says(fd).is_empty() => {
            move_on(s, state, Happening::PeerSpoke)
        }
        State::Claiming => greet(id, s, fd),
        State::Greeted if what == Use::Send && s.migration.waited() > EXPECT_NS => {
            move_on(s, state, Happening::StaysTcp)
        }
        State::Connected if what != Use::Look => {
            s.migration.since.store(sys::now_ns(), Ordering::Relaxed);
            move_on(s, state, Happening::Used)
        }
        State::Listening => listen(id, s, fd),
        State::Stands => leave_tcp(id, s, fd),
        // The process that began this has died.
        State::Tying => tie(id, s, fd),
        State::Greeted | State::Requested | State::Connected | State::Dialling => false,
    }
}

/// What the kernel has: bytes, the end, an error. Takes nothing.
fn tcp_says(fd: RawFd) -> Events {
    kernel::poll_now(fd, Events::IN | Events::RDHUP)
}

/// Our address and the peer's, as TCP has them.
fn names(s: &Slot, fd: RawFd) -> Option<[SocketAddr; 2]> {
    let [ours, theirs] = &s.names;
    if ours.get().is_none() || theirs.get().is_none() {
        let [own, peer] = sockets::names(sys::borrow(fd))?;
        ours.set(Some(own));
        theirs.set(Some(peer));
    }
    Some([ours.get()?, theirs.get()?])
}

/// What the peer may be, as far as its address says.
fn kind(s: &Slot, fd: RawFd) -> Kind {
    match names(s, fd) {
        // No device has such an address.
        Some([_, theirs]) if theirs.ip().to_canonical().is_loopback() => Kind::Stranger,
        Some([_, theirs]) => fork_peers::kind(&theirs.ip()),
        None => Kind::Stranger,
    }
}

/// Accepted, and neither end has said anything.
fn first_words(s: &PairingGuard<'_>, fd: RawFd, what: Use) -> bool {
    let happens = if !tcp_says(fd).is_empty() {
        Happening::PeerSpoke
    } else {
        match (kind(s, fd), what) {
            (Kind::Stranger, _) | (Kind::Unknown, Use::Send) => Happening::StaysTcp,
            (Kind::Named, Use::Receive | Use::Send) => Happening::MayGreet,
            (Kind::Unknown | Kind::Named, _) if s.migration.waited() >= SILENCE_NS => {
                Happening::MayGreet
            }
            (Kind::Unknown | Kind::Named, _) => return false,
        }
    };
    move_on(s, State::Accepted, happens)
}

/// Says that the peer is to come, unless another connection with its host is expected to.
fn greet(id: SlotId, s: &PairingGuard<'_>, fd: RawFd) -> bool {
    let Some(ends) = names(s, fd) else { return move_on(s, State::Claiming, Happening::StaysTcp) };
    // SeqCst: of two that claim at the same time at least one sees the other here.
    fence(Ordering::SeqCst);
    if rival(id, ends) {
        // Not again at once: no progress.
        let _ = s.migration.shift(State::Claiming, Happening::Withdrawn);
        return false;
    }
    s.migration.since.store(sys::now_ns(), Ordering::Relaxed);
    // First the state, then the bytes: the answer may be here before the call returns.
    if !move_on(s, State::Claiming, Happening::Greets) {
        return true;
    }
    let bytes = GREETING;
    let v = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    if kernel::send(fd, &[v], 0) == Ok(bytes.len()) {
        stats::add(Counter::ForkSafeGreeted, 1);
        crate::log_debug!("fork mode: greeted a peer");
        return true;
    }
    move_on(s, State::Greeted, Happening::StaysTcp)
}

/// Whether another connection between the same two hosts, at the same port, is about to migrate.
fn rival(id: SlotId, ends: [SocketAddr; 2]) -> bool {
    let mut found = false;
    fork_group::each_used(|other, o| {
        let m = &o.migration;
        let busy = match m.state() {
            State::Claiming | State::Requested => true,
            State::Stands => !o.has(flag::CONNECTING),
            State::Greeted => m.waited() < EXPECT_NS,
            _ => false,
        };
        found |= busy && other != id && same_way(o, &ends) && fork_group::is_held(other);
    });
    found
}

/// Connected, and the program wants to use it: has the peer greeted?
fn listen(id: SlotId, s: &PairingGuard<'_>, fd: RawFd) -> bool {
    let from = State::Listening;
    let said = tcp_says(fd);
    let mut bytes = [0u8; GREETING.len()];
    let v = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let seen = match said.contains(Events::IN) && !said.intersects(Events::ERR) {
        true => kernel::receive(fd, &[v], bytes.len(), libc::MSG_PEEK).unwrap_or(0),
        false => 0,
    };
    match greeting::read(bytes.get(..seen).unwrap_or(&[])) {
        Heard::Other => return move_on(s, from, Happening::PeerSpoke),
        Heard::Greeting if kind(s, fd) != Kind::Stranger => {
            if !move_on(s, from, Happening::Heard) {
                return true;
            }
            s.migration.since.store(sys::now_ns(), Ordering::Relaxed);
            if let Err(e) = dial::dial(id, s) {
                crate::log_info!("fork mode: no RDMA to a peer that greeted: {}", e);
                return move_on(s, State::Dialling, Happening::Failed);
            }
            return true;
        }
        Heard::Greeting => return move_on(s, from, Happening::StaysTcp),
        Heard::Unclear => {}
    }
    // The end, or an error: the program hears it from TCP.
    if !(said & (Events::RDHUP | Events::HUP | Events::ERR)).is_empty() {
        return move_on(s, from, Happening::PeerSpoke);
    }
    match kind(s, fd) {
        Kind::Named => false,
        Kind::Unknown if s.migration.waited() < LISTEN_NS => false,
        Kind::Unknown | Kind::Stranger => move_on(s, from, Happening::StaysTcp),
    }
}

/// The connection over RDMA stands. The end that connected leaves TCP. The end that accepted leaves
/// it when its peer has left it without a word. Then this connection's peer came, and not another
/// process of the peer's host.
fn leave_tcp(id: SlotId, s: &PairingGuard<'_>, fd: RawFd) -> bool {
    if !s.has(flag::CONNECTING) {
        let said = tcp_says(fd);
        if said.is_empty() {
            return false;
        }
        let ended = said.intersects(Events::RDHUP | Events::HUP | Events::ERR);
        if !ended || counters::in_queue(fd).is_ok_and(|bytes| bytes > 0) {
            return move_on(s, State::Stands, Happening::Failed);
        }
    }
    s.migration.shift(State::Stands, Happening::LeavesTcp).is_some() && tie(id, s, fd)
}

/// Makes the program's socket the other end of the bridge. Each process that held it keeps the same
/// socket.
fn tie(id: SlotId, s: &PairingGuard<'_>, fd: RawFd) -> bool {
    let m = &s.migration;
    loopback::untie(fd);
    // How the connection ended that was dissolved is no news.
    let _ = kernel::take_error(fd);
    s.clear(flag::PEER_FIN | flag::PEER_GONE);
    let channel = (m.record.load(Ordering::Relaxed), m.channel.load(Ordering::Relaxed));
    let reached = m
        .door
        .get()
        .ok_or(crate::failure::Failure::Invalid)
        .and_then(|door| loopback::reach(fd, &door));
    let entered = reached.and_then(|own| {
        s.bridge_pid.store(m.pid.load(Ordering::Relaxed), Ordering::Relaxed);
        s.bridge.store(m.bridge.load(Ordering::Relaxed), Ordering::Release);
        own_channel::enter(id, s, channel, 0)?;
        // Release, inside: the bridge lets in the connection that comes from there.
        m.tied.set(Some(own));
        Ok(())
    });
    match entered {
        Ok(()) => {
            crate::live_segment::enter(id, s, fd);
            s.timers.learn(fd);
            if s.timers.rules() != Rules::default() {
                link::tell_bridge(s);
            }
            stats::add(Counter::ForkSafeMigrated, 1);
            crate::log_info!("fork mode: left TCP for RDMA");
        }
        Err(e) => {
            crate::log_warn!("fork mode: a connection is lost between TCP and RDMA: {}", e);
            link::nobody_comes(channel);
            broken::break_connection(s, fd, Reason::ResourceError);
        }
    }
    move_on(s, State::Tying, Happening::Tied)
}
