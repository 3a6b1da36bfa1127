//! Looking up a symbol: idempotent, never blocking on a lock of ours, never allocating on our side.
//!
//! Entry points: [`next`] (on a first call) and [`each`] (from the constructor).

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicPtr, Ordering};

use rsocket_host::objects::next_definition;
use rsocket_host::sys;

/// One symbol: its name, the pointer through which it is called, and what stands there if no
/// library in the process defines it.
pub(super) struct Symbol {
    pub(super) name: &'static CStr,
    pub(super) next: &'static AtomicPtr<()>,
    pub(super) absent: *const (),
    /// Every libc that we run on has it.
    pub(super) certain: bool,
}

/// What a function answers when it does not exist: -1 or null, with `errno` = `ENOSYS`.
pub(super) trait Absent {
    const ANSWER: Self;
}
impl Absent for c_int {
    const ANSWER: Self = -1;
}
impl Absent for isize {
    const ANSWER: Self = -1;
}
impl Absent for () {
    const ANSWER: Self = ();
}
impl<T> Absent for *mut T {
    const ANSWER: Self = core::ptr::null_mut();
}

/// The body of every function that does not exist.
#[cold]
pub(super) fn answer_absent<T: Absent>() -> T {
    sys::set_errno(libc::ENOSYS);
    T::ANSWER
}

/// Finds the symbol, stores its address and gives it. `errno` is as before.
#[cold]
pub(super) fn next(symbol: &Symbol) -> *const () {
    let before = sys::errno();
    let found = next_definition(symbol.name);
    sys::set_errno(before);
    let found: *const () = if found.is_null() { symbol.absent } else { found.cast() };
    // Relaxed: the pointer carries no data of ours with it, and every thread stores the same one.
    symbol.next.store(found.cast_mut(), Ordering::Relaxed);
    found
}

/// Finds every symbol, so that no later call has to.
pub(super) fn each(symbols: &[Symbol]) {
    for symbol in symbols {
        match core::str::from_utf8(symbol.name.to_bytes_with_nul()) {
            Ok(name) if symbol.certain => {
                // SAFETY: `name` ends in its NUL, which is what redhook's function relies on. It
                // panics on a symbol that does not exist; these do.
                let found = unsafe { redhook::ld_preload::dlsym_next(name) };
                symbol.next.store(found.cast::<()>().cast_mut(), Ordering::Relaxed);
            }
            _ => {
                next(symbol);
            }
        }
    }
}
