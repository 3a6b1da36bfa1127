//! Two pumps over the simulated device, of which one program closes while the other one sends. TCP
//! answers what comes too late by a reset, and a program that waits for that must not wait in vain.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::cell::RefCell;
use std::os::fd::AsRawFd;
use std::rc::Rc;

use super::pump::PeerEnd;
use super::pump_tests::{End, ends_with, settle};
use crate::device::sim::{Weather, World};
use crate::proto::control::Mode;
use crate::socket;

type Ends = (Rc<RefCell<World>>, End, End);

fn each_kind(mut with: impl FnMut(bool, Ends)) {
    for mode in [Mode::Immediate, Mode::Message] {
        for ours in [true, false] {
            with(ours, ends_with(Weather { mode, ..Weather::default() }, 16, 8192, ours));
        }
    }
}

/// All that `end` and the device do while the other end does nothing.
fn settle_one(world: &RefCell<World>, end: &mut End) {
    while end.pump.run() | world.borrow_mut().step() {}
}

/// What is in the channel when the peer's farewell comes goes nowhere.
#[test]
fn what_has_not_left_when_the_peer_has_closed_is_answered_by_a_reset() {
    each_kind(|_, (world, mut a, mut b)| {
        a.close();
        settle_one(&world, &mut a);
        assert_eq!(b.send(b"x"), 1);
        settle(&world, &mut a, &mut b);
        assert_eq!(b.receive(1).unwrap(), b"");
        assert_eq!((b.pump.peer(), b.pump.finished()), (PeerEnd::Closed, true));
        assert!(b.pump.unheard());
    });
}

/// Only a peer of ours says what it had taken.
#[test]
fn what_comes_when_the_peer_has_closed_is_answered_by_a_reset() {
    each_kind(|ours, (world, mut a, mut b)| {
        assert_eq!(b.send(b"taken"), 5);
        settle(&world, &mut a, &mut b);
        assert_eq!(a.receive(10).unwrap(), b"taken");
        assert_eq!(b.send(b"x"), 1);
        b.pump.run();
        a.close();
        settle(&world, &mut a, &mut b);
        assert_eq!((b.pump.peer(), b.pump.finished()), (PeerEnd::Closed, true));
        assert_eq!(b.pump.unheard(), ours);
    });
}

#[test]
fn what_the_peer_has_read_is_no_reason_for_a_reset() {
    each_kind(|_, (world, mut a, mut b)| {
        let mut read = 0;
        // More messages than a queue has, and bytes than a buffer.
        for _ in 0..200 {
            let sent = b.send(&[7; 300]);
            settle(&world, &mut a, &mut b);
            let got = a.receive(300).unwrap().len();
            read += got;
            assert_eq!(got, sent);
        }
        assert_eq!((read, b.send(b"last")), (60_000, 4));
        settle(&world, &mut a, &mut b);
        assert_eq!(a.receive(10).unwrap(), b"last");
        a.send(b"answer");
        a.close();
        settle(&world, &mut a, &mut b);
        assert_eq!(b.receive(10).unwrap(), b"answer");
        assert_eq!(b.receive(10).unwrap(), b"");
        assert_eq!((b.pump.peer(), b.pump.finished()), (PeerEnd::Closed, true));
        assert!(!b.pump.unheard());
    });
}

/// A program that shuts both directions can still read what had come: no reason for a reset. A
/// program that closes cannot.
#[test]
fn what_had_come_when_both_were_shut_is_no_reason_for_a_reset() {
    each_kind(|ours, (world, mut a, mut b)| {
        let mut sent = 0;
        // Until the channel is full, and some of it waits in the device's buffer.
        while !a.pump.stream.has_unread() {
            sent += b.send(&[5; 1000]);
            settle(&world, &mut a, &mut b);
        }
        assert_eq!(b.pump.carried.0, sent as u64, "nothing of it waits here");
        socket::shutdown(a.id, a.fd.as_raw_fd(), libc::SHUT_RDWR);
        socket::has_shut(a.id);
        settle(&world, &mut a, &mut b);
        assert_eq!((b.pump.peer(), b.pump.finished()), (PeerEnd::Closed, true));
        assert!(!b.pump.unheard(), "ours: {ours}");
        let mut got = 0;
        while let Ok(n @ 1..) = a.receive(65_536).map(|bytes| bytes.len()) {
            got += n;
            settle(&world, &mut a, &mut b);
        }
        assert_eq!(got, sent);
    });
}

/// A peer that only sends no more takes what comes.
#[test]
fn half_a_close_is_no_reason_for_a_reset() {
    each_kind(|_, (world, mut a, mut b)| {
        socket::shutdown(a.id, a.fd.as_raw_fd(), libc::SHUT_WR);
        settle_one(&world, &mut a);
        assert_eq!(b.send(b"still taken"), 11);
        settle(&world, &mut a, &mut b);
        assert_eq!(b.pump.peer(), PeerEnd::Shut);
        assert_eq!(a.receive(20).unwrap(), b"still taken");
        b.close();
        settle(&world, &mut a, &mut b);
        assert!(a.pump.finished() && b.pump.finished());
        assert!(!a.pump.unheard() && !b.pump.unheard());
    });
}
