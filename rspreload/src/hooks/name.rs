//! Who a socket is, and how it meets its peer: `bind`, `listen`, `accept`, `connect`, and the names
//! of both. What they do is [`crate::ops::name`]'s.

use core::ffi::c_int;

use libc::{sockaddr, socklen_t};
use rsocket_host::given::{Answer, Bytes};

use crate::edge::leaving_errno;
use crate::ops::name as ops;
use crate::{real, shadow};

hook! {
    fn bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int, with slot of fd => {
        let name = Bytes::new(address.cast(), length);
        ops::bind(slot, fd, name, || real::bind(fd, address, length))
    }

    fn connect(
        fd: c_int,
        address: *const sockaddr,
        length: socklen_t,
    ) -> c_int, with slot of fd => {
        let to = Bytes::new(address.cast(), length);
        ops::connect(slot, fd, to, || real::connect(fd, address, length))
    }
}

hook! {
    fn getsockname(
        fd: c_int,
        address: *mut sockaddr,
        length: *mut socklen_t,
    ) -> c_int, when shadow::tracked(fd) => {
        let to = Answer::new(address.cast(), length);
        ops::getsockname(fd, to, || real::getsockname(fd, address, length))
    }

    fn getpeername(
        fd: c_int,
        address: *mut sockaddr,
        length: *mut socklen_t,
    ) -> c_int, when shadow::tracked(fd) => {
        let to = Answer::new(address.cast(), length);
        ops::getpeername(fd, to, || real::getpeername(fd, address, length))
    }
}

hook! {
    fn listen(fd: c_int, backlog: c_int) -> c_int {
        ops::listen(fd, backlog, || real::listen(fd, backlog))
    }

    fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
        let name = Answer::new(address.cast(), length);
        leaving_errno(|| ops::accept(fd, name, || real::accept(fd, address, length)))
    }

    fn accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
        let name = Answer::new(address.cast(), length);
        leaving_errno(|| ops::accept(fd, name, || real::accept4(fd, address, length, flags)))
    }
}
