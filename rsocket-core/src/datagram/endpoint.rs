//! One process's end of a datagram socket. It has what has come and was not received, how each peer
//! is reached, and the packets of the exchange (`wire-protocol §9.3`, `§9.5`).
//!
//! Everything here runs under the endpoint's lock and waits for no thread or peer. Knows neither C
//! nor how the program waits. Entry points: [`State::gather`], [`State::front`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::collections::VecDeque;
use std::os::fd::RawFd;

use super::fabric::Fabric;
use super::letterbox::{self, Letterbox};
use super::peers::{Peers, Pulse, Way};
use super::udp;
use crate::conn::slot::SlotId;
use crate::device::shm::mailbox::{self, Incoming, Outgoing};
use crate::device::shm::random;
use crate::failure::Failure;
use crate::stats::{self, Counter};
use crate::sys;
use crate::wire::datagram::{Invitation, UdHeader, UdpAddr, UdpHeader, UdpOp};

/// Datagrams that came by UDP and are kept here; what comes then waits in the kernel.
const HELD: usize = 64;
/// Their bytes, at most.
const HELD_BYTES: usize = 256 * 1024;
/// Packets taken from the kernel in one go.
const BURST: usize = 256;
/// Rings that others may write into.
const RINGS: usize = 128;
/// Letters opened in one go.
const LETTERS: usize = 16;

/// A datagram that came by UDP.
pub(super) struct Held {
    pub(super) from: SocketAddr,
    pub(super) bytes: Vec<u8>,
}

struct Ring {
    from: SocketAddr,
    incoming: Incoming,
    /// Its writer has brought another one since.
    old: bool,
}

impl Ring {
    /// Whether nothing more will be put in.
    fn is_last(&self) -> bool {
        self.old || self.incoming.writer_left()
    }
}

/// Where the next datagram lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Front {
    Held,
    Ring(usize),
    Fabric,
}

/// What one process keeps of a socket.
pub(super) struct State {
    pub(super) id: SlotId,
    pub(super) generation: u32,
    /// Our own descriptor of the UDP socket; private.
    pub(super) fd: RawFd,
    /// IPv6.
    pub(super) six: bool,
    /// Its port, once it has one.
    pub(super) port: u16,
    /// The only peer that is heard; as the slot says it.
    pub(super) connected: Option<SocketAddr>,
    pub(super) peers: Peers,
    /// `None`: memory is shared instead.
    pub(super) fabric: Option<Fabric>,
    held: VecDeque<Held>,
    held_bytes: usize,
    rings: Vec<Ring>,
    /// Whose turn it is to be read.
    turn: usize,
    letterbox: Option<Letterbox>,
    packet: Vec<u8>,
    /// What the kernel said about the socket, to be told once.
    pub(super) error: Option<Failure>,
    /// The kernel had no room for a packet.
    pub(super) stuffed: bool,
    /// Everything that ever came, for edge triggering.
    pub(super) arrived: u64,
    /// A packet said that there is something in a ring.
    nudged: bool,
    /// Wakers of sleepers, as they are to be rung: what wakes one of them may be taken by another
    /// thread.
    pub(super) waiters: Vec<u64>,
    /// What had arrived when the first of them looked.
    told: u64,
    /// When UDP was last looked at while sending, in nanoseconds.
    pub(super) looked: u64,
}

impl State {
    pub(super) fn new(
        id: SlotId,
        generation: u32,
        fd: RawFd,
        six: bool,
        fabric: Option<Fabric>,
    ) -> Self {
        Self {
            id,
            generation,
            fd,
            six,
            port: 0,
            connected: None,
            peers: Peers::default(),
            fabric,
            held: VecDeque::new(),
            held_bytes: 0,
            rings: Vec::new(),
            turn: 0,
            letterbox: None,
            packet: vec![0; udp::LARGEST],
            error: None,
            stuffed: false,
            arrived: 0,
            nudged: false,
            waiters: Vec::new(),
            told: 0,
            looked: 0,
        }
    }

    /// Brings in what there is, if nothing is here yet. What came by memory or the device is looked
    /// for before UDP is, and handed out after it. So a sender that switches from UDP to something
    /// better does not overtake itself.
    pub(super) fn gather(&mut self) {
        while self.front().is_none() {
            self.nudged = false;
            self.look();
            if !self.nudged {
                return;
            }
            // Something was put into a ring after it was looked at, and the packet that says so is
            // used up.
        }
    }

    fn look(&mut self) {
        let mut news = 0;
        self.rings.retain_mut(|ring| match ring.incoming.look() {
            Ok(more) => {
                news += u64::from(more);
                more > 0 || !ring.is_last() || ring.incoming.look() != Ok(0)
            }
            Err(_) => {
                crate::log_warn!(
                    "a ring of datagrams from {} made no sense and was dropped",
                    ring.from
                );
                false
            }
        });
        news += self.fabric.as_mut().map_or(0, |f| u64::from(f.gather()));
        self.arrived += news;
        self.read_udp();
    }

    /// Where the next datagram lies, if one is known. What a connected socket is not to hear is
    /// thrown away.
    pub(super) fn front(&mut self) -> Option<Front> {
        if let Some(held) = self.held.front() {
            // A sender that has left its ring and went back to UDP wrote into the ring first.
            let from = held.from;
            let left = |ring: &mut Ring| ring.from == from && ring.is_last();
            let last =
                self.rings.iter_mut().position(|ring| left(ring) && ring.incoming.look().is_ok());
            return match last.filter(|i| self.known(*i) && self.hears(&from)) {
                Some(i) => Some(Front::Ring(i)),
                None => Some(Front::Held),
            };
        }
        let (count, turn) = (self.rings.len(), self.turn);
        for i in (0..count).map(|i| (turn + i) % count) {
            while self.known(i) {
                if self.rings.get(i).is_some_and(|ring| self.hears(&ring.from)) {
                    return Some(Front::Ring(i));
                }
                self.take(Front::Ring(i));
            }
        }
        while self.fabric.as_ref().is_some_and(|f| f.waiting() > 0) {
            if self.frame().is_some_and(|(from, _)| self.hears(&from)) {
                return Some(Front::Fabric);
            }
            stats::add(Counter::DatagramsIgnored, 1);
            self.take(Front::Fabric);
        }
        None
    }

    fn known(&self, ring: usize) -> bool {
        self.rings.get(ring).is_some_and(|ring| ring.incoming.known() > 0)
    }

    fn hears(&self, from: &SocketAddr) -> bool {
        self.connected.is_none_or(|peer| peer == *from)
    }

    /// Who sent the device's next frame, and where its bytes begin.
    fn frame(&mut self) -> Option<(SocketAddr, usize)> {
        let six = self.six;
        let bytes = self.fabric.as_mut()?.next()?.frame()?;
        let (header, rest) = UdHeader::parse(bytes).ok()?;
        let (ip, port) = match header {
            UdHeader::V4 { port, addr } => (IpAddr::from(addr), port),
            UdHeader::V6 { port, addr, .. } => (IpAddr::from(addr), port),
        };
        Some((SocketAddr::new(fitting(ip, six)?, port), bytes.len() - rest.len()))
    }

    /// Shows the datagram at `front`: who sent it, where its bytes lie, and how many they are. The
    /// sender of one in a ring may change them at any time.
    pub(super) fn show(&mut self, front: Front) -> Option<(SocketAddr, *const u8, usize)> {
        match front {
            Front::Held => {
                self.held.front().map(|held| (held.from, held.bytes.as_ptr(), held.bytes.len()))
            }
            Front::Ring(i) => {
                let ring = self.rings.get(i)?;
                let Ok(Some((at, len))) = ring.incoming.next() else {
                    // Its sender says nonsense.
                    self.rings.remove(i);
                    return None;
                };
                Some((ring.from, at, len))
            }
            Front::Fabric => {
                let (from, skip) = self.frame()?;
                let bytes = self.fabric.as_mut()?.next()?.frame()?.get(skip..)?;
                Some((from, bytes.as_ptr(), bytes.len()))
            }
        }
    }

    /// Lets go of the datagram at `front`.
    pub(super) fn take(&mut self, front: Front) {
        match front {
            Front::Held => {
                let taken = self.held.pop_front();
                self.held_bytes -= taken.map_or(0, |held| held.bytes.len());
            }
            Front::Ring(i) => {
                if let Some(ring) = self.rings.get_mut(i) {
                    ring.incoming.taken();
                }
                self.turn = i + 1;
            }
            Front::Fabric => {
                if let Some(fabric) = &mut self.fabric {
                    if let Some(pair) = fabric.next() {
                        pair.release();
                    }
                    fabric.pass();
                }
            }
        }
    }

    /// Whether anything has come since the sleepers looked; no system call.
    pub(super) fn has_news(&mut self) -> bool {
        let news = self.fabric.as_mut().map_or(0, Fabric::gather);
        self.arrived += u64::from(news);
        self.arrived != self.told
            || self.error.is_some()
            || self.rings.iter().any(|ring| ring.incoming.has_new())
    }

    /// Whether memory or the device has something that was not looked at; no system call.
    pub(super) fn stirs(&mut self) -> bool {
        let news = self.fabric.as_mut().map_or(0, Fabric::gather);
        self.arrived += u64::from(news);
        self.front().is_some()
            || self.error.is_some()
            || self.rings.iter().any(|ring| ring.incoming.stirs())
    }

    /// Whether a thread that sleeps on UDP alone may have to look by itself: fork siblings may
    /// take the packet that was to wake it.
    pub(super) fn has_rings(&self) -> bool {
        !self.rings.is_empty()
    }

    /// Before a sleep, with the waker of the thread that sleeps; then everything must be looked at
    /// once more. What to sleep on beside UDP's descriptor and the waker, or -1.
    pub(super) fn before_sleep(&mut self, waker: Option<u64>) -> RawFd {
        if self.waiters.is_empty() {
            self.told = self.arrived;
        }
        if let Some(waker) = waker.filter(|waker| !self.waiters.contains(waker)) {
            self.waiters.push(waker);
        }
        self.rings.iter().for_each(|ring| ring.incoming.sleeping());
        mailbox::settle();
        self.fabric.as_mut().map_or(-1, |fabric| {
            fabric.arm();
            fabric.events()
        })
    }

    /// Takes packets from the kernel until there is none or enough of them are data.
    pub(super) fn read_udp(&mut self) {
        for _ in 0..BURST {
            if self.held.len() >= HELD || self.held_bytes >= HELD_BYTES {
                return;
            }
            let mut packet = core::mem::take(&mut self.packet);
            let got = udp::receive(self.fd, &mut packet);
            if let Ok((n, Some(from))) = got {
                self.on_packet(from, packet.get(..n).unwrap_or_default());
            }
            self.packet = packet;
            match got {
                // Without a sender: the socket was shut down for reading.
                Ok((_, None)) | Err(Failure::Blocked) => return,
                Ok(_) | Err(Failure::Interrupted) => {}
                Err(e) => {
                    self.refused(e);
                    return;
                }
            }
        }
    }

    /// The kernel had an error for the socket: no receiver is where we sent.
    pub(super) fn refused(&mut self, e: Failure) {
        self.error = Some(e);
        if let Some(peer) = self.connected.and_then(|peer| self.peers.get(&peer)) {
            peer.lost();
        }
    }

    fn on_packet(&mut self, from: SocketAddr, packet: &[u8]) {
        if !UdpHeader::is_tagged(packet) {
            // Not from an rsocket: the sender is answered in kind.
            if let Some(peer) = self.peers.get(&from)
                && matches!(peer.way, Way::Udp)
            {
                peer.way = Way::Plain;
            } else if self.peers.get(&from).is_none() {
                self.peers.meet(from).way = Way::Plain;
            }
            self.hold(from, packet);
            return;
        }
        let Ok((header, rest)) = UdpHeader::parse(packet) else {
            stats::add(Counter::DatagramsIgnored, 1);
            return;
        };
        if let Some(peer) = self.peers.get(&from) {
            peer.pulse.heard();
            if matches!(peer.way, Way::Plain) {
                peer.way = Way::Udp;
            }
        }
        match header.op {
            UdpOp::Data => {
                self.answer(from, header.qpn);
                self.hold(from, rest);
            }
            UdpOp::Ask => self.answer(from, header.qpn),
            UdpOp::Address => self.learn(from, header.qpn),
            UdpOp::Invite => self.invited(from, rest),
            UdpOp::Nudge => {
                self.nudged = true;
                self.open_letters();
            }
        }
    }

    fn hold(&mut self, from: SocketAddr, bytes: &[u8]) {
        self.held_bytes += bytes.len();
        self.held.push_back(Held { from, bytes: bytes.to_vec() });
        self.arrived += 1;
    }

    /// Sends a packet that has no datagram in it. Should it be lost, the next datagram brings
    /// another.
    pub(super) fn say(
        &mut self,
        to: &SocketAddr,
        op: UdpOp,
        qpn: u32,
        rest: &[u8],
    ) -> Result<(), Failure> {
        let mut packet = [0_u8; 64];
        let header = header(to, op, qpn).to_bytes();
        let bytes = header.as_slice().iter().chain(rest);
        let mut len = 0;
        for (place, byte) in packet.iter_mut().zip(bytes) {
            *place = *byte;
            len += 1;
        }
        udp::send(self.fd, Some(to), packet.get(..len).unwrap_or_default()).map(|_| ())
    }

    /// The number of the queue pair from which `to` is reached, made now if need be; 0 where there
    /// is none.
    pub(super) fn own_number(&mut self, to: &SocketAddr) -> u32 {
        let Some(ours) = self.source(to) else { return 0 };
        self.fabric.as_mut().and_then(|f| f.pair(ours)).map_or(0, |pair| pair.number())
    }

    /// The address of ours from which `to` is reached, where that matters.
    pub(super) fn source(&mut self, to: &SocketAddr) -> Option<IpAddr> {
        self.fabric.as_ref()?;
        let fd = self.fd;
        let peer = self.peers.meet(*to);
        if peer.ours.is_none() {
            peer.ours = udp::source_towards(fd, to);
        }
        peer.ours
    }

    fn learn(&mut self, from: SocketAddr, qpn: u32) {
        // Only a peer that was sent to can be sent to in a better way.
        if let Some(peer) = self.peers.get(&from) {
            peer.says(qpn);
        }
    }

    /// The peer wants to know how we are reached.
    fn answer(&mut self, from: SocketAddr, qpn: u32) {
        if self.fabric.is_some() {
            if qpn > 1 {
                self.peers.meet(from).says(qpn);
                let own = self.own_number(&from);
                if own != 0 {
                    let _ = self.say(&from, UdpOp::Address, own, &[]);
                }
            }
        } else if qpn == 0
            && let Some(invitation) = self.invitation(from)
        {
            let _ = self.say(&from, UdpOp::Invite, 0, &invitation.to_bytes());
        }
    }

    /// What a peer without a queue pair is told. `None` when no more are wanted.
    fn invitation(&mut self, from: SocketAddr) -> Option<Invitation> {
        if self.rings.len() >= RINGS && !self.rings.iter().any(|ring| ring.from == from) {
            return None;
        }
        if self.letterbox.is_none() {
            self.letterbox = Letterbox::open().ok();
        }
        let name = self.letterbox.as_ref()?.name;
        let peer = self.peers.meet(from);
        if peer.token.is_none() {
            peer.token = random::bits().ok();
        }
        Some(Invitation { name, token: peer.token? })
    }

    /// A peer to whom we have sent invites us to bring it memory.
    fn invited(&mut self, from: SocketAddr, rest: &[u8]) {
        let Ok(invitation) = Invitation::parse(rest) else {
            stats::add(Counter::DatagramsIgnored, 1);
            return;
        };
        let now = sys::now_ns();
        let shares = self.fabric.is_none();
        let Some(peer) = self.peers.get(&from).filter(|peer| shares && peer.not_before <= now)
        else {
            return;
        };
        match &peer.way {
            Way::Ring(ring, known) if *known == invitation && !ring.is_over() => {
                // It has it, or has not looked for it yet.
                if !ring.is_open() {
                    let _ = self.say(&from, UdpOp::Nudge, 0, &[]);
                }
                return;
            }
            _ => {}
        }
        let brought = Outgoing::create().and_then(|(ring, fd)| {
            let delivered = letterbox::deliver(&invitation, &fd);
            sys::discard(fd);
            delivered.map(|()| ring)
        });
        match brought {
            Ok(ring) => {
                peer.way = Way::Ring(ring, invitation);
                peer.pulse = Pulse::begun(now);
                let _ = self.say(&from, UdpOp::Nudge, 0, &[]);
            }
            // On another host, or in another network namespace, there is no such letterbox.
            Err(_) => peer.failed(now),
        }
    }

    /// Takes the rings that others have brought.
    fn open_letters(&mut self) {
        for _ in 0..LETTERS {
            let (token, fd) = match self.letterbox.as_ref().map(Letterbox::next) {
                Some(Ok(Some(letter))) => letter,
                Some(Ok(None)) => continue,
                Some(Err(_)) | None => return,
            };
            let opened = self.peers.holder(token).map(|from| (from, Incoming::open(&fd)));
            sys::discard(fd);
            match opened {
                Some((from, Ok(incoming))) => {
                    // Another one of the same sender's: it has begun anew.
                    self.rings
                        .iter_mut()
                        .filter(|ring| ring.from == from)
                        .for_each(|ring| ring.old = true);
                    if self.rings.len() < 2 * RINGS {
                        self.rings.push(Ring { from, incoming, old: false });
                    }
                }
                _ => stats::add(Counter::DatagramsIgnored, 1),
            }
        }
    }

    /// Lets go of everything that is not memory.
    pub(super) fn close(&self) {
        if let Some(letterbox) = &self.letterbox {
            letterbox.close();
        }
        if let Some(fabric) = &self.fabric {
            fabric.close();
        }
        sys::close_private(self.fd);
    }
}

/// An address as a socket of this family names it; `None` where it has no name for it.
fn fitting(ip: IpAddr, six: bool) -> Option<IpAddr> {
    match (ip.to_canonical(), six) {
        (IpAddr::V4(v4), true) => Some(v4.to_ipv6_mapped().into()),
        (IpAddr::V6(_), false) => None,
        (ip, _) => Some(ip),
    }
}

/// A header for a packet to `to`. Of our own address, which no receiver looks at, only the family
/// is said.
pub(super) fn header(to: &SocketAddr, op: UdpOp, qpn: u32) -> UdpHeader {
    let addr = match to.ip().to_canonical() {
        IpAddr::V4(_) => UdpAddr::V4(Ipv4Addr::UNSPECIFIED.octets()),
        IpAddr::V6(_) => UdpAddr::V6([0; 16]),
    };
    UdpHeader { op, qpn, addr }
}
