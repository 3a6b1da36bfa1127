//! What goes by the loopback connection under a channel, over the simulated device: one stream with
//! what went by the channel.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::cell::RefCell;
use std::os::fd::AsRawFd;
use std::rc::Rc;

use rustix::net::{SendFlags, Shutdown, send, shutdown};

use super::loopback;
use super::pump::PeerEnd;
use super::pump_tests::{End, byte, ends, settle};
use crate::channel::handover_state;
use crate::conn::fork_group;
use crate::conn::machine::{ReceiveMode, SendMode};
use crate::device::sim::{Weather, World};
use crate::handover::back;
use crate::reason::Reason;
use crate::socket;

/// Two ends whose bridges know the connections under their channels, as those of programs do.
fn tied_ends() -> (Rc<RefCell<World>>, End, End) {
    let (world, mut a, mut b) = ends(Weather::default(), 384, 131_072);
    for end in [&mut a, &mut b] {
        rustix::io::ioctl_fionbio(&end.tie, true).unwrap();
        let tie = end.tie.as_raw_fd();
        end.pump.port().lies_over(tie);
    }
    (world, a, b)
}

fn stream(from: usize, to: usize) -> Vec<u8> {
    (from..to).map(byte).collect()
}

/// All that one end can receive by calls of the library's.
fn receive_all(world: &RefCell<World>, a: &mut End, b: &mut End) -> Vec<u8> {
    let mut got = Vec::new();
    loop {
        settle(world, a, b);
        match b.receive(65_536) {
            Ok(some) if !some.is_empty() => got.extend(some),
            _ => return got,
        }
    }
}

#[test]
fn what_is_sent_by_the_kernel_comes_behind_what_waits_in_the_channel() {
    let (world, mut a, mut b) = tied_ends();
    assert_eq!(a.send(&stream(0, 1000)), 1000);
    back::refuse_sending(a.id, a.fd.as_raw_fd(), Reason::OddUse);
    assert_eq!(fork_group::slot(a.id).unwrap().send_mode(), SendMode::Returned);
    assert_eq!(send(&a.fd, &stream(1000, 1010), SendFlags::NOSIGNAL), Ok(10));
    assert_eq!(receive_all(&world, &mut a, &mut b), stream(0, 1010));
    // More than the bridge takes at a time, and than the peer's buffer holds.
    let mut sent = 1010;
    let mut got = Vec::new();
    while sent < 1_000_000 {
        sent += send(&a.fd, &stream(sent, sent + 50_000), SendFlags::NOSIGNAL).unwrap_or(0);
        got.extend(receive_all(&world, &mut a, &mut b));
    }
    got.extend(receive_all(&world, &mut a, &mut b));
    assert_eq!((got.len(), got == stream(1010, sent)), (sent - 1010, true));
    // The other direction is as it was.
    assert_eq!(b.send(b"answer"), 6);
    settle(&world, &mut a, &mut b);
    assert_eq!(a.receive(100).unwrap(), b"answer");
}

/// The end of the stream is the loopback connection's, and comes behind its bytes.
#[test]
fn the_end_comes_behind_what_was_sent_by_the_kernel() {
    for closes in [true, false] {
        let (world, mut a, mut b) = tied_ends();
        assert_eq!(a.send(&stream(0, 100)), 100);
        back::refuse_sending(a.id, a.fd.as_raw_fd(), Reason::OddUse);
        send(&a.fd, &stream(100, 110), SendFlags::NOSIGNAL).unwrap();
        if closes {
            // The last owner that knows of the channel: others may send on.
            socket::closing(a.id, a.fd.as_raw_fd());
            settle(&world, &mut a, &mut b);
            send(&a.fd, &stream(110, 120), SendFlags::NOSIGNAL).unwrap();
        }
        let all = if closes { 120 } else { 110 };
        assert_eq!(receive_all(&world, &mut a, &mut b), stream(0, all));
        assert!(b.receive(1).is_err(), "nothing has ended");
        shutdown(&a.fd, Shutdown::Write).unwrap();
        settle(&world, &mut a, &mut b);
        assert_eq!(b.receive(1), Ok(Vec::new()));
        let peer = if closes { PeerEnd::Closed } else { PeerEnd::Shut };
        assert_eq!(b.pump.peer(), peer);
    }
}

#[test]
fn who_has_only_the_kernel_reads_on_where_the_channel_was_left() {
    let (world, mut a, mut b) = tied_ends();
    assert_eq!(b.send(&stream(0, 5000)), 5000);
    settle(&world, &mut a, &mut b);
    assert_eq!(a.receive(1000).unwrap(), stream(0, 1000));
    back::give_away(a.id, a.fd.as_raw_fd(), Reason::OddUse);
    assert_eq!(fork_group::slot(a.id).unwrap().receive_mode(), ReceiveMode::Returned);
    let (mut sent, mut got) = (5000, stream(0, 1000));
    let mut buffer = vec![0; 65_536];
    // Much more than the kernel's buffers hold.
    while got.len() < 20_000_000 {
        sent += b.send(&stream(sent, sent + 100_000));
        settle(&world, &mut a, &mut b);
        if a.pump.waits_under() || sent - got.len() > 65_536 {
            let n = rustix::io::read(&a.fd, &mut buffer).unwrap();
            got.extend(&buffer[..n]);
        }
    }
    b.close();
    while !matches!(a.pump.peer(), PeerEnd::Closed) {
        settle(&world, &mut a, &mut b);
        let n = rustix::io::read(&a.fd, &mut buffer).unwrap_or(0);
        got.extend(&buffer[..n]);
    }
    loopback::say_fin(a.tie.as_raw_fd());
    loop {
        match rustix::io::read(&a.fd, &mut buffer) {
            Ok(0) => break,
            Ok(n) => got.extend(&buffer[..n]),
            Err(e) => panic!("{e}"),
        }
    }
    assert_eq!((got.len(), got == stream(0, sent)), (sent, true));
}

#[test]
fn a_mark_ahead_of_the_stream_is_refused() {
    let (world, mut a, mut b) = tied_ends();
    let s = fork_group::slot(a.id).unwrap();
    assert!(handover_state::want_return(&crate::channel::link::ends(s).unwrap().incoming, 7));
    settle(&world, &mut a, &mut b);
    assert_eq!(a.pump.peer(), PeerEnd::Broken);
}
