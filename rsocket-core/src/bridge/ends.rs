//! Our ends of loopback connections ([`super::loopback`]): which numbers they have, and how they
//! end.
//!
//! A child of a fork gets a copy of each end. The copy would keep the last close, and with it FIN
//! and RST, from the program's socket. So the child closes its copies. No end is made or closed
//! while a fork copies the table, or the child would not know of one. An end is ended as a
//! connection before its number is closed. Then a copy that no process of ours knows of, made by a
//! process that is none of ours, keeps nothing from the program. An end that the kernel closes,
//! since its process has ended or is another program's, ends by a reset. To the processes that
//! still have the program's socket, a stream that was cut short must not look like one that has
//! ended.
//!
//! Must not know whose they are. Entry points: [`made`], [`close`], [`reset`]; [`fork_prepare`],
//! [`fork_parent`], [`fork_child`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::cell::Cell;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::os::fd::{OwnedFd, RawFd};

use rustix::net::Shutdown;

use super::loopback;
use crate::failure::Failure;
use crate::sync::lock::{Holding, OwnedLock};
use crate::sys::{self, sockets};

/// One bit for each descriptor number that is an end. Relaxed: changed under [`LOCK`], read by a
/// child that was made under it.
static HELD: [AtomicU64; sys::MAX_FDS / 64] = [const { AtomicU64::new(0) }; sys::MAX_FDS / 64];

/// How many words of [`HELD`] have ever had a bit. A child looks at no others, since each page that
/// it looks at costs it a fault. Changed under [`LOCK`].
static USED: AtomicUsize = AtomicUsize::new(0);

/// A thread holds it while it makes or closes an end. The thread that forks holds it too, and takes
/// it as the last of what a fork waits for. Under it a thread takes no other lock, and calls the
/// kernel alone.
static LOCK: OwnedLock = OwnedLock::new();

thread_local! {
    /// [`LOCK`], from [`fork_prepare`] to [`fork_parent`]. Without a destructor: a thread that ends
    /// in between has died, and the lock is taken over.
    static FORKING: Cell<Option<ManuallyDrop<Holding<'static>>>> = const { Cell::new(None) };
}

fn unforked<R>(f: impl FnOnce() -> R) -> R {
    let _held = LOCK.hold();
    f()
}

fn mark(fd: RawFd, held: bool) {
    if let Ok(number) = usize::try_from(fd)
        && let Some(word) = HELD.get(number / 64)
    {
        let bit = 1 << (number % 64);
        if held {
            USED.fetch_max(number / 64 + 1, Ordering::Relaxed);
            word.fetch_or(bit, Ordering::Relaxed)
        } else {
            word.fetch_and(!bit, Ordering::Relaxed)
        };
    }
}

/// An end that `make` makes, under a private number from now on.
///
/// # Errors
/// As `make`; no descriptor is left.
pub fn made(make: impl FnOnce() -> Result<OwnedFd, Failure>) -> Result<RawFd, Failure> {
    unforked(|| {
        let fd = sys::make_private(make()?)?;
        // A process that ends without a word (`exec`, a signal) has not brought all that the peer
        // sent.
        loopback::resets_at_close(fd, true);
        mark(fd, true);
        Ok(fd)
    })
}

fn give_up(fd: RawFd) {
    unforked(|| {
        mark(fd, false);
        sys::close_private(fd);
    });
}

/// Nothing more comes from the peer, and it takes nothing. The program's socket sees FIN, unless it
/// has seen it. The kernel answers with RST what is written to that socket (tcp(7): data for a
/// socket that is shut both ways). Gives the descriptor up.
pub fn close(fd: RawFd) {
    loopback::resets_at_close(fd, false);
    let _ = sockets::shut(sys::borrow(fd), Shutdown::Both);
    give_up(fd);
}

/// The peer is gone in the middle: the program's socket sees RST. Gives the descriptor up.
pub fn reset(fd: RawFd) {
    // Dissolving a connection resets it, even if another process has the socket too (connect(2),
    // AF_UNSPEC).
    loopback::untie(fd);
    give_up(fd);
}

/// `pthread_atfork`, before, after all that may wait for others: no end comes or goes until
/// [`fork_parent`].
pub fn fork_prepare() {
    // Not in a handler that interrupted the section: the lock is the section's, in the child too.
    if let Some(held) = LOCK.hold() {
        let _ = FORKING.try_with(|kept| kept.set(Some(ManuallyDrop::new(held))));
    }
}

/// `pthread_atfork`, in the parent; also when the fork failed.
pub fn fork_parent() {
    if let Ok(Some(held)) = FORKING.try_with(Cell::take) {
        drop(ManuallyDrop::into_inner(held));
    }
}

/// `pthread_atfork`, in the child: it closes its copies, and tells no other process anything. The
/// connections are the parent's.
pub fn fork_child() {
    // The parent's: it is not given back here.
    let _ = FORKING.try_with(Cell::take);
    LOCK.reset();
    for (index, word) in HELD.iter().enumerate().take(USED.load(Ordering::Relaxed)) {
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            sys::close_private((index * 64) as RawFd + bits.trailing_zeros() as RawFd);
            bits &= bits - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::kernel;
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socket_with};
    use std::os::fd::AsRawFd;
    use std::time::{Duration, Instant};

    /// A program's socket, our end, and a copy of our end that stays open.
    fn tied() -> (OwnedFd, RawFd, OwnedFd) {
        let program =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .unwrap();
        let end = made(|| loopback::tie(program.as_raw_fd())).unwrap();
        let copy = rustix::io::fcntl_dupfd_cloexec(sys::borrow(end), 0).unwrap();
        (program, end, copy)
    }

    fn held(fd: RawFd) -> bool {
        HELD[fd as usize / 64].load(Ordering::Relaxed) >> (fd as usize % 64) & 1 == 1
    }

    #[test]
    fn a_copy_keeps_no_end_from_the_program() {
        let (program, end, _copy) = tied();
        loopback::say_fin(end);
        assert!(held(end));
        close(end);
        assert_eq!(rustix::io::read(&program, &mut [0; 1]), Ok(0));
        // The first is taken, and answered by a reset.
        assert_eq!(send(&program, b"x", SendFlags::NOSIGNAL), Ok(1));
        assert_eq!(send(&program, b"x", SendFlags::NOSIGNAL), Err(rustix::io::Errno::PIPE));
    }

    #[test]
    fn an_end_that_nobody_ended_is_a_reset() {
        for fin_first in [false, true] {
            let (program, end, copy) = tied();
            if fin_first {
                loopback::say_fin(end);
            }
            drop(copy);
            // As the kernel does at the end of a process.
            give_up(end);
            assert_eq!(
                kernel::take_error(program.as_raw_fd()),
                (!fin_first).then_some(Failure::Reset)
            );
            assert_eq!(
                rustix::io::read(&program, &mut [0; 1]),
                Ok(0),
                "and after the error an end"
            );
        }
    }

    #[test]
    fn a_copy_keeps_no_reset_from_the_program() {
        for fin_first in [false, true] {
            let (program, end, _copy) = tied();
            if fin_first {
                loopback::say_fin(end);
            }
            reset(end);
            assert!(kernel::take_error(program.as_raw_fd()).is_some());
        }
    }

    #[test]
    fn a_child_closes_its_copies() {
        let (program, end, copy) = tied();
        fork_prepare();
        // SAFETY: the child calls nothing but this module, which allocates nothing, and the kernel.
        let child = unsafe { libc::fork() };
        if child == 0 {
            fork_child();
            // SAFETY: asks for flags of numbers that may or may not be open; ends the child at
            // once.
            unsafe {
                let (gone, stays) =
                    (libc::fcntl(end, libc::F_GETFD), libc::fcntl(copy.as_raw_fd(), libc::F_GETFD));
                libc::_exit(i32::from(gone != -1 || stays == -1));
            }
        }
        fork_parent();
        let mut status = -1;
        // SAFETY: writes one integer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(held(end), "the parent's is as it was");
        assert_eq!(send(&program, b"x", SendFlags::NOSIGNAL), Ok(1));
        close(end);
    }

    #[test]
    fn a_fork_waits_for_one_that_is_on_its_way() {
        let began = Instant::now();
        let (inside, waits) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            unforked(|| {
                inside.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(50));
            });
        });
        waits.recv().unwrap();
        fork_prepare();
        assert!(began.elapsed() >= Duration::from_millis(50));
        fork_parent();
        other.join().unwrap();
        let (_program, end, _copy) = tied();
        close(end);
    }
}
