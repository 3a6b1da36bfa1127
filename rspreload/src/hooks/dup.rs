//! More names for one socket: `dup` in every spelling. What they do is [`crate::ops::dup`]'s.

use core::ffi::c_int;

use crate::ops::dup as ops;
use crate::real;
use crate::room::with_room;

hook! {
    fn dup(fd: c_int) -> c_int {
        ops::dup(fd, || with_room(|| real::dup(fd)))
    }

    fn dup2(old: c_int, new: c_int) -> c_int {
        ops::replace(old, new, || real::dup2(old, new))
    }

    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
        if flags & !libc::O_CLOEXEC != 0 {
            return real::dup3(old, new, flags);
        }
        ops::replace(old, new, || real::dup3(old, new, flags))
    }
}
