//! Endpoints against each other, and against strangers, over the loopback interface.

use core::net::SocketAddr;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, IntoRawFd};

use super::endpoint::{Front, State, header};
use super::letterbox;
use super::peers::Way;
use super::send::Packet;
use crate::conn::slot::SlotId;
use crate::device::shm::mailbox::Outgoing;
use crate::wire::datagram::{Invitation, UdpOp};

/// An endpoint, and its address.
fn open() -> (State, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = socket.local_addr().unwrap();
    (State::new(SlotId::from_raw(1).unwrap(), 0, socket.into_raw_fd(), false, None), at)
}

fn send(from: &mut State, to: &SocketAddr, text: &[u8]) {
    let list = [libc::iovec { iov_base: text.as_ptr().cast_mut().cast(), iov_len: text.len() }];
    assert!(from.send(to, &mut Packet::gathered(&list, text.len())).is_ok());
}

/// The next datagram: how it came, its sender, and what it says.
fn next(to: &mut State) -> Option<(Front, SocketAddr, Vec<u8>)> {
    to.gather();
    let front = to.front()?;
    let (from, at, len) = to.show(front)?;
    // SAFETY: it lies there until it is taken, and its sender is in this thread.
    let bytes = unsafe { core::slice::from_raw_parts(at, len) }.to_vec();
    to.take(front);
    Some((front, from, bytes))
}

fn by_ring(state: &mut State, peer: &SocketAddr) -> bool {
    matches!(state.peers.get(peer).map(|p| &p.way), Some(Way::Ring(ring, _)) if ring.is_open() && !ring.is_over())
}

/// Two that have met: what the first sends goes by memory.
fn met() -> [(State, SocketAddr); 2] {
    let [(mut a, at_a), (mut b, at_b)] = [open(), open()];
    send(&mut a, &at_b, b"first");
    assert_eq!(next(&mut b), Some((Front::Held, at_a, b"first".to_vec())));
    // The answer is an invitation, the ring is brought, and opened with the next look.
    send(&mut a, &at_b, b"second");
    assert_eq!(next(&mut b), Some((Front::Held, at_a, b"second".to_vec())));
    send(&mut a, &at_b, b"third");
    assert_eq!(next(&mut b).map(|(_, from, text)| (from, text)), Some((at_a, b"third".to_vec())));
    assert!(by_ring(&mut a, &at_b));
    [(a, at_a), (b, at_b)]
}

#[test]
fn two_that_have_met_share_memory() {
    let [(mut a, at_a), (mut b, at_b)] = met();
    for i in 0..200_u8 {
        let text = vec![i; usize::from(i) * 10];
        send(&mut a, &at_b, &text);
        assert_eq!(next(&mut b), Some((Front::Ring(0), at_a, text)));
    }
    assert_eq!(next(&mut b), None);
    // Each direction for itself.
    send(&mut b, &at_a, b"back");
    assert_eq!(next(&mut a).map(|(front, from, _)| (front, from)), Some((Front::Held, at_b)));
}

#[test]
fn who_goes_back_to_udp_is_not_overtaken() {
    let [(mut a, at_a), (mut b, at_b)] = met();
    send(&mut a, &at_b, b"1");
    a.peers.meet(at_b).lost();
    send(&mut a, &at_b, b"2");
    let texts: Vec<_> =
        core::iter::from_fn(|| next(&mut b)).map(|(_, from, text)| (from, text)).collect();
    assert_eq!(texts, [(at_a, b"1".to_vec()), (at_a, b"2".to_vec())]);
}

#[test]
fn a_full_ring_loses_what_does_not_fit() {
    // A sender that finds the ring full for a second sends by UDP: not here, however busy the
    // machine is.
    let [(mut a, at_a), (mut b, at_b)] = loop {
        let [mut a, b] = met();
        let began = std::time::Instant::now();
        for i in 0..100_u8 {
            send(&mut a.0, &b.1, &[i]);
        }
        if began.elapsed().as_millis() < 500 {
            break [a, b];
        }
    };
    for i in 0..64 {
        assert_eq!(next(&mut b), Some((Front::Ring(0), at_a, vec![i])));
    }
    assert_eq!(next(&mut b), None);
    send(&mut a, &at_b, b"room again");
    assert!(next(&mut b).is_some());
}

#[test]
fn a_receiver_that_leaves_is_met_anew() {
    let [(mut a, at_a), (b, at_b)] = met();
    let socket = b.fd;
    drop(b);
    // Another process, or a sibling, with the same UDP socket.
    let mut b = State::new(SlotId::from_raw(2).unwrap(), 0, socket, false, None);
    for round in 0..4_u8 {
        send(&mut a, &at_b, &[round]);
        assert_eq!(next(&mut b).map(|(_, from, text)| (from, text)), Some((at_a, vec![round])));
    }
    assert!(by_ring(&mut a, &at_b));
}

#[test]
fn sleepers_are_told_of_what_others_take() {
    let [(mut a, _), (mut b, at_b)] = met();
    b.before_sleep(Some(7));
    assert!(!b.has_news());
    send(&mut a, &at_b, b"x");
    assert!(b.has_news());
    assert!(next(&mut b).is_some() && b.has_news(), "also after another thread has taken it");
    b.waiters.clear();
    b.before_sleep(Some(7));
    assert!(!b.has_news());
    // Something that is unread is no news to a sleeper that has seen it.
    send(&mut a, &at_b, b"y");
    b.gather();
    b.waiters.clear();
    b.before_sleep(Some(7));
    assert!(b.front().is_some() && !b.has_news());
}

#[test]
fn a_connected_socket_hears_its_peer_only() {
    let [(mut a, at_a), (mut b, at_b)] = met();
    let (mut c, at_c) = open();
    b.connected = Some(at_c);
    send(&mut a, &at_b, b"unwanted");
    assert_eq!(next(&mut b), None);
    send(&mut c, &at_b, b"wanted");
    assert_eq!(next(&mut b).map(|(_, from, _)| from), Some(at_c));
    b.connected = None;
    send(&mut a, &at_b, b"again");
    assert_eq!(next(&mut b).map(|(_, from, _)| from), Some(at_a));
}

#[test]
fn strangers_bring_nothing() {
    let [(mut a, at_a), (mut b, at_b)] = met();
    // A ring with another token, and one that is no ring.
    let Some(Way::Ring(_, invitation)) = a.peers.get(&at_b).map(|p| &p.way) else {
        panic!("no ring")
    };
    let (name, token) = (invitation.name, invitation.token);
    let (_ring, fd) = Outgoing::create().unwrap();
    letterbox::deliver(&Invitation { name, token: token ^ 1 }, &fd).unwrap();
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    letterbox::deliver(&Invitation { name, token }, &reader).unwrap();
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let packet = header(&at_b, UdpOp::Nudge, 0).to_bytes();
    stranger.send_to(packet.as_slice(), at_b).unwrap();
    assert_eq!(next(&mut b), None);
    send(&mut a, &at_b, b"still there");
    assert_eq!(next(&mut b), Some((Front::Ring(0), at_a, b"still there".to_vec())));
    // An invitation from a stranger to which nothing was sent.
    let mut packet = header(&at_b, UdpOp::Invite, 0).to_bytes().as_slice().to_vec();
    packet.extend(Invitation { name, token }.to_bytes());
    stranger.send_to(&packet, at_b).unwrap();
    assert_eq!(next(&mut b), None);
    assert!(b.peers.get(&stranger.local_addr().unwrap()).is_none());
}

#[test]
fn what_has_no_header_is_heard_and_answered_as_it_is() {
    let (mut a, at_a) = open();
    let plain = UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = plain.local_addr().unwrap();
    plain.send_to(b"UUU", at_a).unwrap();
    assert_eq!(next(&mut a), Some((Front::Held, at, b"UUU".to_vec())));
    send(&mut a, &at, b"answer");
    let mut bytes = [0; 64];
    let (n, _) = plain.recv_from(&mut bytes).unwrap();
    assert_eq!(&bytes[..n], b"answer");
    // It turns out to be an rsocket.
    let mut packet = header(&at_a, UdpOp::Data, 0x1234).to_bytes().as_slice().to_vec();
    packet.extend(b"data");
    plain.send_to(&packet, at_a).unwrap();
    assert_eq!(next(&mut a), Some((Front::Held, at, b"data".to_vec())));
    // It has a queue pair, and we have none: no invitation, and UDP goes on.
    send(&mut a, &at, b"tagged");
    let (n, _) = plain.recv_from(&mut bytes).unwrap();
    assert_eq!((n, &bytes[..4], &bytes[16..22]), (22, &b"UUUU"[..], &b"tagged"[..]));
    assert!(plain.as_raw_fd() >= 0);
}

#[test]
fn what_is_not_received_waits_in_the_kernel() {
    let (mut a, at_a) = open();
    let plain = UdpSocket::bind("127.0.0.1:0").unwrap();
    for i in 0..100_u8 {
        plain.send_to(&[i, 0, 0, 0, 0], at_a).unwrap();
    }
    for i in 0..100_u8 {
        assert_eq!(next(&mut a).map(|(_, _, text)| text), Some(vec![i, 0, 0, 0, 0]));
    }
    assert_eq!((next(&mut a), a.arrived), (None, 100));
}
