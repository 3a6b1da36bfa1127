//! What a thread that sleeps in epoll_wait over a simulated device is woken by, and what it sleeps
//! through.
#![allow(clippy::unwrap_used)]

mod readiness_support;

use std::io::Write;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use readiness_support::*;
use rsocket_core::readiness::poll::poll_with;
use rsocket_core::readiness::source::Events;

/// Counters and the pool of ready bits are shared by all tests of this file.
static ONE: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn changes_under_a_sleeping_wait() {
    let _one = alone();
    for events in [IN, IN | ET, IN | OUT | ET] {
        let (ep, c) = (Ep::new(), Conn::new());
        ep.add(c.fd(), events, 9);
        let _ = ep.now();
        assert!(SETS.is_plain(ep.0));
        std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(20 * MS);
                c.mode(Mode::Between(Events::IN | Events::OUT));
                std::thread::sleep(10 * MS);
                c.mode(Mode::Between(Events::IN));
                std::thread::sleep(10 * MS);
                c.mode(Mode::Settled);
                std::thread::sleep(10 * MS);
                c.deliver(1);
            });
            let start = Instant::now();
            // A change of mode may repeat the OUT edge.
            loop {
                let got = ep.wait(4, Some(LONG));
                assert_eq!(got.len(), 1);
                if got[0].0 & IN != 0 {
                    break;
                }
            }
            assert!(start.elapsed() < LONG);
        });
        assert!(!SETS.is_plain(ep.0));
        c.consume(1);
        // And the fallback.
        c.mode(Mode::Plain);
        while !ep.now().is_empty() {
            if events & (OUT | ET) == OUT {
                break;
            }
        }
        c.there.as_ref().unwrap().write_all(b"z").unwrap();
        let got = ep.soon();
        assert_eq!(got.len(), 1);
        assert_eq!(got[0].0 & IN, IN);
    }
}

/// A thread that sleeps before the set has a member of ours.
#[test]
fn members_that_come_late() {
    let _one = alone();
    for polls in [false, true] {
        let (ep, c) = (Ep::new(), Conn::settled());
        let (_tx, rx) = std::os::unix::net::UnixStream::pair().unwrap();
        ep.add(rx.as_raw_fd(), IN, 1);
        std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(20 * MS);
                ep.add(c.fd(), IN, 9);
                std::thread::sleep(20 * MS);
                c.deliver(1);
            });
            if polls {
                let mut fds = [libc::pollfd { fd: ep.0, events: libc::POLLIN, revents: 0 }];
                let time = Some(LONG);
                assert_eq!(poll_with(&SETS, &mut fds, time, std::ptr::null(), find), Ok(1));
            }
            assert_eq!(ep.wait(4, Some(LONG)), [(IN, 9)]);
        });
    }
}

#[test]
fn sleeps_exactly_and_quietly() {
    let _one = alone();
    let ep = Ep::new();
    let conns: Vec<_> = (0..80).map(|_| Conn::settled()).collect();
    for c in &conns {
        ep.add(c.fd(), IN | RDHUP, 1);
        c.deliver(1);
    }
    assert!(!ep.now().is_empty());
    conns.iter().for_each(|c| c.consume(1));
    // An unwanted end, and a member that is off.
    conns[0].there.as_ref().unwrap().shutdown(Shutdown::Write).unwrap();
    ep.ctl(MOD, conns[0].fd(), OUT & !OUT, 1).unwrap();
    for time in [Duration::from_micros(300), 30 * MS, Duration::from_micros(200_500)] {
        // On a machine with other work the scheduler adds to some of them, not to all.
        let in_time = (0..20).any(|_| {
            let (start, before) = (Instant::now(), cpu());
            assert_eq!(ep.wait(8, Some(time)), []);
            let (took, used) = (start.elapsed(), cpu() - before);
            assert!(took >= time, "{took:?} for {time:?}");
            assert!(used < 8 * MS, "{used:?}");
            took < time + 15 * MS
        });
        assert!(in_time, "always late for {time:?}");
    }
}

#[test]
fn spins_and_patience() {
    let _one = alone();
    let (ep, c) = (Ep::new(), Conn::settled());
    ep.add(c.fd(), IN, 1);
    c.deliver(1);
    assert_eq!(ep.now(), [(IN, 1)]);
    c.consume(1);
    // Long enough for the other thread to get its turn on a busy machine.
    SPIN_US.store(5_000_000, SeqCst);
    std::thread::scope(|s| {
        s.spawn(|| {
            std::thread::sleep(MS);
            c.deliver(1);
        });
        let before = REAL_WAITS.load(SeqCst);
        assert_eq!(ep.wait(4, None), [(IN, 1)]);
        assert_eq!(REAL_WAITS.load(SeqCst), before, "found by spinning");
    });
    SPIN_US.store(0, SeqCst);
    // A socket that may not use TCP: its waiter looks again by itself.
    let d = Conn::new();
    state(d.slot, |s| {
        s.recheck_after = Some(5 * MS);
        s.hide = Events::IN | Events::OUT;
        s.mode = Mode::Between(Events::empty());
        s.full = true;
    });
    ep.ctl(DEL, c.fd(), 0, 0).unwrap();
    ep.add(d.fd(), OUT, 2);
    std::thread::scope(|s| {
        s.spawn(|| {
            std::thread::sleep(30 * MS);
            // Without a ring.
            state(d.slot, |s| s.full = false);
        });
        // Not found at the end of its time, but long before.
        let start = Instant::now();
        assert_eq!(ep.wait(4, Some(Duration::from_secs(20))), [(OUT, 2)]);
        assert!(start.elapsed() < Duration::from_secs(10));
    });
}

/// A thread that spins over devices hears of what the kernel alone answers for: here of a pipe,
/// into which another thread writes in the middle of the spin.
#[test]
fn a_spin_ends_with_an_event_of_the_kernels() {
    let _one = alone();
    let (ep, c) = (Ep::new(), Conn::settled());
    let (pipe, mut writer) = std::io::pipe().unwrap();
    ep.add(c.fd(), IN, 1);
    ep.add(pipe.as_raw_fd(), IN, 2);
    c.deliver(1);
    assert_eq!(ep.now(), [(IN, 1)]);
    c.consume(1);
    SPIN_US.store(20_000_000, SeqCst);
    std::thread::scope(|s| {
        s.spawn(|| {
            std::thread::sleep(MS);
            writer.write_all(b"x").unwrap();
        });
        let (start, before) = (Instant::now(), REAL_WAITS.load(SeqCst));
        assert_eq!(ep.wait(4, None), [(IN, 2)]);
        assert!(start.elapsed() < Duration::from_secs(10), "after the spin only");
        assert_eq!(REAL_WAITS.load(SeqCst), before, "found by spinning");
    });
    SPIN_US.store(0, SeqCst);
}

/// A reader that dies shows FIN, and wakes no sleeper.
#[test]
fn after_fin_who_waits_for_room_alone_looks_again() {
    let _one = alone();
    for how in [0, ET] {
        let (ep, c) = (Ep::new(), Conn::settled());
        c.fill();
        ep.add(c.fd(), OUT | how, 1);
        assert_eq!(ep.now(), []);
        c.there.as_ref().unwrap().shutdown(Shutdown::Write).unwrap();
        state(c.slot, |s| s.recheck_after = Some(5 * MS));
        let before = cpu();
        assert_eq!(ep.soon(), [], "a half-closed peer may still read");
        assert!(cpu() - before < 50 * MS);
        assert!(state(c.slot, |s| s.told.contains(Events::RDHUP)));
        std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(30 * MS);
                // Without a ring.
                state(c.slot, |s| s.full = false);
            });
            let start = Instant::now();
            assert_eq!(ep.wait(4, Some(Duration::from_secs(20))), [(OUT, 1)]);
            assert!(start.elapsed() < Duration::from_secs(10));
        });
    }
}

#[test]
fn a_look_may_change_the_mode() {
    let _one = alone();
    for events in [IN, IN | ET, IN | RDHUP | ONESHOT] {
        let (ep, c) = (Ep::new(), Conn::new());
        c.mode(Mode::Between(Events::IN | Events::OUT));
        ep.add(c.fd(), events, 1);
        assert_eq!(ep.wait(4, Some(MS)), []);
        state(c.slot, |s| s.settle_at_look = true);
        ep.ctl(MOD, c.fd(), events, 1).unwrap();
        assert_eq!(ep.wait(4, Some(MS)), []);
        assert!(!state(c.slot, |s| s.settle_at_look));
        std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(5 * MS);
                c.deliver(1);
            });
            assert_eq!(ep.told(), [(IN, 1)]);
        });
    }
}

#[test]
fn crowded_words_are_napped_over() {
    let _one = alone();
    for events in [IN, IN | ET] {
        let (ep, c) = (Ep::new(), Conn::settled());
        state(c.slot, |s| s.crowded = true);
        ep.add(c.fd(), events, 1);
        let before = cpu();
        assert_eq!(ep.soon(), []);
        assert!(cpu() - before < 20 * MS, "{:?}", cpu() - before);
        std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(5 * MS);
                c.deliver(1);
            });
            assert_eq!(ep.told(), [(IN, 1)]);
        });
    }
}

#[test]
fn what_is_hidden_keeps_nobody_running() {
    let _one = alone();
    let ep = Ep::new();
    let hidden = |events: u32, mode: Mode| {
        let c = Conn::new();
        c.mode(mode);
        state(c.slot, |s| s.hide = Events::all());
        ep.add(c.fd(), events, 1);
        c.there.as_ref().unwrap().write_all(b"x").unwrap();
        c.there.as_ref().unwrap().shutdown(Shutdown::Both).unwrap();
        c.fill();
        c
    };
    let both = Events::IN | Events::OUT;
    let conns = [
        hidden(IN, Mode::Settled),
        hidden(IN | ET, Mode::Settled),
        hidden(OUT, Mode::Settled),
        hidden(IN | RDHUP, Mode::Between(both)),
        hidden(IN | RDHUP | ET, Mode::Between(both)),
        hidden(OUT | ET, Mode::Between(Events::IN)),
    ];
    let before = cpu();
    assert_eq!(ep.soon(), []);
    assert_eq!(ep.soon(), []);
    assert!(cpu() - before < 20 * MS, "{:?}", cpu() - before);
    drop(conns);
}
