//! The next definition, in the process, of every function that we hook: mostly libc's, but another
//! interposer's or a sanitizer's if one stands behind us.
//!
//! Must not know what the hooks do with them. [`table`] has one line for each symbol; [`resolve`]
//! finds it.
//!
//! Each symbol has a pointer. From the moment the library is mapped, the pointer holds the address
//! of the symbol's *first call*. That is a function of the same signature that looks the symbol up,
//! stores what it found and goes there. So a call through the pointer needs no test for "not
//! resolved yet", and works before our constructor has run. Two threads, or a thread and a signal
//! handler, may both look up; both store the same address.

mod resolve;
mod table;

pub(crate) use table::*;

use core::ffi::c_long;

/// Finds every symbol of the table.
pub(crate) fn resolve_all() {
    each_symbol(resolve::each);
}

/// libc's `syscall`, to be called with a number and its arguments.
pub(crate) type Syscall = unsafe extern "C-unwind" fn(c_long, ...) -> c_long;

/// The next definition of that.
pub(crate) fn syscall_by_number() -> Syscall {
    // SAFETY: libc's syscall has this type.
    unsafe { core::mem::transmute::<*const (), Syscall>(syscall()) }
}
