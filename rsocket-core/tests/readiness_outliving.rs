//! Members of epoll sets that outlive the number that they were registered under, over a simulated
//! device: what plain TCP says, the set says.
#![allow(clippy::unwrap_used)]

mod readiness_support;

use std::io::Write;
use std::os::fd::RawFd;
use std::sync::Mutex;
use std::time::Duration;

use readiness_support::*;
use rsocket_core::readiness::source::Events;

/// What the fake device has is shared by all tests of this file.
static ONE: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Names of one file beside that of a [`Conn`].
struct Names(Conn);

impl Names {
    /// A name at `fd`, or wherever there is room above it.
    fn add(&self, fd: RawFd) -> RawFd {
        // SAFETY: no pointers.
        let new = unsafe { libc::fcntl(self.0.fd(), libc::F_DUPFD_CLOEXEC, fd) };
        assert!(new >= fd);
        alias_fd(new, self.0.slot);
        new
    }

    fn close(fd: RawFd) {
        forget_fd(fd);
        // SAFETY: made by `add`.
        unsafe { libc::close(fd) };
    }
}

/// A settled connection, registered by level under a name that was closed since.
fn outlived(ep: &Ep, events: u32) -> (Names, RawFd) {
    let names = Names(Conn::settled());
    let first = names.add(600);
    ep.add(first, events, 7);
    ep.now();
    Names::close(first);
    (names, first)
}

#[test]
fn events_go_on_and_the_number_is_found_again() {
    let _one = alone();
    let ep = Ep::new();
    let (names, first) = outlived(&ep, IN);
    assert_eq!(ep.now(), []);
    names.0.deliver(2);
    assert_eq!(ep.now(), [(IN, 7)]);
    assert_eq!(ep.ctl(MOD, first, IN, 8), Err(libc::EBADF));
    assert_eq!(ep.ctl(MOD, names.0.fd(), IN, 8), Err(libc::ENOENT));
    assert_eq!(names.add(first), first);
    assert_eq!(ep.ctl(ADD, first, IN, 8), Err(libc::EEXIST));
    ep.ctl(MOD, first, IN | OUT, 8).unwrap();
    assert_eq!(ep.now(), [(IN | OUT, 8)]);
    // Once more, and gone by the program's own word.
    Names::close(first);
    assert_eq!(ep.now(), [(IN | OUT, 8)]);
    assert_eq!(names.add(first), first);
    ep.ctl(DEL, first, 0, 0).unwrap();
    assert_eq!(ep.ctl(DEL, first, 0, 0), Err(libc::ENOENT));
    Names::close(first);
    assert_eq!(ep.now(), []);
    assert_eq!(names.add(first), first);
    ep.add(first, IN, 9);
    assert_eq!(ep.now(), [(IN, 9)]);
    Names::close(first);
}

#[test]
fn another_file_may_have_the_number() {
    let _one = alone();
    let ep = Ep::new();
    let (names, first) = outlived(&ep, IN);
    let other = Names(Conn::settled());
    assert_eq!(other.add(first), first);
    assert_eq!(ep.ctl(MOD, first, IN, 8), Err(libc::ENOENT));
    ep.add(first, IN, 8);
    names.0.deliver(1);
    assert_eq!(ep.now(), [(IN, 7)]);
    other.0.deliver(1);
    assert_eq!(ep.now(), [(IN, 7), (IN, 8)]);
    // Both have lost it.
    Names::close(first);
    assert_eq!(ep.now(), [(IN, 7), (IN, 8)]);
    assert_eq!(names.add(first), first);
    ep.ctl(DEL, first, 0, 0).unwrap();
    assert_eq!(ep.now(), [(IN, 8)]);
    Names::close(first);
}

#[test]
fn the_last_name_ends_it() {
    let _one = alone();
    let ep = Ep::new();
    for events in [IN, IN | ET] {
        let (mut names, _) = outlived(&ep, events);
        // Not the peer's end.
        let there = names.0.there.take();
        let second = names.add(700);
        names.0.deliver(1);
        assert_eq!(ep.now(), [(IN, 7)]);
        // The name that the set has used is closed before the other.
        drop(names);
        assert_eq!(ep.now(), if events & ET == 0 { vec![(IN, 7)] } else { vec![] });
        Names::close(second);
        assert_eq!(ep.now(), []);
        drop(there);
    }
}

#[test]
fn the_kernel_is_asked_through_a_number_of_ours() {
    let _one = alone();
    let ep = Ep::new();
    for mode in [Mode::Between(Events::IN), Mode::Plain] {
        let (names, first) = outlived(&ep, IN);
        // What the program gives the number to is not touched.
        let (reader, writer) = std::io::pipe().unwrap();
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&reader), first) }, first);
        names.0.mode(mode);
        assert_eq!(ep.now(), []);
        for _ in 0..3 {
            names.0.there.as_ref().unwrap().write_all(b"x").unwrap();
            assert_eq!(ep.wait(4, Some(Duration::from_secs(5))), [(IN, 7)]);
            assert_eq!(std::io::Read::read(&mut &names.0.here, &mut [0; 4]).unwrap(), 1);
            assert_eq!(ep.now(), []);
        }
        // Under its own number again, the program's word counts.
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::dup2(names.0.fd(), first) }, first);
        alias_fd(first, names.0.slot);
        assert_eq!(ep.ctl(ADD, first, IN, 8), Err(libc::EEXIST));
        ep.ctl(MOD, first, OUT, 8).unwrap();
        assert_eq!(ep.now(), [(OUT, 8)]);
        ep.ctl(DEL, first, 0, 0).unwrap();
        assert_eq!(ep.now(), []);
        Names::close(first);
        drop((reader, writer));
    }
}

#[test]
fn no_descriptor_is_left_behind() {
    let _one = alone();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let ep = Ep::new();
    outlived(&ep, IN);
    let before = open();
    for _ in 0..20 {
        let (names, first) = outlived(&ep, IN | ET);
        assert!(open() > before);
        names.add(first);
        ep.ctl(MOD, first, IN, 8).unwrap();
        Names::close(first);
        drop(names);
        let (names, _) = outlived(&ep, IN);
        drop(names);
    }
    assert_eq!(open(), before);
}
