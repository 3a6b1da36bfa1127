//! Numbers for private descriptors where the program can have none. They are at or above its soft
//! limit on open files, so that they take nothing from the program.
//!
//! The kernel compares a number with the limit when it hands it out, and never again. So the limit
//! is raised, and put back. Where the program has threads that could see it, or fork meanwhile,
//! that is done to a process which lives for that moment only. Such a process has its own limits,
//! and this process's descriptors and memory. Must not know what the descriptors are for. Entry
//! point: [`copy`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use rustix::process::{Resource, Rlimit, prlimit};

use super::errand;

/// The highest soft limit that is gone beyond: the kernel's table of descriptors, which every fork
/// copies, reaches to the highest number.
const HIGHEST: u64 = 16384;
/// How many numbers there are to be above the limit.
const ROOM: u64 = 4096;
/// How often a thread looks whether another is done before it does without.
const PATIENCE: u32 = 2000;

/// Set when the kernel has refused to raise the hard limit: without `CAP_SYS_RESOURCE` it always
/// does.
static BOUND: AtomicBool = AtomicBool::new(false);

/// Another number for what `fd` names, close-on-exec. `None` where there is none above the limit:
/// it may not be raised, or it is so high that none is needed there. Does not block for long.
/// `now` are the limits.
pub(super) fn copy(fd: BorrowedFd<'_>, now: Rlimit) -> Option<OwnedFd> {
    let from = RawFd::try_from(now.current.filter(|soft| *soft <= HIGHEST)?).ok()?;
    let task =
        Task { fd: fd.as_raw_fd(), from, now, raised: raised(now)?, found: AtomicI32::new(-1) };
    let run = |task: &Task| {
        if is_alone() { task.run() } else { elsewhere(task) }
    };
    if !super::is_sandboxed() {
        errand::alone(PATIENCE, rustix::thread::sched_yield, || {
            errand::with_signals_blocked(|| run(&task))
        });
    }
    let found = task.found.load(Ordering::Relaxed);
    // SAFETY: the kernel has just given the number, and no other owner knows of it.
    (found >= 0).then(|| unsafe { OwnedFd::from_raw_fd(found) })
}

/// Whether [`copy`] can find a number at all.
pub(super) fn is_possible(now: Rlimit) -> bool {
    now.current.is_some_and(|soft| soft <= HIGHEST) && raised(now).is_some()
}

/// The limits for that moment.
fn raised(now: Rlimit) -> Option<Rlimit> {
    let wanted = now.current?.checked_add(ROOM)?;
    match now.maximum {
        None => Some(Rlimit { current: Some(wanted), maximum: None }),
        Some(hard) if hard >= now.current?.saturating_add(ROOM / 16) => {
            Some(Rlimit { current: Some(wanted.min(hard)), maximum: Some(hard) })
        }
        // Relaxed: the kernel's word, which is asked for once more at the worst.
        Some(_) if BOUND.load(Ordering::Relaxed) => None,
        Some(_) => Some(Rlimit { current: Some(wanted), maximum: Some(wanted) }),
    }
}

/// Whether this thread is the only one: then no other thread sees what it does to the limit.
fn is_alone() -> bool {
    // As in has_threads(), but the library's own count, too: they are not the thread that may fork.
    rustix::fs::stat(c"/proc/self/task").is_ok_and(|s| s.st_nlink <= 3)
}

/// What is to be done.
struct Task {
    fd: RawFd,
    from: RawFd,
    now: Rlimit,
    raised: Rlimit,
    /// The new number; -1 if there is none. Relaxed: written by this thread, or by a process that
    /// has ended.
    found: AtomicI32,
}

impl Task {
    /// In the process whose limit is to be raised.
    fn run(&self) {
        let Ok(before) = prlimit(None, Resource::Nofile, self.raised) else {
            if self.raised.maximum != self.now.maximum {
                BOUND.store(true, Ordering::Relaxed);
            }
            return;
        };
        if let Ok(copy) = rustix::io::fcntl_dupfd_cloexec(super::borrow(self.fd), self.from) {
            self.found.store(copy.into_raw_fd(), Ordering::Relaxed);
        }
        // What another thread or process has set meanwhile stays.
        if let Ok(found) = prlimit(None, Resource::Nofile, before)
            && found != self.raised
        {
            let _ = prlimit(None, Resource::Nofile, found);
        }
    }
}

extern "C" fn child(task: *mut c_void) -> c_int {
    // SAFETY: elsewhere() passes a task that outlives this process, and no other thread changes it.
    unsafe { &*task.cast::<Task>() }.run();
    0
}

/// Runs the task in a process of its own that shares memory and descriptors with this one.
fn elsewhere(task: &Task) {
    if errand::is_emulated() {
        return;
    }
    let task = core::ptr::from_ref(task).cast_mut().cast::<c_void>();
    // SAFETY: copy() calls this inside both; the task is one, and its system calls are rustix's.
    if let Ok(pid) = unsafe { errand::run(libc::CLONE_VM | libc::CLONE_FILES, child, task) } {
        errand::reap(pid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{getrlimit, setrlimit};
    use std::os::fd::AsFd;

    /// In a child, whose limits are its own.
    fn in_child(f: impl FnOnce() -> bool) {
        // SAFETY: the child makes system calls only, and maps memory.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let right = f();
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        let mut status = 0;
        // SAFETY: a child of ours, and room for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    fn limited(soft: u64, hard: u64) -> Option<Rlimit> {
        let limits = Rlimit { current: Some(soft), maximum: Some(hard) };
        setrlimit(Resource::Nofile, limits).is_ok().then_some(limits)
    }

    fn stands_above(file: &std::fs::File, limits: Rlimit) -> bool {
        copy(file.as_fd(), getrlimit(Resource::Nofile)).is_some_and(|c| c.as_raw_fd() >= 64)
            && getrlimit(Resource::Nofile) == limits
    }

    #[test]
    fn a_copy_stands_above_and_the_limit_stays() {
        let file = std::fs::File::open("/dev/null").unwrap();
        in_child(|| {
            limited(64, 1024).is_some_and(|limits| is_alone() && stands_above(&file, limits))
        });
    }

    #[test]
    fn with_threads_nobody_sees_the_limit_raised() {
        let file = std::fs::File::open("/dev/null").unwrap();
        in_child(|| {
            let Some(limits) = limited(64, 1024) else { return false };
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let watcher = scope.spawn(|| {
                    let mut same = true;
                    while !over.load(Ordering::Relaxed) {
                        same &= getrlimit(Resource::Nofile) == limits;
                    }
                    same
                });
                let right = (0..200).all(|_| stands_above(&file, limits));
                over.store(true, Ordering::Relaxed);
                // SAFETY: asks for any child, of which there is none.
                let none = unsafe { libc::waitpid(-1, core::ptr::null_mut(), libc::__WALL) } == -1;
                watcher.join().is_ok_and(|same| same) && right && none
            })
        });
    }

    #[test]
    fn where_the_limits_meet_it_takes_a_privilege() {
        let file = std::fs::File::open("/dev/null").unwrap();
        in_child(|| {
            let set = limited(64, 64).is_some();
            let may =
                prlimit(None, Resource::Nofile, Rlimit { current: Some(64), maximum: Some(65) });
            let Some(limits) = limited(64, 64) else { return false };
            set && stands_above(&file, limits) == may.is_ok()
                && getrlimit(Resource::Nofile) == limits
        });
    }
}
