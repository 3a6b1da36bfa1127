//! What installs signal handlers, in every spelling. What they do is [`crate::ops::signal`]'s and
//! [`crate::handlers`]'.

use core::ffi::c_int;

use libc::{sigaction as action, sighandler_t};
use rsocket_host::given::{In, Place};
use rsocket_host::sigaction::Handler;

use super::handlers::next;
use crate::handlers;
use crate::ops::signal as ops;

hook! {
    fn sigaction(number: c_int, new: *const action, old: *mut action) -> c_int {
        handlers::change(number, In::new(new), Place::new(old), next(number))
    }

    fn __sigaction(number: c_int, new: *const action, old: *mut action) -> c_int {
        handlers::change(number, In::new(new), Place::new(old), next(number))
    }

    fn signal(number: c_int, handler: sighandler_t) -> sighandler_t {
        ops::bsd(number, Handler::new(handler), next(number))
    }

    fn bsd_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
        ops::bsd(number, Handler::new(handler), next(number))
    }

    fn ssignal(number: c_int, handler: sighandler_t) -> sighandler_t {
        ops::bsd(number, Handler::new(handler), next(number))
    }

    fn sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
        ops::system_v(number, Handler::new(handler), next(number))
    }

    fn __sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
        ops::system_v(number, Handler::new(handler), next(number))
    }

    fn sigset(number: c_int, handler: sighandler_t) -> sighandler_t {
        ops::sigset(number, Handler::new(handler), next(number))
    }

    fn siginterrupt(number: c_int, interrupts: c_int) -> c_int {
        ops::siginterrupt(number, interrupts != 0, next(number))
    }
}
