//! Finding an arena that another process has open, by the arena's name.
//!
//! For owners of a connection that a sibling attached: the sibling may have ended since, and no
//! other process can hand over the descriptor. What is found is checked like an arena that a peer
//! sent.

use core::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};

use crate::device::shm::arena::Unused;
use crate::sync::{living, stack};
use crate::sys::files::{self, For};

/// The memfds that arenas live in are called this (`device::shm::arena`).
const LINK: &[u8] = b"/memfd:rsockets";

/// Maps the arena with this name out of the descriptors of a process, if we may look at them.
#[must_use]
pub(super) fn arena_of(pid: u32, id: [u64; 2]) -> Option<Unused> {
    stack::on_own(|| arena_of_process(pid, id))
}

fn arena_of_process(pid: u32, id: [u64; 2]) -> Option<Unused> {
    let mut found = arena_of_thread(pid, id);
    // Where the thread that the process began with has left, /proc says that the process has no
    // descriptors.
    if found.is_none() {
        living::any_thread(pid, |tid| {
            found = arena_of_thread(tid, id);
            found.is_some()
        });
    }
    found.flatten()
}

/// The same of one thread; `None` if it has no descriptors at all, or we may not look at them.
fn arena_of_thread(tid: u32, id: [u64; 2]) -> Option<Option<Unused>> {
    let mut path = [0u8; 32];
    let path = text(&mut path, tid)?;
    let directory = files::open(path, For::Listing).ok()?;
    let mut space = [core::mem::MaybeUninit::uninit(); 2048];
    let (mut any, mut found) = (false, None);
    files::each_entry(directory.as_fd(), &mut space, |name, _| {
        any |= name.to_bytes().first().is_some_and(u8::is_ascii_digit);
        found = open_if(&directory, name, id);
        if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    crate::sys::discard(directory);
    any.then_some(found)
}

fn open_if(directory: &OwnedFd, name: &core::ffi::CStr, id: [u64; 2]) -> Option<Unused> {
    let mut target = [core::mem::MaybeUninit::uninit(); 64];
    if !files::link_in(directory, name, &mut target)?.starts_with(LINK) {
        return None;
    }
    let fd = files::open_in(directory, name, For::Change).ok()?;
    let found = Unused::open(&fd);
    crate::sys::discard(fd);
    let arena = found.ok()?;
    if arena.id() == id {
        return Some(arena);
    }
    arena.discard();
    None
}

/// "/proc/PID/fd", without allocating.
fn text(buffer: &mut [u8; 32], pid: u32) -> Option<&core::ffi::CStr> {
    use std::io::Write;
    let mut rest: &mut [u8] = buffer;
    write!(rest, "/proc/{pid}/fd\0").ok()?;
    core::ffi::CStr::from_bytes_until_nul(buffer).ok()
}
