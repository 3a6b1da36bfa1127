//! Where a family keeps the arenas of connections that several of its processes hold.
//!
//! A holder that did not map a connection's arena finds it in whoever did; but that process may have ended, and the
//! peer that mapped it too, while the connection goes on between relatives of both. So before a process forks for the
//! first time it makes a socket pair that all its descendants inherit, and whoever attaches a connection that is shared
//! puts the arena's descriptor in there, as a message. What lies unread in a socket stays open as long as anybody has
//! the socket. To look for one, all messages are taken out and put back.
//!
//! Must not know connections. Entry points: [`open`], [`deposit`], [`find`], [`withdraw`].

use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::rendezvous::{Channel, MAX_FDS};
use crate::device::shm::arena::Arena;
use crate::socket::family;
use crate::sync::lock::Taken;
use crate::sync::thread::tid;
use crate::sys;

/// The two private descriptors, each plus one, in one word, so that a forking thread sees both or none; 0 for none.
static ENDS: AtomicU64 = AtomicU64::new(0);

/// An arena's name, as the text of its message.
type Name = [u64; 2];

fn word(ends: [RawFd; 2]) -> u64 {
    let [a, b] = ends.map(|fd| u64::from((fd + 1) as u32));
    a << 32 | b
}

/// The descriptors, where messages go in and where they come out; -1 where there are none.
#[must_use]
pub fn ends() -> [RawFd; 2] {
    // Relaxed: the descriptors are the kernel's, and a forked child has a copy of the word.
    let word = ENDS.load(Ordering::Relaxed);
    [(word >> 32) as i32 - 1, word as u32 as i32 - 1]
}

/// Before a fork: from now on there is a vault.
pub fn open() {
    if ENDS.load(Ordering::Relaxed) != 0 {
        return;
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let Ok((a, b)) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None) else {
        return;
    };
    let (Ok(a), b) = (sys::make_private(a), sys::make_private(b)) else { return };
    let Ok(b) = b else { return sys::close_private(a) };
    if ENDS.compare_exchange(0, word([a, b]), Ordering::Relaxed, Ordering::Relaxed).is_err() {
        // Another thread forks too, and was first.
        sys::close_private(a);
        sys::close_private(b);
    }
}

/// Whether `exec` leaves it open.
pub fn keep_across_exec(keep: bool) {
    ends().into_iter().filter(|fd| *fd >= 0).for_each(|fd| sys::keep_across_exec(fd, keep));
}

/// After `exec`: the one that the last program of this process had.
pub fn inherit(ends: [RawFd; 2]) {
    if ends.iter().all(|fd| *fd >= 0) {
        ends.into_iter().for_each(sys::inherit_private);
        ENDS.store(word(ends), Ordering::Relaxed);
    }
}

fn put(id: Name, fd: RawFd) -> bool {
    let [into, _] = ends();
    let [a, b] = id.map(u64::to_ne_bytes);
    let mut text = [0; 16];
    text.iter_mut().zip(a.into_iter().chain(b)).for_each(|(to, from)| *to = from);
    into >= 0 && Channel { fd: into }.send(&text, &[sys::borrow(fd)]).is_ok()
}

fn take() -> Option<(Name, OwnedFd)> {
    let [_, out] = ends();
    let mut text = [0; 16];
    let mut fds = [const { None }; MAX_FDS];
    let got = Channel { fd: out }.receive(&mut text, &mut fds).ok()?;
    let [first, rest @ ..] = fds;
    rest.into_iter().flatten().for_each(sys::discard);
    let fd = first?;
    let (a, b) = text.split_first_chunk::<8>()?;
    let b = b.first_chunk::<8>()?;
    if got.len != text.len() {
        sys::discard(fd);
        return None;
    }
    Some(([u64::from_ne_bytes(*a), u64::from_ne_bytes(*b)], fd))
}

/// Runs with the vault to itself; not in a signal handler that interrupted that.
fn alone<R>(f: impl FnOnce(&core::sync::atomic::AtomicU32) -> Option<R>) -> Option<R> {
    let family = family::get()?;
    if ENDS.load(Ordering::Relaxed) == 0 || matches!(family.vault.lock(tid()), Taken::Own) {
        return None;
    }
    let r = f(&family.in_vault);
    family.vault.unlock(tid());
    r
}

/// Puts a copy of an arena's descriptor in. False if there is no vault, or no room.
pub fn deposit(id: Name, fd: RawFd) -> bool {
    alone(|count| {
        // Relaxed: the lock orders it. A holder that died inside leaves it too large, which costs a look.
        put(id, fd).then(|| count.fetch_add(1, Ordering::Relaxed))
    })
    .is_some()
}

/// The arena of this name, mapped, if it is there.
#[must_use]
pub fn find(id: Name) -> Option<Arena> {
    alone(|count| {
        for _ in 0..count.load(Ordering::Relaxed) {
            let (name, fd) = take()?;
            let found = if name == id { Arena::open(&fd).ok() } else { None };
            let _ = put(name, fd.as_raw_fd());
            sys::discard(fd);
            if found.is_some() {
                return found;
            }
        }
        None
    })
}

/// Takes the arena of this name out.
pub fn withdraw(id: Name) {
    let _ = alone(|count| {
        for _ in 0..count.load(Ordering::Relaxed) {
            let Some((name, fd)) = take() else {
                count.store(0, Ordering::Relaxed);
                break;
            };
            let done = name == id;
            if !done {
                let _ = put(name, fd.as_raw_fd());
            }
            sys::discard(fd);
            if done {
                count.fetch_sub(1, Ordering::Relaxed);
                break;
            }
        }
        Some(())
    });
}
