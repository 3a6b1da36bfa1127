//! Where another program takes over: `exec`, and what starts programs without coming back here.
//! What they do is [`crate::ops::exec`]'s.

use core::ffi::{c_char, c_int};

use libc::{FILE, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};
use rsocket_edge::exec_handover::target::Program;
use rsocket_host::given;

use crate::ops::exec::{self as ops, Strings};
use crate::real;

hook! {
    fn execv(path: *const c_char, argv: Strings) -> c_int {
        ops::execv(path, argv)
    }

    fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
        ops::execve(path, argv, envp)
    }

    fn execvp(file: *const c_char, argv: Strings) -> c_int {
        ops::execvp(file, argv)
    }

    fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> c_int {
        let program = Program::Name(given::string(file));
        ops::exec(program, envp, |new| real::execvpe(file, argv, new.unwrap_or(envp)))
    }

    fn fexecve(fd: c_int, argv: Strings, envp: Strings) -> c_int {
        ops::exec(Program::Open(fd), envp, |new| real::fexecve(fd, argv, new.unwrap_or(envp)))
    }

    fn execveat(
        dir: c_int,
        path: *const c_char,
        argv: Strings,
        envp: Strings,
        flags: c_int,
    ) -> c_int {
        let program = ops::program_at(dir, path, flags);
        ops::exec(program, envp, |new| real::execveat(dir, path, argv, new.unwrap_or(envp), flags))
    }
}

hook! {
    fn posix_spawn(
        pid: *mut pid_t,
        path: *const c_char,
        actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t,
        argv: Strings,
        envp: Strings,
    ) -> c_int {
        ops::before_spawn();
        ops::spawned(real::posix_spawn(pid, path, actions, attributes, argv, envp))
    }

    fn posix_spawnp(
        pid: *mut pid_t,
        file: *const c_char,
        actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t,
        argv: Strings,
        envp: Strings,
    ) -> c_int {
        ops::before_spawn();
        ops::spawned(real::posix_spawnp(pid, file, actions, attributes, argv, envp))
    }

    fn posix_spawn_file_actions_adddup2(
        actions: *mut posix_spawn_file_actions_t,
        old: c_int,
        new: c_int,
    ) -> c_int {
        ops::before_spawned_has(old);
        real::posix_spawn_file_actions_adddup2(actions, old, new)
    }

    fn system(command: *const c_char) -> c_int {
        ops::before_spawn();
        real::system(command)
    }

    fn popen(command: *const c_char, kind: *const c_char) -> *mut FILE {
        ops::before_spawn();
        real::popen(command, kind)
    }
}

listed! {
    /// `execl`, as in its manual page.
    execl => ops::execl_array;
    /// `execlp`, as in its manual page.
    execlp => ops::execlp_array;
    /// `execle`, as in its manual page.
    execle => ops::execle_array;
}
