//! Where another program takes over: `exec`, and what starts programs without coming back here.
//!
//! A program that will have this library goes on with everything that it inherits (`rsocket_core::succession`); for
//! any other, what it is meant to use goes back to TCP first.

use core::ffi::{c_char, c_int};

use libc::{FILE, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};
use rsocket_core::host::trial;
use rsocket_core::reason::Reason;
use rsocket_core::succession::target::{Program, Verdict, judge};
use rsocket_core::succession::{self, Will};
use rsocket_core::sync::thread;
use rsocket_core::sys::sandbox;
use rsocket_core::{socket, socket::family};

use crate::edge::keeping_errno;
use crate::real;
use crate::shadow;

pub(super) type Strings = *const *const c_char;

unsafe extern "C" {
    static environ: Strings;
}

/// What stands on 0 to 2 is about to be another program's too, one that will not track it: TCP, for good.
#[cold]
fn give_away_standard() {
    for fd in 0..=2 {
        give_away(fd);
    }
}

/// The same for one descriptor, which that program will have under whatever number. In a vfork child a number may already be another's
/// than in the table, which is its parent's.
pub(super) fn give_away(fd: c_int) {
    let is_tcp =
        || socket::kernel::integer(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP);
    let Some(slot) = shadow::connection(fd) else { return };
    if shadow::mine() {
        socket::give_away(slot, fd, Reason::Executed);
    } else if is_tcp() {
        thread::as_guest(|| socket::give_away(slot, fd, Reason::Executed));
    }
}

/// In a vfork child, whose next program is meant to have what the child takes care of: a name that it makes, a number whose mark for
/// `exec` it takes away. Nothing else says which connections those are.
pub(super) fn meant_for_next(fd: c_int) {
    if shadow::tracked(fd) && !shadow::mine() {
        keeping_errno(|| give_away(fd));
    }
}

/// Before libc starts a program by means of its own.
fn before_spawn() {
    if shadow::any() && !sandbox::inside() {
        keeping_errno(give_away_standard);
    }
}

/// Notes a process that was made.
fn spawned(error: c_int) -> c_int {
    if error == 0 {
        trial::has_spawned();
    }
    error
}

/// An `exec`: `real` passes it on, with the environment that it is given, if any, in place of the caller's, and comes
/// back only if it failed.
///
/// # Safety
/// The contract of the `exec` function that was called.
unsafe fn exec(program: Program, environment: Strings, real: impl FnOnce(Option<Strings>) -> c_int) -> c_int {
    // One that never had a socket may have inherited the family: what comes to the next program in a message is no stranger's.
    if !shadow::any() && family::get().is_none() || sandbox::inside() {
        return real(None);
    }
    if !shadow::mine() {
        // A vfork child: the table is its parent's. What it means this program to have else, `meant_for_next` was told.
        keeping_errno(give_away_standard);
        return real(None);
    }
    // SAFETY: the caller's strings.
    let verdict = keeping_errno(|| unsafe { judge(program, environment) });
    if verdict == Verdict::Fails {
        return real(None);
    }
    let will: Option<Will> = keeping_errno(|| {
        if verdict == Verdict::With {
            // SAFETY: as above.
            match unsafe { succession::prepare(environment) } {
                Ok(will) => return Some(will),
                // A child that has closed all that it has, ours too, leaves nothing behind.
                Err(_) if !succession::leaves_anything() => {}
                Err(missing) => rsocket_core::log_warn!(
                    "nothing can be passed on to the next program, for want of {missing}: \
                     its connections go back to TCP"
                ),
            }
        }
        succession::give_back(verdict == Verdict::With);
        socket::before_exec();
        None
    });
    let r = real(will.map(|w| w.environment()));
    keeping_errno(|| match will {
        Some(will) => will.undo(),
        None => socket::exec_failed(),
    });
    r
}

hook! {
    fn execv(path: *const c_char, argv: Strings) -> c_int {
        exec(Program::Path(path), environ, |new| match new {
            Some(e) => real::execve(path, argv, e),
            None => real::execv(path, argv),
        })
    }

    fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
        exec(Program::Path(path), envp, |new| real::execve(path, argv, new.unwrap_or(envp)))
    }

    fn execvp(file: *const c_char, argv: Strings) -> c_int {
        exec(Program::Name(file), environ, |new| match new {
            Some(e) => real::execvpe(file, argv, e),
            None => real::execvp(file, argv),
        })
    }

    fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> c_int {
        exec(Program::Name(file), envp, |new| real::execvpe(file, argv, new.unwrap_or(envp)))
    }

    fn fexecve(fd: c_int, argv: Strings, envp: Strings) -> c_int {
        exec(Program::Open(fd), envp, |new| real::fexecve(fd, argv, new.unwrap_or(envp)))
    }

    fn execveat(dir: c_int, path: *const c_char, argv: Strings, envp: Strings, flags: c_int) -> c_int {
        let program = match path.is_null() {
            false if flags & libc::AT_EMPTY_PATH != 0 && *path == 0 => Program::Open(dir),
            false if dir == libc::AT_FDCWD || *path == b'/' as c_char => Program::Path(path),
            // Anything else is not looked into: back to TCP.
            _ => Program::Open(-1),
        };
        exec(program, envp, |new| real::execveat(dir, path, argv, new.unwrap_or(envp), flags))
    }
}

hook! {
    fn posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, argv: Strings, envp: Strings) -> c_int {
        before_spawn();
        spawned(real::posix_spawn(pid, path, actions, attributes, argv, envp))
    }

    fn posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, argv: Strings, envp: Strings) -> c_int {
        before_spawn();
        spawned(real::posix_spawnp(pid, file, actions, attributes, argv, envp))
    }

    /// The only place where it can be seen which connection a spawned program will have.
    fn posix_spawn_file_actions_adddup2(actions: *mut posix_spawn_file_actions_t, old: c_int, new: c_int) -> c_int {
        if shadow::tracked(old) && !sandbox::inside() {
            keeping_errno(|| give_away(old));
        }
        real::posix_spawn_file_actions_adddup2(actions, old, new)
    }

    fn system(command: *const c_char) -> c_int {
        before_spawn();
        real::system(command)
    }

    fn popen(command: *const c_char, kind: *const c_char) -> *mut FILE {
        before_spawn();
        real::popen(command, kind)
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
