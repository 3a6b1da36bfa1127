//! Sleeps on a word of memory that two processes share: a futex, which needs no descriptor.
//!
//! The sleeper has put a value into the word that is not 0 in its low half, and sleeps while it is
//! there. The thread that takes the value out wakes the sleeper. Both are system calls that a
//! sandbox need not allow: the callers know that. Must not know what the word means. Entry points:
//! [`sleep`], [`wake`]; for locks [`sleep_at_lock`], [`wake_one`]; for words of one process
//! [`sleep_in_process`], [`wake_one_in_process`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{AtomicU32, AtomicU64};
use core::time::Duration;

use rustix::thread::futex;

use crate::failure::Failure;
use crate::sys;

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// The value is not there any more, or another thread said so.
    Rung,
    /// The time has passed.
    TimeOut,
}

/// The kernel compares 32 bits: where the low half of the word is.
fn low_half<W>(word: &W) -> usize {
    core::ptr::from_ref(word).addr() + if cfg!(target_endian = "big") { 4 } else { 0 }
}

/// What a thread that sleeps on the word gives to the kernel.
#[must_use]
pub fn place(word: &AtomicU64) -> usize {
    low_half(word)
}

unsafe extern "C-unwind" {
    // A thread that was cancelled ends in here, which unwinds through us.
    fn pthread_testcancel();
}

/// Sleeps while the word is `value`, for so many nanoseconds (below a second) at most. A
/// cancellation point, as [`sys::wait`], but for a thread that is cancelled while it sleeps.
///
/// # Errors
/// `EINTR` after a handler.
pub fn sleep(word: &AtomicU64, value: u64, ns: u32) -> Result<Woken, Failure> {
    // SAFETY: it takes nothing; what unwinds from here is as in sys::wait.
    unsafe { pthread_testcancel() };
    let time = libc::timespec { tv_sec: 0, tv_nsec: ns.into() };
    // SAFETY: the word is borrowed, which the kernel reads; the time lives until it is back.
    let r = unsafe {
        libc::syscall(
            libc::SYS_futex,
            low_half(word),
            libc::FUTEX_WAIT,
            value as u32,
            &raw const time,
        )
    };
    match r {
        0 => Ok(Woken::Rung),
        _ => match sys::errno() {
            libc::EINTR => Err(Failure::Interrupted),
            libc::ETIMEDOUT => Ok(Woken::TimeOut),
            // EAGAIN: it is not there any more. Anything else comes from a word that is no more,
            // with its connection.
            _ => Ok(Woken::Rung),
        },
    }
}

/// Wakes all threads that sleep on the word. It keeps `errno`.
#[cold]
pub fn wake<W>(word: &W) {
    let errno = sys::errno();
    // SAFETY: the kernel looks which threads sleep at this address, and reads nothing there.
    unsafe { libc::syscall(libc::SYS_futex, low_half(word), libc::FUTEX_WAKE, i32::MAX) };
    sys::set_errno(errno);
}

/// Sleeps while the word of a lock is `expected`, for so many nanoseconds (below a second) at most.
/// True when it was the time that ended it, or when the kernel refuses. No cancellation point: the
/// taker is in the midst of taking a lock.
#[must_use]
pub fn sleep_at_lock(word: &AtomicU32, expected: u32, ns: u32) -> bool {
    let time = futex::Timespec { tv_sec: 0, tv_nsec: ns.into() };
    // Not PRIVATE: takers in other processes sleep on the same page.
    let answer = futex::wait(word, futex::Flags::empty(), expected, Some(&time));
    // EINTR and EAGAIN mean: look again.
    !matches!(answer, Ok(()) | Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN))
}

/// Wakes one of the threads that sleep at the lock. It keeps `errno`.
pub fn wake_one(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}

/// Sleeps while a word of this process's alone is `expected`, for that long at most. Woken,
/// interrupted or changed: the caller looks again in each case. No cancellation point; it keeps
/// `errno`.
pub fn sleep_in_process(word: &AtomicU32, expected: u32, limit: Option<Duration>) {
    let limit = limit.map(|d| futex::Timespec {
        tv_sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(d.subsec_nanos()),
    });
    let _ = futex::wait(word, futex::Flags::PRIVATE, expected, limit.as_ref());
}

/// Wakes one of the threads that [`sleep_in_process`]. It keeps `errno`.
pub fn wake_one_in_process(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, 1);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering;

    #[test]
    fn sleeps_while_the_value_is_there() {
        let word = AtomicU64::new(7 << 32 | 5);
        let value = word.load(Ordering::Relaxed);
        assert_eq!(sleep(&word, value, 1_000_000), Ok(Woken::TimeOut));
        assert_eq!(sleep(&word, value + 1, 999_999_999), Ok(Woken::Rung));
        std::thread::scope(|scope| {
            let sleeper =
                scope.spawn(|| while sleep(&word, value, 900_000_000) != Ok(Woken::Rung) {});
            word.store(0, Ordering::Relaxed);
            while !sleeper.is_finished() {
                wake(&word);
                std::thread::yield_now();
            }
        });
    }
}
