//! epoll over a simulated device, in a process that forks: what is the child's, and what its
//! parent's.
#![allow(clippy::unwrap_used)]

mod readiness_support;

use std::io::{Read, Write};
use std::sync::Mutex;
use std::time::Duration;

use readiness_support::*;
use rsocket_core::readiness::source::Events;

/// Counters and the pool of ready bits are shared by all tests of this file.
static ONE: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

const MS: Duration = Duration::from_millis(1);

/// Forks; what the child found.
fn in_child(f: impl FnOnce() -> bool) -> bool {
    SETS.fork_prepare();
    // SAFETY: the child makes a few calls and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        SETS.forked();
        let good = f();
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    SETS.fork_parent();
    let mut status = 1;
    // SAFETY: a valid place.
    unsafe { libc::waitpid(child, &mut status, 0) };
    status == 0
}

#[test]
fn forks() {
    let _one = alone();
    let (ep, c) = (Ep::new(), Conn::settled());
    ep.add(c.fd(), IN, 1);
    assert_eq!(ep.wait(4, Some(MS)), []);
    assert!(in_child(|| {
        SETS.closed(ep.0);
        let own = Ep::new();
        own.add(c.fd(), IN, 4);
        c.deliver(1);
        own.told() == [(IN, 4)]
    }));
    c.deliver(1);
    assert_eq!(ep.told(), [(IN, 1)]);
}

/// The child has mirrors of its own; the kernel's object, and the sleepers on it, are the parent's.
#[test]
fn a_childs_copy_leaves_the_kernels_set_alone() {
    let _one = alone();
    let (ep, between, settled, plain) = (Ep::new(), Conn::new(), Conn::settled(), Conn::new());
    between.mode(Mode::Between(Events::IN));
    ep.add(between.fd(), IN, 1);
    ep.add(settled.fd(), IN, 2);
    ep.add(plain.fd(), IN, 3);
    assert_eq!(ep.wait(4, Some(MS)), []);
    assert!(in_child(|| {
        plain.mode(Mode::Settled);
        SETS.starved(settled.slot);
        SETS.member_closing(between.fd());
        SETS.dissolve();
        SETS.closed(ep.0);
        true
    }));
    for (c, data) in [(&between, 1), (&plain, 3)] {
        c.there.as_ref().unwrap().write_all(b"x").unwrap();
        assert_eq!(ep.told(), [(IN, data)]);
        (&c.here).read_exact(&mut [0]).unwrap();
    }
    assert_eq!(ep.wait(4, Some(MS)), []);
    std::thread::scope(|s| {
        s.spawn(|| {
            std::thread::sleep(20 * MS);
            settled.deliver(1);
        });
        assert_eq!(ep.wait(4, Some(LONG)), [(IN, 2)], "its bell is still there");
    });
    settled.consume(1);
    // Or the child goes on with the set: also with what has changed before it did.
    assert!(in_child(|| {
        plain.mode(Mode::Settled);
        plain.deliver(1);
        settled.deliver(1);
        ep.told() == [(IN, 2), (IN, 3)]
            && ep.ctl(DEL, settled.fd(), 0, 0) == Ok(())
            && ep.told() == [(IN, 3)]
    }));
}

/// A fork holds the lock of one set and waits for the lock of the next. The holder of that lock
/// changes the mode of a socket that is in both sets.
#[test]
fn what_is_put_off_during_a_fork_is_made_up_for() {
    let _one = alone();
    // Which of the two is locked first is not known here.
    for turned in [false, true] {
        let (a, b, c) = (Ep::new(), Ep::new(), Conn::new());
        let (first, second) = if turned { (b, a) } else { (a, b) };
        c.mode(Mode::Between(Events::IN));
        first.add(c.fd(), IN, 1);
        second.add(c.fd(), IN, 2);
        assert_eq!((first.wait(4, Some(MS)), second.wait(4, Some(MS))), (vec![], vec![]));
        std::thread::scope(|s| {
            s.spawn(|| {
                assert_eq!(first.wait(4, Some(LONG)), [(IN, 1)]);
            });
            s.spawn(|| {
                while SETS.sleepers(first.0) != 1 {
                    std::thread::sleep(MS);
                }
                state(c.slot, |s| {
                    (s.received, s.settle_at_look, s.look_takes) = (1, true, 100 * MS);
                });
                assert_eq!(second.ctl(MOD, c.fd(), IN, 2), Ok(()), "looks");
                assert_eq!(second.told(), [(IN, 2)]);
            });
            std::thread::sleep(100 * MS);
            SETS.fork_prepare();
            std::thread::sleep(20 * MS);
            SETS.fork_parent();
        });
    }
}
