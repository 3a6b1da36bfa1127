//! A connect whose descriptor is closed while it waits: what may be another connection's by then is
//! left alone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::AsRawFd;

use super::*;
use crate::bridge::pump_tests::{program, tied};
use crate::socket;
use crate::waiting::call_deadline::CallDeadline;

/// The bridge's place may be another connection's.
#[test]
fn who_gives_up_takes_its_own_bridge_only() {
    for own in [true, false] {
        let (fd, _tie, id, port) = program();
        let s = fork_group::slot(id).unwrap();
        let channel = (
            s.arena.load(Ordering::Relaxed) - 1,
            s.channel.load(Ordering::Relaxed) + u32::from(!own),
        );
        let bridge = table::take().unwrap();
        bridge.with(|place| *place = Some(Connection::lifeless(bridge.key(), channel, false)));
        s.bridge.store(bridge.index + 1, Ordering::Release);
        give_up(s, fd.as_raw_fd());
        assert_eq!(bridge.clear(|_| true).is_none(), own);
        assert!(
            !link::has_channel(s) && s.bridge.load(Ordering::Relaxed) == 0,
            "as if never connected"
        );
        port.close();
    }
}

/// The slot may be another connection's, which was not reached either.
#[test]
fn a_slot_that_is_anothers_is_not_looked_at() {
    let (fd, _tie, id) = tied();
    let s = fork_group::slot(id).unwrap();
    let mut deadline = CallDeadline::new(s, libc::SO_SNDTIMEO);
    s.generation.fetch_add(1, Ordering::AcqRel);
    s.set(flag::BRIDGED | flag::UNREACHED);
    s.pending_error.store(libc::ETIMEDOUT, Ordering::Release);
    assert_eq!(reached(id, s, fd.as_raw_fd(), &mut deadline, true), Err(Failure::BadDescriptor));
    assert!(s.has(flag::UNREACHED));
    assert_eq!(s.pending_error.load(Ordering::Relaxed), libc::ETIMEDOUT);
}

/// As long as the call lasts the slot is its connection's; with it the connection ends.
#[test]
fn the_answer_is_found_before_the_call_is_over() {
    let (fd, _tie, id, port) = program();
    let number = fd.as_raw_fd();
    rustix::io::ioctl_fionbio(&fd, false).unwrap();
    let s = fork_group::slot(id).unwrap();
    let generation = s.generation.load(Ordering::Acquire);
    s.set(flag::PENDING | flag::CONNECTING);
    let told = std::thread::scope(|scope| {
        let connects = scope
            .spawn(|| reached(id, s, number, &mut CallDeadline::new(s, libc::SO_SNDTIMEO), false));
        while s.pins.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        std::thread::sleep(core::time::Duration::from_millis(50));
        socket::closing(id, number);
        assert_eq!(
            s.generation.load(Ordering::Acquire),
            generation,
            "it is lent to the thread that sleeps"
        );
        s.pending_error.store(libc::EHOSTUNREACH, Ordering::Release);
        s.turn(flag::PENDING, flag::UNREACHED);
        link::ends(s).unwrap().wake_own();
        connects.join().unwrap()
    });
    assert_eq!(told, Err(Failure::Unreachable));
    assert_ne!(s.generation.load(Ordering::Acquire), generation);
    port.close();
}
