//! Where the process itself changes: `fork`, `daemon`, `_exit`, and the calls by which it enters a
//! sandbox. (`exec` is next door.)
//!
//! A sandbox begins with its filter: `prctl(PR_SET_SECCOMP)`, by libc's function or by number, or
//! `seccomp` by number. `no_new_privs`, which has to come before it, restricts nothing, and many
//! programs set it that never filter anything. A filter that a program installs by an instruction
//! of its own is not seen here; see [`filter::sandboxed`].

use core::ffi::{c_int, c_uint, c_ulong};

use rsocket_edge::{process, readiness, socket};
use rsocket_host::facts::{filter, trial};
use rsocket_host::reason::Reason;
use rsocket_host::sys;
use rsocket_host::sys::sandbox;

use crate::edge::keeping_errno;
use crate::first_bytes_tap;
use crate::shadow::{self, Entry};

/// Everything goes back to TCP, and what then is the kernel's alone is forgotten.
#[cold]
pub(crate) fn leave_to_kernel(reason: Reason) {
    for fd in 0..shadow::end() {
        if let Entry::Connection(slot) = shadow::entry(fd)
            && socket::refuse_for_good(slot, fd, reason)
        {
            shadow::forget(fd);
            if reason == Reason::Sandboxed {
                first_bytes_tap::begin(fd, slot);
            }
        }
    }
    readiness::epoll::dissolve();
    for fd in 0..shadow::end() {
        if matches!(shadow::entry(fd), Entry::Set | Entry::Listener(_)) {
            shadow::forget(fd);
        }
    }
}

/// A system call outside a filter's list kills the process. So nothing attaches from here on, and
/// what is attached goes back while it still can. The library forgets what then is the kernel's
/// alone, so that the hooks are as good as gone.
#[cold]
fn before_sandbox() {
    sandbox::entering_sandbox();
    leave_to_kernel(Reason::Sandboxed);
    sys::sandboxed();
    // The last chance to say anything.
    process::report();
    sandbox::inside_from_now_on();
}

/// The program's next call may put it into a sandbox.
fn sandbox_ahead() {
    // Not for what a vfork child, in its parent's memory, does to itself.
    if !sandbox::inside() && (!shadow::any() || shadow::mine()) {
        keeping_errno(before_sandbox);
    }
}

/// Whether a call of `seccomp` may install a filter; one that the kernel is going to refuse counts,
/// too. Not those by which programs find out what it can do: other operations, and arguments that
/// no filter can have.
const fn filters(operation: c_uint, flags: c_uint, arguments: usize) -> bool {
    match operation {
        libc::SECCOMP_SET_MODE_STRICT => flags == 0 && arguments == 0,
        libc::SECCOMP_SET_MODE_FILTER => arguments != 0,
        _ => false,
    }
}

/// Before `seccomp`. With whatever flags: a filter for one thread is a filter for whatever that
/// thread calls, and each thread calls us.
pub(crate) fn before_seccomp(operation: c_uint, flags: c_uint, arguments: usize) {
    if filters(operation, flags, arguments) {
        sandbox_ahead();
    }
}

/// Before `landlock_restrict_self`. Landlock kills no process for a call. But a ruleset, which
/// cannot be looked into, may forbid to signal a waker of a process outside, which then sleeps for
/// good. Without a ruleset it is only about logs.
pub(crate) fn before_landlock(ruleset: c_int) {
    if ruleset >= 0 {
        sandbox_ahead();
    }
}

/// What the program's next call says about its sandbox, if it is about that.
pub(crate) fn before_prctl(option: c_int, a: c_ulong, b: c_ulong) {
    match option {
        // As with `seccomp`: a filter that is none asks whether there could be one.
        libc::PR_SET_SECCOMP if a != c_ulong::from(libc::SECCOMP_MODE_FILTER) || b != 0 => {
            sandbox_ahead()
        }
        libc::PR_SET_NO_NEW_PRIVS => filter::may_come(),
        _ => {}
    }
}

/// After `fork`, in both processes. The steps around it are `pthread_atfork`'s
/// (`rsocket_edge::process`), which other spellings of it run too; only that it failed is not among
/// them.
pub(crate) fn forked(r: c_int) -> c_int {
    if r > 0 {
        trial::has_forked();
    } else if r < 0 && shadow::any() {
        keeping_errno(socket::fork_failed);
    }
    r
}

/// After `daemon`. The forks inside are libc's own (their steps run all the same), and so is what
/// puts the null device on 0 to 2.
pub(crate) fn detached(r: c_int, keep: c_int) -> c_int {
    if r == 0 && keep == 0 {
        (0..=2).for_each(shadow::fresh);
    }
    r
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_no_filters() {
        let (strict, filter) = (libc::SECCOMP_SET_MODE_STRICT, libc::SECCOMP_SET_MODE_FILTER);
        assert!(filters(strict, 0, 0) && filters(filter, 0, 4096));
        assert!(filters(filter, libc::SECCOMP_FILTER_FLAG_TSYNC as c_uint, 4096));
        // Whether there is a system call, a flag, an action; how large a notification is.
        assert!(!filters(strict, 1, 0) && !filters(filter, 1, 0));
        assert!(!filters(libc::SECCOMP_GET_ACTION_AVAIL, 0, 4096));
        assert!(!filters(libc::SECCOMP_GET_NOTIF_SIZES, 0, 4096));
    }
}
