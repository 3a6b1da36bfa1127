//! epoll over a simulated device: every scenario that plain TCP can also play is played on both,
//! and both must say the same.
#![allow(clippy::unwrap_used)]

mod readiness_support;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
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

#[derive(Clone, Copy, Debug)]
enum Step {
    Add(u32),
    Mod(u32),
    Del,
    Send(u64),
    Take(u64),
    Fin,
    Reset,
    Now,
    Sleep,
}
use Step::*;

/// Plays a scenario; what each step said.
fn play(steps: &[Step], device: Option<Mode>) -> Vec<Result<Vec<u32>, i32>> {
    let ep = Ep::new();
    let mut c = Conn::new();
    if let Some(mode) = device {
        c.mode(mode);
    }
    let mut said = Vec::new();
    for step in steps {
        let ctl = |op, ev| ep.ctl(op, c.fd(), ev, 7).map(|()| vec![]);
        let wait = |t| {
            Ok(ep
                .wait(8, Some(t))
                .into_iter()
                .map(|(e, d)| {
                    assert_eq!(d, 7);
                    e
                })
                .collect())
        };
        let kernel_in =
            device.is_none() || matches!(device, Some(Mode::Between(a)) if a.contains(Events::IN));
        said.push(match *step {
            Add(e) => ctl(ADD, e),
            Mod(e) => ctl(MOD, e),
            Del => ctl(DEL, 0),
            Now => wait(Duration::ZERO),
            Sleep => wait(20 * MS),
            Send(n) => {
                if kernel_in {
                    c.there.as_ref().unwrap().write_all(&vec![1; n as usize]).unwrap();
                    std::thread::sleep(MS);
                } else {
                    c.deliver(n);
                }
                Ok(vec![])
            }
            Take(n) => {
                if kernel_in {
                    (&c.here).read_exact(&mut vec![0; n as usize]).unwrap();
                } else {
                    c.consume(n);
                }
                Ok(vec![])
            }
            Fin => {
                c.there.as_ref().unwrap().shutdown(Shutdown::Write).unwrap();
                std::thread::sleep(MS);
                Ok(vec![])
            }
            Reset => {
                let there = c.there.take().unwrap();
                let linger = libc::linger { l_onoff: 1, l_linger: 0 };
                // SAFETY: a valid struct of the stated size.
                unsafe {
                    libc::setsockopt(
                        there.as_raw_fd(),
                        libc::SOL_SOCKET,
                        libc::SO_LINGER,
                        (&raw const linger).cast(),
                        size_of::<libc::linger>() as u32,
                    )
                };
                drop(there);
                std::thread::sleep(MS);
                Ok(vec![])
            }
        });
    }
    said
}

fn same(steps: &[Step]) {
    let kernel = play(steps, None);
    for mode in [
        Mode::Settled,
        Mode::Between(Events::IN | Events::OUT),
        Mode::Between(Events::IN),
        Mode::Between(Events::OUT),
    ] {
        let device = play(steps, Some(mode));
        let edge = steps.iter().any(|s| matches!(s, Add(e) | Mod(e) if e & ET != 0));
        if edge && mode != Mode::Settled {
            // While both answer an edge may be reported twice (the kernel's entry is changed under
            // it), but none is lost.
            for (d, k) in device.iter().zip(&kernel) {
                assert!(
                    d == k || *k == Ok(vec![]),
                    "{mode:?}, {steps:?}: {device:?}, not {kernel:?}"
                );
            }
        } else {
            assert_eq!(device, kernel, "{mode:?}, {steps:?}");
        }
    }
}

#[test]
fn says_what_tcp_says() {
    let _one = alone();
    let table: &[&[Step]] = &[
        // Level.
        &[
            Add(IN),
            Now,
            Sleep,
            Send(5),
            Now,
            Now,
            Take(3),
            Now,
            Take(2),
            Now,
            Sleep,
            Send(1),
            Sleep,
        ],
        &[Add(IN | OUT), Now, Send(1), Now, Take(1), Now],
        &[Add(0), Now, Send(1), Now, Mod(IN), Now, Mod(0), Now],
        &[Add(OUT), Now, Send(1), Now, Fin, Now, Now],
        &[Add(IN | 0x40 | OUT | 0x100), Now, Send(1), Now],
        // Edge.
        &[Add(IN | ET), Now, Send(5), Now, Now, Send(1), Now, Take(2), Now, Send(1), Sleep, Sleep],
        &[Add(IN | OUT | ET), Now, Now, Send(1), Now, Now, Take(1), Now, Send(1), Sleep],
        &[Add(IN | OUT | RDHUP | ET), Now, Send(1), Sleep, Fin, Sleep, Sleep],
        &[Send(3), Add(IN | ET), Now, Now, Mod(IN | ET), Now, Now],
        // One-shot.
        &[Add(IN | ONESHOT), Send(1), Now, Now, Send(1), Now, Mod(IN | ONESHOT), Now, Now],
        &[
            Add(IN | ET | ONESHOT),
            Send(1),
            Sleep,
            Send(1),
            Sleep,
            Mod(IN | ET | ONESHOT),
            Sleep,
            Sleep,
        ],
        &[
            Add(IN | RDHUP | ONESHOT),
            Send(1),
            Now,
            Fin,
            Now,
            Sleep,
            Mod(IN | RDHUP | ONESHOT),
            Now,
            Sleep,
        ],
        // Removing and adding again; errors.
        &[
            Mod(IN),
            Del,
            Add(IN),
            Add(IN),
            Send(1),
            Now,
            Del,
            Now,
            Del,
            Mod(IN),
            Send(1),
            Sleep,
            Add(IN),
            Now,
        ],
        &[Add(IN), Sleep, Del, Send(1), Sleep, Add(IN | ET), Now, Now, Del, Add(IN | ET), Now],
        &[Add(IN), Fin, Now, Del, Now, Add(IN | RDHUP), Now, Sleep],
        &[Add(IN), Del, Fin, Sleep, Add(IN | RDHUP), Now],
        // Ends.
        &[Add(IN), Sleep, Fin, Sleep, Now],
        &[Add(IN | RDHUP), Send(2), Fin, Now, Take(2), Now, Now],
        &[Add(RDHUP), Now, Send(1), Now, Sleep, Fin, Sleep, Now],
        &[Add(RDHUP | ET), Send(1), Sleep, Fin, Sleep, Sleep],
        &[Add(IN | RDHUP), Sleep, Reset, Sleep],
        &[Add(0), Sleep, Reset, Sleep],
        &[Add(IN | ET), Reset, Sleep, Sleep],
        // Exclusive.
        &[
            Add(IN | 1 << 28),
            Send(1),
            Now,
            Mod(IN),
            Del,
            Add(IN | RDHUP | 1 << 28),
            Add(IN | ET | 1 << 28),
            Now,
        ],
        &[Add(IN), Mod(IN | 1 << 28), Now],
    ];
    for steps in table {
        same(steps);
    }
}

#[test]
fn out_edges_follow_room() {
    let _one = alone();
    let (ep, c) = (Ep::new(), Conn::settled());
    ep.add(c.fd(), OUT | IN | ET, 1);
    assert_eq!(ep.now(), [(OUT, 1)]);
    assert_eq!(ep.soon(), []);
    c.fill();
    c.relieve();
    assert_eq!(ep.now(), [(OUT, 1)], "room that came before the wait");
    // Starved while another thread sleeps.
    std::thread::scope(|s| {
        s.spawn(|| {
            std::thread::sleep(20 * MS);
            c.fill();
            std::thread::sleep(20 * MS);
            c.relieve();
        });
        assert_eq!(ep.wait(4, Some(LONG)), [(OUT, 1)]);
    });
    // Level.
    let d = Conn::settled();
    ep.add(d.fd(), OUT, 2);
    assert_eq!(ep.now(), [(OUT, 2)]);
    d.fill();
    assert_eq!(ep.soon(), []);
    d.relieve();
    assert_eq!(ep.told(), [(OUT, 2)]);
}

#[test]
fn foreign_members_pass_unchanged() {
    let _one = alone();
    let (ep, c) = (Ep::new(), Conn::settled());
    let (mut tx, rx) = std::os::unix::net::UnixStream::pair().unwrap();
    ep.add(rx.as_raw_fd(), IN, u64::MAX);
    ep.add(c.fd(), IN, 0);
    tx.write_all(b"x").unwrap();
    assert_eq!(ep.told(), [(IN, u64::MAX)]);
    c.deliver(1);
    for _ in 0..40 {
        // Level on both sides: with room for one, both get their turn.
        let mut seen = [false; 2];
        for _ in 0..24 {
            for (_, d) in ep.wait(1, Some(Duration::ZERO)) {
                seen[usize::from(d == 0)] = true;
            }
        }
        assert_eq!(seen, [true, true]);
    }
    let both = (0..20).any(|_| ep.now() == [(IN, 0), (IN, u64::MAX)]);
    assert!(both);
}

/// Events of ours must not hide the program's from a wait that does not sleep.
#[test]
fn ours_do_not_fill_the_room() {
    let _one = alone();
    let ep = Ep::new();
    let conns: Vec<_> = (0..20).map(|_| Conn::settled()).collect();
    for c in &conns {
        ep.add(c.fd(), IN, 0);
    }
    assert_eq!(ep.wait(4, Some(MS)), []);
    for c in &conns {
        ep.ctl(DEL, c.fd(), 0, 0).unwrap();
        c.there.as_ref().unwrap().shutdown(Shutdown::Write).unwrap();
    }
    let (mut tx, rx) = std::os::unix::net::UnixStream::pair().unwrap();
    ep.add(rx.as_raw_fd(), IN, 5);
    std::thread::sleep(MS);
    tx.write_all(b"x").unwrap();
    assert_eq!(ep.wait(1, Some(Duration::ZERO)), [(IN, 5)]);
}

#[test]
fn ready_members_take_turns() {
    let _one = alone();
    let ep = Ep::new();
    let conns: Vec<_> = (0..200).map(|_| Conn::settled()).collect();
    for (i, c) in conns.iter().enumerate() {
        ep.add(c.fd(), IN, i as u64);
        c.deliver(1);
    }
    let mut seen = vec![0; 200];
    for _ in 0..60 {
        let got = ep.wait(10, Some(Duration::ZERO));
        assert!(got.windows(2).all(|w| w[0].1 != w[1].1), "one event for each member");
        got.iter().for_each(|(_, d)| seen[*d as usize] += 1);
    }
    assert!(seen.iter().all(|n| *n > 0), "{seen:?}");
}

#[test]
fn bytes_in_between_come_from_the_kernel() {
    let _one = alone();
    let (ep, c) = (Ep::new(), Conn::new());
    c.mode(Mode::Between(Events::IN | Events::OUT));
    ep.add(c.fd(), IN, 3);
    assert_eq!(ep.soon(), []);
    std::thread::scope(|s| {
        s.spawn(|| {
            std::thread::sleep(10 * MS);
            c.there.as_ref().unwrap().write_all(b"ab").unwrap();
        });
        assert_eq!(ep.told(), [(IN, 3)]);
    });
    assert_eq!(ep.told(), [(IN, 3)]);
    (&c.here).read_exact(&mut [0; 2]).unwrap();
    assert_eq!(ep.soon(), []);
    c.there.as_ref().unwrap().write_all(b"c").unwrap();
    assert_eq!(ep.told(), [(IN, 3)]);
    // Deleted in between: silent, and cheap.
    ep.ctl(DEL, c.fd(), 0, 0).unwrap();
    let before = cpu();
    assert_eq!(ep.soon(), []);
    assert!(cpu() - before < 10 * MS);
}

#[test]
fn one_socket_under_two_descriptors() {
    let _one = alone();
    let (ep, c) = (Ep::new(), Conn::settled());
    // SAFETY: a dup of an open descriptor.
    let two = unsafe { libc::dup(c.fd()) };
    alias_fd(two, c.slot);
    ep.add(c.fd(), IN, 1);
    ep.add(two, IN | OUT | ET, 2);
    assert_eq!(ep.now(), [(OUT, 2)]);
    assert_eq!(ep.soon(), []);
    for _ in 0..100 {
        c.fill();
        assert_eq!(ep.wait(4, Some(MS)), []);
        c.deliver(1);
        assert_eq!(ep.told(), [(IN, 1), (IN, 2)]);
        c.consume(1);
        assert_eq!(ep.wait(4, Some(MS)), []);
        c.relieve();
        let got = ep.soon();
        assert_eq!(got, [(OUT, 2)]);
    }
    forget_fd(two);
    // SAFETY: ours.
    unsafe { libc::close(two) };
    c.deliver(1);
    // A registration is the file's, which has another name.
    assert_eq!(ep.told(), [(IN, 1), (IN | OUT, 2)]);
}
