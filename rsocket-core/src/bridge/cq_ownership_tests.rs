//! Which thread hears of the device's news, where the bridge has ended or its event was taken.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;

use super::cq_ownership::{self, CqOwnership};
use super::pump_tests::tied;
use super::{own_channel, table};
use crate::conn::fork_group;

#[test]
fn who_settles_after_the_bridges_end_changes_nothing_of_the_next() {
    let (_fd, _tie, id) = tied();
    let (claim, port) = own_channel::channel().unwrap();
    let s = fork_group::slot(id).unwrap();
    own_channel::enter_new(id, s, (claim.record, claim.channel), 0).unwrap();
    let bridge = table::take().unwrap();
    let hearing = CqOwnership::of(bridge, 0);
    bridge.give_back();
    // The service thread hears for the connection that has the place now.
    bridge.heard.store(1, Ordering::Relaxed);
    hearing.settle(id, s, 0);
    assert_eq!(bridge.heard.load(Ordering::Relaxed), 1);
    port.close();
}

#[test]
fn who_waits_for_the_device_alone_is_rung_by_who_takes_its_event() {
    let bridge = table::take().unwrap();
    let hearing = CqOwnership::of(bridge, 0);
    let napper = || bridge.napper.load(Ordering::Relaxed);
    bridge.armed.store(1, Ordering::Relaxed);
    assert!(hearing.naps(7));
    assert!(hearing.naps(9), "there is one place, and the other looks again soon");
    hearing.woke(9);
    assert_eq!(napper(), 7);
    cq_ownership::taken(bridge);
    assert_eq!(napper(), 0, "it was rung");
    bridge.armed.store(0, Ordering::Relaxed);
    assert!(!hearing.naps(7), "the event is taken already");
    hearing.woke(7);
    assert_eq!(napper(), 0);
    bridge.give_back();
}
