//! Threads of this library.
//!
//! Must not know what they do. Entry points: [`start`], [`start_by_libc`].

use core::ffi::c_void;
use core::ptr;

use crate::failure::Failure;
use crate::sys;

pub(crate) const STACK: usize = 128 * 1024;

/// Starts a thread with all signals blocked: they are the program's.
pub fn start(name: &str, run: fn()) -> bool {
    let body = move || {
        run();
        sys::own_thread(false);
    };
    let builder = std::thread::Builder::new().name(name.into()).stack_size(STACK);
    counted(|| builder.spawn(body).is_ok().then_some(()).ok_or(())).is_ok()
}

/// As [`start`], with libc's own size of a stack. `run` is what libc calls.
///
/// # Errors
/// What pthread_create(3) says.
pub fn start_by_libc(run: fn()) -> Result<(), Failure> {
    extern "C" fn main(run: *mut c_void) -> *mut c_void {
        // SAFETY: the pointer is that of a `fn()`, by what stands below.
        let run = unsafe { core::mem::transmute::<*mut c_void, fn()>(run) };
        run();
        sys::own_thread(false);
        ptr::null_mut()
    }
    // SAFETY: the attributes and the identifier are written by libc before they are read; `main`
    // lives for ever.
    counted(|| unsafe {
        let mut thread = core::mem::zeroed();
        let mut attributes: libc::pthread_attr_t = core::mem::zeroed();
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setdetachstate(&raw mut attributes, libc::PTHREAD_CREATE_DETACHED);
        let run = run as *mut c_void;
        let r = libc::pthread_create(&raw mut thread, &raw const attributes, main, run);
        libc::pthread_attr_destroy(&raw mut attributes);
        if r == 0 { Ok(()) } else { Err(Failure::from_code(r)) }
    })
}

/// Starts a thread by `start`, and counts it; it inherits the mask, in which all signals are
/// blocked.
fn counted<E>(start: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
    // SAFETY: both sets are locals, for which zeroes are a value; the old mask is put back below.
    let before = unsafe {
        let (mut all, mut before) = (core::mem::zeroed::<libc::sigset_t>(), core::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    };
    sys::own_thread(true);
    let started = start();
    if started.is_err() {
        sys::own_thread(false);
    }
    // SAFETY: the mask that was there.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    started
}
