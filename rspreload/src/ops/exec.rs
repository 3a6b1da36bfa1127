//! Where another program takes over: `exec`, and what starts programs without coming back here.
//!
//! A program that will have this library goes on with everything that it inherits
//! (`rsocket_edge::exec_handover`). For any other program, what it is meant to use goes back to TCP
//! first.

use core::ffi::{CStr, c_char, c_int};

use rsocket_edge::conn::fork_group;
use rsocket_edge::exec_handover;
use rsocket_edge::exec_handover::Will;
use rsocket_edge::exec_handover::target::{Program, Verdict, judge};
use rsocket_edge::socket;
use rsocket_host::facts::trial;
use rsocket_host::given::Strings;
use rsocket_host::reason::Reason;
use rsocket_host::sys::sandbox;
use rsocket_host::thread;

use crate::edge::keeping_errno;
use crate::shadow;
use rsocket_host::facts::kernel;

/// What stands on 0 to 2 is about to be another program's too, one that will not track it: TCP, for
/// good.
#[cold]
fn give_away_standard() {
    for fd in 0..=2 {
        give_away(fd);
    }
}

/// The same for one descriptor, which that program will have under whatever number. In a vfork
/// child a number may already be another's than in the table, which is its parent's.
pub(crate) fn give_away(fd: c_int) {
    let is_tcp =
        || kernel::integer(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP);
    let Some(slot) = shadow::connection(fd) else { return };
    if shadow::mine() {
        socket::give_away(slot, fd, Reason::Executed);
    } else if is_tcp() {
        thread::as_guest(|| socket::give_away(slot, fd, Reason::Executed));
    }
}

/// In a vfork child: its next program is meant to have what the child takes care of. That is a name
/// that the child makes, or a number whose mark for `exec` it takes away. Nothing else says which
/// connections those are.
pub(crate) fn meant_for_next(fd: c_int) {
    if shadow::tracked(fd) && !shadow::mine() {
        keeping_errno(|| give_away(fd));
    }
}

/// Before libc starts a program by means of its own.
pub(crate) fn before_spawn() {
    if shadow::any() && !sandbox::inside() {
        keeping_errno(give_away_standard);
    }
}

/// Notes a process that was made.
pub(crate) fn spawned(error: c_int) -> c_int {
    if error == 0 {
        trial::has_spawned();
    }
    error
}

/// An `exec`: `real` passes it on, and comes back only if it failed. The environment that `real` is
/// given, if any, takes the place of the caller's.
pub(crate) fn exec(
    program: Program<'_>,
    environment: Strings<'_>,
    real: impl FnOnce(Option<*const *const c_char>) -> c_int,
) -> c_int {
    // One that never had a socket may have inherited the fork group: what comes to the next program
    // in a message is no stranger's.
    if !shadow::any() && fork_group::get().is_none() || sandbox::inside() {
        return real(None);
    }
    if !shadow::mine() {
        // A vfork child: the table is its parent's. What it means this program to have else,
        // `meant_for_next` was told.
        keeping_errno(give_away_standard);
        return real(None);
    }
    let verdict = keeping_errno(|| judge(program, environment));
    if verdict == Verdict::Fails {
        return real(None);
    }
    let will: Option<Will> = keeping_errno(|| {
        if verdict == Verdict::With {
            match exec_handover::prepare(environment) {
                Ok(will) => return Some(will),
                // A child that has closed all that it has, ours too, leaves nothing behind.
                Err(_) if !exec_handover::leaves_anything() => {}
                Err(missing) => rsocket_host::log_warn!(
                    "nothing can be passed on to the next program, for want of {missing}: \
                     its connections go back to TCP"
                ),
            }
        }
        exec_handover::give_back(verdict == Verdict::With);
        socket::before_exec();
        None
    });
    let r = real(will.as_ref().map(Will::environment));
    keeping_errno(|| match will {
        Some(will) => will.undo(),
        None => socket::exec_failed(),
    });
    r
}

/// Before a program is told that the next one will have `fd`. Only here can the library see which
/// connection a spawned program will have.
pub(crate) fn before_spawned_has(fd: c_int) {
    if shadow::tracked(fd) && !sandbox::inside() {
        keeping_errno(|| give_away(fd));
    }
}

/// Which program `execveat` names.
pub(crate) fn program_at(dir: c_int, path: Option<&CStr>, flags: c_int) -> Program<'_> {
    let Some(path) = path else { return Program::Open(-1) };
    match path.to_bytes().first() {
        None if flags & libc::AT_EMPTY_PATH != 0 => Program::Open(dir),
        Some(b'/') => Program::Path(Some(path)),
        _ if dir == libc::AT_FDCWD => Program::Path(Some(path)),
        // Anything else is not looked into: back to TCP.
        _ => Program::Open(-1),
    }
}
