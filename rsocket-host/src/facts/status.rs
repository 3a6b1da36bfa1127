//! What the kernel says of a process in `/proc/PID/status`: whether and how often it is filtered,
//! and what shows that it may make processes.
//!
//! Knows text only. Entry points: [`own`], [`filters_of`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

use core::ffi::CStr;
use core::fmt::Write;

use rustix::io::Errno;

use crate::stack;
use crate::sys::small_file::{field, try_read_file};
use crate::sys::text::Text;

/// The lines of it that matter here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Status {
    /// How many seccomp filters there are; 1 for a kernel that does not count them.
    pub(super) filters: u32,
    /// Whether it, or what it executes, may get no more privileges.
    pub(super) no_new_privs: bool,
    /// Threads of the process.
    pub(super) threads: u32,
    /// Its parent; 0 where that is none, or in another namespace.
    pub(super) parent: u32,
}

/// Of the calling thread: a filter may be one thread's.
///
/// # Errors
/// Those of opening and reading the file.
pub(super) fn own() -> Result<Status, Errno> {
    read(c"/proc/thread-self/status")
}

/// How many filters another process has, where that can be seen.
pub(super) fn filters_of(pid: u32) -> Option<u32> {
    let mut name = Text::<32>::new();
    write!(name, "/proc/{pid}/status\0").ok()?;
    let status = read(CStr::from_bytes_until_nul(name.as_bytes()).ok()?).ok()?;
    Some(status.filters)
}

fn read(path: &CStr) -> Result<Status, Errno> {
    stack::on_own(|| {
        let mut buf = [0; 4096];
        try_read_file(path, &mut buf).map(parse)
    })
}

/// What is not said counts as a filter: doubt means TCP. A kernel without seccomp has no such line,
/// but it has the lines around it.
fn parse(text: &[u8]) -> Status {
    let number = |key: &[u8]| field(text, key).and_then(|n| u32::try_from(n).ok());
    let filtered = match field(text, b"Seccomp:") {
        Some(mode) => mode != 0,
        None => field(text, b"voluntary_ctxt_switches:").is_none(),
    };
    Status {
        filters: if filtered { number(b"Seccomp_filters:").unwrap_or(1).max(1) } else { 0 },
        no_new_privs: field(text, b"NoNewPrivs:").is_some_and(|v| v != 0),
        threads: number(b"Threads:").unwrap_or(1),
        parent: number(b"PPid:").unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let filters = |text: &[u8]| parse(text).filters;
        assert_eq!(filters(b"Name:\tx\nNoNewPrivs:\t0\nSeccomp:\t0\nSeccomp_filters:\t0\n"), 0);
        assert_eq!(filters(b"NoNewPrivs:\t1\nSeccomp:\t2\n"), 1);
        assert_eq!(filters(b"Seccomp:\t2\nSeccomp_filters:\t3\n"), 3);
        assert!(parse(b"NoNewPrivs:\t1\nSeccomp:\t0\n").no_new_privs);
        assert_eq!(filters(b"Name:\tx\nvoluntary_ctxt_switches:\t3\n"), 0);
        assert_eq!((filters(b""), filters(b"Seccomp:\tx\n")), (1, 1));
        let text = b"Name:\tx\nPPid:\t77\nThreads:\t5\nSeccomp:\t2\nSeccomp_filters:\t2\n";
        assert_eq!(parse(text), Status { filters: 2, no_new_privs: false, threads: 5, parent: 77 });
    }

    #[test]
    fn of_this_process() {
        let me = own().unwrap();
        assert!(me.threads >= 1 && filters_of(std::process::id()) == Some(me.filters));
    }
}
