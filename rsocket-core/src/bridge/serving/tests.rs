//! What the service thread does with a bridge that ends, one whose place becomes another's, and one
//! that is never quiet.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;

use super::*;
use crate::bridge::cq_ownership::CqOwnership;
use crate::bridge::pump_tests::tied;
use crate::conn::fork_group;

/// A service without a thread.
fn service() -> &'static Service {
    Box::leak(Box::new(beside_channel(EventChannel::of_a_parent()).unwrap()))
}

impl Service {
    /// Whether the thread has been nudged since this was last asked.
    fn was_nudged(&self) -> bool {
        rustix::io::read(sys::borrow(self.nudge), &mut [0; 8]).is_ok()
    }
}

/// A place with a connection that has a name only, or is over.
fn placed(over: bool) -> &'static Bridge {
    let bridge = table::take().unwrap();
    bridge.with(|place| *place = Some(Connection::lifeless(bridge.key(), (0, 0), over)));
    bridge
}

/// A thread that runs a bridge and finds its end leaves the rest to the service thread, which has
/// to hear of it.
#[test]
fn the_thread_hears_of_an_end_that_others_find() {
    let service = service();
    SERVICE.publish(service);
    let (_fd, _tie, id) = tied();
    let s = fork_group::slot(id).unwrap();
    let bridge = placed(false);
    s.bridge.store(bridge.index + 1, Ordering::Release);
    let hearing = CqOwnership::of(bridge, -1);
    assert!(crate::bridge::arm(s));
    hearing.heard(s, true);
    let too_early = service.was_nudged();
    bridge.with(|place| *place = Some(Connection::lifeless(bridge.key(), (0, 0), true)));
    let armed = crate::bridge::arm(s);
    let by_arming = service.was_nudged();
    hearing.heard(s, true);
    let by_hearing = service.was_nudged();
    SERVICE.withdraw();
    assert!(
        !too_early && armed && by_arming && by_hearing,
        "{too_early} {armed} {by_arming} {by_hearing}"
    );
    let key = bridge.key();
    service.look(key, &mut Hot::new());
    assert!(Bridge::of_key(key).is_none(), "its place is given back");
}

/// One look finds a bridge over, and another takes it out. Between them another thread may have
/// taken it out, and a third may have the place.
#[test]
fn a_place_that_is_anothers_by_now_is_left_alone() {
    let (service, bridge) = (service(), placed(true));
    let waker = waker::borrow().unwrap();
    // The thread that waits for the device alone is woken between the two looks.
    bridge.napper.store(waker.id(), Ordering::Relaxed);
    std::thread::scope(|scope| {
        waker::while_nobody_rings(waker.id(), || {
            scope.spawn(|| service.look(bridge.key(), &mut Hot::new()));
            while bridge.napper.load(Ordering::Relaxed) != 0 {
                std::thread::yield_now();
            }
            bridge.with(|place| *place = Some(Connection::lifeless(bridge.key(), (0, 0), false)));
        });
    });
    waker::give_back(waker);
    assert!(bridge.clear(|_| true).is_some());
}

#[test]
fn who_always_has_news_leaves_others_their_turn() {
    let mut had = 0;
    let mut until = |last: u32, ended| {
        had = 0;
        let how = turns(|| {
            had += 1;
            if had == last { ended } else { Turn::News }
        });
        (had, how)
    };
    for ended in [Turn::Over, Turn::Stands, Turn::Quiet] {
        assert_eq!(until(1, ended), (1, ended));
        assert_eq!(until(TURNS, ended), (TURNS, ended));
    }
    // The next turn is due at once, behind whatever else is.
    assert_eq!(until(100 * TURNS, Turn::Over), (TURNS, Turn::News));
}
