//! The directory in which ends of different network namespaces meet: `RSOCKET_MEET`, else
//! [`DEFAULT`] where there is one.
//!
//! The processes that can write there are those that may meet. A process opens the directory once,
//! before it may change its root directory or its user, and keeps it open. It reaches names there
//! through that descriptor where it sees itself in `/proc`, else by the directory's path. Must not
//! know what the names mean. Entry points: [`find_out`], then [`is_there`], [`directory`],
//! [`path`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::sync::atomic::{AtomicI32, AtomicU8, AtomicUsize, Ordering};
use std::io::Write;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use crate::sys;
use crate::sys::files::{self, For};

/// Where administrators put it.
pub const DEFAULT: &str = "/run/rsocket/meet";
/// A longer name leaves no room for the names of sockets in it, of which the kernel takes 107
/// bytes.
pub const LONGEST: usize = 72;

/// The directory, a private descriptor; -1 where there is none. Relaxed everywhere: the descriptor
/// is the kernel's, every thread would find the same, and a forked child has a copy.
static DIRECTORY: AtomicI32 = AtomicI32::new(-1);
/// Its path, written once, before the descriptor.
static PATH: [AtomicU8; LONGEST] = [const { AtomicU8::new(0) }; LONGEST];
static PATH_LEN: AtomicUsize = AtomicUsize::new(0);

/// Looks for the directory, and opens it: a system call, or some six where it is there. `named` is
/// what `RSOCKET_MEET` says; an empty word, or a name that is none of a directory, says that there
/// is to be none.
pub fn find_out(named: Option<&[u8]>) {
    let path = named.unwrap_or(DEFAULT.as_bytes());
    let Some(directory) = open(path) else { return };
    let Ok(private) = sys::make_private(directory) else { return };
    for (to, from) in PATH.iter().zip(path) {
        to.store(*from, Ordering::Relaxed);
    }
    PATH_LEN.store(path.len(), Ordering::Relaxed);
    // Release: pairs with the acquire in `directory`, so that the path is there. A thread that
    // comes second has opened the same directory.
    if DIRECTORY.compare_exchange(-1, private, Ordering::Release, Ordering::Relaxed).is_err() {
        sys::close_private(private);
    }
}

/// Whether this process has one.
#[inline]
#[must_use]
pub fn is_there() -> bool {
    DIRECTORY.load(Ordering::Relaxed) >= 0
}

/// The directory, for names in it: it can be neither read nor written to.
#[must_use]
pub fn directory() -> Option<BorrowedFd<'static>> {
    let fd: RawFd = DIRECTORY.load(Ordering::Acquire);
    (fd >= 0).then(|| sys::borrow(fd))
}

/// Room for the longest path of a socket there, and what ends it.
pub type Path = [u8; 108];

/// The path of a name in it: by the descriptor, or by the directory's own path. `None` where that
/// is too long.
pub fn path<'a>(buffer: &'a mut Path, name: &[u8], by_descriptor: bool) -> Option<&'a [u8]> {
    let directory = directory()?;
    let room = buffer.len() - 1;
    let mut rest = buffer.get_mut(..room)?;
    if by_descriptor {
        let fd = std::os::fd::AsRawFd::as_raw_fd(&directory);
        write!(rest, "/proc/self/fd/{fd}/").ok()?;
    } else {
        let len = PATH_LEN.load(Ordering::Relaxed);
        for byte in PATH.iter().take(len) {
            rest.write_all(&[byte.load(Ordering::Relaxed)]).ok()?;
        }
        rest.write_all(b"/").ok()?;
    }
    rest.write_all(name).ok()?;
    let left = rest.len();
    buffer.get(..room - left)
}

fn open(path: &[u8]) -> Option<OwnedFd> {
    if path.first() != Some(&b'/') || path.len() > LONGEST {
        return None;
    }
    let directory = files::open(path, For::DirectoryPlace).ok()?;
    if files::status_of(&directory).is_ok_and(|s| s.is_directory()) {
        return Some(directory);
    }
    sys::discard(directory);
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_place_to_meet() {
        let base = std::env::temp_dir().join(format!("rsocket-meet-{}", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        let name = |p: &std::path::Path| p.to_str().unwrap().as_bytes().to_vec();
        let is_usable = |path: &[u8]| open(path).is_some();
        assert!(is_usable(&name(&base)));
        assert!(!is_usable(b"") && !is_usable(b"tmp") && !is_usable(b"/no/such/directory"));
        let (file, link) = (base.join("file"), base.join("link"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&base, &link).unwrap();
        assert!(!is_usable(&name(&file)) && !is_usable(&name(&link)));
        let long = base.join("x".repeat(LONGEST));
        std::fs::create_dir_all(&long).unwrap();
        assert!(!is_usable(&name(&long)));
        std::fs::remove_dir_all(&base).unwrap();
    }
}
