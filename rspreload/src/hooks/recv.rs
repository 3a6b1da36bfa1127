//! Bytes in: `read`, `recv` and their relatives. What they do is [`crate::ops::recv`]'s.

use core::ffi::{c_int, c_uint, c_void};

use libc::{iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};
use rsocket_edge::message::{List, Message};
use rsocket_edge::messages::Messages;
use rsocket_host::given::{Answer, Place};

use crate::edge::{nowhere, one};
use crate::ops::recv as ops;
use crate::{real, shadow};

hook! {
    fn read(fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t, with slot of fd => {
        ops::read_like(slot, fd, &one(buffer, length), 0, || real::read(fd, buffer, length))
    }

    fn readv(fd: c_int, list: *const iovec, length: c_int) -> ssize_t, with slot of fd => {
        ops::readv(slot, fd, List::counted(list, length), || real::readv(fd, list, length))
    }

    fn recv(
        fd: c_int,
        buffer: *mut c_void,
        length: size_t,
        flags: c_int,
    ) -> ssize_t, with slot of fd => {
        let real = || real::recv(fd, buffer, length, flags);
        ops::receive(slot, fd, &one(buffer, length), flags, real)
    }

    fn recvfrom(
        fd: c_int,
        buffer: *mut c_void,
        length: size_t,
        flags: c_int,
        from: *mut sockaddr,
        from_length: *mut socklen_t,
    ) -> ssize_t, with slot of fd => {
        let real = || real::recvfrom(fd, buffer, length, flags, from, from_length);
        let r = ops::receive(slot, fd, &one(buffer, length), flags, real);
        ops::no_address(r, Answer::new(from.cast(), from_length))
    }
}

hook! {
    fn recvmsg(
        fd: c_int,
        message: *mut msghdr,
        flags: c_int,
    ) -> ssize_t, when !nowhere(message) => {
        ops::recvmsg(fd, Message::new(message), flags, || real::recvmsg(fd, message, flags))
    }

    fn recvmmsg(
        fd: c_int,
        list: *mut mmsghdr,
        length: c_uint,
        flags: c_int,
        timeout: *mut timespec,
    ) -> c_int, when !nowhere(list) => {
        let real = || real::recvmmsg(fd, list, length, flags, timeout);
        ops::recvmmsg(fd, Messages::new(list, length), flags, Place::new(timeout), real)
    }
}

// The fortified spellings: a length beyond the buffer is for libc to complain about.
hook! {
    fn __read_chk(
        fd: c_int,
        buffer: *mut c_void,
        length: size_t,
        room: size_t,
    ) -> ssize_t, when shadow::tracked(fd) && length <= room => {
        read(fd, buffer, length)
    }

    fn __recv_chk(
        fd: c_int,
        buffer: *mut c_void,
        length: size_t,
        room: size_t,
        flags: c_int,
    ) -> ssize_t, when shadow::tracked(fd) && length <= room => {
        recv(fd, buffer, length, flags)
    }

    fn __recvfrom_chk(
        fd: c_int,
        buffer: *mut c_void,
        length: size_t,
        room: size_t,
        flags: c_int,
        from: *mut sockaddr,
        from_length: *mut socklen_t,
    ) -> ssize_t, when shadow::tracked(fd) && length <= room => {
        recvfrom(fd, buffer, length, flags, from, from_length)
    }
}
