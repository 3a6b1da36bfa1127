//! Whether a system call filter watches over the process, so that it is not safe to attach: a call
//! outside the filter kills it (`life-of-a-connection §3`).
//!
//! Must not know connections. Entry points: [`sandboxed`], [`may_be_deadly`], [`may_come`].

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::sync::atomic::{AtomicU8, Ordering};

use rustix::io::Errno;

use super::status::{self, Status};
use super::trial::{self, Seccomp};
use crate::sys::sandbox::entered;

/// What `/proc/thread-self/status` said: 0 nothing read yet, else [`KNOWN`] with the bits below.
static STATUS: AtomicU8 = AtomicU8::new(0);
const KNOWN: u8 = 1;
const FILTERED: u8 = 2;
/// What it said is not the last word.
const NO_NEW_PRIVS: u8 = 4;

/// `no_new_privs` has been set: from here on the process may be filtered, at any time, without
/// having been more before.
pub fn may_come() {
    // Relaxed: as in find_out().
    STATUS.fetch_or(NO_NEW_PRIVS, Ordering::Relaxed);
}

/// Whether the process must be left alone. What a hook saw decides. Else, in a process under a
/// filter, what the administrator says ([`Seccomp`]) and what the filter allows ([`trial`]) decide.
///
/// `no_new_privs` alone is no sandbox: service managers set it for whole trees of processes, and
/// servers for themselves. But a process that has it may put itself into a sandbox by a system call
/// of which no hook hears. So there this reads `/proc/thread-self/status` anew each time. (Under a
/// filter that kills for that, what follows would kill, too.)
#[must_use]
pub fn sandboxed(seccomp: Seccomp) -> bool {
    if entered() {
        return true;
    }
    if seccomp == Seccomp::Trust {
        return false;
    }
    let known = find_out();
    known & FILTERED != 0 && !trial::has_passed(seccomp, known & NO_NEW_PRIVS != 0)
}

/// Whether a system call that the program would not make itself could be deadly, as far as is
/// known. For that this finds out nothing but whether there is a filter.
#[must_use]
pub fn may_be_deadly(seccomp: Seccomp) -> bool {
    entered()
        || seccomp != Seccomp::Trust
            && find_out() & FILTERED != 0
            && (seccomp == Seccomp::Refuse || !trial::is_known_to_pass())
}

/// What is known of this process. Reads `/proc/thread-self/status` if it has not been read yet, or
/// if it may say something else by now. Does not read it once a hook has spoken: then reading could
/// already be deadly. To be called once before the program can have changed its root directory to
/// one without `/proc`; what was found then counts there.
fn find_out() -> u8 {
    // Relaxed: the byte stands for itself, and two first readers store the same.
    let known = STATUS.load(Ordering::Relaxed);
    if entered() || known & KNOWN != 0 && (known & FILTERED != 0 || known & NO_NEW_PRIVS == 0) {
        return known;
    }
    let found = match status::own() {
        Ok(found) => bits(found),
        Err(_) if known & KNOWN != 0 => 0,
        // That there is no descriptor, or memory, for the question now is no answer to be
        // remembered.
        Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => return known | FILTERED,
        Err(_) => FILTERED,
    };
    if known & KNOWN != 0 && found & FILTERED != 0 {
        trial::came_late();
    }
    STATUS.fetch_or(KNOWN | found, Ordering::Relaxed) | KNOWN | found
}

const fn bits(found: Status) -> u8 {
    (if found.filters != 0 { FILTERED } else { 0 })
        | (if found.no_new_privs { NO_NEW_PRIVS } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that has all its descriptors in use when its first socket appears is in no sandbox
    /// for that, later.
    #[test]
    fn what_could_not_be_asked_is_not_remembered() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        // SAFETY: the child makes a few system calls and leaves by _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let usual = getrlimit(Resource::Nofile);
            STATUS.store(0, Ordering::Relaxed);
            let less = setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..usual });
            let first = find_out();
            let more = setrlimit(Resource::Nofile, usual);
            let then = find_out();
            let right = less.is_ok()
                && more.is_ok()
                && first & FILTERED != 0
                && then & (KNOWN | FILTERED) == KNOWN;
            // SAFETY: ends the child without running the test harness's exit handlers.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above, into a local.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    #[test]
    fn this_process() {
        let first = find_out();
        assert!(first & KNOWN != 0 && find_out() == first);
    }
}
