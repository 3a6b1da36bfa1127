//! Sending datagrams.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

use super::endpoint::{State, header};
use super::peers::{Beat, Peer, Way};
use super::{MOST_V4, MOST_V6, service, udp, with};
use crate::address::SockAddr;
use crate::conn::fork_group;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::device::rdma::NotSent;
use crate::device::shm::mailbox::Put;
use crate::failure::Failure;
use crate::host::kernel;
use crate::stats::{self, Counter, Transport};
use crate::sync::thread;
use crate::sys;
use crate::sys::vectors::Cursor;
use crate::waiting::call_deadline::CallDeadline;
use crate::waiting::sleep;
use crate::wire::datagram::{UdHeader, UdpOp};

/// How often UDP is looked at by a sender that waits for an answer, in nanoseconds.
const LOOK_NS: u64 = 1_000_000;
/// How often a full ring is looked at again, giving the processor away, before the datagram is
/// lost.
const PATIENCE: u32 = 16;
/// How often a reader is told to wake up where the kernel has no room for it.
const NUDGES: u32 = 100;

/// The bytes of one datagram, gathered, with room for a header before them.
pub(super) struct Packet {
    bytes: [u8; FRONT + MOST_V4],
    len: usize,
}

/// Room for the longest header.
const FRONT: usize = 28;

impl Packet {
    pub(super) fn gathered(from: &[libc::iovec], len: usize) -> Self {
        let mut packet = Self { bytes: [0; FRONT + MOST_V4], len };
        let room = packet.bytes.get_mut(FRONT..).unwrap_or_default();
        Cursor::new(from).each(len, |at, n, offset| {
            let Some(place) = room.get_mut(offset..offset + n) else { return false };
            // SAFETY: the program vouched for its buffers; the place is as long.
            unsafe { core::ptr::copy_nonoverlapping(at, place.as_mut_ptr(), n) };
            true
        });
        packet
    }

    fn body(&self) -> &[u8] {
        self.bytes.get(FRONT..FRONT + self.len).unwrap_or_default()
    }

    /// The body behind a header, which is no longer than [`FRONT`].
    fn behind(&mut self, header: &[u8]) -> &[u8] {
        let start = FRONT.saturating_sub(header.len());
        if let Some(place) = self.bytes.get_mut(start..FRONT)
            && place.len() == header.len()
        {
            place.copy_from_slice(header);
        }
        self.bytes.get(start..FRONT + self.len).unwrap_or_default()
    }
}

/// What an attempt came to.
pub(super) enum Outcome {
    Sent,
    /// Wait until this says that there is room.
    Wait(Room),
}

pub(super) enum Room {
    Kernel,
    Device(RawFd),
}

/// Sends one datagram, to `to` or to where the socket is connected. Blocks, if it may, while there
/// is no room for it; a receiver that is too slow loses it, as with UDP.
///
/// # Errors
/// As sendto(2): `EDESTADDRREQ`, `EMSGSIZE` beyond [`MOST_V4`] or [`MOST_V6`], `EAFNOSUPPORT`,
/// `EPIPE` after a shutdown (without a signal), what UDP says.
pub fn send(
    id: SlotId,
    fd: RawFd,
    to: Option<&SockAddr>,
    from: &[libc::iovec],
    flags: i32,
) -> Result<usize, Failure> {
    let s = fork_group::slot(id).ok_or(Failure::BadDescriptor)?;
    if !Cursor::plausible(from) {
        return Err(Failure::BadAddress);
    }
    let len = Cursor::new(from).left();
    if len > MOST_V4 {
        return Err(Failure::MessageTooLong);
    }
    if s.has(flag::WRITE_SHUT) {
        return Err(Failure::Ended);
    }
    let [_, peer] = &s.names;
    let to = match to {
        Some(to) => named(with(id, fd, |state| state.six)?, to)?,
        None => peer.get().ok_or(Failure::NoPeer)?,
    };
    if len > MOST_V6 && matches!(to.ip().to_canonical(), IpAddr::V6(_)) {
        return Err(Failure::MessageTooLong);
    }
    let mut packet = Packet::gathered(from, len);
    let mut deadline = CallDeadline::new(s, libc::SO_SNDTIMEO);
    loop {
        match with(id, fd, |state| state.send(&to, &mut packet))?? {
            Outcome::Sent => return Ok(len),
            Outcome::Wait(_) if flags & libc::MSG_DONTWAIT != 0 || kernel::nonblocking(fd) => {
                return Err(Failure::Blocked);
            }
            Outcome::Wait(room) => sleep(s, fd, &room, &mut deadline)?,
        }
    }
}

/// The destination as this socket names it.
fn named(six: bool, to: &SockAddr) -> Result<SocketAddr, Failure> {
    let to = udp::plain(to.0);
    match (to, six) {
        _ if to.port() == 0 => Err(Failure::Invalid),
        (SocketAddr::V6(_), false) => Err(Failure::WrongFamily),
        (SocketAddr::V4(v4), true) => {
            Ok(SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port()))
        }
        _ => Ok(to),
    }
}

/// Waits for room.
fn sleep(s: &Slot, fd: RawFd, room: &Room, deadline: &mut CallDeadline) -> Result<(), Failure> {
    let left = deadline.left(s, fd)?;
    let (fd, events) = match room {
        Room::Kernel => (fd, libc::POLLOUT),
        Room::Device(events) => (*events, libc::POLLIN),
    };
    sleep::sleep_on(s, &mut [libc::pollfd { fd, events, revents: 0 }], left, deadline)
}

impl State {
    pub(super) fn send(
        &mut self,
        to: &SocketAddr,
        packet: &mut Packet,
    ) -> Result<Outcome, Failure> {
        if let Some(e) = self.error.take() {
            return Err(e);
        }
        let now = sys::now_ns();
        self.check_pulse(to, now);
        match self.peers.meet_to_send(*to).way {
            Way::Plain => self.by_udp(to, packet, false),
            Way::Udp => {
                self.hear(now);
                self.find_path(to, now);
                self.by_udp(to, packet, true)
            }
            Way::Ring(..) => self.by_ring(to, packet, now),
            Way::Fabric(..) => self.by_device(to, packet),
        }
    }

    /// Answers stand behind what others have sent.
    fn hear(&mut self, now: u64) {
        self.looked = now;
        self.read_udp();
    }

    /// Asks a peer that is reached by a device whether it still is.
    fn check_pulse(&mut self, to: &SocketAddr, now: u64) {
        let looked = self.looked;
        let Some(peer) =
            self.peers.get(to).filter(|p| matches!(p.way, Way::Ring(..) | Way::Fabric(..)))
        else {
            return;
        };
        let beat = peer.pulse.beat(now);
        let waits = peer.pulse.waits();
        match beat {
            Beat::Quiet => {}
            Beat::Lost => peer.lost(),
            Beat::Ask => {
                let own = self.own_number(to);
                let _ = self.say(to, UdpOp::Ask, own, &[]);
            }
        }
        if waits && now.saturating_sub(looked) > LOOK_NS {
            self.hear(now);
        }
    }

    fn by_udp(
        &mut self,
        to: &SocketAddr,
        packet: &mut Packet,
        tagged: bool,
    ) -> Result<Outcome, Failure> {
        let sent = if tagged {
            let own = self.own_number(to);
            let header = header(to, UdpOp::Data, own).to_bytes();
            udp::send(self.fd, Some(to), packet.behind(header.as_slice()))
        } else {
            udp::send(self.fd, Some(to), packet.body())
        };
        self.stuffed = sent == Err(Failure::Blocked);
        match sent {
            Ok(_) => {
                stats::add(Counter::DatagramsSentUdp, 1);
                Ok(Outcome::Sent)
            }
            Err(Failure::Blocked) => Ok(Outcome::Wait(Room::Kernel)),
            Err(e) => Err(e),
        }
    }

    fn by_ring(
        &mut self,
        to: &SocketAddr,
        packet: &mut Packet,
        now: u64,
    ) -> Result<Outcome, Failure> {
        let Some(Peer { way: Way::Ring(ring, _), .. }) = self.peers.get(to) else {
            return Err(Failure::Invalid);
        };
        if !ring.is_open() && !ring.is_over() {
            self.hear(now);
            return self.by_udp(to, packet, true);
        }
        let body = packet.body();
        let mut tries = 0;
        let put = loop {
            // SAFETY: the ring gives room for as many bytes as it was told.
            let fill = |at: *mut u8| unsafe {
                core::ptr::copy_nonoverlapping(body.as_ptr(), at, body.len())
            };
            match ring.put(body.len(), fill) {
                Put::Full if tries < PATIENCE => {
                    tries += 1;
                    thread::yield_now();
                }
                other => break other,
            }
        };
        match put {
            Put::Done => {}
            Put::Wake => self.nudge(to),
            Put::Full => {
                stats::add(Counter::DatagramsDropped, 1);
                return Ok(Outcome::Sent);
            }
            Put::Over => {
                self.peers.meet(*to).lost();
                return self.by_udp(to, packet, true);
            }
        }
        stats::sent(Transport::Shm, packet.len as u64, 1);
        Ok(Outcome::Sent)
    }

    /// Wakes the reader of a ring by a packet, which must not be lost for want of room.
    fn nudge(&mut self, to: &SocketAddr) {
        for _ in 0..NUDGES {
            match self.say(to, UdpOp::Nudge, 0, &[]) {
                Err(Failure::Blocked) => {
                    udp::wait_for_room(self.fd);
                }
                Ok(()) => return,
                Err(e) => {
                    self.refused(e);
                    return;
                }
            }
        }
        if let Some(Peer { way: Way::Ring(ring, _), .. }) = self.peers.get(to) {
            ring.not_woken();
        }
    }

    /// Begins to look for a path to a peer whose queue pair is known.
    fn find_path(&mut self, to: &SocketAddr, now: u64) {
        if self.fabric.is_none() {
            return;
        }
        let Some(peer) = self.peers.get(to) else { return };
        if peer.qpn == 0 || peer.resolving || peer.not_before > now {
            return;
        }
        let Some(ours) = self.source(to).filter(|_| self.own_number(to) != 0) else { return };
        let begun = service::look_up(self.id, self.generation, *to, ours);
        let peer = self.peers.meet(*to);
        match begun {
            Ok(()) => peer.resolving = true,
            Err(_) => peer.failed(now),
        }
    }

    fn by_device(&mut self, to: &SocketAddr, packet: &mut Packet) -> Result<Outcome, Failure> {
        if self.port == 0 {
            self.port = udp::local(self.fd)?.port();
        }
        let port = self.port;
        let Some(Peer { way: Way::Fabric(handle, ours), qpn, .. }) = self.peers.get(to) else {
            return Err(Failure::Invalid);
        };
        let header = match *ours {
            IpAddr::V4(v4) => UdHeader::V4 { port, addr: v4.octets() },
            IpAddr::V6(v6) => UdHeader::V6 { port, flowinfo: [0; 4], addr: v6.octets() },
        };
        let header = header.to_bytes();
        let frame = packet.behind(header.as_slice());
        let (handle, qpn) = (handle.clone(), *qpn);
        let sent = match self.fabric.as_mut().and_then(|f| f.pair(*ours)) {
            Some(pair) => {
                pair.send(&handle, qpn, frame.len(), |place| place.copy_from_slice(frame))
            }
            None => Err(NotSent::Broken),
        };
        match sent {
            Ok(()) => {
                stats::sent(Transport::Rdma, packet.len as u64, 1);
                Ok(Outcome::Sent)
            }
            Err(NotSent::Full) => {
                let Some(fabric) = &mut self.fabric else { return Err(Failure::Invalid) };
                fabric.arm();
                // Once more, now that the event is sure to come.
                if fabric.has_room() {
                    return self.by_device(to, packet);
                }
                Ok(Outcome::Wait(Room::Device(fabric.events())))
            }
            // Longer than a packet of the device may be on this path.
            Err(NotSent::TooLong) => self.by_udp(to, packet, true),
            Err(NotSent::Broken) => {
                self.peers.meet(*to).lost();
                self.by_udp(to, packet, true)
            }
        }
    }
}
