//! Reads and writes at a position, which a socket has not. What they do is
//! [`crate::ops::position`]'s.

use core::ffi::c_int;

use libc::{iovec, off_t, ssize_t};
use rsocket_edge::message::List;

use crate::ops::position as ops;
use crate::{real, shadow};

hook! {
    fn preadv2(
        fd: c_int,
        list: *const iovec,
        length: c_int,
        at: off_t,
        flags: c_int,
    ) -> ssize_t, when at == -1 && shadow::tracked(fd) => {
        let all = usize::try_from(length).ok().map(|n| List::new(list, n));
        ops::read(fd, all, flags, || real::preadv2(fd, list, length, at, flags))
    }

    fn preadv64v2(
        fd: c_int,
        list: *const iovec,
        length: c_int,
        at: off_t,
        flags: c_int,
    ) -> ssize_t, when at == -1 && shadow::tracked(fd) => {
        preadv2(fd, list, length, at, flags)
    }

    fn pwritev2(
        fd: c_int,
        list: *const iovec,
        length: c_int,
        at: off_t,
        flags: c_int,
    ) -> ssize_t, when at == -1 && shadow::tracked(fd) => {
        let all = usize::try_from(length).ok().map(|n| List::new(list, n));
        ops::write(fd, all, flags, || real::pwritev2(fd, list, length, at, flags))
    }

    fn pwritev64v2(
        fd: c_int,
        list: *const iovec,
        length: c_int,
        at: off_t,
        flags: c_int,
    ) -> ssize_t, when at == -1 && shadow::tracked(fd) => {
        pwritev2(fd, list, length, at, flags)
    }
}
