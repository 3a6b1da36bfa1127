//! A peer publishes bytes, or the end, first, and tells the sleepers then. In between a call of the
//! program finds that, and leaves some: an epoll set says the same from there on, as on TCP.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::ptr::null;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, PoisonError};

use crate::bridge::channel_port::ChannelPort;
use crate::bridge::overtaken_tests::{real_ctl, real_wait};
use crate::bridge::pump_tests::program;
use crate::conn::fork_group;
use crate::conn::slot::{SlotId, flag};
use crate::copy::Bytes;
use crate::given::In;
use crate::host::events::Events;
use crate::readiness::epoll::{self, Change, Ctl, Pwait, Wait};
use crate::readiness::poll;
use crate::socket::{self, Listeners};

/// The only connection: its number, and which it is.
static MEMBER: [AtomicU32; 2] = [AtomicU32::new(u32::MAX), AtomicU32::new(0)];

fn find(fd: RawFd) -> Option<SlotId> {
    let [number, id] = &MEMBER;
    let ours = number.load(Ordering::Relaxed) == fd as u32;
    SlotId::from_raw(id.load(Ordering::Relaxed)).filter(|_| ours)
}

/// A set with the connection in it, which waits for bytes.
fn set_with(fd: RawFd, how: i32) -> RawFd {
    // SAFETY: no arguments that point anywhere.
    let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    epoll::created(set);
    let event = libc::epoll_event { events: (libc::EPOLLIN | how) as u32, u64: 7 };
    // SAFETY: a valid event, and the kernel's own call.
    let (event, real) = unsafe { (In::new(&raw const event), Ctl::new(real_ctl)) };
    epoll::ctl(Change { epfd: set, op: libc::EPOLL_CTL_ADD, fd, event }, find, real).unwrap();
    set
}

/// What the set says at once.
fn said(set: RawFd) -> u32 {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let events = &raw mut event;
    // SAFETY: room for one event, no mask, and the kernel's own call.
    let (wait, real) =
        unsafe { (Wait::new(set, events, 1, Some(Duration::ZERO), null()), Pwait::new(real_wait)) };
    if epoll::wait(wait, real).unwrap() == 0 { 0 } else { event.events }
}

/// A call that finds bytes of the connection, and does not take them all.
type Finds = fn(SlotId, RawFd);

fn few(buffer: &mut [u8; 4]) -> [libc::iovec; 1] {
    [libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() }]
}

fn receives(id: SlotId, fd: RawFd, flags: i32) {
    assert_eq!(socket::receive(id, fd, &few(&mut [0; 4]), flags), Ok(4));
}

fn polls(_: SlotId, fd: RawFd) {
    let mut one = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    let list = one.as_mut_slice().into();
    assert_eq!(poll::poll(list, Some(Duration::ZERO), null(), find), Ok(1));
}

const FINDS: [(&str, Finds); 4] = [
    ("takes a few", |id, fd| receives(id, fd, 0)),
    ("peeks", |id, fd| receives(id, fd, libc::MSG_PEEK)),
    ("asks how much", |id, fd| assert_eq!(socket::unread(id, fd), Some(64))),
    ("polls", polls),
];

/// The only listener that tests install.
fn listen() {
    socket::set_listeners(Listeners {
        mode_changed: |_| {},
        starved: |_| {},
        error_taken: |_| {},
        found_unread: epoll::found_unread,
    });
}

/// `f` with a connection and a set in which it is, which has said that nothing is here: its waker
/// is in the words.
fn with_set(bridged: bool, how: i32, f: impl FnOnce(SlotId, RawFd, RawFd, &mut ChannelPort)) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (fd, _tie, id, mut port) = program();
    let number = fd.as_raw_fd();
    if !bridged {
        // As one on this host, whose peer is the far end itself.
        fork_group::slot(id).unwrap().clear(flag::BRIDGED);
    }
    MEMBER[0].store(number as u32, Ordering::Relaxed);
    MEMBER[1].store(id.raw(), Ordering::Relaxed);
    let set = set_with(number, how);
    assert_eq!(said(set), 0);
    f(id, number, set, &mut port);
    epoll::closed(set);
    socket::closing(id, number);
    // SAFETY: the set's own number, which nothing else closes.
    unsafe { libc::close(set) };
}

#[test]
fn a_set_says_the_end_that_a_receive_has_found() {
    listen();
    for how in [0, libc::EPOLLET] {
        with_set(false, how, |id, fd, set, port| {
            port.deliver_end();
            assert_eq!(socket::receive(id, fd, &few(&mut [0; 4]), 0), Ok(0));
            assert_eq!(said(set) & Events::IN.bits(), Events::IN.bits(), "{how}");
        });
    }
}

#[test]
fn a_set_says_what_another_call_has_found() {
    listen();
    for bridged in [false, true] {
        for (what, finds) in FINDS {
            for how in [0, libc::EPOLLET] {
                with_set(bridged, how, |id, fd, set, port| {
                    assert_eq!(port.deliver(Bytes::from(&[1; 64][..])), Ok(64));
                    finds(id, fd);
                    assert_eq!(said(set), Events::IN.bits(), "{what}, bridged: {bridged}, {how}");
                    // And once more where it is the level that counts, and no edge.
                    port.wake_reader();
                    let again = if how == 0 { Events::IN.bits() } else { 0 };
                    assert_eq!(said(set), again, "{what}: the peer has said so since, {how}");
                });
            }
        }
    }
}
