//! Who a socket is, and how it meets its peer: `listen`, `accept`, `connect`.

use core::ffi::c_int;

use libc::{sockaddr, socklen_t};
use rsocket_core::attach::reason::Reason;
use rsocket_core::attach::sandbox;
use rsocket_core::{socket, sys};

use crate::edge::keeping_errno;
use crate::real;
use crate::shadow::{self, Entry};

/// Begins to track what a listener has given.
fn accepted(listener: c_int, fd: c_int) -> c_int {
    if fd >= 0 {
        shadow::fresh(fd);
        // A descriptor that is another name of the listener's may still stand as a connection.
        if let Entry::Listener(slot) | Entry::Connection(slot) = shadow::entry(listener)
            && !sandbox::inside()
            && shadow::mine()
        {
            keeping_errno(|| {
                if let Some(new) = socket::accepted(fd, slot) {
                    shadow::put(fd, Entry::Connection(new));
                }
            });
        }
    }
    fd
}

hook! {
    fn listen(fd: c_int, backlog: c_int) -> c_int {
        let r = real::listen(fd, backlog);
        if r == 0
            && let Some(slot) = shadow::connection(fd)
            && shadow::mine()
        {
            keeping_errno(|| {
                shadow::put(fd, Entry::Listener(slot));
                socket::listening(slot, fd);
            });
        }
        r
    }

    fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
        accepted(fd, real::accept(fd, address, length))
    }

    fn accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
        accepted(fd, real::accept4(fd, address, length, flags))
    }
}

hook! {
    fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int, with slot of fd => {
        if dissolves(address, length) {
            // The socket may become another connection, or a listener.
            socket::refuse(slot, fd, Reason::OddUse);
            return real::connect(fd, address, length);
        }
        socket::connecting(slot, fd);
        let r = real::connect(fd, address, length);
        keeping_errno(|| socket::connected(slot, fd, r, sys::errno()));
        r
    }
}

/// Whether a `connect` to this address dissolves the connection that there is.
///
/// # Safety
/// `address` is null or points to `length` bytes.
unsafe fn dissolves(address: *const sockaddr, length: socklen_t) -> bool {
    if address.is_null() || (length as usize) < size_of::<libc::sa_family_t>() {
        return false;
    }
    // SAFETY: the family lies within the length.
    let family = unsafe { (&raw const (*address).sa_family).read_unaligned() };
    c_int::from(family) == libc::AF_UNSPEC
}
