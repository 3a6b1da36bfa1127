//! Which threads a caller waits for, and which thread lets the bridge run, while bytes of the
//! program's are in the device's memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::connection::Connection;
use super::own_channel;
use super::pump_tests::tied;
use super::table::{self, Bridge};
use super::{arm, cq_ownership, deferred};
use crate::channel::{link, waiters};
use crate::conn::fork_group;
use crate::conn::slot::Slot;

/// A place with a connection that has a name only.
fn placed() -> &'static Bridge {
    let bridge = table::take().unwrap();
    bridge.with(|place| *place = Some(Connection::lifeless(bridge.key(), (0, 0), false)));
    bridge
}

fn keeps(bridge: &Bridge) -> bool {
    bridge.keeps.load(Ordering::Relaxed) != 0
}

fn leave_some(bridge: &Bridge) {
    bridge.keeps.store(1, Ordering::Relaxed);
}

fn related(bridge: &Bridge) -> &'static Slot {
    let (_fd, _tie, id) = tied();
    let s = fork_group::slot(id).unwrap();
    s.bridge.store(bridge.index + 1, Ordering::Release);
    s
}

/// The device is armed already, and no event would tell of what has come before.
#[test]
fn who_is_about_to_sleep_lets_an_armed_bridge_run() {
    let bridge = placed();
    let s = related(bridge);
    assert!(arm(s));
    assert!(!arm(s), "it is armed");
    leave_some(bridge);
    assert!(arm(s) && !keeps(bridge));
    assert!(!arm(s));
    assert_eq!(bridge.armed.load(Ordering::Relaxed), 1);
    bridge.clear(|_| true);
}

#[test]
fn who_looks_for_what_was_left_waits_for_his_turn() {
    let bridge = placed();
    for some in [false, true] {
        if some {
            leave_some(bridge);
        }
        let (taken, is_taken) = channel();
        let (done, is_done) = channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                bridge.with(|_| {
                    taken.send(()).unwrap();
                    let _ = is_done.recv_timeout(Duration::from_millis(50));
                })
            });
            is_taken.recv().unwrap();
            assert_eq!(bridge.in_turn(|_| ()), some.then_some(()));
            let _ = done.send(());
        });
    }
    bridge.clear(|_| true);
}

#[test]
fn before_others_hold_connections_nothing_is_left() {
    let bridges = [placed(), placed()];
    leave_some(bridges[0]);
    deferred::out();
    assert!(!bridges.iter().any(|bridge| keeps(bridge)));
    leave_some(bridges[1]);
    let s = related(bridges[1]);
    deferred::out_of(s);
    assert!(!keeps(bridges[1]));
    bridges.iter().for_each(|bridge| drop(bridge.clear(|_| true)));
}

#[test]
fn nothing_stays_where_anybody_waits() {
    let (_fd, _tie, id) = tied();
    let s = fork_group::slot(id).unwrap();
    let (claim, port) = own_channel::channel().unwrap();
    own_channel::enter_new(id, s, (claim.record, claim.channel), 0).unwrap();
    let bridge = placed();
    let stays = || {
        let answer =
            bridge.with(|place| deferred::may_stay(bridge, place.as_mut().unwrap())).unwrap();
        assert!(keeps(bridge), "the mark is there before the look");
        answer
    };
    assert!(!stays(), "nobody knows who may wait");
    bridge.with(|place| {
        place.as_mut().unwrap().slot = Some((id, s.generation.load(Ordering::Acquire)))
    });
    assert!(stays());
    let ends = link::ends(s).unwrap();
    assert!(ends.incoming.data_waiters().enlist(7));
    assert!(cq_ownership::others(&ends, 0) && !stays());
    waiters::disarm(s, 7);
    assert!(stays());
    // A process beyond the table.
    s.owners.add(usize::MAX);
    assert!(fork_group::shared(id) && !stays());
    assert!(s.owners.remove(usize::MAX) && stays());
    bridge.clear(|_| true);
    port.close();
}
