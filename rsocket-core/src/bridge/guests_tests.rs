//! Connections that wait to be accepted, as the bridge and the accepting process see them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::net::SocketAddr;
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketType};

use super::channel_port::ChannelPort;
use super::guests::{self, Guest};
use super::pump_tests::tied;
use super::{loopback, own_channel};
use crate::channel::link;
use crate::conn::fork_group;
use crate::copy::Bytes;
use crate::sys;

/// An address that no other of these tests knocks from.
fn from(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 99], port))
}

/// A connection that waits to be accepted.
fn waiting(from: &SocketAddr) -> (Guest, ChannelPort) {
    waiting_at(from, &door())
}

fn door() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 9))
}

fn take(from: &SocketAddr) -> Option<Guest> {
    take_at(from, &door())
}

/// The caller goes on with the guest's channel.
fn take_at(from: &SocketAddr, door: &SocketAddr) -> Option<Guest> {
    let taken = guests::take(from, || Some(*door))?;
    let guest = taken.guest;
    taken.seated();
    Some(guest)
}

fn waiting_at(from: &SocketAddr, door: &SocketAddr) -> (Guest, ChannelPort) {
    let (claim, port) = own_channel::channel().unwrap();
    let guest = Guest {
        record: claim.record,
        channel: claim.channel,
        bridge: 0,
        pid: sys::pid(),
        names: [None; 2],
    };
    assert!(guests::enter(from, door, &guest));
    (guest, port)
}

fn channel(guest: &Guest) -> (u32, u32) {
    (guest.record, guest.channel)
}

/// Twenty channels that are free: the arena of a process's first connections has sixteen.
fn next_channels() -> Vec<(u32, u32)> {
    let taken: Vec<_> = (0..20).map(|_| own_channel::channel().unwrap()).collect();
    let channels = taken.iter().map(|(claim, _)| (claim.record, claim.channel)).collect();
    taken.into_iter().for_each(|(_, port)| port.close());
    channels
}

/// Whether no connection is to have the channel, as far as the program's side goes; the other side
/// is there still.
fn is_given_up(guest: &Guest) -> bool {
    let given_up = link::keep(channel(guest));
    if given_up {
        link::nobody_comes(channel(guest));
    }
    given_up
}

#[test]
fn who_has_closed_before_it_was_accepted_keeps_its_channel() {
    let (fd, _tie, id) = tied();
    let (guest, mut port) = waiting(&from(1));
    assert_eq!(port.deliver(Bytes::from(&b"AAAA"[..])), Ok(4));
    port.deliver_end();
    port.close();
    assert!(!next_channels().contains(&channel(&guest)), "it is another's before it was accepted");
    assert_eq!(take(&from(1)), Some(guest));
    assert!(!next_channels().contains(&channel(&guest)), "between its place and its slot");
    own_channel::enter_new(id, fork_group::slot(id).unwrap(), (guest.record, guest.channel), 0)
        .unwrap();
    let mut bytes = [0; 10];
    let v = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
    let received = crate::socket::receive(id, fd.as_raw_fd(), &v, libc::MSG_DONTWAIT);
    assert_eq!((received, &bytes[..4]), (Ok(4), b"AAAA".as_slice()));
}

#[test]
fn who_knocks_from_an_address_is_who_did_so_last() {
    let _family = tied();
    let (gone, first) = waiting(&from(2));
    let elsewhere = SocketAddr::from(([127, 0, 0, 1], 10));
    let (other, third) = waiting_at(&from(2), &elsewhere);
    let (guest, second) = waiting(&from(2));
    assert_eq!(take(&from(2)), Some(guest));
    assert_eq!(take(&from(2)), None, "nobody knocks from there any more");
    assert!(is_given_up(&gone) && !is_given_up(&guest));
    first.close();
    assert_eq!(take_at(&from(2), &elsewhere), Some(other), "but at another door");
    for (guest, port) in [(guest, second), (other, third)] {
        link::nobody_comes(channel(&guest));
        port.close();
    }
}

#[test]
fn guests_go_with_their_listener() {
    let _family = tied();
    let listener = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let door = loopback::listen_near(listener.as_raw_fd(), 5).unwrap();
    let (guest, port) = waiting_at(&from(3), &door);
    let elsewhere = SocketAddr::new(door.ip(), door.port() ^ 1);
    let (other, other_port) = waiting_at(&from(4), &elsewhere);
    rustix::net::sockopt::set_socket_reuseport(&listener, true).unwrap();
    guests::unlisten(listener.as_raw_fd());
    assert!(!is_given_up(&guest), "it may wait at another's");
    rustix::net::sockopt::set_socket_reuseport(&listener, false).unwrap();
    guests::unlisten(listener.as_raw_fd());
    assert_eq!(take_at(&from(3), &door), None);
    assert!(is_given_up(&guest));
    port.close();
    assert_eq!(take_at(&from(4), &elsewhere), Some(other), "which waits at another door");
    link::nobody_comes(channel(&other));
    other_port.close();
}

/// A process of another program, to be killed.
struct Other(std::process::Child);

impl Other {
    fn start() -> Self {
        Self(std::process::Command::new("sleep").arg("600").spawn().unwrap())
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A guest comes, and waits no more.
fn next_guest(from: &SocketAddr) {
    let (_, port) = waiting(from);
    guests::take(from, || Some(door())).unwrap().turned_away();
    port.close();
}

#[test]
fn who_was_taken_by_a_process_that_is_killed_is_given_up() {
    let (_fd, _tie, id) = tied();
    let other = Other::start();
    let (guest, first) = waiting(&from(5));
    let (seated, second) = waiting(&from(6));
    guests::seized_by(&from(5), other.0.id());
    own_channel::enter_new(id, fork_group::slot(id).unwrap(), (seated.record, seated.channel), 0)
        .unwrap();
    guests::seized_by(&from(6), other.0.id());
    assert_eq!(take(&from(5)), None, "somebody has it");
    next_guest(&from(7));
    assert!(!is_given_up(&guest), "who lives");
    drop(other);
    assert!(!is_given_up(&guest));
    next_guest(&from(7));
    assert!(is_given_up(&guest), "the next guest sweeps");
    assert!(!is_given_up(&seated), "it has its connection");
    assert!(!guests::is_known(&from(5)) && !guests::is_known(&from(6)), "the places are free");
    [first, second].into_iter().for_each(ChannelPort::close);
}

/// What was in a place is another's business afterwards, also if a process is killed there before
/// anything new is in it.
#[test]
fn a_place_that_was_left_says_nothing_of_a_channel() {
    let _family = tied();
    let (guest, port) = waiting(&from(8));
    let other = Other::start();
    guests::take(&from(8), || Some(door())).unwrap().seated();
    assert!(!guests::is_known(&from(8)));
    guests::seized_by(&from(8), other.0.id());
    // The connection ends, and its channel is the next guest's.
    link::nobody_comes(channel(&guest));
    assert!(guests::enter(&from(9), &door(), &guest));
    drop(other);
    next_guest(&from(10));
    assert!(!is_given_up(&guest));
    assert_eq!(take(&from(9)), Some(guest));
    link::nobody_comes(channel(&guest));
    port.close();
}

#[test]
fn who_is_turned_away_is_given_up() {
    let _family = tied();
    let (guest, port) = waiting(&from(11));
    let taken = guests::take(&from(11), || Some(door())).unwrap();
    assert!(!is_given_up(&guest));
    taken.turned_away();
    assert!(is_given_up(&guest) && !guests::is_known(&from(11)));
    port.close();
}

/// The place of a guest whose bridge is no more goes to the first guest that finds no free place
/// before it.
#[test]
fn who_comes_from_a_bridge_that_is_killed_makes_room() {
    let _family = tied();
    let other = Other::start();
    let (guest, port) = waiting(&from(12));
    guests::take(&from(12), || Some(door())).unwrap().turned_away();
    assert!(guests::enter(&from(12), &door(), &Guest { pid: other.0.id(), ..guest }));
    guests::forget(guest.record, guest.channel);
    assert!(!is_given_up(&guest), "another process's bridge");
    drop(other);
    let after: Vec<_> = (13..43).map(|n| (from(n), waiting(&from(n)))).collect();
    assert!(is_given_up(&guest) && take(&from(12)).is_none());
    for (_, (own, own_port)) in after {
        guests::forget(own.record, own.channel);
        assert!(is_given_up(&own), "its bridge has broken");
        own_port.close();
    }
    port.close();
}
