//! Large memory of which only what is used is real, also where the program has all of its memory
//! locked (mlockall(2)). The kernel would then fill every page of a new mapping, and count it.
//!
//! The kernel does not fill a mapping that no thread may touch. So the mapping is made as such,
//! taken from what is locked, and opened. Where the limit on locked memory has no room even for
//! that moment, this goes piece by piece. Must not know what the memory is for. Entry points:
//! [`map`], [`give_back`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::ffi::c_void;
use core::ptr::NonNull;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::mm::{
    MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munlock, munmap,
};

use super::PAGE_SIZE;

/// What is mapped.
#[derive(Clone, Copy)]
struct Source<'a> {
    /// A file, from its beginning; memory of no file if there is none.
    file: Option<BorrowedFd<'a>>,
    flags: MapFlags,
}

/// The smallest piece.
const LEAST: usize = 16 * PAGE_SIZE;
/// Places that are tried for a mapping in pieces.
const TRIES: u64 = 8;

/// Maps so many bytes for reading and writing, without touching or locking any.
///
/// # Errors
/// Those of `mmap` and `mprotect`.
pub fn map(
    file: Option<BorrowedFd<'_>>,
    size: usize,
    flags: MapFlags,
) -> Result<NonNull<u8>, Errno> {
    let source = Source { file, flags };
    let at = match source.piece(core::ptr::null_mut(), 0, size) {
        // The limit on locked memory.
        Err(Errno::AGAIN) => in_pieces(source, size)?,
        other => other?,
    };
    // SAFETY: the mapping just made, which no other thread has seen.
    if let Err(e) = unsafe { mprotect(at, size, MprotectFlags::READ | MprotectFlags::WRITE) } {
        unmap(at, size);
        return Err(e);
    }
    NonNull::new(at.cast()).ok_or(Errno::NOMEM)
}

impl Source<'_> {
    /// A piece that no thread may touch, and that is not locked; at a place of the kernel's choice,
    /// or at just that one.
    fn piece(self, at: *mut c_void, offset: usize, size: usize) -> Result<*mut c_void, Errno> {
        let fixed = if at.is_null() { MapFlags::empty() } else { MapFlags::FIXED_NOREPLACE };
        let flags = self.flags | fixed;
        // SAFETY: a new mapping, which replaces nothing.
        let made = unsafe {
            match self.file {
                Some(file) => mmap(at, size, ProtFlags::empty(), flags, file, offset as u64),
                None => mmap_anonymous(at, size, ProtFlags::empty(), flags),
            }
        }?;
        if !at.is_null() && made != at {
            // Before Linux 4.17 the place was only a wish.
            unmap(made, size);
            return Err(Errno::EXIST);
        }
        // SAFETY: the mapping just made. (An error would mean that it is not locked.)
        let _ = unsafe { munlock(made, size) };
        Ok(made)
    }

    /// All of it at that place, in pieces as large as may be locked at a time.
    fn fill(self, base: *mut c_void, size: usize) -> Result<(), Errno> {
        let (mut done, mut length) = (0, size / 2);
        while done < size {
            length = length.next_multiple_of(PAGE_SIZE).min(size - done);
            match self.piece(base.wrapping_byte_add(done), done, length) {
                Ok(_) => done += length,
                Err(Errno::AGAIN) if length > LEAST => length /= 2,
                Err(e) => {
                    unmap(base, done);
                    return Err(e);
                }
            }
        }
        Ok(())
    }
}

/// At a place of our choice, since the kernel cannot be asked for one for all of it.
fn in_pieces(source: Source<'_>, size: usize) -> Result<*mut c_void, Errno> {
    // Between 1 and 64 TiB, where hardly anything is.
    const FIRST: u64 = 1 << 40;
    const SPAN: u64 = 63 << 40;
    let mut last = Errno::NOMEM;
    for i in 0..TRIES {
        let spread = (super::ticks() ^ i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let at = (FIRST + (spread >> 1) % SPAN) & !(PAGE_SIZE as u64 - 1);
        let base = core::ptr::without_provenance_mut::<c_void>(at as usize);
        match source.fill(base, size) {
            Ok(()) => return Ok(base),
            Err(Errno::EXIST) => last = Errno::EXIST,
            Err(e) => return Err(e),
        }
    }
    Err(last)
}

/// Gives back what [`map`] gave.
///
/// # Safety
/// So many bytes from there on are such a mapping, and no thread uses it any more.
pub unsafe fn give_back(at: NonNull<u8>, size: usize) {
    unmap(at.as_ptr().cast(), size);
}

fn unmap(at: *mut c_void, size: usize) {
    if size != 0 {
        // SAFETY: mapped by this module; no other thread has seen it, or no thread uses it any
        // more.
        let _ = unsafe { munmap(at, size) };
    }
}
