//! io_uring: what a ring does with a socket no hook sees. Either there is no ring, or there are
//! rings, and the sockets of the process are on TCP. `RSOCKET_IO_URING` chooses
//! ([`rsocket_edge::attach::io_uring`]). A ring that is refused fails as on a kernel without
//! io_uring, and programs do what they did before there was io_uring.
//!
//! Rings are made by `io_uring_setup`, through libc's `syscall` (libuv, most languages) or by
//! liburing's functions. A program that makes the system call by an instruction of its own is out
//! of reach.

use core::ffi::{CStr, c_long, c_uint, c_void};

use rsocket_edge::attach::io_uring;
use rsocket_edge::socket;
use rsocket_host::reason::Reason;
use rsocket_host::sys;
use rsocket_host::sys::sandbox;

use crate::edge::keeping_errno;
use crate::shadow::{self, Entry};
use crate::{policy, real};

/// `syscall(SYS_io_uring_setup, entries, parameters)`.
pub(crate) unsafe extern "C-unwind" fn setup_by_number(
    number: c_long,
    entries: c_uint,
    parameters: *mut c_void,
) -> c_long {
    if refused() {
        sys::set_errno(libc::ENOSYS);
        return -1;
    }
    // SAFETY: the arguments are the caller's.
    unsafe { real::syscall_by_number()(number, entries, parameters) }
}

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
    // SAFETY: C strings; RTLD_NOLOAD finds what is loaded already, and never unloads it since the
    // handle is never closed.
    unsafe {
        let mut found = libc::dlsym(libc::RTLD_NEXT, name.as_ptr());
        for library in [c"liburing.so.2", c"liburing.so.1"] {
            if found.is_null() {
                let handle = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
                if !handle.is_null() {
                    found = libc::dlsym(handle, name.as_ptr());
                }
            }
        }
        (!found.is_null()).then_some(found.cast_const().cast())
    }
}
