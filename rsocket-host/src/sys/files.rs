//! Files and directories: opened for what the library does with them, looked at, read, written.
//!
//! Every descriptor is close-on-exec and the caller's to [`super::discard`]. Must not know what is
//! in a file. Entry points: [`open`], [`open_in`], [`status`], [`read`], [`each_entry`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::{
    Access, AtFlags, CWD, FallocateFlags, FileType, MemfdFlags, Mode, OFlags, RawDir, SeekFrom,
};
use rustix::path::Arg;

use super::borrow;
use crate::failure::Failure;

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum For {
    /// To be read; a FIFO is waited for.
    Reading,
    /// To be read, where something else may stand in its place: a FIFO or a terminal does no harm.
    ReadingAtOnce,
    /// To be read and written.
    Change,
    /// As [`Self::Change`], if it is no link; a FIFO is not waited for.
    OwnChange,
    /// A new file of the user's alone: fails with `EEXIST` where there is anything.
    New,
    /// A directory: its entries, and what is in it.
    Listing,
    /// As [`Self::Listing`], if it is no link.
    OwnListing,
    /// The file itself, or the link, as a place alone: it cannot be read.
    Place,
    /// As [`Self::Place`], if it is a directory.
    DirectoryPlace,
}

impl For {
    const fn flags(self) -> OFlags {
        match self {
            Self::Reading => OFlags::RDONLY,
            Self::ReadingAtOnce => OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY),
            Self::Change => OFlags::RDWR,
            Self::OwnChange => OFlags::RDWR.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK),
            Self::New => {
                OFlags::RDWR.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW)
            }
            Self::Listing => OFlags::RDONLY.union(OFlags::DIRECTORY),
            Self::OwnListing => Self::Listing.flags().union(OFlags::NOFOLLOW),
            Self::Place => OFlags::PATH.union(OFlags::NOFOLLOW),
            Self::DirectoryPlace => Self::Place.flags().union(OFlags::DIRECTORY),
        }
    }

    const fn mode(self) -> Mode {
        match self {
            Self::New => Mode::RUSR.union(Mode::WUSR),
            _ => Mode::empty(),
        }
    }
}

/// Opens a file.
///
/// # Errors
/// As open(2).
pub fn open(path: impl Arg, purpose: For) -> Result<OwnedFd, Failure> {
    open_in(CWD, path, purpose)
}

/// As [`open`], of a directory.
///
/// # Errors
/// As openat(2).
pub fn open_in(directory: impl AsFd, name: impl Arg, purpose: For) -> Result<OwnedFd, Failure> {
    let flags = purpose.flags() | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(directory, name, flags, purpose.mode())?)
}

/// An empty file in memory.
///
/// # Errors
/// As memfd_create(2).
pub fn in_memory(name: &str) -> Result<OwnedFd, Failure> {
    Ok(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?)
}

/// A file in memory of that many zeros. The caller has asked [`super::file_may_reach`].
///
/// # Errors
/// As memfd_create(2) and ftruncate(2).
pub fn zeros_in_memory(name: &str, size: u64) -> Result<OwnedFd, Failure> {
    let file = in_memory(name)?;
    match rustix::fs::ftruncate(&file, size) {
        Ok(()) => Ok(file),
        Err(e) => {
            super::discard(file);
            Err(e.into())
        }
    }
}

/// What the kernel says of a file.
#[derive(Clone, Copy)]
pub struct Status(rustix::fs::Stat);

impl Status {
    fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.0.st_mode)
    }

    /// An ordinary file.
    #[must_use]
    pub fn is_regular(&self) -> bool {
        self.kind() == FileType::RegularFile
    }

    /// A directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.kind() == FileType::Directory
    }

    /// A socket, or the name of one.
    #[must_use]
    pub fn is_socket(&self) -> bool {
        self.kind() == FileType::Socket
    }

    /// A pipe, with a name or without.
    #[must_use]
    pub fn is_pipe(&self) -> bool {
        self.kind() == FileType::Fifo
    }

    /// Whose it is.
    #[must_use]
    pub const fn owner(&self) -> u32 {
        self.0.st_uid
    }

    /// Whether it is this user's, and no other user may do anything with it.
    #[must_use]
    pub const fn is_private_to(&self, user: u32) -> bool {
        self.0.st_uid == user && self.0.st_mode & 0o077 == 0
    }

    /// Whether a program in it runs as its owner or as its group.
    #[must_use]
    pub const fn changes_user(&self) -> bool {
        self.0.st_mode & (libc::S_ISUID | libc::S_ISGID) != 0
    }

    /// Its number on its file system.
    #[must_use]
    pub const fn inode(&self) -> u64 {
        self.0.st_ino
    }

    /// Where the file is, and what its contents cannot change without: its file system, its number
    /// there, its size in bytes, and when it changed, in seconds and nanoseconds.
    #[must_use]
    #[allow(clippy::unnecessary_cast, reason = "the types are the architecture's")]
    pub const fn identity(&self) -> [u64; 5] {
        let st = &self.0;
        [
            st.st_dev as u64,
            st.st_ino,
            st.st_size as u64,
            st.st_ctime as u64,
            st.st_ctime_nsec as u64,
        ]
    }

    /// How many names it has.
    #[must_use]
    #[allow(clippy::unnecessary_cast, reason = "the type is the architecture's")]
    pub const fn links(&self) -> u64 {
        self.0.st_nlink as u64
    }

    /// Bytes.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.0.st_size as u64
    }

    /// Seconds between 1970 and the last change of what is said here.
    #[must_use]
    #[allow(clippy::unnecessary_cast, reason = "the type is the architecture's")]
    pub const fn changed(&self) -> u64 {
        self.0.st_ctime as u64
    }
}

/// What the kernel says of the file of that name.
///
/// # Errors
/// As stat(2).
pub fn status(path: impl Arg) -> Result<Status, Failure> {
    Ok(Status(rustix::fs::stat(path)?))
}

/// As [`status`], of an open file.
///
/// # Errors
/// As fstat(2).
pub fn status_of(file: impl AsFd) -> Result<Status, Failure> {
    Ok(Status(rustix::fs::fstat(file)?))
}

/// As [`status`], of a directory's entry, which may be a link.
///
/// # Errors
/// As fstatat(2).
pub fn status_in(directory: impl AsFd, name: impl Arg) -> Result<Status, Failure> {
    Ok(Status(rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?))
}

/// Whether the real user may read it.
#[must_use]
pub fn may_read(path: impl Arg) -> bool {
    rustix::fs::access(path, Access::READ_OK).is_ok()
}

/// Whether the real user may write to it.
#[must_use]
pub fn may_write(path: impl Arg) -> bool {
    rustix::fs::access(path, Access::WRITE_OK).is_ok()
}

/// Whether the effective user may execute it.
#[must_use]
pub fn may_execute(path: impl Arg) -> bool {
    rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

/// Whether executing it gives capabilities.
#[must_use]
pub fn gives_capabilities(file: impl AsFd) -> bool {
    rustix::fs::fgetxattr(file, c"security.capability", &mut [0_u8; 64][..]).is_ok()
}

/// Reads what comes next.
///
/// # Errors
/// As read(2).
pub fn read(file: impl AsFd, into: &mut [u8]) -> Result<usize, Failure> {
    Ok(rustix::io::read(file, into)?)
}

/// As [`read`], again after a signal.
///
/// # Errors
/// As read(2), but for `EINTR`.
pub fn read_through_signals(file: impl AsFd, into: &mut [u8]) -> Result<usize, Failure> {
    let file = file.as_fd();
    Ok(rustix::io::retry_on_intr(|| rustix::io::read(file, &mut *into))?)
}

/// Reads from a position, and leaves the file's own where it is.
///
/// # Errors
/// As pread(2).
pub fn read_at(file: impl AsFd, at: u64, into: &mut [u8]) -> Result<usize, Failure> {
    Ok(rustix::io::pread(file, into, at)?)
}

/// As [`read_at`], into memory that was never written to.
///
/// # Errors
/// As pread(2).
pub fn fill_at(file: RawFd, at: u64, into: &mut [MaybeUninit<u8>]) -> Result<usize, Failure> {
    Ok(rustix::io::pread(borrow(file), into, at)?.0.len())
}

/// Writes all of it at a position; `None` where that cannot be, or not all of it. The caller has
/// asked [`super::file_may_reach`].
#[must_use]
pub fn write_at(file: impl AsFd, at: u64, bytes: &[u8]) -> Option<()> {
    (rustix::io::pwrite(file, bytes, at).ok()? == bytes.len()).then_some(())
}

/// Writes what the file takes of it. The caller has asked [`super::may_append`].
///
/// # Errors
/// As write(2).
pub fn write(file: impl AsFd, bytes: &[u8]) -> Result<usize, Failure> {
    Ok(rustix::io::write(file, bytes)?)
}

/// As [`write`], of several pieces in one call.
///
/// # Errors
/// As writev(2).
///
/// # Safety
/// The pieces are readable.
pub unsafe fn write_pieces(file: RawFd, pieces: &[libc::iovec]) -> Result<usize, Failure> {
    // SAFETY: the caller's promise. Past libc, whose writev is a hook where this library is
    // preloaded.
    let n = unsafe { libc::syscall(libc::SYS_writev, file, pieces.as_ptr(), pieces.len()) };
    usize::try_from(n).map_err(|_| Failure::last())
}

/// Where the file stands.
///
/// # Errors
/// `ESPIPE` for what has no position.
pub fn position(file: RawFd) -> Result<u64, Failure> {
    Ok(rustix::fs::tell(borrow(file))?)
}

/// Moves to a position.
///
/// # Errors
/// As lseek(2).
pub fn move_to(file: RawFd, position: u64) -> Result<(), Failure> {
    rustix::fs::seek(borrow(file), SeekFrom::Start(position))?;
    Ok(())
}

/// Whether so many bytes from there on have room on the disk now: a file system that fills up later
/// is no `SIGBUS` then. The caller has asked [`super::file_may_reach`].
#[must_use]
pub fn reserve(file: impl AsFd, at: u64, bytes: u64) -> bool {
    rustix::fs::fallocate(file, FallocateFlags::empty(), at, bytes).is_ok()
}

/// Makes a directory of the user's alone.
///
/// # Errors
/// As mkdir(2).
pub fn make_directory(path: impl Arg) -> Result<(), Failure> {
    Ok(rustix::fs::mkdirat(CWD, path, Mode::RWXU)?)
}

/// Says which users may do what with a file.
///
/// # Errors
/// As chmod(2).
pub fn permit(path: impl Arg, mode: u32) -> Result<(), Failure> {
    Ok(rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(mode), AtFlags::empty())?)
}

/// Takes a name away.
///
/// # Errors
/// As unlink(2).
pub fn remove(path: impl Arg) -> Result<(), Failure> {
    remove_in(CWD, path)
}

/// As [`remove`], of a directory.
///
/// # Errors
/// As unlinkat(2).
pub fn remove_in(directory: impl AsFd, name: impl Arg) -> Result<(), Failure> {
    Ok(rustix::fs::unlinkat(directory, name, AtFlags::empty())?)
}

/// What a link of a directory says, as far as there is room.
#[must_use]
pub fn link_in<'a>(
    directory: impl AsFd,
    name: &CStr,
    room: &'a mut [MaybeUninit<u8>],
) -> Option<&'a [u8]> {
    let (target, _) = rustix::fs::readlinkat_raw(directory, name, room).ok()?;
    Some(target)
}

/// Calls `f` with the name of each entry and what it is, as far as the directory says, until `f`
/// breaks off. The entries are read by as many as have place in `room`.
pub fn each_entry(
    directory: BorrowedFd<'_>,
    room: &mut [MaybeUninit<u8>],
    mut f: impl FnMut(&CStr, FileType) -> ControlFlow<()>,
) {
    let mut entries = RawDir::new(directory, room);
    while let Some(Ok(entry)) = entries.next() {
        if f(entry.file_name(), entry.file_type()).is_break() {
            return;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_file_in_memory_has_its_size_and_keeps_what_is_written() {
        let file = zeros_in_memory("test", 16).unwrap();
        assert_eq!(status_of(&file).unwrap().size(), 16);
        assert_eq!(write_at(&file, 4, b"four"), Some(()));
        let mut four = [0; 4];
        assert_eq!(read_at(&file, 4, &mut four), Ok(4));
        assert_eq!(&four, b"four");
        let mut none = [MaybeUninit::uninit(); 4];
        use std::os::fd::AsRawFd;
        assert_eq!(fill_at(file.as_raw_fd(), 14, &mut none), Ok(2));
    }

    #[test]
    fn a_directory_tells_its_entries_until_it_is_enough() {
        let directory = open(c"/proc/self/fd", For::Listing).unwrap();
        assert!(status_of(&directory).unwrap().is_directory());
        let mut room = [MaybeUninit::uninit(); 2048];
        let mut seen = 0;
        each_entry(directory.as_fd(), &mut room, |_, _| {
            seen += 1;
            if seen == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!(seen, 2);
    }

    #[test]
    fn what_is_new_must_not_be_there() {
        assert_eq!(open(c"/proc/self/stat", For::New).map(|_| ()), Err(Failure::Exists));
        assert_eq!(open(c"/proc/self/exe", For::OwnChange).map(|_| ()), Err(Failure::TooManyLinks));
    }
}
