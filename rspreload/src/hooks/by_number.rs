//! What `syscall` does for the numbers that are ours ([`super::syscall_number`] compares them).
//! Each has the arguments of its call behind the number. What they do is [`crate::ops`]'s.

use core::ffi::{c_int, c_long, c_uint, c_ulong, c_void};

use rsocket_host::given::{Places, Polled};
use rsocket_host::sys;

use crate::ops::waits::{self, Named};
use crate::ops::{io_uring, life, process};
use crate::real::syscall_by_number;

/// `syscall(SYS_close, fd)`, which stays that: no cancellation point.
pub(super) unsafe extern "C-unwind" fn close(number: c_long, fd: c_int) -> c_long {
    // SAFETY: the argument is the caller's.
    life::close_by(fd, || unsafe { syscall_by_number()(number, fd) })
}

/// `syscall(SYS_close_range, first, last, flags)`.
pub(super) unsafe extern "C-unwind" fn close_range(
    number: c_long,
    first: c_uint,
    last: c_uint,
    flags: c_int,
) -> c_long {
    // SAFETY: the arguments are the caller's, or a part of its range. The kernel's answer is an
    // int.
    let real = |from: c_uint, to: c_uint, flags: c_int| unsafe {
        syscall_by_number()(number, from, to, flags) as c_int
    };
    life::close_range_by(first, last, flags, real).into()
}

/// `syscall(SYS_io_uring_setup, entries, parameters)`.
pub(super) unsafe extern "C-unwind" fn io_uring_setup(
    number: c_long,
    entries: c_uint,
    parameters: *mut c_void,
) -> c_long {
    if io_uring::refused() {
        sys::set_errno(libc::ENOSYS);
        return -1;
    }
    // SAFETY: the arguments are the caller's.
    unsafe { syscall_by_number()(number, entries, parameters) }
}

/// `syscall(SYS_seccomp, operation, flags, arguments)`.
pub(super) unsafe extern "C-unwind" fn seccomp(
    number: c_long,
    operation: c_uint,
    flags: c_uint,
    arguments: *mut c_void,
) -> c_long {
    process::before_seccomp(operation, flags, arguments.addr());
    // SAFETY: the arguments are the caller's.
    unsafe { syscall_by_number()(number, operation, flags, arguments) }
}

/// `syscall(SYS_landlock_restrict_self, ruleset, flags)`.
pub(super) unsafe extern "C-unwind" fn landlock(
    number: c_long,
    ruleset: c_int,
    flags: c_uint,
) -> c_long {
    process::before_landlock(ruleset);
    // SAFETY: the arguments are the caller's.
    unsafe { syscall_by_number()(number, ruleset, flags) }
}

/// `syscall(SYS_prctl, option, …)`.
pub(super) unsafe extern "C-unwind" fn prctl(
    number: c_long,
    option: c_int,
    a: c_ulong,
    b: c_ulong,
    c: c_ulong,
    d: c_ulong,
) -> c_long {
    process::before_prctl(option, a, b);
    // SAFETY: the arguments are the caller's.
    unsafe { syscall_by_number()(number, option, a, b, c, d) }
}

/// `syscall(NUMBER, …)` of a call that waits.
pub(super) unsafe extern "C-unwind" fn wait(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    if waits::concern() {
        // SAFETY: the arguments are the caller's, for the call of this number.
        waits::before(unsafe { named(number, [a, b, c, d]) });
    }
    // SAFETY: as above.
    unsafe { syscall_by_number()(number, a, b, c, d, e, f) }
}

/// What such a call names, whose first arguments these are.
///
/// # Safety
/// The arguments are as the manual page of the call of that number asks, for the time of the call.
unsafe fn named<'a>(number: c_long, [a, b, c, d]: [c_long; 4]) -> Named<'a> {
    // SAFETY: the caller's promise: io_submit(2) is given a list of pointers, select(2) sets of
    // whole words, poll(2) a list of entries.
    unsafe {
        if number == libc::SYS_io_submit {
            return Named::Requests(Places::new(c as *mut _, waits::some(b)));
        }
        if waits::is_select(number) {
            let words = waits::some(a).div_ceil(u64::BITS as usize);
            return Named::Sets(a, [b, c, d].map(|set| Places::new(set as *mut _, words)));
        }
        if waits::is_poll(number) {
            return Named::List(Polled::new(a as *mut _, waits::some(b)));
        }
    }
    Named::Set
}
