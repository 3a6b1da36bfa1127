//! The file itself, with all its blocks, in a directory of the user's own.
//!
//! Must not know what is in it beyond the head. Entry points: [`create`], [`more`], [`remove`].

use core::fmt::Write;
use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::os::fd::OwnedFd;

use super::layout::{self, CHUNK_BYTES, HEAD_BYTES, SUFFIX, head};
use super::{Chunk, File, Head};
use crate::own_directory::{self, PATH_MAX};
use crate::sys::files::{self, For};
use crate::sys::text::Text;
use crate::sys::{self, clock, discard, identity, mapped};

/// The file's name, for [`more`] and [`remove`]: no descriptor is kept, which the program might
/// close. Written once, before the first reader, and by one thread.
static PATH: [AtomicU8; PATH_MAX] = [const { AtomicU8::new(0) }; PATH_MAX];
static PATH_LEN: AtomicUsize = AtomicUsize::new(0);
/// Which file it is: a name may come to mean another one (`chroot`).
static INODE: AtomicU64 = AtomicU64::new(0);

/// Makes the file of this process and maps its head and its first chunk.
pub(super) fn create() -> Option<&'static File> {
    let file = own_directory::find(in_own_directory)?;
    let mapped = mapped::of_file::<File>(&file, 0);
    discard(file);
    mapped.ok().inspect(|file| introduce(&file.head))
}

fn in_own_directory(dir: &OwnedFd, path: &mut own_directory::Path) -> Option<OwnedFd> {
    let mut name = Text::<32>::new();
    let _ = write!(name, "{}{SUFFIX}", sys::pid());
    // One of this name belongs to a process that has gone, or to what this one was before an exec.
    let _ = files::remove_in(dir, name.as_bytes());
    path.push(b"/");
    path.push(name.as_bytes());
    if path.cut {
        return None;
    }
    let file = files::open_in(dir, name.as_bytes(), For::New).ok()?;
    let room = reserve(&file, 0, HEAD_BYTES + CHUNK_BYTES);
    let inode = files::status_of(&file).map(|st| st.inode());
    let (true, Ok(inode)) = (room, inode) else {
        let _ = files::remove_in(dir, name.as_bytes());
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
    sys::file_may_reach((offset + len) as u64) && files::reserve(file, offset as u64, len as u64)
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
    let file = files::open(path(&mut bytes)?, For::OwnChange).ok()?;
    let same = files::status_of(&file).is_ok_and(|st| st.inode() == INODE.load(Ordering::Relaxed));
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
        let _ = files::remove(path);
    }
}
