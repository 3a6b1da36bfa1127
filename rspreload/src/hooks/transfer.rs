//! Bytes from one descriptor to another without passing through the program: `sendfile`, `splice`.
//! What they do is [`crate::ops::transfer`]'s.

use core::ffi::{c_int, c_uint};

use libc::{loff_t, off_t, size_t, ssize_t};
use rsocket_host::given::Place;

use crate::ops::transfer as ops;
use crate::{real, shadow};

hook! {
    fn sendfile(
        to: c_int,
        from: c_int,
        offset: *mut off_t,
        length: size_t,
    ) -> ssize_t, with slot of to => {
        let real = |length| real::sendfile(to, from, offset, length);
        ops::sendfile((slot, to), from, Place::new(offset), length, real)
    }

    fn sendfile64(
        to: c_int,
        from: c_int,
        offset: *mut off_t,
        length: size_t,
    ) -> ssize_t, with slot of to => {
        let real = |length| real::sendfile64(to, from, offset, length);
        ops::sendfile((slot, to), from, Place::new(offset), length, real)
    }
}

hook! {
    fn splice(
        from: c_int,
        from_offset: *mut loff_t,
        to: c_int,
        to_offset: *mut loff_t,
        length: size_t,
        flags: c_uint,
    ) -> ssize_t, when shadow::tracked(from) || shadow::tracked(to) => {
        let pass = || real::splice(from, from_offset, to, to_offset, length, flags);
        ops::splice([from, to], [from_offset, to_offset], length, flags, pass)
    }
}
