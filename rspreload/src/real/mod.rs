//! The next definition, in the process, of every function that we hook: mostly libc's, but another
//! interposer's or a sanitizer's if one stands behind us.
//!
//! Must not know what the hooks do with them. [`table`] has one line for each symbol; [`resolve`] finds it.
//!
//! Each symbol has a pointer that holds, from the moment the library is mapped, the address of its *first
//! call*: a function of the same signature that looks the symbol up, stores what it found and goes there. So
//! a call through the pointer needs no test for "not resolved yet", and works before our constructor has
//! run. Two threads, or a thread and a signal handler, may both look up; both store the same address.

mod resolve;
mod table;

pub(crate) use resolve::all as resolve_all;
pub(crate) use table::*;
