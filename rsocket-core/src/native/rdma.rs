//! Peers that RDMA's own connection manager brings together, as upstream does it
//! (`wire-protocol §2`): no TCP connection to the peer exists.
//!
//! The program's descriptor is a kernel TCP socket all the same; its other end is a bridge of this
//! process ([`crate::bridge`]), on the loopback interface. What the kernel knows of addresses is
//! the bridge's business; the program is told those of the connection manager.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use super::kernel;
use crate::address::SockAddr;
use crate::attach::reach;
use crate::bridge::connection::{Connection, Options, Shape};
use crate::bridge::guests::{self, Guest};
use crate::bridge::own_channel;
use crate::bridge::setup::Caller;
use crate::bridge::table::{self, Bridge};
use crate::bridge::{self, ends, loopback, news, service, serving, silent};
use crate::channel::link;
use crate::config::sizes::Size;
use crate::conn::fork_group;
use crate::conn::kind::Kind;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::conn::timers::Rules;
use crate::device::rdma::CmId;
use crate::failure::Failure;
use crate::socket::call::Call;
use crate::socket::{life, wait};
use crate::stats::{self, Counter};
use crate::sync::stack;
use crate::sys::{self, sockets};
use crate::waiting::call_deadline::CallDeadline;

/// The smallest queue: control messages alone take four places, twice that over iWARP
/// (`wire-protocol §5.5`).
const MIN_QUEUE: u16 = 16;
/// The smallest buffer, in bytes.
const MIN_BUFFER: u32 = 4096;

fn slot(id: SlotId) -> Result<&'static Slot, Failure> {
    fork_group::slot(id).ok_or(Failure::BadDescriptor)
}

fn options(fd: RawFd) -> Options {
    let tos = [(libc::IPPROTO_IPV6, libc::IPV6_TCLASS), (libc::IPPROTO_IP, libc::IP_TOS)];
    let tos = tos.iter().find_map(|(level, name)| crate::host::kernel::integer(fd, *level, *name));
    let fd = sys::borrow(fd);
    Options {
        reuse_address: sockets::reuses_address(fd).unwrap_or(false),
        ipv6_only: sockets::is_ipv6_only(fd).unwrap_or(false),
        type_of_service: tos.unwrap_or(0) as u8,
    }
}

fn wildcard(fd: RawFd) -> Result<SocketAddr, Failure> {
    sockets::wildcard(sys::borrow(fd))
}

/// Gives the socket a name, a port of the connection manager's choice if it says 0.
///
/// # Errors
/// As bind(2); `ENODEV` where there is no RDMA.
pub fn bind(id: SlotId, fd: RawFd, name: &SocketAddr) -> Result<(), Failure> {
    let s = slot(id)?;
    let [ours, _] = &s.names;
    let met = matches!(s.kind(), Kind::RdmaBesideTcp | Kind::NativeRdma | Kind::RdmaListener);
    if ours.get().is_some() || met {
        return Err(Failure::Invalid);
    }
    if wildcard(fd)?.is_ipv6() != name.is_ipv6() {
        return Err(Failure::WrongFamily);
    }
    stack::on_own(|| match bind_now(s, fd, name) {
        Err(e) if serving::outdated(e) => bind_now(s, fd, name),
        bound => bound,
    })
}

fn bind_now(s: &Slot, fd: RawFd, name: &SocketAddr) -> Result<(), Failure> {
    serving::start()?;
    let bridge = table::take().ok_or(Failure::NoBuffers)?;
    match Connection::bound(bridge.key(), name, options(fd), shape(s)) {
        Ok(connection) => {
            let [ours, _] = &s.names;
            ours.set(connection.local_address().or(Some(*name)));
            bridge.with(|c| *c = Some(connection));
            belong(s, bridge);
            Ok(())
        }
        Err(e) => {
            bridge.give_back();
            // The kernel's connection manager says so of a port that a socket of the other family
            // has.
            let taken = e == Failure::NoSuchName && name.ip().is_unspecified() && name.port() != 0;
            Err(if taken { Failure::NameTaken } else { e })
        }
    }
}

fn belong(s: &Slot, bridge: &Bridge) {
    s.bridge_pid.store(sys::pid(), Ordering::Relaxed);
    s.bridge.store(bridge.index + 1, Ordering::Release);
}

fn shape(s: &Slot) -> Shape {
    let queue = |size| u16::try_from(s.sizes.get(size)).unwrap_or(u16::MAX).max(MIN_QUEUE);
    Shape {
        send_queue: queue(Size::SendQueue),
        receive_queue: queue(Size::ReceiveQueue),
        inline: s.sizes.get(Size::Inline),
        send_buffer: s.sizes.get(Size::SendBuffer).max(MIN_BUFFER),
        // Two halves of the same size (`wire-protocol §3.5`).
        receive_buffer: s.sizes.get(Size::ReceiveBuffer).max(MIN_BUFFER) & !1,
        iomaps: u16::try_from(s.sizes.get(Size::Iomap)).unwrap_or(u16::MAX),
    }
}

/// The sizes of a socket that has a name already have changed: they hold for what it accepts, or
/// connects to, from now on.
pub(super) fn resized(s: &Slot) {
    if let Some(bridge) =
        bridge::of(s).filter(|_| s.bridge_pid.load(Ordering::Relaxed) == sys::pid())
    {
        bridge.with(|c| c.iter_mut().for_each(|c| c.reshape(shape(s))));
    }
}

/// Makes it a listener.
///
/// # Errors
/// As listen(2); `ENODEV` where there is no RDMA.
pub fn listen(id: SlotId, fd: RawFd, backlog: i32) -> Result<(), Failure> {
    let s = slot(id)?;
    match s.kind() {
        Kind::RdmaBesideTcp | Kind::NativeRdma => return Err(Failure::Invalid),
        Kind::RdmaListener => return sockets::listen(sys::borrow(fd), backlog),
        Kind::Tcp | Kind::SharedMemory | Kind::Datagram => {}
    }
    let [ours, _] = &s.names;
    if ours.get().is_none() {
        bind(id, fd, &wildcard(fd)?)?;
    }
    let bridge = bridge::of(s).ok_or(Failure::NameTaken)?;
    let door = loopback::listen_near(fd, backlog)?;
    let listening = bridge.with(|c| match c {
        Some(c) => c.listen(door, backlog),
        None => Err(Failure::Invalid),
    });
    listening.unwrap_or(Err(Failure::Blocked))?;
    s.set(flag::BRIDGE_LISTENS);
    Ok(())
}

/// Connects to a listener; waits until that is done if the descriptor blocks.
///
/// # Errors
/// As connect(2); `ENODEV` where there is no RDMA.
pub fn connect(id: SlotId, fd: RawFd, to: &SocketAddr) -> Result<(), Failure> {
    connect_within(id, fd, to, None)
}

/// How long a peer that refused TCP may take to answer over RDMA, in nanoseconds: a host without
/// RDMA never does.
const INSTEAD_NS: u64 = 1_000_000_000;
/// TCP was refused: the peer may be reached by RDMA's own manager, as upstream's programs are. Only
/// for sockets that block; the others have gone on by the time they hear of the refusal.
///
/// # Errors
/// No peer is there either, or none was asked. None is asked where there is no RDMA here, the
/// socket does not block, the address is loopback's, or that host was silent lately.
pub fn connect_instead(id: SlotId, fd: RawFd, to: &SocketAddr) -> Result<(), Failure> {
    let refused = Err(Failure::Refused);
    reach::find_out();
    if !reach::possible()
        || to.ip().to_canonical().is_loopback()
        || crate::host::kernel::nonblocking(fd)
    {
        return refused;
    }
    if silent::is_silent(&to.ip()) {
        return refused;
    }
    let connected = connect_within(id, fd, to, Some(INSTEAD_NS));
    if connected == Err(Failure::TimedOut) {
        silent::remember(&to.ip());
    }
    connected
}

fn connect_within(
    id: SlotId,
    fd: RawFd,
    to: &SocketAddr,
    limit: Option<u64>,
) -> Result<(), Failure> {
    let s = slot(id)?;
    match s.kind() {
        Kind::RdmaListener => return Err(Failure::Connected),
        Kind::RdmaBesideTcp | Kind::NativeRdma => after_an_attempt(s, fd)?,
        Kind::Tcp | Kind::SharedMemory | Kind::Datagram => {}
    }
    if wildcard(fd)?.is_ipv6() != to.is_ipv6() {
        return Err(Failure::WrongFamily);
    }
    stack::on_own(|| match dial(id, s, fd, to) {
        Err(e) if serving::outdated(e) => dial(id, s, fd, to),
        dialled => dialled,
    })?;
    if crate::host::kernel::nonblocking(fd) {
        return Err(Failure::UnderWay);
    }
    let mut deadline = match limit {
        Some(ns) => CallDeadline::until(s, sys::now_ns().saturating_add(ns)),
        None => CallDeadline::new(s, libc::SO_SNDTIMEO),
    };
    reached(id, s, fd, &mut deadline, limit.is_some())
}

/// Another attempt was made before: if that has failed, and the program was told, the next may
/// begin.
fn after_an_attempt(s: &Slot, fd: RawFd) -> Result<(), Failure> {
    if s.has(flag::PENDING) {
        return Err(Failure::AlreadyUnderWay);
    }
    if !s.has(flag::UNREACHED) {
        return Err(Failure::Connected);
    }
    let told = s.pending_error.swap(0, Ordering::AcqRel);
    begin_anew(s, fd);
    if told != 0 { Err(Failure::from_code(told)) } else { Ok(()) }
}

/// Waits until it is known whether the peer was reached; the call is over then.
fn reached(
    id: SlotId,
    s: &Slot,
    fd: RawFd,
    deadline: &mut CallDeadline,
    gives_up: bool,
) -> Result<(), Failure> {
    let (fd, waited) = until_answered(id, s, fd, deadline);
    // Not of a slot that may be another connection's by now; and before the call is over, after
    // which it may be.
    let connected = if deadline.gone(s) {
        Err(Failure::BadDescriptor)
    } else {
        answered(s, fd, waited, gives_up)
    };
    deadline.over();
    connected
}

/// Waits until it is known whether the peer was reached. By which descriptor the call goes on, too:
/// the program may have closed its own, whose number is another file's then.
fn until_answered(
    id: SlotId,
    s: &Slot,
    mut fd: RawFd,
    deadline: &mut CallDeadline,
) -> (RawFd, Result<(), Failure>) {
    let mut waited = Ok(());
    while s.has(flag::PENDING) && waited.is_ok() {
        waited = wait::writable(&Call { id, s, fd, flags: 0 }, deadline);
        fd = deadline.descriptor(fd);
    }
    (fd, waited)
}

/// What came of waiting. With `gives_up` an attempt that took too long is over.
fn answered(
    s: &Slot,
    fd: RawFd,
    waited: Result<(), Failure>,
    gives_up: bool,
) -> Result<(), Failure> {
    match waited {
        Err(Failure::Blocked) if gives_up => {
            give_up(s, fd);
            return Err(Failure::TimedOut);
        }
        Err(Failure::Blocked) => return Err(Failure::UnderWay),
        other => other?,
    }
    if s.has(flag::UNREACHED) {
        let e = s.pending_error.swap(0, Ordering::AcqRel);
        begin_anew(s, fd);
        return Err(if e == 0 { Failure::Refused } else { Failure::from_code(e) });
    }
    Ok(())
}

/// No caller waits for the attempt any more.
fn give_up(s: &Slot, fd: RawFd) {
    stack::on_own(|| {
        if let Some(connection) = bridge::of(s).and_then(|bridge| bridge.clear(|c| c.carries(s))) {
            connection.drop_all();
        }
    });
    begin_anew(s, fd);
}

/// The attempt is over: the socket is as if it had never been connected.
fn begin_anew(s: &Slot, fd: RawFd) {
    s.bridge.store(0, Ordering::Release);
    s.names.iter().for_each(|name| name.set(None));
    disconnect(s, fd);
}

/// The socket has no connection, nor an attempt at one; if it has a name it keeps that.
fn disconnect(s: &Slot, fd: RawFd) {
    if link::has_channel(s) {
        link::release(s);
    }
    s.clear(
        flag::BRIDGED
            | flag::PENDING
            | flag::UNREACHED
            | flag::CHANNEL_DONE
            | flag::PEER_FIN
            | flag::PEER_GONE,
    );
    own_channel::leave_channel(s);
    loopback::untie(fd);
}

/// The manager's name for the connection: that of a bound socket, or a new one.
fn identifier(bound: Option<Connection>, bridge: &Bridge, fd: RawFd) -> Result<CmId, Failure> {
    let cm = match bound {
        Some(bound) => bound.into_id()?,
        None => service::new_id(bridge.key())?,
    };
    let tos = options(fd).type_of_service;
    if tos != 0
        && let Err(e) = cm.set_type_of_service(tos)
    {
        crate::log_info!("no type of service {}: {}", tos, e.failure());
    }
    Ok(cm)
}

/// Begins to connect. If that fails, the socket is as before; but a name that it had may be lost.
fn dial(id: SlotId, s: &'static Slot, fd: RawFd, to: &SocketAddr) -> Result<(), Failure> {
    serving::start()?;
    let bound = bridge::of(s).filter(|_| s.names.first().is_some_and(|n| n.get().is_some()));
    let bridge = bound.or_else(table::take).ok_or(Failure::NoBuffers)?;
    let undo = |e: Failure| {
        if bound.is_none() {
            bridge.give_back();
        }
        e
    };
    let (claim, port) = own_channel::channel().map_err(undo)?;
    let end = match ends::made(|| loopback::tie(fd)) {
        Ok(end) => end,
        Err(e) => {
            port.close();
            return Err(undo(e));
        }
    };
    // In one step: a thread that sees that it is bridged sees too that nothing is ready yet.
    let place = (claim.record, claim.channel);
    if let Err(e) = own_channel::enter_new(id, s, place, flag::PENDING | flag::CONNECTING) {
        port.close();
        ends::close(end);
        disconnect(s, fd);
        return Err(undo(e));
    }
    s.names.get(1).iter().for_each(|name| name.set(Some(*to)));
    s.timers.learn(fd);
    belong(s, bridge);
    let begun = news::with_news(bridge, |place| match identifier(place.take(), bridge, fd) {
        Ok(cm) => {
            s.sizes.queues_have(MIN_QUEUE);
            let (key, shape) = (bridge.key(), shape(s));
            let caller = Caller { key, id: cm, to: *to, shape, channel: (claim, port) };
            *place = Some(Connection::dial(caller, (id, s), end));
            Ok(())
        }
        Err(e) => {
            port.close();
            ends::close(end);
            Err(e)
        }
    });
    begun.unwrap_or(Err(Failure::Blocked)).inspect_err(|_| {
        bridge.give_back();
        begin_anew(s, fd);
    })
}

/// What accept gave: the connection that knocked, in a slot of its own, with its peer's name.
/// `None` when it is a stranger, which has no business with a listener that only this host can
/// reach.
#[must_use]
pub fn accepted(fd: RawFd) -> Option<(SlotId, Option<SocketAddr>)> {
    let from = sockets::peer_name(sys::borrow(fd)).ok()?;
    let own = || sockets::own_name(sys::borrow(fd)).ok();
    let taken = guests::take(&from, own)?;
    let seated = seat(&taken.guest, &from, fd);
    match seated {
        Some(_) => taken.seated(),
        None => taken.turned_away(),
    }
    seated
}

/// Gives the connection its slot, and its side of the channel.
fn seat(guest: &Guest, from: &SocketAddr, fd: RawFd) -> Option<(SlotId, Option<SocketAddr>)> {
    let id = fork_group::take(life::kind(), fd)?;
    let s = fork_group::slot(id)?;
    // The manager calls both by the peer's family.
    let names = guest.names.map(|known| known.map(|name| SockAddr(name).as_beside(from).0));
    for (name, known) in s.names.iter().zip(names) {
        name.set(known);
    }
    s.bridge_pid.store(guest.pid, Ordering::Relaxed);
    s.bridge.store(guest.bridge + 1, Ordering::Release);
    if own_channel::enter_new(id, s, (guest.record, guest.channel), 0).is_err() {
        fork_group::give_back(id);
        return None;
    }
    crate::live_segment::enter(id, s, fd);
    // The kernel gave it what its listener has.
    crate::socket::low_water(id, fd);
    s.timers.learn(fd);
    if s.timers.rules() != Rules::default() {
        link::tell_bridge(s);
    }
    stats::add(Counter::Connections, 1);
    let [_, peer] = names;
    Some((id, peer))
}

/// Takes the next connection of a listener.
///
/// # Errors
/// As accept4(2).
pub(super) fn accept(
    listener: SlotId,
    fd: RawFd,
    flags: i32,
) -> Result<(SlotId, RawFd, SockAddr), Failure> {
    let mut deadline = kernel::AcceptDeadline::Unknown;
    loop {
        let (new, from) = kernel::next(fd, flags, &mut deadline)?;
        match accepted(new) {
            Some((id, peer)) => {
                if let (Some(s), Some(l)) = (fork_group::slot(id), fork_group::slot(listener)) {
                    s.sizes.copy_from(&l.sizes);
                    s.sizes.queues_have(MIN_QUEUE);
                }
                return Ok((id, new, peer.map_or(from, SockAddr)));
            }
            None => kernel::close(new),
        }
    }
}

/// The socket's own name; of one that has none, the unspecified address.
///
/// # Errors
/// `EBADF`.
pub(super) fn local_name(id: SlotId, fd: RawFd) -> Result<SockAddr, Failure> {
    let [ours, _] = names(id);
    ours.map_or_else(|| wildcard(fd), Ok).map(SockAddr)
}

/// The peer's name.
///
/// # Errors
/// `ENOTCONN`.
pub(super) fn peer_name(id: SlotId) -> Result<SockAddr, Failure> {
    let [_, theirs] = names(id);
    theirs.map(SockAddr).ok_or(Failure::NotConnected)
}

/// The pending error (`SO_ERROR`), which is cleared; `None` when the kernel is to be asked.
#[must_use]
pub fn error(id: SlotId, fd: RawFd) -> Option<i32> {
    let s = fork_group::slot(id)?;
    if s.has(flag::PENDING) {
        return Some(0);
    }
    if s.has(flag::UNREACHED) {
        return Some(s.pending_error.swap(0, Ordering::AcqRel));
    }
    if s.pending_error.load(Ordering::Relaxed) == 0 {
        return None;
    }
    // Both say that the connection broke; the bridge knows why.
    let _ = crate::host::kernel::take_error(fd);
    Some(s.pending_error.swap(0, Ordering::AcqRel))
}

/// The socket's own name and its peer's, where the kernel does not know them.
#[must_use]
pub fn names(id: SlotId) -> [Option<SocketAddr>; 2] {
    let Some(s) = fork_group::slot(id) else { return [None; 2] };
    let [ours, theirs] = &s.names;
    [ours.get(), theirs.get().filter(|_| !s.has(flag::PENDING | flag::UNREACHED))]
}

#[cfg(test)]
mod tests;
