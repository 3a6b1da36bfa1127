//! Where another thread of this process is: asleep in a call by which this library sleeps, awake,
//! or elsewhere.
//!
//! The kernel shows it in `/proc/self/task/*/syscall` (proc(5)), where it was built so. Must not
//! know what a thread sleeps for. Entry point: [`whereabouts`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::io::Write;

use crate::sys::small_file;

/// Where a thread is, as the kernel shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// It runs, or would if it had a CPU.
    Awake,
    /// In one of the calls by which we sleep, with this memory: the array of ppoll(2), or the word
    /// of futex(2).
    Asleep(usize),
    /// In another call.
    Elsewhere,
}

/// `None` if the kernel does not say, or the thread is no more.
#[must_use]
pub fn whereabouts(thread: u32) -> Option<Whereabouts> {
    let mut path = [0_u8; 48];
    let mut rest: &mut [u8] = &mut path;
    write!(rest, "/proc/self/task/{thread}/syscall\0").ok()?;
    // A number, and the arguments in hexadecimal.
    let mut text = [0_u8; 48];
    let text =
        small_file::read_file(core::ffi::CStr::from_bytes_until_nul(&path).ok()?, &mut text)?;
    let mut words = core::str::from_utf8(text).ok()?.split([' ', '\n']);
    let call = match words.next()? {
        "running" => return Some(Whereabouts::Awake),
        number => number.parse::<i64>().ok()?,
    };
    if !matches!(call, libc::SYS_ppoll | libc::SYS_futex) {
        return Some(Whereabouts::Elsewhere);
    }
    let at = words.next()?.strip_prefix("0x")?;
    usize::from_str_radix(at, 16).ok().map(Whereabouts::Asleep)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::thread::tid;

    #[test]
    fn knows_who_sleeps() {
        let (to, from) = std::sync::mpsc::channel();
        let (go, end) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let sleeper = std::thread::spawn(move || {
            let mut fds = [libc::pollfd {
                fd: std::os::fd::AsRawFd::as_raw_fd(&end),
                events: libc::POLLIN,
                revents: 0,
            }];
            to.send((tid(), fds.as_ptr().addr())).unwrap();
            crate::sys::wait(&mut fds, None, core::ptr::null()).unwrap();
        });
        let (thread, array) = from.recv().unwrap();
        while whereabouts(thread) != Some(Whereabouts::Asleep(array)) {
            std::thread::yield_now();
        }
        // The thread that asks is in read(2).
        assert_eq!(whereabouts(tid()), Some(Whereabouts::Elsewhere));
        drop(go);
        sleeper.join().unwrap();
        assert_eq!(whereabouts(thread), None);
    }
}
