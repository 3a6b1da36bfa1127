//! Where a fork group keeps the arenas of connections that several of its processes hold.
//!
//! An owner that did not map a connection's arena finds it in a process that did. But that process
//! may have ended, and the peer that mapped it too, while the connection goes on between siblings
//! of both. So before a process forks for the first time it makes a socket pair that all its
//! descendants inherit. A process that attaches a connection that is shared puts the arena's
//! descriptor in there, as a message. What lies unread in a socket stays open as long as any
//! process has the socket. A process that looks for a descriptor takes nothing out (`MSG_PEEK`,
//! with `SO_PEEK_OFF`, unix(7)): it may be killed, or become another program, at any moment.
//!
//! Must not know connections. Entry points: [`open`], [`deposit`], [`find`], [`withdraw`].

use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::conn::fork_group;
use crate::device::shm::arena::Unused;
use crate::host::raw;
use crate::seqpacket::{self, Channel, MAX_FDS};
use crate::sys;

/// The two private descriptors, each plus one, in one word, so that a forking thread sees both or
/// none; 0 for none.
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

/// Before a fork: from now on there is a fd stash.
pub fn open() {
    if ENDS.load(Ordering::Relaxed) != 0 {
        return;
    }
    let Ok((a, b)) = seqpacket::pair() else { return };
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

/// The length of a message.
const TEXT: usize = 16;

fn text_of(id: Name) -> [u8; TEXT] {
    let [a, b] = id.map(u64::to_ne_bytes);
    let mut text = [0; TEXT];
    text.iter_mut().zip(a.into_iter().chain(b)).for_each(|(to, from)| *to = from);
    text
}

fn name_of(text: &[u8; TEXT]) -> Option<Name> {
    let (a, b) = text.split_first_chunk::<8>()?;
    Some([u64::from_ne_bytes(*a), u64::from_ne_bytes(*b.first_chunk::<8>()?)])
}

/// `there` is -1 where there is no second descriptor.
fn put(id: Name, fd: RawFd, there: RawFd) -> bool {
    let [into, _] = ends();
    let both = [sys::borrow(fd), sys::borrow(there)];
    let fds = both.get(..if there < 0 { 1 } else { 2 }).unwrap_or_default();
    into >= 0 && Channel { fd: into }.send(&text_of(id), fds).is_ok()
}

/// Where the next look begins, in messages.
fn look_from(place: usize) -> Option<()> {
    let [_, out] = ends();
    let bytes = i32::try_from(place.checked_mul(TEXT)?).ok()?;
    raw::setsockopt_int(out, libc::SOL_SOCKET, libc::SO_PEEK_OFF, bytes).ok()
}

/// The name in the message where the look stands, which goes on to the next one.
fn name_here() -> Option<Name> {
    let [_, out] = ends();
    let mut text = [0; TEXT];
    let bytes = Channel { fd: out }.glance(&mut text);
    if bytes == TEXT { name_of(&text) } else { None }
}

/// Copies of the descriptors in the message where the look stands.
fn descriptors_here() -> Option<(OwnedFd, Option<OwnedFd>)> {
    let [_, out] = ends();
    let mut fds = [const { None }; MAX_FDS];
    let got = Channel { fd: out }.peek(&mut [0; TEXT], &mut fds);
    let [first, second, rest @ ..] = fds;
    rest.into_iter().flatten().for_each(sys::discard);
    if got.is_err() {
        [first, second].into_iter().flatten().for_each(sys::discard);
        return None;
    }
    Some((first?, second))
}

/// Takes the first message out.
fn take_first() {
    let [_, out] = ends();
    let mut fds = [const { None }; MAX_FDS];
    let _ = Channel { fd: out }.receive(&mut [0; TEXT], &mut fds);
    fds.into_iter().flatten().for_each(sys::discard);
}

/// Runs with the fd stash to itself; not in a signal handler that interrupted that. A holder that
/// died inside has left nothing worse than a message that is there twice.
fn alone<R>(f: impl FnOnce() -> Option<R>) -> Option<R> {
    let group = fork_group::get()?;
    if ENDS.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let _held = group.fd_stash.hold()?;
    f()
}

/// Puts a copy of an arena's descriptor in, and of the socket by which its peer is woken, if that
/// is not -1. False if there is no fd stash, or no room.
pub fn deposit(id: Name, fd: RawFd, there: RawFd) -> bool {
    alone(|| put(id, fd, there).then_some(())).is_some()
}

/// The arena of this name, mapped, and what is with it, if it is there.
#[must_use]
pub fn find(id: Name) -> Option<(Unused, Option<OwnedFd>)> {
    alone(|| {
        look_from(0)?;
        let place = core::iter::from_fn(name_here).position(|name| name == id)?;
        look_from(place)?;
        let (fd, there) = descriptors_here()?;
        let found = Unused::open(&fd).ok();
        sys::discard(fd);
        match found {
            Some(arena) => Some((arena, there)),
            None => {
                there.into_iter().for_each(sys::discard);
                None
            }
        }
    })
}

/// Takes the arena of this name out.
pub fn withdraw(id: Name) {
    let _ = alone(|| {
        look_from(0)?;
        let count = core::iter::from_fn(name_here).count();
        for _ in 0..count {
            look_from(0)?;
            let name = name_here()?;
            if name != id {
                // To the end of the queue, and only then away from its beginning.
                look_from(0)?;
                let (fd, there) = descriptors_here()?;
                let second = there.as_ref().map_or(-1, AsRawFd::as_raw_fd);
                let moved = put(name, fd.as_raw_fd(), second);
                [Some(fd), there].into_iter().flatten().for_each(sys::discard);
                if !moved {
                    break;
                }
            }
            take_first();
        }
        Some(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_looked_for_stays() {
        // The fork group and the fd stash are this process's; other tests of this program have
        // arenas of other names.
        assert!(fork_group::get_or_map().is_some());
        open();
        let made: Vec<_> = (0..3).filter_map(|_| Unused::create(1).ok()).collect();
        assert_eq!(made.len(), 3);
        let names: Vec<Name> = made.iter().map(|(arena, _)| arena.id()).collect();
        assert!(names.iter().zip(&made).all(|(name, (_, fd))| deposit(*name, fd.as_raw_fd(), -1)));
        let there = |name: &Name| {
            find(*name).is_some_and(|(arena, _)| {
                let right = arena.id() == *name;
                arena.discard();
                right
            })
        };
        for _ in 0..3 {
            assert!(names.iter().all(there), "a look takes nothing");
        }
        for _ in 0..40 {
            // SAFETY: the child makes system calls only, on memory that is there, until it is
            // killed.
            let child = unsafe { libc::fork() };
            if child == 0 {
                crate::sync::thread::forked();
                loop {
                    let _ = there(&names[2]);
                }
            }
            assert!(child > 0);
            std::thread::sleep(core::time::Duration::from_millis(2));
            // SAFETY: a child of ours, and no memory is passed.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, core::ptr::null_mut(), 0);
            }
            assert!(names.iter().all(there), "nor does one that is killed");
        }
        assert!(
            deposit(names[1], made[1].1.as_raw_fd(), -1),
            "as after a death in the midst of a withdrawal"
        );
        withdraw(names[1]);
        assert!(!there(&names[1]) && there(&names[0]) && there(&names[2]));
        withdraw(names[0]);
        withdraw(names[2]);
        assert!(!names.iter().any(there));
    }
}
