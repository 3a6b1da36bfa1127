//! io_uring: what a ring does with a socket no hook sees. Either there is no ring (it fails as on a kernel without io_uring,
//! and programs do what they did before there was one), or there are rings, and the sockets of the process are on TCP:
//! `RSOCKET_IO_URING` chooses ([`rsocket_core::socket::rings`]).
//!
//! Rings are made by `io_uring_setup`, through libc's `syscall` (libuv, most languages) or by liburing's functions. A
//! program that makes the system call by an instruction of its own is out of reach.

use core::ffi::{CStr, c_int, c_long, c_uint, c_void};

use rsocket_core::reason::Reason;
use rsocket_core::socket::{self, rings};
use rsocket_core::sys;
use rsocket_core::sys::sandbox;

use crate::edge::keeping_errno;
use crate::policy;
use crate::real;
use crate::shadow::{self, Entry};

/// `syscall(SYS_io_uring_setup, entries, parameters)`.
pub(super) unsafe extern "C-unwind" fn setup_by_number(
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

/// Whether a ring is refused. If it is not, every connection of the process goes back to, or stays on, TCP.
fn refused() -> bool {
    // In a sandbox everything is the kernel's already.
    if sandbox::inside() || !policy::enabled() {
        return false;
    }
    keeping_errno(|| {
        if rings::refused() {
            return true;
        }
        if rings::open_from_now_on() && shadow::any() && shadow::mine() {
            for fd in 0..shadow::end() {
                if let Entry::Connection(slot) = shadow::entry(fd) {
                    socket::give_away(slot, fd, Reason::IoUring);
                }
            }
        }
        false
    })
}

/// liburing's function of that name, wherever the program has it from: it may have been loaded after us, and only for
/// one of the program's libraries.
fn liburing(name: &CStr) -> Option<*const ()> {
    // SAFETY: C strings; RTLD_NOLOAD finds what is loaded already, and never unloads it since nobody closes the handle.
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

/// Functions of liburing's that make a ring. They give a negative error number.
macro_rules! ring {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => { hook! {$(
        fn $name($($arg: $type),*) -> c_int {
            type Next = unsafe extern "C-unwind" fn($($type),*) -> c_int;
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            };
            if refused() {
                return -libc::ENOSYS;
            }
            match keeping_errno(|| liburing(NAME)) {
                // What liburing's header says of this function.
                Some(next) => core::mem::transmute::<*const (), Next>(next)($($arg),*),
                None => -libc::ENOSYS,
            }
        }
    )*} };
}

ring! {
    io_uring_setup(entries: c_uint, parameters: *mut c_void);
    io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint);
    io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void);
    io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, parameters: *mut c_void, memory: *mut c_void, size: usize);
    io_uring_queue_init_try_nosqarr(entries: c_uint, ring: *mut c_void, flags: c_uint);
}
