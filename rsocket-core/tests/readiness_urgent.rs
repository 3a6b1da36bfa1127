//! Urgent data, which only TCP carries, at members of epoll sets and in poll. A socket that is the
//! kernel's and one that is on its device both play each scenario. Both must say the same.
#![allow(clippy::unwrap_used)]

mod readiness_support;

use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::time::Duration;

use readiness_support::*;
use rsocket_core::readiness::poll::poll_with;
use rsocket_core::readiness::source::Events;

/// What the fake device has is shared by all tests of this file.
static ONE: Mutex<()> = Mutex::new(());

const PRI: u32 = libc::EPOLLPRI as u32;

#[derive(Clone, Copy, Debug)]
enum Step {
    Add(u32),
    Mod(u32),
    Del,
    /// The peer sends an urgent byte.
    Urge,
    /// The program takes it.
    Take,
    /// What the device still has to say is that the kernel answers for both directions.
    Between,
    Now,
    Soon,
}
use Step::*;

fn oob(c: &Conn, send: bool) {
    let mut byte = [b'!'];
    // SAFETY: the buffer is one byte long.
    let n = unsafe {
        if send {
            libc::send(
                c.there.as_ref().unwrap().as_raw_fd(),
                byte.as_ptr().cast(),
                1,
                libc::MSG_OOB,
            )
        } else {
            libc::recv(c.fd(), byte.as_mut_ptr().cast(), 1, libc::MSG_OOB)
        }
    };
    assert_eq!((n, byte), (1, [b'!']));
    std::thread::sleep(Duration::from_millis(2));
}

/// Plays a scenario; what each step said.
fn play(steps: &[Step], device: bool) -> Vec<Vec<u32>> {
    let ep = Ep::new();
    let c = if device { Conn::settled() } else { Conn::new() };
    let wait = |t| ep.wait(8, Some(t)).into_iter().map(|(e, _)| e).collect();
    let step = |step: &Step| {
        match *step {
            Add(e) => ep.add(c.fd(), e, 7),
            Mod(e) => ep.ctl(MOD, c.fd(), e, 7).unwrap(),
            Del => ep.ctl(DEL, c.fd(), 0, 0).unwrap(),
            Urge => oob(&c, true),
            Take => oob(&c, false),
            Between if device => c.mode(Mode::Between(Events::IN | Events::OUT)),
            Between => {}
            Now => return wait(Duration::ZERO),
            Soon => return wait(Duration::from_millis(20)),
        }
        vec![]
    };
    steps.iter().map(step).collect()
}

#[test]
fn urgent_data_are_told_as_tcp_tells_them() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let table: &[&[Step]] = &[
        // By level, until it is taken.
        &[Add(PRI), Now, Soon, Urge, Now, Now, Soon, Take, Now, Soon, Urge, Soon],
        &[Add(PRI | IN), Now, Urge, Now, Now, Take, Now],
        // There before the member.
        &[Urge, Add(PRI), Now, Now, Take, Now],
        &[Urge, Add(PRI | ET), Now, Now, Soon, Take, Urge, Now, Now],
        // By edge, once for each.
        &[Add(PRI | ET), Now, Urge, Now, Now, Soon, Take, Now, Urge, Now, Now],
        &[Add(PRI | ET), Urge, Mod(PRI | ET), Now, Now, Mod(PRI | ET), Now, Now],
        // Once, until it is set anew.
        &[
            Add(PRI | ONESHOT),
            Urge,
            Now,
            Now,
            Mod(PRI | ONESHOT),
            Now,
            Now,
            Take,
            Mod(PRI | ONESHOT),
            Now,
        ],
        &[Add(PRI | ET | ONESHOT), Urge, Soon, Now, Mod(PRI | ET | ONESHOT), Soon, Now],
        // The wish comes and goes.
        &[Add(IN), Urge, Now, Mod(PRI), Now, Mod(IN), Now, Soon, Mod(PRI), Now, Take, Now],
        &[Add(PRI), Mod(IN), Urge, Now, Soon, Mod(PRI | ET), Now, Now],
        &[Add(PRI), Urge, Now, Del, Now, Add(PRI), Now, Del, Take, Add(PRI), Now, Urge, Now],
        &[Add(PRI | ET), Del, Urge, Add(RDHUP), Now, Mod(RDHUP | PRI), Now],
        // The fallback is no edge, and loses none.
        &[Add(PRI | ET), Urge, Now, Between, Now, Soon, Take, Urge, Soon, Now],
        &[Add(PRI | ET), Urge, Between, Soon, Now, Soon],
        &[Add(PRI), Urge, Between, Now, Now, Take, Now],
        &[Add(PRI | ET | ONESHOT), Urge, Soon, Between, Soon, Mod(PRI | ET | ONESHOT), Soon, Now],
        &[Add(PRI | ET), Urge, Now, Between, Mod(PRI | ET), Soon, Now],
    ];
    for steps in table {
        assert_eq!(play(steps, true), play(steps, false), "{steps:?}");
    }
}

#[test]
fn a_sleeper_hears_of_urgent_data() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let c = Conn::settled();
    let ep = Ep::new();
    ep.add(c.fd(), PRI, 7);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| ep.wait(8, Some(Duration::from_secs(10))));
        std::thread::sleep(Duration::from_millis(20));
        oob(&c, true);
        assert_eq!(sleeper.join().unwrap(), [(PRI, 7)]);
    });
    let mut fds = [libc::pollfd { fd: c.fd(), events: libc::POLLPRI, revents: 0 }];
    assert_eq!(poll_with(&SETS, &mut fds, None, std::ptr::null(), find), Ok(1));
    assert_eq!(fds[0].revents, libc::POLLPRI);
}

/// What the kernel answers for since the look of this very wait is said beside what is ready.
#[test]
fn poll_says_what_the_look_left_to_the_kernel() {
    use std::io::Write;
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let c = Conn::settled();
    c.there.as_ref().unwrap().write_all(b"abc").unwrap();
    oob(&c, true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            c.mode(Mode::Between(Events::IN));
        });
        let mut fds =
            [libc::pollfd { fd: c.fd(), events: libc::POLLIN | libc::POLLPRI, revents: 0 }];
        while fds[0].revents & libc::POLLIN == 0 {
            assert_eq!(poll_with(&SETS, &mut fds, None, std::ptr::null(), find), Ok(1));
            assert_ne!(fds[0].revents & libc::POLLPRI, 0);
        }
    });
}
