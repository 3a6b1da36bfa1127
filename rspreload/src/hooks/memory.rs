//! `mlockall`: what the program has locked is not to grow by memory of ours that is not in use.

use core::ffi::c_int;

use rsocket_host::facts::locking;
use rsocket_host::sys::sandbox;

use crate::ops::memory as ops;
use crate::real;

hook! {
    fn mlockall(
        flags: c_int,
    ) -> c_int, when flags & libc::MCL_CURRENT != 0 && !sandbox::inside() => {
        locking::lock_all(flags, &ops::of_the_library, &|flags| real::mlockall(flags))
    }
}
