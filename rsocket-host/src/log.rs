//! Messages for people: `RSOCKET_LOG=warn|info|debug`, silent by default. A message is one line,
//! formatted on the stack and written by one system call. It goes to a private duplicate of stderr,
//! or to the file that `RSOCKET_LOG_FILE` names (`%p` in it stands for the process id).
//!
//! Usable in any hook: no allocation, no lock, no standard I/O, `errno` stays. The library drops a
//! message that it could not write at once (a full or broken pipe). The program must not wait, nor
//! get `SIGPIPE`, for what we have to say. Must not know anything else of the library.
//!
//! Entry points: [`init`], [`log_warn!`](crate::log_warn), [`log_info!`](crate::log_info),
//! [`log_debug!`](crate::log_debug).

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::ffi::CStr;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicI32, AtomicU8, Ordering};
use std::os::fd::{OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{CWD, Mode, OFlags};

use crate::failure::Failure;
use crate::stack;
use crate::sys::text::Text;
use crate::sys::{self, sandbox};

/// How much is said. Each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Nothing.
    Off = 0,
    /// What the administrator should look at.
    Warn = 1,
    /// What becomes of connections.
    Info = 2,
    /// Every step.
    Debug = 3,
}

impl Level {
    /// The level with this name. Anything that is no name asks for *something*, and gets warnings.
    #[must_use]
    pub fn from_name(name: &[u8]) -> Self {
        match name {
            b"" | b"0" | b"off" | b"none" => Self::Off,
            b"info" => Self::Info,
            b"debug" | b"trace" => Self::Debug,
            _ => Self::Warn,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}

/// Relaxed everywhere: a thread that sees the new level a little late says a little less. A thread
/// that sees it before the descriptor finds none.
static LEVEL: AtomicU8 = AtomicU8::new(0);
static FD: AtomicI32 = AtomicI32::new(-1);
/// The process id, for the lines: kept, because a sandbox may allow `write` and not `getpid`.
static PID: AtomicI32 = AtomicI32::new(0);

/// Whether messages of this level are written.
#[inline]
#[must_use]
pub fn enabled(level: Level) -> bool {
    level as u8 <= LEVEL.load(Ordering::Relaxed)
}

/// Reads `RSOCKET_LOG` and `RSOCKET_LOG_FILE` through `env` and opens the place for messages. To be
/// called once, early. Without stderr, or when the file cannot be opened, nothing is ever said.
pub fn init<'a>(env: impl Fn(&CStr) -> Option<&'a CStr>) {
    let level = env(c"RSOCKET_LOG").map_or(Level::Off, |v| Level::from_name(v.to_bytes()));
    if level != Level::Off {
        let _ = open(level, env(c"RSOCKET_LOG_FILE").map(CStr::to_bytes));
    }
}

/// Sends messages of this level and below to the file, or to stderr.
///
/// # Errors
/// Those of opening the file, or of duplicating stderr.
pub fn open(level: Level, file: Option<&[u8]>) -> Result<(), Failure> {
    let place = match file {
        Some(pattern) => open_append(pattern)?,
        None => rustix::io::fcntl_dupfd_cloexec(sys::borrow(2), 3)?,
    };
    let old = FD.swap(sys::make_private(place)?, Ordering::Relaxed);
    if old >= 0 {
        sys::close_private(old);
    }
    LEVEL.store(level as u8, Ordering::Relaxed);
    forked();
    Ok(())
}

/// In a forked child: its lines carry its own process id.
pub fn forked() {
    if LEVEL.load(Ordering::Relaxed) == Level::Off as u8 {
        return;
    }
    PID.store(rustix::process::getpid().as_raw_nonzero().get(), Ordering::Relaxed);
}

/// Says nothing from here on.
pub fn close() {
    LEVEL.store(Level::Off as u8, Ordering::Relaxed);
    let old = FD.swap(-1, Ordering::Relaxed);
    if old >= 0 {
        sys::close_private(old);
    }
}

/// Opens a file for appending; `%p` in its name stands for the process id, `%%` for `%`.
pub fn open_append(pattern: &[u8]) -> Result<OwnedFd, Failure> {
    stack::on_own(|| open_named(pattern))
}

fn open_named(pattern: &[u8]) -> Result<OwnedFd, Failure> {
    let mut path = Text::<1024>::new();
    let mut bytes = pattern.iter().copied();
    while let Some(byte) = bytes.next() {
        match (byte, if byte == b'%' { bytes.next() } else { None }) {
            (b'%', Some(b'p')) => {
                let _ = write!(path, "{}", rustix::process::getpid().as_raw_nonzero());
            }
            (b'%', Some(b'%')) => path.push(b"%"),
            (b'%', Some(other)) => path.push(&[b'%', other]),
            (other, _) => path.push(&[other]),
        }
    }
    path.push(&[0]);
    if path.cut {
        return Err(Failure::NameTooLong);
    }
    let path = CStr::from_bytes_with_nul(path.as_bytes()).map_err(|_| Failure::Invalid)?;
    // NONBLOCK: a FIFO without a reader must not hold the program up.
    let flags = OFlags::WRONLY
        | OFlags::CREATE
        | OFlags::APPEND
        | OFlags::CLOEXEC
        | OFlags::NOCTTY
        | OFlags::NONBLOCK;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::RUSR | Mode::WUSR)?)
}

/// Writes without waiting, and only where the program gets no signal for it.
fn write_now(fd: RawFd, bytes: &[u8]) {
    let fd = sys::borrow(fd);
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    // Alone: a pipe or socket whose reader has gone also says ERR or HUP.
    if rustix::event::poll(&mut polled, Some(&now)) == Ok(1)
        && polled.first().is_some_and(|p| p.revents() == PollFlags::OUT)
        && sys::may_append(fd, bytes.len())
    {
        let _ = rustix::io::write(fd, bytes);
    }
}

/// Writes one line. Through the macros, which ask [`enabled`] first.
#[cold]
pub fn write(level: Level, message: fmt::Arguments<'_>) {
    let fd = FD.load(Ordering::Relaxed);
    // Even a look whether it can be written could be deadly in a sandbox.
    if fd < 0 || sandbox::inside() {
        return;
    }
    stack::on_own(|| write_line(fd, level, message));
}

fn write_line(fd: RawFd, level: Level, message: fmt::Arguments<'_>) {
    let mut line = Text::<512>::new();
    let pid = PID.load(Ordering::Relaxed);
    let _ = writeln!(line, "rsockets[{pid}]: {}: {message}", level.name());
    if line.cut {
        line.replace_end(b"...\n");
    }
    write_now(fd, line.as_bytes());
}

/// Writes a message of a level, when that level is on. The arguments are not evaluated otherwise.
#[macro_export]
macro_rules! log_at {
    ($level:expr, $($message:tt)+) => {
        if $crate::log::enabled($level) {
            $crate::log::write($level, ::core::format_args!($($message)+));
        }
    };
}

/// A message that the administrator should look at.
#[macro_export]
macro_rules! log_warn {
    ($($message:tt)+) => { $crate::log_at!($crate::log::Level::Warn, $($message)+) };
}

/// A message about what becomes of a connection.
#[macro_export]
macro_rules! log_info {
    ($($message:tt)+) => { $crate::log_at!($crate::log::Level::Info, $($message)+) };
}

/// A message about a single step.
#[macro_export]
macro_rules! log_debug {
    ($($message:tt)+) => { $crate::log_at!($crate::log::Level::Debug, $($message)+) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels() {
        assert_eq!(Level::from_name(b"info"), Level::Info);
        assert_eq!(Level::from_name(b"off"), Level::Off);
        assert_eq!(Level::from_name(b"1"), Level::Warn);
        assert!(Level::Warn < Level::Debug);
    }

    #[test]
    fn a_broken_or_full_pipe_does_no_harm() {
        use std::os::fd::AsRawFd;
        // SAFETY: in the test process only: SIGPIPE as in a C program, where it kills.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        write_now(writer.as_raw_fd(), b"one");
        let mut buf = [0; 10];
        assert_eq!(rustix::io::read(&reader, &mut buf), Ok(3));
        for _ in 0..2000 {
            write_now(writer.as_raw_fd(), &[0; 512]);
        }
        drop(reader);
        write_now(writer.as_raw_fd(), b"nobody hears");
    }
}
