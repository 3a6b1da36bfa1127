//! poll and select over a simulated device, compared with what the kernel says of plain TCP.
#![allow(clippy::unwrap_used)]

mod readiness_support;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use libc::{
    POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, POLLRDHUP, POLLRDNORM, POLLWRNORM, pollfd,
};
use readiness_support::*;
use rsocket_core::failure::Failure;
use rsocket_core::given::Sets;
use rsocket_core::readiness::poll::poll_with;
use rsocket_core::readiness::select::select_with;
use rsocket_core::readiness::source::Events;

static ONE: Mutex<()> = Mutex::new(());
const MS: Duration = Duration::from_millis(1);

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn poll(fds: &mut [pollfd], time: Option<Duration>) -> Result<usize, i32> {
    poll_with(&SETS, fds, time, std::ptr::null(), find).map_err(Failure::code)
}

fn pfd(fd: RawFd, events: i16) -> pollfd {
    pollfd { fd, events, revents: 0x7f }
}

/// One question to ours and to the kernel about sockets in the same state.
#[derive(Clone, Copy, Debug)]
struct Case {
    unread: u64,
    fin: bool,
    shut: bool,
    reset: bool,
}

fn build(case: Case, mode: Option<Mode>) -> Conn {
    let mut c = Conn::new();
    let over_tcp = match mode {
        None => true,
        Some(Mode::Between(a)) => a.contains(Events::IN),
        _ => false,
    };
    if let Some(mode) = mode {
        c.mode(mode);
    }
    if over_tcp {
        c.there.as_ref().unwrap().write_all(&vec![0; case.unread as usize]).unwrap();
    } else {
        c.deliver(case.unread);
    }
    if case.fin {
        c.there.as_ref().unwrap().shutdown(Shutdown::Write).unwrap();
    }
    if case.shut {
        c.here.shutdown(Shutdown::Write).unwrap();
    }
    if case.reset {
        let there = c.there.take().unwrap();
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        // SAFETY: a valid struct of the stated size.
        unsafe {
            let at = (&raw const linger).cast();
            libc::setsockopt(
                there.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                at,
                size_of::<libc::linger>() as u32,
            );
        }
    }
    std::thread::sleep(MS);
    c
}

const MODES: [Mode; 4] = [
    Mode::Settled,
    Mode::Between(Events::IN.union(Events::OUT)),
    Mode::Between(Events::IN),
    Mode::Between(Events::OUT),
];

fn cases() -> impl Iterator<Item = Case> {
    [
        (0, false, false, false),
        (3, false, false, false),
        (0, true, false, false),
        (2, true, false, false),
    ]
    .into_iter()
    .chain([(0, false, true, false), (0, true, true, false), (0, false, false, true)])
    .map(|(unread, fin, shut, reset)| Case { unread, fin, shut, reset })
}

#[test]
fn poll_says_what_the_kernel_says() {
    let _one = alone();
    let masks = [
        0,
        POLLIN,
        POLLOUT,
        POLLIN | POLLOUT,
        POLLRDHUP,
        POLLIN | POLLRDHUP,
        POLLRDNORM | POLLWRNORM,
        POLLPRI,
        POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM | POLLPRI | POLLRDHUP,
    ];
    for case in cases() {
        let plain = build(case, None);
        for mode in MODES {
            let dev = build(case, Some(mode));
            for events in masks {
                let mut k = [pfd(plain.fd(), events), pfd(-3, POLLIN), pfd(60_000, POLLIN)];
                // SAFETY: an array of three.
                let n = unsafe { libc::poll(k.as_mut_ptr(), 3, 0) };
                let mut d = [pfd(dev.fd(), events), pfd(-3, POLLIN), pfd(60_000, POLLIN)];
                let m = poll(&mut d, Some(Duration::ZERO)).unwrap();
                let said = |f: [pollfd; 3]| f.map(|p| p.revents);
                // Of our own shutdown the simulated device knows nothing: the kernel reports HUP
                // beside it.
                let (mut kr, mut dr) = (said(k), said(d));
                if case.fin && case.shut {
                    (kr[0], dr[0]) = (kr[0] & (POLLHUP | POLLIN), dr[0] & (POLLHUP | POLLIN));
                }
                assert_eq!((dr, m), (kr, n as usize), "{case:?} {mode:?} {events:#x}");
                assert_eq!(kr[2], POLLNVAL);
            }
        }
    }
}

#[test]
fn select_says_what_the_kernel_says() {
    let _one = alone();
    let bits = libc::c_ulong::BITS as usize;
    for case in cases() {
        let plain = build(case, None);
        for mode in MODES {
            let dev = build(case, Some(mode));
            for ask in 1..8_u32 {
                let run = |c: &Conn, ours: bool| {
                    let fd = c.fd() as usize;
                    let mut sets = [[0 as libc::c_ulong; 64]; 3];
                    for (i, set) in sets.iter_mut().enumerate() {
                        set[fd / bits] |= libc::c_ulong::from(ask >> i & 1) << (fd % bits);
                    }
                    let at = sets.each_mut().map(|s| s.as_mut_ptr().cast::<libc::fd_set>());
                    let nfds = fd as i32 + 1;
                    // SAFETY: sets of 4096 bits.
                    let n = unsafe {
                        if ours {
                            let mut t = Duration::ZERO;
                            let sets = Sets::new(nfds, at);
                            select_with(&SETS, sets, Some(&mut t), std::ptr::null(), find).unwrap()
                        } else {
                            let mut t = libc::timeval { tv_sec: 0, tv_usec: 0 };
                            libc::select(nfds, at[0], at[1], at[2], &mut t) as usize
                        }
                    };
                    (n, sets.map(|s| s[fd / bits] >> (fd % bits) & 1))
                };
                assert_eq!(run(&dev, true), run(&plain, false), "{case:?} {mode:?} {ask}");
            }
        }
    }
}

#[test]
fn select_large_bad_and_timed() {
    let _one = alone();
    let c = Conn::settled();
    // SAFETY: no pointers; a number above 1024 if the limit allows.
    let high = unsafe {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max.min(4096);
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        libc::dup2(c.fd(), 2000)
    };
    assert_eq!(high, 2000);
    let slot = new_slot(high);
    state(slot, |s| (s.mode, s.received, s.epoch) = (Mode::Settled, 1, 1));
    let mut sets = [[0 as libc::c_ulong; 64]; 2];
    let bit = |fd: i32| (fd as usize / 64, (1 as libc::c_ulong) << (fd % 64));
    let set = |s: &mut [libc::c_ulong; 64], fd| s[bit(fd).0] |= bit(fd).1;
    set(&mut sets[0], high);
    set(&mut sets[0], c.fd());
    set(&mut sets[1], c.fd());
    let call = |nfds, sets: &mut [[libc::c_ulong; 64]; 2], t: Option<&mut Duration>| {
        let [read, write] = sets.each_mut().map(|s| s.as_mut_ptr().cast());
        // SAFETY: sets of 4096 bits, or null.
        let sets = unsafe { Sets::new(nfds, [read, write, std::ptr::null_mut()]) };
        select_with(&SETS, sets, t, std::ptr::null(), find).map_err(Failure::code)
    };
    assert_eq!(call(2001, &mut sets, None), Ok(2));
    let mut want = [[0; 64]; 2];
    set(&mut want[0], high);
    set(&mut want[1], c.fd());
    assert_eq!(sets, want);
    forget_fd(high);
    // SAFETY: ours.
    unsafe { libc::close(high) };
    assert_eq!(call(2001, &mut sets, None), Err(libc::EBADF));
    assert_eq!(sets, want, "untouched by an error");
    assert_eq!(call(-1, &mut sets, None), Err(libc::EINVAL));
    // The time that is left.
    let mut sets = [[0; 64]; 2];
    set(&mut sets[0], c.fd());
    let mut t = 20 * MS;
    assert_eq!(call(c.fd() + 1, &mut sets, Some(&mut t)), Ok(0));
    assert_eq!((t, sets[0]), (Duration::ZERO, [0; 64]));
    set(&mut sets[0], c.fd());
    let mut t = Duration::from_secs(5);
    std::thread::scope(|s| {
        s.spawn(|| {
            std::thread::sleep(20 * MS);
            c.deliver(1);
        });
        assert_eq!(call(c.fd() + 1, &mut sets, Some(&mut t)), Ok(1));
    });
    assert!(t < Duration::from_millis(4985), "{t:?}");
    // A hang-up that select does not look at must not end the wait, nor keep it running.
    let (mut r, w) = std::io::pipe().unwrap();
    drop(w);
    let _ = r.read(&mut [0]);
    let mut except = [0 as libc::c_ulong; 64];
    set(&mut except, r.as_raw_fd());
    set(&mut except, c.fd());
    let except = except.as_mut_ptr().cast();
    let (mut t, before) = (50 * MS, cpu());
    let null = std::ptr::null_mut();
    let nfds = c.fd().max(r.as_raw_fd()) + 1;
    // SAFETY: a set of 4096 bits.
    let sets = unsafe { Sets::new(nfds, [null, null, except]) };
    let n = select_with(&SETS, sets, Some(&mut t), std::ptr::null(), find);
    assert_eq!(n.map_err(Failure::code), Ok(0));
    assert!(cpu() - before < 10 * MS);
}

#[test]
fn sleeps_and_wakes() {
    let _one = alone();
    let (c, d, k) = (Conn::settled(), Conn::settled(), Conn::new());
    for n in [3, 300] {
        let mut fds = vec![pfd(-1, 0); n];
        (fds[0], fds[1], fds[n - 1]) =
            (pfd(c.fd(), POLLIN), pfd(d.fd(), POLLIN | POLLOUT), pfd(k.fd(), POLLIN));
        d.fill();
        // On a machine with other work the scheduler adds to some of them, not to all.
        let time = Duration::from_micros(30_300);
        let in_time = (0..20).any(|_| {
            let (start, before) = (Instant::now(), cpu());
            assert_eq!(poll(&mut fds, Some(time)), Ok(0));
            let (took, used) = (start.elapsed(), cpu() - before);
            assert!(took >= time && used < 5 * MS, "{took:?}, {used:?}");
            took < 45 * MS
        });
        assert!(in_time, "always late");
        assert!(fds.iter().all(|f| f.revents == 0));
        assert!(!c.armed(), "nothing stays armed");
        let after = |f: &(dyn Fn() + Sync), fds: &mut [pollfd]| {
            std::thread::scope(|s| {
                s.spawn(|| {
                    std::thread::sleep(10 * MS);
                    f();
                });
                poll(fds, Some(LONG))
            })
        };
        assert_eq!(after(&|| c.deliver(1), &mut fds), Ok(1));
        assert_eq!(fds[0].revents, POLLIN);
        c.consume(1);
        assert_eq!(after(&|| d.relieve(), &mut fds), Ok(1));
        assert_eq!((fds[0].revents, fds[1].revents), (0, POLLOUT));
        d.fill();
        assert_eq!(after(&|| k.there.as_ref().unwrap().write_all(b"x").unwrap(), &mut fds), Ok(1));
        assert_eq!(fds[n - 1].revents, POLLIN);
        // Both kinds in one answer.
        c.deliver(1);
        assert_eq!(poll(&mut fds, None), Ok(2));
        c.consume(1);
        (&k.here).read_exact(&mut [0]).unwrap();
        let fin = Conn::settled();
        fds[2] = pfd(fin.fd(), POLLIN | POLLRDHUP);
        if n > 3 {
            assert_eq!(
                after(&|| fin.there.as_ref().unwrap().shutdown(Shutdown::Write).unwrap(), &mut fds),
                Ok(1)
            );
            assert_eq!(fds[2].revents, POLLIN | POLLRDHUP);
        }
    }
}

/// What is always there and never wanted must neither end a wait nor keep it running.
#[test]
fn no_busy_loop() {
    let _one = alone();
    let quiet = |fds: &mut [pollfd]| {
        let (start, before) = (Instant::now(), cpu());
        assert_eq!(poll(fds, Some(100 * MS)), Ok(0));
        assert!(start.elapsed() >= 100 * MS);
        assert!(cpu() - before < 15 * MS, "{:?}", cpu() - before);
    };
    // The end was heard; the caller waits for room alone.
    let c = Conn::settled();
    c.there.as_ref().unwrap().shutdown(Shutdown::Write).unwrap();
    c.fill();
    quiet(&mut [pfd(c.fd(), POLLOUT)]);
    // The end was heard and means nothing yet.
    state(c.slot, |s| s.hide = Events::all());
    quiet(&mut [pfd(c.fd(), POLLIN | POLLRDHUP)]);
    // Unread bytes, and a caller that wants only the end.
    let d = Conn::settled();
    d.deliver(5);
    quiet(&mut [pfd(d.fd(), POLLRDHUP)]);
    // A hang-up that is hidden.
    let e = Conn::settled();
    e.there.as_ref().unwrap().shutdown(Shutdown::Both).unwrap();
    e.here.shutdown(Shutdown::Both).unwrap();
    state(e.slot, |s| s.hide = Events::all());
    quiet(&mut [pfd(e.fd(), POLLIN)]);
    // Bytes of the kernel's that the socket does not want to hear of.
    let f = Conn::new();
    f.mode(Mode::Between(Events::IN));
    f.there.as_ref().unwrap().write_all(b"x").unwrap();
    state(f.slot, |s| s.hide = Events::IN);
    quiet(&mut [pfd(f.fd(), POLLIN)]);
}

#[test]
fn sets_in_poll() {
    let _one = alone();
    let (ep, c) = (Ep::new(), Conn::settled());
    ep.add(c.fd(), IN, 1);
    let mut fds = [pfd(ep.0, POLLIN)];
    for _ in 0..10 {
        assert_eq!(poll(&mut fds, Some(MS)), Ok(0));
        std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(2 * MS);
                c.deliver(1);
            });
            assert_eq!(poll(&mut fds, Some(LONG)), Ok(1));
        });
        assert_eq!(poll(&mut fds, Some(Duration::ZERO)), Ok(1), "level");
        assert_eq!(ep.now(), [(IN, 1)]);
        c.consume(1);
        assert_eq!(ep.now(), []);
    }
}

#[test]
fn signals_interrupt() {
    let _one = alone();
    static HIT: AtomicBool = AtomicBool::new(false);
    extern "C" fn on(_: i32) {
        HIT.store(true, SeqCst);
    }
    let (c, ep) = (Conn::settled(), Ep::new());
    ep.add(c.fd(), IN, 1);
    // SAFETY: a handler that stores one atomic; the mask and the thread are valid.
    unsafe {
        libc::signal(libc::SIGUSR1, on as *const () as usize);
        let me = libc::pthread_self();
        for which in 0..2 {
            let over = &AtomicBool::new(false);
            std::thread::scope(|s| {
                s.spawn(move || {
                    // Again and again: the first may come before the call that it is to end.
                    while !over.load(SeqCst) {
                        std::thread::sleep(20 * MS);
                        libc::pthread_kill(me, libc::SIGUSR1);
                    }
                });
                let error = match which {
                    0 => poll(&mut [pfd(c.fd(), POLLIN | POLLERR)], None).unwrap_err(),
                    _ => ep.try_wait(4, None).unwrap_err(),
                };
                over.store(true, SeqCst);
                assert_eq!(error, libc::EINTR);
            });
            assert!(HIT.swap(false, SeqCst));
        }
        // A signal that only the call lets in.
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        libc::pthread_kill(me, libc::SIGUSR1);
        assert!(!HIT.load(SeqCst));
        let r = poll_with(&SETS, &mut [pfd(c.fd(), POLLIN)], None, &old, find);
        assert_eq!(r.map_err(Failure::code), Err(libc::EINTR));
        assert!(HIT.load(SeqCst));
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
    }
}

#[test]
fn patience_bounds_the_sleep() {
    let _one = alone();
    let c = Conn::new();
    state(c.slot, |s| {
        s.recheck_after = Some(3 * MS);
        s.mode = Mode::Between(Events::empty());
    });
    std::thread::scope(|s| {
        s.spawn(|| {
            std::thread::sleep(20 * MS);
            // Without a ring.
            state(c.slot, |s| s.received = 1);
        });
        assert_eq!(poll(&mut [pfd(c.fd(), POLLIN)], Some(LONG)), Ok(1));
    });
}

#[test]
fn who_waits_for_room_alone_hears_of_fin_once() {
    let _one = alone();
    let c = Conn::settled();
    c.fill();
    c.there.as_ref().unwrap().shutdown(Shutdown::Write).unwrap();
    let before = cpu();
    assert_eq!(
        poll(&mut [pfd(c.fd(), POLLOUT)], Some(100 * MS)),
        Ok(0),
        "a half-closed peer may still read"
    );
    assert!(cpu() - before < 50 * MS);
    assert!(state(c.slot, |s| s.told.contains(Events::RDHUP)));
}

/// A thread that spins over devices hears of what the kernel alone answers for.
#[test]
fn a_spin_ends_with_an_event_of_the_kernels() {
    let _one = alone();
    let c = Conn::settled();
    let (pipe, mut writer) = std::io::pipe().unwrap();
    SPIN_US.store(20_000_000, SeqCst);
    std::thread::scope(|s| {
        s.spawn(|| {
            std::thread::sleep(MS);
            writer.write_all(b"x").unwrap();
        });
        let start = Instant::now();
        let mut fds = [pfd(c.fd(), POLLIN), pfd(pipe.as_raw_fd(), POLLIN)];
        assert_eq!(poll(&mut fds, None), Ok(1));
        assert_eq!((fds[0].revents, fds[1].revents), (0, POLLIN));
        assert!(start.elapsed() < Duration::from_secs(10), "after the spin only");
    });
    SPIN_US.store(0, SeqCst);
}
