//! Where another program takes over: `exec`, and what starts programs without coming back here.
//! What they do is [`crate::ops::exec`]'s.

use core::ffi::{c_char, c_int};

use libc::{FILE, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};
use rsocket_edge::exec_handover::target::Program;
use rsocket_host::given::{self, string};

use crate::ops::exec as ops;
use crate::real;

type Strings = *const *const c_char;

unsafe extern "C" {
    static environ: Strings;
}

hook! {
    fn execv(path: *const c_char, argv: Strings) -> c_int {
        by_path(path, argv)
    }

    fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
        by_path_with(path, argv, envp)
    }

    fn execvp(file: *const c_char, argv: Strings) -> c_int {
        by_name(file, argv)
    }

    fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> c_int {
        let (program, all) = (Program::Name(string(file)), given::Strings::new(envp));
        ops::exec(program, all, |new| real::execvpe(file, argv, new.unwrap_or(envp)))
    }

    fn fexecve(fd: c_int, argv: Strings, envp: Strings) -> c_int {
        let (program, all) = (Program::Open(fd), given::Strings::new(envp));
        ops::exec(program, all, |new| real::fexecve(fd, argv, new.unwrap_or(envp)))
    }

    fn execveat(
        dir: c_int,
        path: *const c_char,
        argv: Strings,
        envp: Strings,
        flags: c_int,
    ) -> c_int {
        let program = ops::program_at(dir, string(path), flags);
        let real = |new: Option<_>| real::execveat(dir, path, argv, new.unwrap_or(envp), flags);
        ops::exec(program, given::Strings::new(envp), real)
    }
}

/// `execv`.
unsafe extern "C-unwind" fn by_path(path: *const c_char, argv: Strings) -> c_int {
    // SAFETY: by the contract of execv(3); libc's variable.
    unsafe {
        let (program, all) = (Program::Path(string(path)), given::Strings::new(environ));
        ops::exec(program, all, |new| match new {
            Some(envp) => real::execve(path, argv, envp),
            None => real::execv(path, argv),
        })
    }
}

/// `execvp`.
unsafe extern "C-unwind" fn by_name(file: *const c_char, argv: Strings) -> c_int {
    // SAFETY: by the contract of execvp(3); libc's variable.
    unsafe {
        let (program, all) = (Program::Name(string(file)), given::Strings::new(environ));
        ops::exec(program, all, |new| match new {
            Some(envp) => real::execvpe(file, argv, envp),
            None => real::execvp(file, argv),
        })
    }
}

/// `execve`.
unsafe fn by_path_with(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: by the contract of execve(2).
    unsafe {
        let (program, all) = (Program::Path(string(path)), given::Strings::new(envp));
        ops::exec(program, all, |new| real::execve(path, argv, new.unwrap_or(envp)))
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

// The second argument is an array that ends in the caller's null pointer.
listed! {
    /// `execl`, as in its manual page.
    execl => by_path;
    /// `execlp`, as in its manual page.
    execlp => by_name;
    /// `execle`, as in its manual page.
    execle => with_last;
}

/// Behind the null pointer stands the environment.
unsafe extern "C-unwind" fn with_last(path: *const c_char, argv: Strings) -> c_int {
    // SAFETY: the list of `listed!`, and what stands behind it, by the contract of execle(3).
    unsafe {
        let end = given::Strings::new(argv).end();
        by_path_with(path, argv, (*end.add(1)).cast())
    }
}
