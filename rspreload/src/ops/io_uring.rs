//! io_uring: what a ring does with a socket no hook sees. Either there is no ring, or there are
//! rings, and the sockets of the process are on TCP. `RSOCKET_IO_URING` chooses
//! ([`rsocket_edge::attach::io_uring`]). A ring that is refused fails as on a kernel without
//! io_uring, and programs do what they did before there was io_uring.
//!
//! Rings are made by `io_uring_setup`, through libc's `syscall` (libuv, most languages) or by
//! liburing's functions. A program that makes the system call by an instruction of its own is out
//! of reach.

use core::ffi::CStr;

use rsocket_edge::attach::io_uring;
use rsocket_edge::socket;
use rsocket_host::facts::loaded;
use rsocket_host::objects::next_definition;
use rsocket_host::reason::Reason;
use rsocket_host::sys::sandbox;

use crate::edge::keeping_errno;
use crate::policy;
use crate::shadow::{self, Entry};

/// Whether a ring is refused. If it is not, every connection of the process goes back to, or stays
/// on, TCP.
pub(crate) fn refused() -> bool {
    // In a sandbox everything is the kernel's already.
    if sandbox::inside() || !policy::enabled() {
        return false;
    }
    keeping_errno(|| {
        if io_uring::refused() {
            return true;
        }
        if io_uring::open_from_now_on() && shadow::any() && shadow::mine() {
            for fd in 0..shadow::end() {
                if let Entry::Connection(slot) = shadow::entry(fd) {
                    socket::give_away(slot, fd, Reason::IoUring);
                }
            }
        }
        false
    })
}

/// liburing's function of that name, wherever the program has it from. liburing may have been
/// loaded after us, and only for one of the program's libraries.
pub(crate) fn liburing(name: &CStr) -> Option<*const ()> {
    let of = |library| loaded::function_of(library, name);
    let next = next_definition(name).cast_const().cast::<()>();
    let next = (!next.is_null()).then_some(next);
    next.or_else(|| of(c"liburing.so.2")).or_else(|| of(c"liburing.so.1"))
}
