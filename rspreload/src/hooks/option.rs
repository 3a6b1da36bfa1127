//! What a socket is asked to be: `setsockopt`, `fcntl`, `ioctl`. What they do is
//! [`crate::ops::option`]'s.

use core::ffi::{c_int, c_long, c_ulong, c_void};
use core::ptr::null_mut;

use libc::socklen_t;
use rsocket_host::given::{Answer, Bytes, Place};

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
        let real = || real::setsockopt(fd, level, name, value, length);
        ops::setsockopt(fd, (level, name), Bytes::new(value, length), real)
    }

    fn getsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        length: *mut socklen_t,
    ) -> c_int, when shadow::tracked(fd) => {
        let real = || real::getsockopt(fd, level, name, value, length);
        ops::getsockopt(fd, (level, name), Answer::new(value, length), real)
    }
}

hook! {
    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int, with slot of fd => {
        // Of another request the argument may be anything.
        let place = if ops::names_integer(request) { argument.cast() } else { null_mut() };
        let real = || real::ioctl(fd, request, argument);
        ops::ioctl((slot, fd), request, Place::new(place), real)
    }

    fn sockatmark(fd: c_int) -> c_int, with slot of fd => {
        ops::sockatmark(slot, || real::sockatmark(fd))
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
