//! What the tests of the shared-memory queue pair share: channels in two mappings, and processes.
#![allow(dead_code, reason = "not every test uses all of it")]

use rsocket_core::device::QueuePair;
use rsocket_core::device::shm::arena::{Arena, Channel};
use rsocket_core::device::shm::queue_pair::ShmPair;
use rsocket_core::device::shm::waker;
use rsocket_core::sync::thread;

/// An arena that is mapped twice, and the next of its channels.
pub(crate) struct Maps {
    pub(crate) here: Arena,
    pub(crate) there: Arena,
    next: u32,
}

impl Maps {
    pub(crate) fn new(channels: u32) -> Self {
        let (here, fd) = Arena::create(channels).unwrap();
        Self { here, there: Arena::open(&fd).unwrap(), next: 0 }
    }

    /// A fresh channel, in both mappings.
    pub(crate) fn channel(&mut self) -> (Channel, Channel) {
        self.next += 1;
        self.last()
    }

    pub(crate) fn last(&self) -> (Channel, Channel) {
        (self.here.channel(self.next - 1).unwrap(), self.there.channel(self.next - 1).unwrap())
    }

    pub(crate) fn pair(&mut self) -> (ShmPair, ShmPair) {
        let (here, there) = self.channel();
        (ShmPair::open(here, 0).unwrap(), ShmPair::open(there, 1).unwrap())
    }

    /// No pair is used any more.
    pub(crate) fn unmap(self) {
        // SAFETY: the caller's promise.
        unsafe {
            self.here.unmap();
            self.there.unmap();
        }
    }
}

/// A forked child that runs one closure and ends.
pub(crate) struct Child(libc::pid_t);

impl Child {
    pub(crate) fn start(work: impl FnOnce()) -> Self {
        // SAFETY: the child goes on with one thread, and leaves by _exit; the C library keeps its
        // allocator usable across a fork.
        match unsafe { libc::fork() } {
            0 => {
                thread::forked();
                waker::forked();
                let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_ok();
                // SAFETY: ends the child without running the parent's exit handlers.
                unsafe { libc::_exit(i32::from(!ok)) }
            }
            pid => {
                assert!(pid > 0);
                Self(pid)
            }
        }
    }

    /// True when it ended well.
    pub(crate) fn collect(self) -> bool {
        let mut status = 0;
        // SAFETY: status is valid for the call.
        let pid = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        let ok = pid == self.0 && status == 0;
        std::mem::forget(self);
        ok
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: plain calls on a child that is not collected yet.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// Whether the pair's descriptor is readable, after at most so many seconds.
pub(crate) fn readable(pair: &ShmPair, seconds: i64) -> bool {
    let fd = pair.event_fd().unwrap();
    let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    let time = libc::timespec { tv_sec: seconds, tv_nsec: 0 };
    rsocket_core::sys::wait(&mut fds, Some(&time), std::ptr::null()).unwrap() == 1
}
