//! Relays beside TCP connections: how the two ends of a connection between hosts reach each other
//! over RDMA.
//!
//! The end that asks connects by RDMA's manager to the address and port of its TCP connection. Its
//! private data is rsockets' own 40 bytes and then 16 of ours, which upstream ignores
//! (`wire-protocol §2.2`): who asks, for which connection, and a proof. Every process that waits to
//! be asked listens at a port of its own, and the first of a host at the TCP port too; asked for a
//! relative's connection it says where that one listens. Must not know what attaching means. Entry
//! points: [`ask`], [`be_asked`], [`Request`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicU32, Ordering};
use std::os::fd::RawFd;

use super::connection::{self, Connection, Courtship, Options, Shape};
use super::{interfaces, service, silent, table};
use crate::attach::witness::Proof;
use crate::config::sizes::Size;
use crate::conn::family;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::errno::Errno;
use crate::sync::stack;
use crate::sys;
use crate::sys::settle::Settle;
use crate::wire::private_data::PrivateData;

/// What follows the protocol's own private data when one of ours asks.
const ASKS: [u8; 2] = *b"rA";
/// When one of ours answers.
const ANSWERS: [u8; 2] = *b"rB";
/// In a refusal: ask at this port.
const ASK_THERE: [u8; 2] = *b"rC";

/// Bytes of ours behind the protocol's.
pub const EXTRA: usize = 16;

/// What one of ours asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The TCP ports of the end that asks, and of the end that is asked.
    pub ports: [u16; 2],
    /// That it is at the other end.
    pub proof: Proof,
}

impl Request {
    /// As private data.
    #[must_use]
    pub fn to_bytes(&self, own: &PrivateData) -> [u8; PrivateData::SIZE + EXTRA] {
        let [from, to] = self.ports.map(u16::to_be_bytes);
        joined(own, &[&ASKS, &from, &to, &self.proof.seen, &self.proof.digest])
    }

    /// Reads it; `None` when this is no request of ours.
    #[must_use]
    pub fn parse(private: &[u8]) -> Option<Self> {
        let extra: &[u8; EXTRA] = private.get(PrivateData::SIZE..)?.first_chunk()?;
        let [m0, m1, f0, f1, t0, t1, a, b, digest @ ..] = *extra;
        ([m0, m1] == ASKS).then_some(Self {
            ports: [u16::from_be_bytes([f0, f1]), u16::from_be_bytes([t0, t1])],
            proof: Proof { seen: [a, b], digest },
        })
    }
}

/// The answer as private data.
#[must_use]
pub fn answer(own: &PrivateData, proof: &Proof) -> [u8; PrivateData::SIZE + EXTRA] {
    joined(own, &[&ANSWERS, &[0; 4], &proof.seen, &proof.digest])
}

/// Whether the answer is the one that only the other end can give.
#[must_use]
pub fn is_answer(private: &[u8], expected: &Proof) -> bool {
    let extra = private.get(PrivateData::SIZE..).and_then(|p| p.first_chunk::<EXTRA>());
    extra.is_some_and(|[m0, m1, _, _, _, _, a, b, digest @ ..]| {
        [*m0, *m1] == ANSWERS && [*a, *b] == expected.seen && *digest == expected.digest
    })
}

fn joined(own: &PrivateData, parts: &[&[u8]]) -> [u8; PrivateData::SIZE + EXTRA] {
    let mut bytes = [0; PrivateData::SIZE + EXTRA];
    let own = own.to_bytes();
    for (to, from) in bytes.iter_mut().zip(own.iter().chain(parts.iter().copied().flatten())) {
        *to = *from;
    }
    bytes
}

/// A refusal that says where to ask.
#[must_use]
pub fn elsewhere(port: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = (ASK_THERE, port.to_be_bytes());
    [a, b, c, d]
}

/// Where a refusal says to ask.
#[must_use]
pub fn ask_there(private: &[u8]) -> Option<u16> {
    let [a, b, c, d] = *private.first_chunk::<4>()?;
    ([a, b] == ASK_THERE).then_some(u16::from_be_bytes([c, d])).filter(|port| *port != 0)
}

pub(super) fn shape(s: &Slot) -> Shape {
    Shape {
        send_queue: 384,
        receive_queue: 384,
        inline: s.sizes.get(Size::Inline),
        send_buffer: s.sizes.get(Size::SendBuffer).max(BUFFER),
        receive_buffer: s.sizes.get(Size::ReceiveBuffer).max(BUFFER) & !1,
        iomaps: 0,
    }
}

/// Bytes of each buffer where nobody asked for more: between two of ours there is no need to be
/// frugal.
const BUFFER: u32 = 256 * 1024;

/// How long a peer may take to answer, in nanoseconds.
const ANSWER_NS: u64 = 5_000_000_000;
/// Peers that a process asks at a time: each costs a queue pair and its memory.
const MOST_OPEN: u32 = 16;
static OPEN: AtomicU32 = AtomicU32::new(0);

/// One peer that is being asked.
#[derive(Debug)]
pub struct Open(());

impl Open {
    /// One more, unless there are enough.
    fn one() -> Option<Self> {
        // Relaxed: a count that orders nothing.
        if OPEN.fetch_add(1, Ordering::Relaxed) >= MOST_OPEN {
            OPEN.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Self(()))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// In the child of a fork: what its parent asks is the parent's.
pub fn forked() {
    OPEN.settle(0);
}

/// Whether nobody listened over RDMA at this TCP port when it was asked lately.
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
    s: &Slot,
    names: [SocketAddr; 2],
    proof: Proof,
    expected: Proof,
) -> Result<(), Errno> {
    stack::on_own(|| match ask_now(id, s, names, proof, expected) {
        Err(e) if service::outdated(e) => ask_now(id, s, names, proof, expected),
        asked => asked,
    })
}

fn ask_now(
    id: SlotId,
    s: &Slot,
    names: [SocketAddr; 2],
    proof: Proof,
    expected: Proof,
) -> Result<(), Errno> {
    let [ours, theirs] = names;
    if silent::is_silent(&theirs.ip()) {
        return Err(Errno(libc::EHOSTUNREACH));
    }
    let open = Open::one().ok_or(Errno::AGAIN)?;
    service::start()?;
    let relay = table::take().ok_or(Errno(libc::ENOBUFS))?;
    let begun = connection::window().and_then(|(claim, port)| match service::new_id(relay.key()) {
        Ok(cm) => Ok((cm, claim, port)),
        Err(e) => {
            port.close();
            Err(e)
        }
    });
    let (cm, claim, port) = match begun {
        Ok(begun) => begun,
        Err(e) => {
            relay.give_back();
            return Err(e);
        }
    };
    let request = Request { ports: [ours.port(), theirs.port()], proof };
    let until = sys::now_ns().saturating_add(ANSWER_NS);
    let courtship = Courtship { request, expected, redirected: false, until, _open: open };
    relay.with(|place| {
        *place = Some(Connection::court(
            relay.key(),
            cm,
            (id, s),
            theirs,
            shape(s),
            (claim, port),
            courtship,
        ));
    });
    // The service thread begins, which has no lock of the connection's: should it fail at once, the
    // connection is told.
    service::nudge();
    Ok(())
}

/// Makes sure that whoever connected to `ours` by TCP can ask over RDMA: at the port that this
/// gives, and at the TCP port as well unless another process of the host has it already.
///
/// # Errors
/// No RDMA device has that address, or one that shares TCP's ports (iWARP).
pub fn be_asked(ours: &SocketAddr) -> Result<u16, Errno> {
    stack::on_own(|| match be_asked_now(ours) {
        Err(e) if service::outdated(e) => be_asked_now(ours),
        port => port,
    })
}

fn be_asked_now(ours: &SocketAddr) -> Result<u16, Errno> {
    service::start()?;
    let own = match service::listener(&SocketAddr::new(ours.ip(), 0)) {
        Some(port) => port,
        None => listen(&SocketAddr::new(ours.ip(), 0))?,
    };
    if service::listener(ours).is_none()
        && let Err(e) = listen(ours)
    {
        crate::log_debug!(
            "another process answers for port {} over RDMA (errno {})",
            ours.port(),
            e.0
        );
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
    let Some(s) = family::slot(id) else { return };
    let now = sys::now_ns();
    if now < s.asked_at.load(Ordering::Relaxed) || s.has(flag::RELAY_LISTENS) {
        return;
    }
    s.asked_at.store(now.saturating_add(LOOK_AGAIN_NS), Ordering::Relaxed);
    stack::on_own(|| listen_everywhere(id, s, fd));
}

fn listen_everywhere(id: SlotId, s: &Slot, fd: RawFd) {
    let Some(own) =
        rustix::net::getsockname(sys::borrow(fd)).ok().and_then(|a| SocketAddr::try_from(a).ok())
    else {
        return;
    };
    if service::start().is_err() {
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
            crate::log_debug!("no listener over RDMA at {} (errno {})", at, e.0);
        }
    }
}

fn listen_for(id: SlotId, s: &Slot, at: &SocketAddr, door: SocketAddr) -> Result<(), Errno> {
    let relay = table::take().ok_or(Errno(libc::ENOBUFS))?;
    let made =
        Connection::bound(relay.key(), at, Options::default(), shape(s)).and_then(|mut c| {
            c.listen_beside(Some(door), BACKLOG)?;
            Ok(c)
        });
    match made {
        Ok(connection) => {
            relay.with(|place| *place = Some(connection));
            service::listens_for(id, relay.key(), at);
            s.set(flag::HEARD_BESIDE);
            Ok(())
        }
        Err(e) => {
            relay.give_back();
            Err(e)
        }
    }
}

/// Requests that may wait for the service thread.
const BACKLOG: i32 = 64;

fn listen(at: &SocketAddr) -> Result<u16, Errno> {
    let relay = table::take().ok_or(Errno(libc::ENOBUFS))?;
    let shape = Shape {
        send_queue: 384,
        receive_queue: 384,
        inline: 64,
        send_buffer: BUFFER,
        receive_buffer: BUFFER,
        iomaps: 0,
    };
    let made = Connection::bound(relay.key(), at, Options::default(), shape).and_then(|mut c| {
        c.listen_beside(None, 64)?;
        Ok(c)
    });
    match made {
        Ok(connection) => {
            let port = connection.local_address().map_or(at.port(), |a| a.port());
            relay.with(|place| *place = Some(connection));
            service::listens(at, port);
            Ok(port)
        }
        Err(e) => {
            relay.give_back();
            Err(e)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::sge::{Endian, Sge};

    fn own() -> PrivateData {
        let buffer = Sge { addr: 4096, rkey: 2, len: 65536 };
        PrivateData {
            endian: Endian::NATIVE,
            credits: 384,
            iomap: None,
            notes: true,
            table: Sge { addr: 64, rkey: 1, len: 2 },
            buffer,
        }
    }

    #[test]
    fn requests_and_answers_come_back_and_upstream_reads_its_own() {
        let proof = Proof { seen: [128, 17], digest: *b"ABCDEFGH" };
        let request = Request { ports: [40000, 80], proof };
        let bytes = request.to_bytes(&own());
        assert_eq!(bytes.len(), 56, "the most that a request can carry");
        assert_eq!(Request::parse(&bytes), Some(request));
        assert_eq!(PrivateData::parse(&bytes).unwrap(), own());
        assert_eq!(Request::parse(&own().to_bytes()), None);
        let answer = answer(&own(), &proof);
        assert!(is_answer(&answer, &proof));
        assert!(!is_answer(&bytes, &proof) && !is_answer(&own().to_bytes(), &proof));
        assert!(!is_answer(&answer, &Proof { digest: *b"ABCDEFGI", ..proof }));
    }

    #[test]
    fn a_refusal_may_say_where_to_ask() {
        assert_eq!(ask_there(&elsewhere(1234)), Some(1234));
        assert_eq!(ask_there(&elsewhere(0)), None);
        assert_eq!(ask_there(b"rC"), None);
        assert_eq!(ask_there(&[0; 148]), None);
    }
}
