//! Bytes out: `write`, `send` and their relatives. What they do is [`crate::ops::send`]'s.

use core::ffi::{c_int, c_uint, c_void};

use libc::{iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use rsocket_edge::message::{List, Message};
use rsocket_edge::messages::Messages;
use rsocket_host::given::Bytes;

use crate::edge::one;
use crate::ops::send::{self as ops, How};
use crate::{real, shadow};

/// The next definition of `connect`, for a send that asks for a connection.
fn connect(fd: c_int) -> impl FnOnce(Bytes<'_>) -> c_int {
    // SAFETY: an address of as many bytes, by the promise with which it was made.
    move |to| unsafe { real::connect(fd, to.as_ptr().cast(), to.length()) }
}

hook! {
    fn write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t, with slot of fd => {
        let real = || real::write(fd, buffer, length);
        ops::transmit(slot, fd, &one(buffer, length), How::by(0), real)
    }

    fn writev(fd: c_int, list: *const iovec, length: c_int) -> ssize_t, with slot of fd => {
        ops::writev(slot, fd, List::counted(list, length), || real::writev(fd, list, length))
    }

    fn send(
        fd: c_int,
        buffer: *const c_void,
        length: size_t,
        flags: c_int,
    ) -> ssize_t, with slot of fd => {
        let real = || real::send(fd, buffer, length, flags);
        ops::transmit(slot, fd, &one(buffer, length), How::by(flags), real)
    }

    fn sendto(
        fd: c_int,
        buffer: *const c_void,
        length: size_t,
        flags: c_int,
        to: *const sockaddr,
        to_length: socklen_t,
    ) -> ssize_t, with slot of fd => {
        let name = Bytes::new(to.cast(), to_length);
        let send = |flags| {
            // The address is ignored on a connected stream, as Linux does.
            let real = || real::sendto(fd, buffer, length, flags, to, to_length);
            ops::transmit(slot, fd, &one(buffer, length), How::by(flags), real)
        };
        ops::connect_first(slot, fd, flags, name, connect(fd)).map_or_else(|r| r as ssize_t, send)
    }
}

hook! {
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t, when shadow::any() => {
        let header = Message::new(message.cast_mut());
        ops::sendmsg(fd, header, flags, connect(fd), |flags| real::sendmsg(fd, message, flags))
    }

    fn sendmmsg(
        fd: c_int,
        list: *mut mmsghdr,
        length: c_uint,
        flags: c_int,
    ) -> c_int, when shadow::any() => {
        let real = |flags| real::sendmmsg(fd, list, length, flags);
        ops::sendmmsg(fd, Messages::new(list, length), flags, connect(fd), real)
    }
}
