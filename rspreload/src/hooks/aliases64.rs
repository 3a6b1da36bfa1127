//! libc's second names: `__read` is `read`, and so on. Programs may call either (old ones, and
//! those that are built with other compilers' libraries, do); each goes where the usual name goes.
//! `calls.txt` names those that only libc's own libraries may call.

use core::ffi::{c_char, c_int, c_long, c_void};

use libc::{FILE, fd_set, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval};
use rsocket_host::sys;

use super::{dup, life, name, option, process, ready, recv, send, stdio};
use crate::shadow;

hook! {
    fn __read(
        fd: c_int,
        buffer: *mut c_void,
        length: size_t,
    ) -> ssize_t, when shadow::tracked(fd) => {
        recv::read(fd, buffer, length)
    }

    fn __write(
        fd: c_int,
        buffer: *const c_void,
        length: size_t,
    ) -> ssize_t, when shadow::tracked(fd) => {
        send::write(fd, buffer, length)
    }

    fn __send(
        fd: c_int,
        buffer: *const c_void,
        length: size_t,
        flags: c_int,
    ) -> ssize_t, when shadow::tracked(fd) => {
        send::send(fd, buffer, length, flags)
    }

    fn __connect(
        fd: c_int,
        address: *const sockaddr,
        length: socklen_t,
    ) -> c_int, when shadow::tracked(fd) => {
        name::connect(fd, address, length)
    }

    fn __close(fd: c_int) -> c_int, when shadow::tracked(fd) || sys::is_private(fd) => {
        life::close(fd)
    }

    fn __poll(list: *mut pollfd, length: nfds_t, timeout: c_int) -> c_int, when shadow::any() => {
        ready::poll(list, length, timeout)
    }

    fn __select(
        n: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *mut timeval,
    ) -> c_int, when shadow::any() => {
        ready::select(n, read, write, except, timeout)
    }
}

hook! {
    fn __dup2(old: c_int, new: c_int) -> c_int {
        dup::dup2(old, new)
    }

    fn __fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
        option::fcntl(fd, command, argument)
    }

    fn __pipe(pair: *mut c_int) -> c_int {
        life::pipe(pair)
    }

    fn __fork() -> c_int {
        process::fork()
    }

    #[allow(non_snake_case)]
    fn _IO_fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        stdio::fdopen(fd, mode)
    }

    #[allow(non_snake_case)]
    fn _IO_fclose(file: *mut FILE) -> c_int {
        stdio::fclose(file)
    }
}
