//! epoll sets whose sockets are a sibling's too, which takes one out of TCP: no call tells the set.
#![allow(clippy::unwrap_used)]

mod readiness_support;

use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use readiness_support::*;

/// Counters and the pool of ready bits are shared by all tests of this file.
static ONE: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

const IN: u32 = libc::EPOLLIN as u32;
const PATIENCE: Duration = Duration::from_secs(10);

fn shared() -> (Ep, Conn) {
    let (ep, c) = (Ep::new(), Conn::new());
    c.related(true);
    ep.add(c.fd(), IN, 7);
    (ep, c)
}

/// What comes by the device is reported long before the wait would end.
fn hears(ep: &Ep) {
    let began = Instant::now();
    assert_eq!(ep.wait(8, Some(PATIENCE)), [(IN, 7)]);
    assert!(began.elapsed() < PATIENCE / 4, "{:?}", began.elapsed());
}

/// The same of a set that sleeps when a sibling takes the socket out of TCP.
fn hears_asleep(ep: &Ep, c: &Conn) {
    std::thread::scope(|scope| {
        scope.spawn(|| hears(ep));
        std::thread::sleep(Duration::from_millis(50));
        c.taken(Mode::Settled);
        c.deliver(5);
    });
}

#[test]
fn a_set_that_sleeps_hears_of_what_a_sibling_did() {
    let _one = alone();
    let (ep, c) = shared();
    hears_asleep(&ep, &c);
}

/// Also if other members were special before.
#[test]
fn and_so_does_one_with_members_on_device() {
    let _one = alone();
    let (ep, c) = shared();
    let other = Conn::settled();
    ep.add(other.fd(), IN, 9);
    assert_eq!(ep.wait(8, Some(Duration::ZERO)), []);
    hears_asleep(&ep, &c);
}

/// Taken while no thread slept, by a sibling that is gone since.
#[test]
fn who_comes_later_hears_of_it_too() {
    let _one = alone();
    let (ep, c) = shared();
    assert_eq!(ep.wait(8, Some(Duration::ZERO)), []);
    c.taken(Mode::Settled);
    c.related(false);
    c.deliver(5);
    hears(&ep);
}

#[test]
fn what_comes_by_tcp_is_heard_at_once() {
    let _one = alone();
    let (ep, mut c) = shared();
    c.there.as_mut().unwrap().write_all(b"x").unwrap();
    assert_eq!(ep.wait(8, Some(PATIENCE)), [(IN, 7)]);
}

/// A set sleeps as long as it is told to, and is left alone once no sibling holds its sockets.
#[test]
fn it_sleeps_quietly_when_the_siblings_are_gone() {
    let _one = alone();
    let (ep, c) = shared();
    let sleeps = |time| {
        let (before, began) = (REAL_WAITS.load(SeqCst), Instant::now());
        assert_eq!(ep.wait(8, Some(time)), []);
        assert!(began.elapsed() >= time && began.elapsed() < time + PATIENCE);
        REAL_WAITS.load(SeqCst) - before
    };
    assert!(sleeps(Duration::from_millis(350)) > 1);
    c.related(false);
    sleeps(Duration::from_millis(150));
    assert_eq!(sleeps(Duration::from_millis(350)), 1);
}
