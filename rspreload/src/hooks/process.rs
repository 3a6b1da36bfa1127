//! Where the process itself changes: `fork`, `daemon`, `_exit`, `prctl`. What they do is
//! [`crate::ops::process`]'s. (`exec` is next door.)

use core::ffi::{c_int, c_ulong};

use rsocket_edge::process;

use crate::ops::process as ops;
use crate::real;

hook! {
    fn fork() -> c_int {
        ops::forked(real::fork())
    }

    fn daemon(stay: c_int, keep: c_int) -> c_int {
        ops::detached(real::daemon(stay, keep), keep)
    }

    /// `exit` ends in libc's own, and never here.
    fn _exit(status: c_int) {
        process::vanishing();
        real::_exit(status)
    }

    #[allow(non_snake_case)]
    fn _Exit(status: c_int) {
        process::vanishing();
        real::_exit(status)
    }

    fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
        ops::before_prctl(option, a, b);
        real::prctl(option, a, b, c, d)
    }
}
