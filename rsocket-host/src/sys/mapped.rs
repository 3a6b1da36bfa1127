//! Memory that is mapped for words that others may write: other processes, or a forked child.
//!
//! It stays mapped for good, so what is in it can be referred to for ever. Must not know what the
//! words mean. Entry points: [`Words`], [`zeros`], [`of_file`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{AtomicU32, AtomicU64};
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};

/// Made of atomic integers and nothing else: any bytes are a value, and any thread or process may
/// write them at any time.
///
/// # Safety
/// That is so, and a page is aligned well enough.
pub unsafe trait Words: Sync + 'static {}
// SAFETY: atomic integers.
unsafe impl Words for AtomicU32 {}
// SAFETY: atomic integers.
unsafe impl Words for AtomicU64 {}
// SAFETY: several of them.
unsafe impl<T: Words, const N: usize> Words for [T; N] {}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Zeros that forked children share, of which only what is touched is real.
///
/// # Errors
/// As mmap(2).
pub fn zeros<T: Words>() -> Result<&'static T, Errno> {
    let (at, flags) = (core::ptr::null_mut(), MapFlags::SHARED | MapFlags::NORESERVE);
    // SAFETY: a new mapping at a place of the kernel's choice, which stays: zeros are a value.
    unsafe { Ok(&*mmap_anonymous(at, size_of::<T>(), READ_WRITE, flags)?.cast()) }
}

/// What stands in a file from there on, shared with all processes that map it. To touch what is
/// beyond the file's end, or has no room on its disk, is a `SIGBUS`.
///
/// # Errors
/// As mmap(2).
pub fn of_file<T: Words>(file: impl AsFd, offset: usize) -> Result<&'static T, Errno> {
    let (at, size) = (core::ptr::null_mut(), size_of::<T>());
    // SAFETY: a new mapping at a place of the kernel's choice, which stays: any bytes are a value.
    unsafe { Ok(&*mmap(at, size, READ_WRITE, MapFlags::SHARED, file, offset as u64)?.cast()) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::PAGE_SIZE;
    use super::*;
    use core::sync::atomic::Ordering;

    #[test]
    fn begins_as_zeros_or_as_the_file() {
        let words = zeros::<[AtomicU64; 1000]>().unwrap();
        assert!(words.iter().all(|w| w.load(Ordering::Relaxed) == 0));
        let file = rustix::fs::memfd_create("words", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::io::pwrite(&file, &[1; 8], PAGE_SIZE as u64).unwrap();
        let word = of_file::<AtomicU64>(&file, PAGE_SIZE).unwrap();
        assert_eq!(word.swap(0, Ordering::Relaxed), 0x0101_0101_0101_0101);
        let mut read = [1; 8];
        rustix::io::pread(&file, &mut read, PAGE_SIZE as u64).unwrap();
        assert_eq!(read, [0; 8]);
    }
}
