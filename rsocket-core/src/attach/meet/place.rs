//! The directory in which ends of different network namespaces meet: `RSOCKET_MEET`, else
//! [`DEFAULT`] where there is one.
//!
//! Who can write there is who may meet. Looked for once in a process, before it may change its root
//! directory. Must not know what is in it. Entry points: [`find_out`], then [`is_there`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FileType, Mode, OFlags};

/// Where administrators put it.
pub const DEFAULT: &str = "/run/rsocket/meet";
/// A longer name leaves no room for the names of sockets in it, of which the kernel takes 107
/// bytes.
pub const LONGEST: usize = 72;

/// Relaxed everywhere: stands for nothing but itself, and every thread would find the same.
static THERE: AtomicBool = AtomicBool::new(false);

/// Looks whether the directory is there: a system call, or four where it is. `named` is what
/// `RSOCKET_MEET` says; an empty word, or a name that is none of a directory, says that there is to
/// be none.
pub fn find_out(named: Option<&[u8]>) {
    THERE.store(is_usable(named.unwrap_or(DEFAULT.as_bytes())), Ordering::Relaxed);
}

/// Whether this process has one.
#[inline]
#[must_use]
pub fn is_there() -> bool {
    THERE.load(Ordering::Relaxed)
}

fn is_usable(path: &[u8]) -> bool {
    if path.first() != Some(&b'/') || path.len() > LONGEST {
        return false;
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(directory) = rustix::fs::openat(rustix::fs::CWD, path, flags, Mode::empty()) else {
        return false;
    };
    let found = rustix::fs::fstat(&directory);
    crate::sys::discard(directory);
    found.is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::Directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_place_to_meet() {
        let base = std::env::temp_dir().join(format!("rsocket-meet-{}", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        let name = |p: &std::path::Path| p.to_str().unwrap().as_bytes().to_vec();
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
