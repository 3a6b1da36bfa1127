//! What a socket is asked to be: `setsockopt`, `fcntl`, `ioctl`. What they do is
//! [`crate::ops::option`]'s.

use core::ffi::{c_int, c_long, c_ulong, c_void};

use libc::socklen_t;

use crate::ops::option as ops;
use crate::{real, shadow};

hook! {
    fn setsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *const c_void,
        length: socklen_t,
    ) -> c_int, when shadow::tracked(fd) => {
        ops::setsockopt(fd, (level, name), value, length)
    }

    fn getsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        length: *mut socklen_t,
    ) -> c_int, when shadow::tracked(fd) => {
        ops::getsockopt(fd, (level, name), value, length)
    }
}

hook! {
    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int, with slot of fd => {
        ops::ioctl(slot, fd, request, argument)
    }

    fn sockatmark(fd: c_int) -> c_int, with slot of fd => {
        ops::sockatmark(slot, fd)
    }
}

hook! {
    fn fcntl(
        fd: c_int,
        command: c_int,
        argument: c_long,
    ) -> c_int, when ops::concerns(fd, command, argument) => {
        ops::control(fd, command, || real::fcntl(fd, command, argument))
    }

    fn fcntl64(
        fd: c_int,
        command: c_int,
        argument: c_long,
    ) -> c_int, when ops::concerns(fd, command, argument) => {
        ops::control(fd, command, || real::fcntl64(fd, command, argument))
    }
}
