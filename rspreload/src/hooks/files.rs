//! Calls that open files: where the program has no descriptor left, ones of ours give way, as in
//! those that make sockets. Nothing else is done to them.
//!
//! Must not know what gives way. Entry points: the hooks.

use core::ffi::{c_char, c_int, c_uint};

use libc::{DIR, FILE, mode_t};

use crate::real;
use crate::room::{pointer_with_room, with_room};

hook! {
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        with_room(|| real::open(path, flags, mode))
    }

    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        with_room(|| real::open64(path, flags, mode))
    }

    fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        with_room(|| real::openat(dir, path, flags, mode))
    }

    fn openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        with_room(|| real::openat64(dir, path, flags, mode))
    }

    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int {
        with_room(|| real::memfd_create(name, flags))
    }

    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
        pointer_with_room(|| real::fopen(path, mode))
    }

    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
        pointer_with_room(|| real::fopen64(path, mode))
    }

    fn opendir(path: *const c_char) -> *mut DIR {
        pointer_with_room(|| real::opendir(path))
    }
}
