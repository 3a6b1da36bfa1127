//! Where the process itself changes: `fork`, `exec`, `_exit` and `prctl`.

use core::ffi::{c_char, c_int, c_ulong};

use rsocket_core::attach::reason::Reason;
use rsocket_core::attach::sandbox;
use rsocket_core::{process, readiness, socket, sys};

use crate::edge::keeping_errno;
use crate::real;
use crate::shadow::{self, Entry};

type Strings = *const *const c_char;

/// An `exec`: `real` passes it on, and comes back only if it failed. Connections that the new program
/// inherits go back to TCP first, since it may know nothing of us. A `vfork` child leaves everything as it
/// is: it is its parent's.
fn exec(real: impl FnOnce() -> c_int) -> c_int {
    if !shadow::any() || sandbox::inside() || !shadow::mine() {
        return real();
    }
    keeping_errno(|| {
        return_inherited();
        socket::before_exec();
    });
    let r = real();
    keeping_errno(socket::exec_failed);
    r
}

/// A system call outside a filter's list kills the process: nothing attaches from here on, what is attached
/// goes back while it still can, and what then is the kernel's alone is forgotten, so that the hooks are as
/// good as gone.
#[cold]
fn before_sandbox() {
    sandbox::entering_sandbox();
    for fd in 0..shadow::end() {
        if let Entry::Connection(slot) = shadow::entry(fd)
            && socket::refuse_for_good(slot, fd)
        {
            shadow::forget(fd);
        }
    }
    readiness::epoll::dissolve();
    for fd in 0..shadow::end() {
        if matches!(shadow::entry(fd), Entry::Set | Entry::Listener(_)) {
            shadow::forget(fd);
        }
    }
    sys::sandboxed();
    // The last chance to say anything.
    process::report();
    sandbox::inside_from_now_on();
}

#[cold]
fn return_inherited() {
    for fd in 0..shadow::end() {
        let Entry::Connection(slot) = shadow::entry(fd) else { continue };
        let inherited = rustix::io::fcntl_getfd(sys::borrow(fd))
            .is_ok_and(|flags| !flags.contains(rustix::io::FdFlags::CLOEXEC));
        // What stands on 0 to 2, or belongs to nobody else, is meant for the new program; anything else it
        // merely holds open, while a relative goes on with it.
        if inherited && socket::on_device(slot) && (fd <= 2 || !socket::family::shared(slot)) {
            socket::refuse(slot, fd, Reason::Executed);
        }
    }
    socket::leaving();
}

hook! {
    fn execv(path: *const c_char, argv: Strings) -> c_int {
        exec(|| real::execv(path, argv))
    }

    fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
        exec(|| real::execve(path, argv, envp))
    }

    fn execvp(file: *const c_char, argv: Strings) -> c_int {
        exec(|| real::execvp(file, argv))
    }

    fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> c_int {
        exec(|| real::execvpe(file, argv, envp))
    }

    fn fexecve(fd: c_int, argv: Strings, envp: Strings) -> c_int {
        exec(|| real::fexecve(fd, argv, envp))
    }

    fn execveat(dir: c_int, path: *const c_char, argv: Strings, envp: Strings, flags: c_int) -> c_int {
        exec(|| real::execveat(dir, path, argv, envp, flags))
    }

    /// The steps around a fork are `pthread_atfork`'s (`rsocket_core::process`), which other spellings of it run too;
    /// only that it failed is not among them.
    fn fork() -> c_int {
        let r = real::fork();
        if r < 0 && shadow::any() {
            keeping_errno(socket::fork_failed);
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

unsafe extern "C-unwind" fn execl_array(path: *const c_char, argv: Strings) -> c_int {
    // SAFETY: the array of `listed!`, which ends in the caller's null pointer.
    unsafe { execv(path, argv) }
}

unsafe extern "C-unwind" fn execlp_array(file: *const c_char, argv: Strings) -> c_int {
    // SAFETY: as above.
    unsafe { execvp(file, argv) }
}

unsafe extern "C-unwind" fn execle_array(path: *const c_char, argv: Strings) -> c_int {
    // SAFETY: as above; behind the null pointer stands the environment.
    unsafe {
        let mut end = argv;
        while !(*end).is_null() {
            end = end.add(1);
        }
        execve(path, argv, (*end.add(1)).cast())
    }
}

listed! {
    /// `execl`, as in its manual page.
    execl => execl_array;
    /// `execlp`, as in its manual page.
    execlp => execlp_array;
    /// `execle`, as in its manual page.
    execle => execle_array;
}
