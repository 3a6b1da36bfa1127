//! What installs signal handlers, in every spelling. What they do is [`crate::ops::signal`]'s and
//! [`crate::handlers`]'.

use core::ffi::c_int;

use libc::{sigaction as action, sighandler_t};

use crate::handlers;
use crate::ops::signal as ops;

hook! {
    fn sigaction(number: c_int, new: *const action, old: *mut action) -> c_int {
        handlers::change(number, new, old)
    }

    fn __sigaction(number: c_int, new: *const action, old: *mut action) -> c_int {
        handlers::change(number, new, old)
    }

    fn signal(number: c_int, handler: sighandler_t) -> sighandler_t {
        ops::bsd(number, handler)
    }

    fn bsd_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
        ops::bsd(number, handler)
    }

    fn ssignal(number: c_int, handler: sighandler_t) -> sighandler_t {
        ops::bsd(number, handler)
    }

    fn sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
        ops::system_v(number, handler)
    }

    fn __sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
        ops::system_v(number, handler)
    }

    fn sigset(number: c_int, handler: sighandler_t) -> sighandler_t {
        ops::sigset(number, handler)
    }

    fn siginterrupt(number: c_int, interrupts: c_int) -> c_int {
        ops::siginterrupt(number, interrupts)
    }
}
