//! Threads of this library.
//!
//! Must not know what they do. Entry point: [`start`].

use crate::sys;

pub(crate) const STACK: usize = 128 * 1024;

/// Starts a thread with all signals blocked: they are the program's.
pub fn start(name: &str, run: fn()) -> bool {
    // SAFETY: both sets are locals, for which zeroes are a value; the old mask is put back below.
    let before = unsafe {
        let (mut all, mut before) = (core::mem::zeroed::<libc::sigset_t>(), core::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    };
    sys::own_thread(true);
    let body = move || {
        run();
        sys::own_thread(false);
    };
    let started =
        std::thread::Builder::new().name(name.into()).stack_size(STACK).spawn(body).is_ok();
    if !started {
        sys::own_thread(false);
    }
    // SAFETY: the mask that was there.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, core::ptr::null_mut()) };
    started
}
