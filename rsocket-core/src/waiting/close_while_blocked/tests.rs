#![allow(clippy::unwrap_used)]

use super::*;

/// On a busy machine a thread waits for a CPU between two sleeps of one call.
#[test]
fn a_close_waits_for_a_call_that_is_awake() {
    let (end, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&end);
    let id = fork_group::take(0, fd).unwrap();
    let (entered, told) = std::sync::mpsc::channel();
    let sleeper = std::thread::spawn(move || {
        let call = asleep(id, 1000);
        entered.send(()).unwrap();
        let asleep = sys::now_ns() + 2_000_000;
        while sys::now_ns() < asleep {}
        let s = fork_group::slot(id).unwrap();
        let mut none = [libc::pollfd { fd: -1, events: 0, revents: 0 }];
        pin(call, s, none.as_ptr().addr());
        let time = libc::timespec { tv_sec: 0, tv_nsec: 500_000_000 };
        sys::wait(&mut none, Some(&time), core::ptr::null()).unwrap();
        unpin(call, s);
        (call.unwrap().descriptor(fd), call.unwrap().awake()).0
    });
    told.recv().unwrap();
    assert!(lend(id, fd, |_, _| ()), "the call is not over");
    assert_ne!(sleeper.join().unwrap(), fd);
}

#[test]
fn entries_come_and_go() {
    let id = SlotId::from_raw(12345).unwrap();
    assert_eq!(descriptor(id, 7), 7);
    let entered = || SLEEPERS.iter().filter(|c| c.shares(id)).count();
    // Two calls: one in a handler above the other.
    let below = asleep(id, 2000).unwrap();
    let above = asleep(id, 1000).unwrap();
    above.awake();
    assert!(below.stands() && !above.stands());
    assert_eq!(entered(), 1);
    below.awake();
    assert_eq!(entered(), 0);
    // Calls that were left by a jump, with what they had borrowed.
    let left = asleep(id, 1000).unwrap();
    let waker = borrow_waker(Some(left), waker::borrow).unwrap();
    assert_eq!(left.call().unwrap().waker.load(Ordering::Relaxed), waker.id());
    let other = asleep(id, 500).unwrap();
    assert!(left.stands());
    let next = asleep(id, 1000).unwrap();
    assert!(!other.stands() && entered() == 1);
    assert_eq!(next.call().unwrap().waker.load(Ordering::Relaxed), 0);
    clear_away(usize::MAX);
    assert_eq!(entered(), 0);
    assert_eq!(locked(|held| take_back(held, id)), Some(None));
}

#[test]
fn a_wait_on_several_that_was_left_keeps_no_waker() {
    // On a thread of its own: what other tests leave is not its business.
    std::thread::spawn(|| {
        let noted = |waker: WakerRef| {
            SLEEPERS.iter().any(|c| c.waker.load(Ordering::Relaxed) == waker.id())
        };
        let entered = || calls().iter().filter(|c| c.thread() == tid()).count();
        let left = waker_of_wait(1000).unwrap();
        assert!(noted(left));
        let next = waker_of_wait(1000).unwrap();
        assert!(noted(next) && entered() == 1, "the one that was left is over");
        give_back_waker_of_wait(next);
        assert!(!noted(next) && entered() == 0);
        // A wait that was believed to be over gives nothing back that it has not.
        let below = waker_of_wait(2000).unwrap();
        let above = waker_of_wait(1000).unwrap();
        assert_eq!(entered(), 2);
        clear_away(usize::MAX);
        assert!(!noted(below) && !noted(above));
    })
    .join()
    .unwrap();
}

#[test]
fn pins_are_taken_away_once() {
    let (end, _) = std::os::unix::net::UnixStream::pair().unwrap();
    let id = fork_group::take(0, std::os::fd::AsRawFd::as_raw_fd(&end)).unwrap();
    let s = fork_group::slot(id).unwrap();
    let pins = || s.pins.load(Ordering::Relaxed);
    let left = asleep(id, 1000);
    pin(left, s, 8);
    assert_eq!(pins(), 1);
    clear_away(usize::MAX);
    assert_eq!(pins(), 0);
    // A call that was believed to be over, and one that has no entry.
    unpin(left, s);
    assert_eq!(pins(), 0);
    pin(None, s, 8);
    unpin(None, s);
    assert_eq!(pins(), 0);
    crate::socket::closing(id, std::os::fd::AsRawFd::as_raw_fd(&end));
}
