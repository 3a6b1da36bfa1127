//! The file itself: where it may lie, made so that nobody else can read it or have put it there,
//! with all its blocks.
//!
//! Must not know what is in it beyond the head. Entry points: [`create`], [`more`], [`remove`].

use core::fmt::Write;
use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags};

use super::layout::{self, CHUNK_BYTES, HEAD_BYTES, PLACES, SUFFIX, head};
use super::{Chunk, File, Head};
use crate::environment::variable;
use crate::sys::text::Text;
use crate::sys::{self, clock, discard, identity, mapped};

const PATH_MAX: usize = 192;
/// The file's name, for [`more`] and [`remove`]: no descriptor is kept, which the program might
/// close. Written once, before the first reader, and by one thread.
static PATH: [AtomicU8; PATH_MAX] = [const { AtomicU8::new(0) }; PATH_MAX];
static PATH_LEN: AtomicUsize = AtomicUsize::new(0);
/// Which file it is: a name may come to mean another one (`chroot`).
static INODE: AtomicU64 = AtomicU64::new(0);

type Path = Text<PATH_MAX>;

/// Makes the file of this process and maps its head and its first chunk.
pub(super) fn create() -> Option<&'static File> {
    let uid = identity::user();
    let runtime = variable(c"XDG_RUNTIME_DIR").map(|v| v.to_bytes()).filter(|v| is_own(v, uid));
    let in_runtime = runtime.and_then(|r| {
        let mut path = Path::new();
        path.push(r);
        path.push(b"/rsocket");
        in_directory(path, uid)
    });
    let found = in_runtime.or_else(|| {
        PLACES.iter().find_map(|(before, after)| {
            let mut path = Path::new();
            let _ = write!(path, "{before}{uid}{after}");
            in_directory(path, uid)
        })
    });
    let file = found?;
    let mapped = mapped::of_file::<File>(&file, 0);
    discard(file);
    mapped.ok().inspect(|file| introduce(&file.head))
}

/// Whether a directory that a variable names is one that nobody but this user can have prepared.
fn is_own(directory: &[u8], uid: u32) -> bool {
    directory.starts_with(b"/") && rustix::fs::stat(directory).is_ok_and(|st| is_private(&st, uid))
}

fn is_private(status: &rustix::fs::Stat, uid: u32) -> bool {
    status.st_uid == uid && status.st_mode & 0o077 == 0
}

/// Makes the file in a directory of the user's own, making that too if need be. `None` where
/// anybody else could have a hand in it.
fn in_directory(mut path: Path, uid: u32) -> Option<OwnedFd> {
    if path.cut {
        return None;
    }
    // Whatever stands there is looked at below.
    let _ = rustix::fs::mkdirat(CWD, path.as_bytes(), Mode::RWXU);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(CWD, path.as_bytes(), flags, Mode::empty()).ok()?;
    let ours = rustix::fs::fstat(&dir).is_ok_and(|st| is_private(&st, uid));
    let file = if ours { in_own_directory(&dir, &mut path) } else { None };
    discard(dir);
    file
}

fn in_own_directory(dir: &OwnedFd, path: &mut Path) -> Option<OwnedFd> {
    let mut name = Text::<32>::new();
    let _ = write!(name, "{}{SUFFIX}", sys::pid());
    // One of this name belongs to a process that has gone, or to what this one was before an exec.
    let _ = rustix::fs::unlinkat(dir, name.as_bytes(), AtFlags::empty());
    path.push(b"/");
    path.push(name.as_bytes());
    if path.cut {
        return None;
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, name.as_bytes(), flags, Mode::RUSR | Mode::WUSR).ok()?;
    let room = reserve(&file, 0, HEAD_BYTES + CHUNK_BYTES);
    let inode = rustix::fs::fstat(&file).map(|st| st.st_ino);
    let (true, Ok(inode)) = (room, inode) else {
        let _ = rustix::fs::unlinkat(dir, name.as_bytes(), AtFlags::empty());
        discard(file);
        return None;
    };
    for (to, from) in PATH.iter().zip(path.as_bytes()) {
        to.store(*from, Ordering::Relaxed);
    }
    INODE.store(inode, Ordering::Relaxed);
    // Release: pairs with the acquire in path().
    PATH_LEN.store(path.as_bytes().len(), Ordering::Release);
    Some(file)
}

/// All blocks now: a file system that fills up later must not be a SIGBUS.
fn reserve(file: &OwnedFd, offset: usize, len: usize) -> bool {
    sys::file_may_reach((offset + len) as u64)
        && rustix::fs::fallocate(file, FallocateFlags::empty(), offset as u64, len as u64).is_ok()
}

/// Writes who we are; the word by which readers know the file comes last.
fn introduce(page: &Head) {
    let set = |number: usize, value: u64| {
        if let Some(word) = page.words.get(number) {
            // Release: pairs with the reader's look at the magic number before all else.
            word.store(value, Ordering::Release);
        }
    };
    let mut comm = [0u8; 16];
    if let Some(name) = sys::small_file::read_file(c"/proc/self/comm", &mut comm) {
        let len = name.trim_ascii_end().len();
        comm.iter_mut().skip(len).for_each(|b| *b = 0);
    }
    let program = u128::from_ne_bytes(comm);
    set(head::PROGRAM, program as u64);
    set(head::PROGRAM + 1, (program >> 64) as u64);
    set(head::PID, u64::from(sys::pid()));
    set(head::PID_NAMESPACE, identity::pid_namespace());
    set(head::MADE_SINCE_BOOT, clock::since_boot());
    set(head::MADE, clock::since_epoch());
    set(head::VERSION, layout::VERSION);
    set(head::MAGIC, layout::MAGIC);
}

/// The file's name, if there is a file.
fn path(out: &mut [u8; PATH_MAX]) -> Option<&[u8]> {
    // Acquire: pairs with the release in in_own_directory().
    let len = PATH_LEN.load(Ordering::Acquire);
    for (to, from) in out.iter_mut().zip(&PATH) {
        *to = from.load(Ordering::Relaxed);
    }
    out.get(..len).filter(|p| !p.is_empty())
}

/// Makes the file longer by a chunk and maps that.
pub(super) fn more(chunk: usize) -> Option<&'static Chunk> {
    let mut bytes = [0; PATH_MAX];
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::openat(CWD, path(&mut bytes)?, flags, Mode::empty()).ok()?;
    let same = rustix::fs::fstat(&file).is_ok_and(|st| st.st_ino == INODE.load(Ordering::Relaxed));
    let offset = HEAD_BYTES + chunk * CHUNK_BYTES;
    let at = if same && reserve(&file, offset, CHUNK_BYTES) {
        mapped::of_file(&file, offset).ok()
    } else {
        None
    };
    discard(file);
    at
}

/// Removes the file.
pub(super) fn remove() {
    let mut bytes = [0; PATH_MAX];
    if let Some(path) = path(&mut bytes) {
        let _ = rustix::fs::unlinkat(CWD, path, AtFlags::empty());
    }
}
