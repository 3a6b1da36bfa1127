//! Sets of descriptors over which a thread of the library's own sleeps (epoll(7)), and a counter by
//! which others wake it (eventfd(2)).
//!
//! Must not know what is listened to. Entry points: [`new`], [`add`], [`wait`], [`now`];
//! [`new_counter`], [`raise`], [`lower`].
#![forbid(unsafe_code)]

use core::mem::MaybeUninit;
use std::os::fd::RawFd;

use rustix::event::epoll::{self, EventData};
use rustix::event::{EventfdFlags, Timespec};

pub use rustix::event::epoll::{Event, EventFlags};

use super::borrow;
use crate::failure::Failure;

/// An empty set, a private descriptor.
///
/// # Errors
/// As epoll_create1(2).
pub fn new() -> Result<RawFd, Failure> {
    super::make_private(epoll::create(epoll::CreateFlags::CLOEXEC)?)
}

/// Adds a descriptor, whose events carry the token.
///
/// # Errors
/// As epoll_ctl(2).
#[inline]
pub fn add(set: RawFd, fd: RawFd, token: u64, events: EventFlags) -> Result<(), Failure> {
    Ok(epoll::add(borrow(set), borrow(fd), EventData::new_u64(token), events)?)
}

/// Changes what is told of a descriptor.
///
/// # Errors
/// As epoll_ctl(2).
#[inline]
pub fn change(set: RawFd, fd: RawFd, token: u64, events: EventFlags) -> Result<(), Failure> {
    Ok(epoll::modify(borrow(set), borrow(fd), EventData::new_u64(token), events)?)
}

/// Takes a descriptor out.
///
/// # Errors
/// As epoll_ctl(2).
#[inline]
pub fn remove(set: RawFd, fd: RawFd) -> Result<(), Failure> {
    Ok(epoll::delete(borrow(set), borrow(fd))?)
}

/// Sleeps until something is to be told, or so many nanoseconds have passed. `events` has them
/// then, as many as it had room for, and nothing else. No cancellation point.
///
/// # Errors
/// As epoll_wait(2): `EINTR` above all.
pub fn wait(set: RawFd, events: &mut Vec<Event>, limit: Option<u64>) -> Result<(), Failure> {
    let limit = limit.map(|ns| Timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    });
    events.clear();
    epoll::wait(borrow(set), rustix::buffer::spare_capacity(events), limit.as_ref())?;
    Ok(())
}

/// What is to be told now, as much as there is room for: how many events. No cancellation point.
///
/// # Errors
/// As epoll_wait(2).
#[inline]
pub fn now(set: RawFd, room: &mut [MaybeUninit<Event>]) -> Result<usize, Failure> {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let (filled, _) = epoll::wait(borrow(set), room, Some(&at_once))?;
    Ok(filled.len())
}

/// A counter that is 0, a private descriptor: ready for reading while it is not.
///
/// # Errors
/// As eventfd(2).
pub fn new_counter() -> Result<RawFd, Failure> {
    let flags = EventfdFlags::CLOEXEC.union(EventfdFlags::NONBLOCK);
    super::make_private(rustix::event::eventfd(0, flags)?)
}

/// A thread that sleeps for the counter wakes.
pub fn raise(counter: RawFd) {
    let _ = rustix::io::write(borrow(counter), &1_u64.to_ne_bytes());
}

/// The counter is 0 again.
pub fn lower(counter: RawFd) {
    let _ = rustix::io::read(borrow(counter), &mut [0; 8]);
}
