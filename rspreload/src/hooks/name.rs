//! Who a socket is, and how it meets its peer: `bind`, `listen`, `accept`, `connect`, and the names
//! of both. What they do is [`crate::ops::name`]'s.

use core::ffi::c_int;

use libc::{sockaddr, socklen_t};

use crate::ops::name as ops;
use crate::{real, shadow};

hook! {
    fn bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int, with slot of fd => {
        ops::bind(slot, fd, address, length)
    }

    fn connect(
        fd: c_int,
        address: *const sockaddr,
        length: socklen_t,
    ) -> c_int, with slot of fd => {
        ops::connect(slot, fd, address, length)
    }
}

hook! {
    fn getsockname(
        fd: c_int,
        address: *mut sockaddr,
        length: *mut socklen_t,
    ) -> c_int, when shadow::tracked(fd) => {
        ops::getsockname(fd, address, length)
    }

    fn getpeername(
        fd: c_int,
        address: *mut sockaddr,
        length: *mut socklen_t,
    ) -> c_int, when shadow::tracked(fd) => {
        ops::getpeername(fd, address, length)
    }
}

hook! {
    fn listen(fd: c_int, backlog: c_int) -> c_int {
        ops::listen(fd, backlog)
    }

    fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
        ops::accept(fd, address, length, || real::accept(fd, address, length))
    }

    fn accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
        ops::accept(fd, address, length, || real::accept4(fd, address, length, flags))
    }
}
