//! The pipe of a splice, or a stream that takes bytes as a pipe does: written from the channel, and
//! read into it, without waiting.
//!
//! Must not know of connections beyond their receive lock. Entry points: [`Pipe`],
//! [`take_messages`].

use std::os::fd::RawFd;

use crate::channel::guard::RecvGuard;
use crate::channel::room::follow_up;
use crate::failure::Failure;
use crate::sys::nowait::{self, How};
use crate::sys::{self, descriptor, files};

/// What a pipe takes in one piece where `poll` says that it takes something (pipe(7)).
const PIPE_BUF: usize = 4096;

/// The pipe's end of a call.
#[derive(Clone, Copy)]
pub struct Pipe {
    /// Its descriptor.
    pub(crate) fd: RawFd,
    /// Whether a pipe that is full or empty is waited for.
    pub(crate) waits: bool,
}

impl Pipe {
    /// `fd`, if it is a pipe that is open for `access` (`O_RDONLY`, `O_WRONLY`) or for both. It is
    /// waited for where the call says so and the pipe's own flags do, too.
    #[must_use]
    pub fn of(fd: RawFd, access: i32, waits: bool) -> Option<Self> {
        let is_pipe = files::status_of(sys::borrow(fd)).ok()?.is_pipe();
        let flags = descriptor::modes(fd).ok()?;
        let open = flags.bits() as i32 & libc::O_ACCMODE;
        let usable = is_pipe && (open == access || open == libc::O_RDWR);
        usable.then(|| Self { fd, waits: waits && !flags.contains(rustix::fs::OFlags::NONBLOCK) })
    }

    /// A stream that takes bytes as a pipe does, and is never waited for.
    pub(crate) fn taking(fd: RawFd) -> Self {
        Self { fd, waits: false }
    }

    /// Whether it is ready for `events` now, or will be: then it was waited for.
    ///
    /// # Errors
    /// `EAGAIN` where it is not waited for; `EPIPE` when it has no reader; `EINTR`, `EBADF`.
    pub(crate) fn ready(self, events: i16, waits: bool) -> Result<(), Failure> {
        let mut one = [libc::pollfd { fd: self.fd, events, revents: 0 }];
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        match sys::wait(&mut one, (!waits).then_some(&at_once), core::ptr::null())? {
            0 => Err(Failure::Blocked),
            _ if one[0].revents & libc::POLLNVAL != 0 => Err(Failure::BadDescriptor),
            _ if events == libc::POLLOUT && one[0].revents & libc::POLLERR != 0 => {
                Err(Failure::Ended)
            }
            _ => Ok(()),
        }
    }

    /// How much of `len` bytes at `from` it takes without waiting; 0 where it takes none.
    pub(crate) fn put(self, from: *mut u8, len: usize) -> usize {
        // SAFETY: the callers' memory: `len` bytes of the channel, or of a buffer of theirs.
        let step = |len, how| unsafe { nowait::write(self.fd, from, len, how) };
        self.at_once(len, libc::POLLOUT, step).unwrap_or(0)
    }

    /// How many bytes it has given to `to`, without waiting; 0 at its end.
    pub(crate) fn take(self, to: *mut u8, len: usize) -> Result<usize, Failure> {
        // SAFETY: as in put().
        let step = |len, how| unsafe { nowait::read(self.fd, to, len, how) };
        self.at_once(len, libc::POLLIN, step)
    }

    /// Kernels before 6.4 cannot say of pipes what goes without waiting. There it is as much as
    /// goes as long as no other thread or process uses the same end.
    fn at_once(
        self,
        len: usize,
        events: i16,
        step: impl Fn(usize, How) -> Result<usize, Failure>,
    ) -> Result<usize, Failure> {
        sys::keeping_errno(|| match step(len, How::AtOnce) {
            Err(Failure::Unsupported) => {
                self.ready(events, false).and_then(|()| step(len.min(PIPE_BUF), How::Ready))
            }
            done => done,
        })
    }

    /// All of what was taken from the stream already.
    pub(crate) fn put_all(self, bytes: &mut [u8]) -> Result<(), Failure> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let n = self.put(rest.as_mut_ptr(), rest.len());
            if n == 0 {
                match self.ready(libc::POLLOUT, true) {
                    Ok(()) | Err(Failure::Interrupted) => {}
                    Err(e) => return Err(e),
                }
            }
            rest = rest.get_mut(n..).unwrap_or_default();
        }
        Ok(())
    }
}

/// Writes messages into the pipe until it takes no more or none is left.
pub(crate) fn take_messages(guard: &mut RecvGuard<'_>, pipe: Pipe, length: usize) -> usize {
    let mut moved = 0;
    while moved < length {
        let mut taking = guard.receiver().take();
        while taking.state().readable() == 0 {
            let Some(word) = taking.arrived() else { return moved };
            // An end, or nonsense, is for the ordinary way.
            if !word.is_bytes() || taking.state().ended != 0 || taking.accept(word).is_err() {
                return moved;
            }
        }
        let n = (taking.state().readable() as usize).min(length - moved);
        let Ok(from) = taking.memory() else { return moved };
        let taken = pipe.put(from, n).min(n);
        if taken == 0 {
            return moved;
        }
        taking.skip(taken as u32);
        taking.commit();
        follow_up(guard, taken);
        moved += taken;
        if taken < n {
            return moved;
        }
    }
    moved
}
