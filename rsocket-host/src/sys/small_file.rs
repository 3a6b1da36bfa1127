//! Small files of /proc, /sys and the like, read whole into a buffer of the caller's.
//!
//! Knows nothing of what stands in them but numbers behind keys. Entry points: [`read_file`],
//! [`try_read_file`], [`open`], [`field`]. They block as long as the kernel takes to make the text.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use super::discard;

/// Opens a file below a directory for reading.
pub(crate) fn open(dir: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(dir, path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())
}

/// The beginning of a small file, as much as the buffer takes.
pub fn read_file<'a>(path: &CStr, buf: &'a mut [u8]) -> Option<&'a [u8]> {
    try_read_file(path, buf).ok()
}

pub(crate) fn try_read_file<'a>(path: &CStr, buf: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let fd = open(CWD, path)?;
    let mut len = 0;
    // Files of /proc may come in pieces.
    while let Some(rest) = buf.get_mut(len..).filter(|r| !r.is_empty()) {
        match rustix::io::read(&fd, rest) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(Errno::INTR) => {}
            Err(e) => {
                discard(fd);
                return Err(e);
            }
        }
    }
    discard(fd);
    Ok(buf.get(..len).unwrap_or_default())
}

/// The number after a `key` at the beginning of a line.
pub(crate) fn field(text: &[u8], key: &[u8]) -> Option<u64> {
    let line = text.split(|b| *b == b'\n').find_map(|line| line.strip_prefix(key))?;
    number(line)
}

/// A decimal number with white space around it.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    core::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// As many bytes of a file as `into` has, from there on; `None` where it has fewer.
pub fn read_exactly(file: impl std::os::fd::AsFd, at: u64, into: &mut [u8]) -> Option<()> {
    let wanted = into.len();
    (rustix::io::pread(file, into, at).ok()? == wanted).then_some(())
}
