//! Connections that wait to be accepted, as the relay and whoever accepts them see them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::net::SocketAddr;
use std::os::fd::AsRawFd;

use super::connection;
use super::guests::{self, Guest};
use super::port::Port;
use super::pump_tests::tied;
use crate::socket::family;
use crate::sys;

/// An address that nobody else of these tests knocks from.
fn from(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 99], port))
}

/// A connection that waits to be accepted.
fn waiting(from: &SocketAddr) -> (Guest, Port) {
    let (claim, port) = connection::window().unwrap();
    let guest =
        Guest { record: claim.record, window: claim.window, relay: 0, pid: sys::pid(), names: [None; 2] };
    assert!(guests::enter(from, &guest));
    (guest, port)
}

fn window(guest: &Guest) -> (u32, u32) {
    (guest.record, guest.window)
}

/// Twenty windows that are free: the arena of a process's first connections has sixteen.
fn next_windows() -> Vec<(u32, u32)> {
    let taken: Vec<_> = (0..20).map(|_| connection::window().unwrap()).collect();
    let windows = taken.iter().map(|(claim, _)| (claim.record, claim.window)).collect();
    taken.into_iter().for_each(|(_, port)| port.close());
    windows
}

#[test]
fn who_has_closed_before_it_was_accepted_keeps_its_window() {
    let (fd, _tie, id) = tied();
    let (guest, mut port) = waiting(&from(1));
    // SAFETY: the bytes are there, and no part of the window.
    assert_eq!(unsafe { port.deliver(b"AAAA".as_ptr(), 4) }, Ok(4));
    port.deliver_end();
    port.close();
    assert!(!next_windows().contains(&window(&guest)), "it is another's before it was accepted");
    assert_eq!(guests::take(&from(1)), Some(guest));
    assert!(!next_windows().contains(&window(&guest)), "between its place and its slot");
    connection::enter(id, family::slot(id).unwrap(), guest.record, guest.window, 0).unwrap();
    let mut bytes = [0; 10];
    let v = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
    let received = crate::socket::receive(id, fd.as_raw_fd(), &v, libc::MSG_DONTWAIT);
    assert_eq!((received, &bytes[..4]), (Ok(4), b"AAAA".as_slice()));
}
