//! io_uring: liburing's functions that make a ring. Whether there is one is
//! [`crate::ops::io_uring`]'s to say.

use core::ffi::{CStr, c_int, c_uint, c_void};

use crate::edge::keeping_errno;
use crate::ops::io_uring::{liburing, refused};

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
    io_uring_queue_init_mem(
        entries: c_uint,
        ring: *mut c_void,
        parameters: *mut c_void,
        memory: *mut c_void,
        size: usize
    );
    io_uring_queue_init_try_nosqarr(entries: c_uint, ring: *mut c_void, flags: c_uint);
}
