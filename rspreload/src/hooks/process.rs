//! Where the process itself changes: `fork`, `daemon`, `_exit` and `prctl`. (`exec` is next door.)

use core::ffi::{c_int, c_ulong};

use rsocket_core::attach::reason::Reason;
use rsocket_core::attach::sandbox;
use rsocket_core::{process, readiness, socket, sys};

use crate::edge::keeping_errno;
use crate::shadow::{self, Entry};
use crate::{overheard, real};

/// Everything goes back to TCP, and what then is the kernel's alone is forgotten.
#[cold]
pub(super) fn leave_to_kernel(reason: Reason) {
    for fd in 0..shadow::end() {
        if let Entry::Connection(slot) = shadow::entry(fd)
            && socket::refuse_for_good(slot, fd, reason)
        {
            shadow::forget(fd);
            if reason == Reason::Sandboxed {
                overheard::begin(fd, slot);
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

/// A system call outside a filter's list kills the process: nothing attaches from here on, what is attached
/// goes back while it still can, and what then is the kernel's alone is forgotten, so that the hooks are as
/// good as gone.
#[cold]
fn before_sandbox() {
    sandbox::entering_sandbox();
    leave_to_kernel(Reason::Sandboxed);
    sys::sandboxed();
    // The last chance to say anything.
    process::report();
    sandbox::inside_from_now_on();
}

hook! {
    /// The steps around a fork are `pthread_atfork`'s (`rsocket_core::process`), which other spellings of it run too;
    /// only that it failed is not among them.
    fn fork() -> c_int {
        let r = real::fork();
        if r < 0 && shadow::any() {
            keeping_errno(socket::fork_failed);
        }
        r
    }

    /// The forks inside are libc's own (their steps run all the same), and so is what puts the null device on 0 to 2.
    fn daemon(stay: c_int, keep: c_int) -> c_int {
        let r = real::daemon(stay, keep);
        if r == 0 && keep == 0 {
            (0..=2).for_each(shadow::fresh);
        }
        r
    }

    /// `exit` ends in libc's own, and never here.
    fn _exit(status: c_int) {
        process::vanishing();
        real::_exit(status)
    }

    #[allow(non_snake_case)]
    fn _Exit(status: c_int) {
        process::vanishing();
        real::_exit(status)
    }

    fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
        let ahead = matches!(option, libc::PR_SET_SECCOMP | libc::PR_SET_NO_NEW_PRIVS);
        if ahead && !sandbox::inside() && (!shadow::any() || shadow::mine()) {
            keeping_errno(before_sandbox);
        }
        real::prctl(option, a, b, c, d)
    }
}
