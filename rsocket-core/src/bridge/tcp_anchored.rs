//! Bridges beside TCP connections: how the two ends of a connection between hosts reach each other
//! over RDMA.
//!
//! The end that asks connects by RDMA's manager to the address and port of its TCP connection. Its
//! private data is rsockets' own 40 bytes and then 16 of ours, which upstream ignores
//! (`wire-protocol §2.2`). Those say which end asks and for which connection, and give a proof.
//! Every process that waits to be asked listens at a port of its own, and the first of a host at
//! the TCP port too. Asked for a sibling's connection, it says where that sibling listens. Must not
//! know what attaching means. Entry points: [`ask`], [`be_asked`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use super::connection::{Connection, Courtship, Options, Shape};
use super::own_channel;
use super::request::{Open, Request};
use super::setup::{BUFFER, Caller, shape};
use super::{service, serving, silent, table};
use crate::attach::fingerprint::Proof;
use crate::conn::fork_group;
use crate::conn::pairing_lock::PairingGuard;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::failure::Failure;
use crate::host::interfaces;
use crate::sync::stack;
use crate::sys::{self, sockets};

/// How long a peer may take to answer, in nanoseconds.
const ANSWER_NS: u64 = 5_000_000_000;

/// Whether no process listened over RDMA at this TCP port when it was asked lately.
#[must_use]
pub fn is_closed(theirs: &SocketAddr) -> bool {
    silent::is_closed(theirs)
}

/// Begins to ask the peer, in the background. What becomes of it the slot is told.
///
/// # Errors
/// `EAGAIN` when enough peers are being asked, `EHOSTUNREACH` when this host did not answer lately;
/// there is no RDMA here after all, or no memory.
pub fn ask(
    id: SlotId,
    s: &PairingGuard<'_>,
    names: [SocketAddr; 2],
    proof: Proof,
    expected: Proof,
) -> Result<(), Failure> {
    stack::on_own(|| match ask_now(id, s, names, proof, expected) {
        Err(e) if serving::outdated(e) => ask_now(id, s, names, proof, expected),
        asked => asked,
    })
}

fn ask_now(
    id: SlotId,
    s: &PairingGuard<'_>,
    names: [SocketAddr; 2],
    proof: Proof,
    expected: Proof,
) -> Result<(), Failure> {
    let [ours, theirs] = names;
    if silent::is_silent(&theirs.ip()) {
        return Err(Failure::Unreachable);
    }
    let open = Open::one().ok_or(Failure::Blocked)?;
    serving::start()?;
    let bridge = table::take().ok_or(Failure::NoBuffers)?;
    let begun =
        own_channel::channel().and_then(|(claim, port)| match service::new_id(bridge.key()) {
            Ok(cm) => Ok((cm, claim, port)),
            Err(e) => {
                port.close();
                Err(e)
            }
        });
    let (cm, claim, port) = match begun {
        Ok(begun) => begun,
        Err(e) => {
            bridge.give_back();
            return Err(e);
        }
    };
    let request = Request { ports: [ours.port(), theirs.port()], proof };
    let until = sys::now_ns().saturating_add(ANSWER_NS);
    let courtship = Courtship { request, expected, redirected: false, until, _open: open };
    bridge.with(|place| {
        let (key, shape) = (bridge.key(), shape(s));
        let caller = Caller { key, id: cm, to: theirs, shape, channel: (claim, port) };
        *place = Some(Connection::court(caller, (id, s), courtship));
    });
    // The service thread begins, which has no lock of the connection's: should it fail at once, the
    // connection is told.
    service::nudge();
    Ok(())
}

/// Makes sure that a peer that connected to `ours` by TCP can ask over RDMA. It can ask at the port
/// that this gives, and at the TCP port as well unless another process of the host has it already.
///
/// # Errors
/// No RDMA device has that address, or one that shares TCP's ports (iWARP).
pub fn be_asked(ours: &SocketAddr) -> Result<u16, Failure> {
    stack::on_own(|| match be_asked_now(ours) {
        Err(e) if serving::outdated(e) => be_asked_now(ours),
        port => port,
    })
}

fn be_asked_now(ours: &SocketAddr) -> Result<u16, Failure> {
    serving::start()?;
    let own = match service::listener(&SocketAddr::new(ours.ip(), 0)) {
        Some(port) => port,
        None => listen(&SocketAddr::new(ours.ip(), 0))?,
    };
    if service::listener(ours).is_none()
        && let Err(e) = listen(ours)
    {
        crate::log_debug!("another process answers for port {} over RDMA {}", ours.port(), e);
    }
    Ok(own)
}

/// How soon a process looks again whether it can listen over RDMA beside its socket, in
/// nanoseconds.
const LOOK_AGAIN_NS: u64 = 5_000_000_000;

/// The program is about to wait on its listening socket: peers may come by RDMA too, upstream's
/// among them. Listens on every address of the socket's that has a device; where another process of
/// the host does so already, looks again later.
pub fn wait_for_peers(id: SlotId, fd: RawFd) {
    let Some(s) = fork_group::slot(id) else { return };
    let now = sys::now_ns();
    if now < s.asked_at.load(Ordering::Relaxed) || s.has(flag::BRIDGE_LISTENS) {
        return;
    }
    s.asked_at.store(now.saturating_add(LOOK_AGAIN_NS), Ordering::Relaxed);
    stack::on_own(|| listen_everywhere(id, s, fd));
}

fn listen_everywhere(id: SlotId, s: &Slot, fd: RawFd) {
    let Ok(own) = sockets::own_name(sys::borrow(fd)) else { return };
    if serving::start().is_err() {
        return;
    }
    let loopback: IpAddr =
        if own.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    let any = own.ip().is_unspecified();
    let door = SocketAddr::new(if any { loopback } else { own.ip() }, own.port());
    let addresses = if any { interfaces::addresses(own.is_ipv6()) } else { vec![own.ip()] };
    for ip in addresses {
        let at = SocketAddr::new(ip, own.port());
        if service::listener(&at).is_some() {
            continue;
        }
        if let Err(e) = listen_for(id, s, &at, door) {
            crate::log_debug!("no listener over RDMA at {} {}", at, e);
        }
    }
}

fn listen_for(id: SlotId, s: &Slot, at: &SocketAddr, door: SocketAddr) -> Result<(), Failure> {
    let bridge = table::take().ok_or(Failure::NoBuffers)?;
    let made =
        Connection::bound(bridge.key(), at, Options::default(), shape(s)).and_then(|mut c| {
            c.listen_beside(Some(door), BACKLOG)?;
            Ok(c)
        });
    match made {
        Ok(connection) => {
            bridge.with(|place| *place = Some(connection));
            service::listens_for(id, bridge.key(), at);
            s.set(flag::HEARD_TCP_ANCHORED);
            Ok(())
        }
        Err(e) => {
            bridge.give_back();
            Err(e)
        }
    }
}

/// Requests that may wait for the service thread.
const BACKLOG: i32 = 64;

fn listen(at: &SocketAddr) -> Result<u16, Failure> {
    let bridge = table::take().ok_or(Failure::NoBuffers)?;
    let shape = Shape {
        send_queue: 384,
        receive_queue: 384,
        inline: 64,
        send_buffer: BUFFER,
        receive_buffer: BUFFER,
        iomaps: 0,
    };
    let made = Connection::bound(bridge.key(), at, Options::default(), shape).and_then(|mut c| {
        c.listen_beside(None, 64)?;
        Ok(c)
    });
    match made {
        Ok(connection) => {
            let port = connection.local_address().map_or(at.port(), |a| a.port());
            bridge.with(|place| *place = Some(connection));
            service::listens(at, port);
            Ok(port)
        }
        Err(e) => {
            bridge.give_back();
            Err(e)
        }
    }
}
