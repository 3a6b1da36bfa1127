//! epoll over a simulated device where there are many of these:
//! - members of a set
//! - threads that wait on one set
//! - sets with the same member, sets in sets
//! - descriptors of a set
#![allow(clippy::unwrap_used)]

mod readiness_support;

use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use readiness_support::*;
use rsocket_core::readiness::source::Events;

/// Counters and the pool of ready bits are shared by all tests of this file.
static ONE: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn costs_what_is_ready() {
    let _one = alone();
    let ep = Ep::new();
    let (tcp, _peer) = tcp_pair();
    // One TCP connection stands for all of them underneath: what is counted is what we do.
    let mut slots = Vec::new();
    let mut fds = Vec::new();
    // SAFETY: no pointers but the struct.
    unsafe {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max.min(12_000);
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
    }
    let many = 10_000;
    for i in 0..many {
        // SAFETY: dup of an open descriptor.
        let fd = unsafe { libc::dup(tcp.as_raw_fd()) };
        if fd < 0 {
            break;
        }
        let slot = new_slot(fd);
        state(slot, |s| (s.mode, s.epoch) = (Mode::Settled, 1));
        ep.add(fd, IN, i);
        slots.push(slot);
        fds.push(fd);
    }
    assert!(slots.len() > 900, "{}", slots.len());
    assert_eq!(ep.wait(64, Some(MS)), []);
    let active = Conn::settled();
    ep.add(active.fd(), IN, 1 << 40);
    assert_eq!(ep.wait(64, Some(MS)), []);
    let before = LOOKS.load(SeqCst);
    for _ in 0..1000 {
        active.deliver(1);
        assert_eq!(ep.wait(64, None), [(IN, 1 << 40)]);
        active.consume(1);
        assert_eq!(ep.wait(64, Some(Duration::ZERO)), []);
    }
    let looks = LOOKS.load(SeqCst) - before;
    assert!(looks < 8000, "{looks} looks for 1000 rounds among {}", slots.len());
    for fd in fds {
        forget_fd(fd);
        // SAFETY: ours.
        unsafe { libc::close(fd) };
    }
}

#[test]
fn bits_that_are_many_are_found_all_the_same() {
    let _one = alone();
    // As if each look came right after another.
    BITS_SERVE.store(u64::MAX, SeqCst);
    let ep = Ep::new();
    let busy = Conn::settled();
    ep.add(busy.fd(), IN, 100);
    // More than are looked at without being told of.
    let quiet: Vec<_> = (0..64).map(|_| Conn::settled()).collect();
    quiet.iter().zip(0..).for_each(|(c, i)| ep.add(c.fd(), IN, i));
    for round in 0..200 {
        let (c, i) = (&quiet[round % 64], round as u64 % 64);
        // It sleeps, so that both are armed.
        assert_eq!(ep.wait(64, Some(MS)), []);
        busy.deliver(1);
        assert_eq!(ep.wait(64, None), [(IN, 100)]);
        busy.consume(1);
        c.deliver(1);
        let recheck_after = if round % 2 == 0 { None } else { Some(Duration::ZERO) };
        assert_eq!(ep.wait(64, recheck_after), [(IN, i)], "round {round}");
        c.consume(1);
    }
    BITS_SERVE.store(0, SeqCst);
}

#[test]
fn two_threads_share_the_work() {
    let _one = alone();
    let ep = Ep::new();
    let conns: Vec<_> = (0..8).map(|_| Conn::settled()).collect();
    for (i, c) in conns.iter().enumerate() {
        ep.add(c.fd(), IN | ET | ONESHOT, i as u64);
    }
    const ROUNDS: u64 = 300;
    let done = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while done.load(SeqCst) < ROUNDS * 8 {
                    for (e, d) in ep.wait(1, Some(200 * MS)) {
                        assert_eq!(e, IN);
                        let c = &conns[d as usize];
                        let n = state(c.slot, |s| {
                            let n = s.received - s.consumed;
                            s.consumed += n;
                            n
                        });
                        done.fetch_add(n, SeqCst);
                        ep.ctl(MOD, c.fd(), IN | ET | ONESHOT, d).unwrap();
                    }
                }
            });
        }
        s.spawn(|| {
            for i in 0..ROUNDS {
                for c in &conns {
                    c.deliver(1);
                }
                if i % 16 == 0 {
                    std::thread::sleep(MS);
                }
            }
        });
        let start = Instant::now();
        while done.load(SeqCst) < ROUNDS * 8 {
            assert!(start.elapsed() < Duration::from_secs(10), "lost: {}", done.load(SeqCst));
            std::thread::sleep(MS);
        }
    });
}

#[test]
fn bits_reach_another_set() {
    let _one = alone();
    let (a, b) = (Ep::new(), Ep::new());
    let (x, y) = (Conn::settled(), Conn::settled());
    a.add(x.fd(), IN, 1);
    b.add(y.fd(), IN, 2);
    std::thread::scope(|s| {
        s.spawn(|| {
            // This set's waits take all bits of the process.
            for _ in 0..200 {
                assert_eq!(a.wait(4, Some(Duration::from_micros(100))), []);
            }
        });
        for _ in 0..50 {
            std::thread::scope(|t| {
                t.spawn(|| {
                    std::thread::sleep(Duration::from_micros(300));
                    y.deliver(1);
                });
                assert_eq!(b.wait(4, Some(LONG)), [(IN, 2)]);
            });
            y.consume(1);
        }
    });
    // One socket in both.
    b.add(x.fd(), IN, 3);
    assert_eq!((a.now(), b.now()), (vec![], vec![]));
    assert_eq!((a.wait(4, Some(MS)), b.wait(4, Some(MS))), (vec![], vec![]));
    x.deliver(1);
    assert_eq!((a.told(), b.told()), (vec![(IN, 1)], vec![(IN, 3)]));
}

#[test]
fn nests() {
    let _one = alone();
    let (outer, inner, c) = (Ep::new(), Ep::new(), Conn::settled());
    inner.add(c.fd(), IN, 1);
    outer.add(inner.0, IN, 2);
    assert_eq!(outer.soon(), []);
    for _ in 0..20 {
        std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(MS);
                c.deliver(1);
            });
            assert_eq!(outer.wait(4, Some(LONG)), [(IN, 2)]);
        });
        assert_eq!(inner.now(), [(IN, 1)]);
        assert_eq!(outer.now(), [(IN, 2)], "level: still there");
        c.consume(1);
        assert_eq!(inner.now(), []);
        assert_eq!(outer.wait(4, Some(MS)), []);
    }
}

#[test]
fn close_and_reuse() {
    let _one = alone();
    let ep = Ep::new();
    for i in 0..50 {
        let c = Conn::settled();
        ep.add(c.fd(), IN, i);
        c.deliver(1);
        assert_eq!(ep.now(), [(IN, i)]);
    }
    assert_eq!(ep.soon(), []);
    for _ in 0..50 {
        let (e, c) = (Ep::new(), Conn::settled());
        e.add(c.fd(), IN, 1);
        assert_eq!(e.now(), []);
        // SAFETY: a dup of the set.
        let two = unsafe { libc::dup(e.0) };
        SETS.duplicated(e.0, two);
        let second = Ep(two);
        c.deliver(1);
        assert_eq!(second.now(), [(IN, 1)]);
        drop(e);
        assert_eq!(second.told(), [(IN, 1)]);
    }
}

/// Many members, more than are kept warm, of all kinds; bytes, changes of mode and of interest at
/// the same time. Every byte must be heard of.
#[test]
fn nothing_is_lost_under_churn() {
    let _one = alone();
    const CONNS: u64 = 150;
    const BYTES: u64 = 30_000;
    for (max, watched) in [(1, false), (7, false), (64, true)] {
        let (ep, outer) = (Ep::new(), Ep::new());
        let conns: Vec<_> = (0..CONNS).map(|_| Conn::settled()).collect();
        let kinds = [IN, IN | ET, IN | ONESHOT, IN | OUT | ET, IN | RDHUP, IN | ET | ONESHOT];
        let kind = |i: u64| kinds[i as usize % kinds.len()];
        for (i, c) in conns.iter().enumerate() {
            ep.add(c.fd(), kind(i as u64), i as u64);
        }
        if watched {
            outer.add(ep.0, IN, 0);
        }
        let done = std::sync::atomic::AtomicU64::new(0);
        let random = |seed: &mut u64| {
            *seed ^= *seed << 13;
            *seed ^= *seed >> 7;
            *seed ^= *seed << 17;
            *seed
        };
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    while done.load(SeqCst) < BYTES {
                        if watched {
                            assert!(outer.wait(4, Some(200 * MS)).len() <= 1);
                        }
                        let time = if watched { Duration::ZERO } else { 200 * MS };
                        for (_, d) in ep.wait(max, Some(time)) {
                            let c = &conns[d as usize];
                            let n = state(c.slot, |s| {
                                let n = s.received - s.consumed;
                                s.consumed += n;
                                n
                            });
                            done.fetch_add(n, SeqCst);
                            if kind(d) & ONESHOT != 0 {
                                // The changer may have it out just now; it puts it back.
                                let _ = ep.ctl(MOD, c.fd(), kind(d), d);
                            }
                        }
                    }
                });
            }
            s.spawn(|| {
                let mut seed = 42;
                let mut sent = 0;
                while sent < BYTES {
                    let n = (random(&mut seed) % 5 + 1).min(BYTES - sent);
                    conns[(random(&mut seed) % CONNS) as usize].deliver(n);
                    sent += n;
                    if random(&mut seed) % 64 == 0 {
                        std::thread::sleep(Duration::from_micros(random(&mut seed) % 300));
                    }
                }
            });
            s.spawn(|| {
                let mut seed = 7;
                // Not to the end: a change would find what a waker had lost.
                while done.load(SeqCst) < BYTES / 2 {
                    let i = random(&mut seed) % CONNS;
                    let c = &conns[i as usize];
                    match random(&mut seed) % 4 {
                        0 => c.mode(Mode::Between(Events::OUT)),
                        1 => c.mode(Mode::Settled),
                        2 => ep.ctl(MOD, c.fd(), kind(i), i).unwrap(),
                        _ => {
                            ep.ctl(DEL, c.fd(), 0, 0).unwrap();
                            ep.add(c.fd(), kind(i), i);
                        }
                    }
                    std::thread::sleep(Duration::from_micros(random(&mut seed) % 100));
                }
            });
            let start = Instant::now();
            while done.load(SeqCst) < BYTES {
                if start.elapsed() > Duration::from_secs(15) {
                    let left = conns
                        .iter()
                        .filter(|c| state(c.slot, |s| s.received != s.consumed))
                        .count();
                    eprintln!("max {max}: {} of {BYTES}, unread at {left}", done.load(SeqCst));
                    std::process::abort();
                }
                std::thread::sleep(MS);
            }
        });
    }
}
