//! A function that is called when a thread ends, be it cancelled.
//!
//! By a key of libc's (pthread_key_create(3)), and without allocating, so that a signal handler may
//! ask for it. Must not know what the function does. Entry point: [`ThreadEnd::watch`].

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

/// No key is to be had.
const NONE: u32 = 1;
/// Keys below this one have a place in each thread from its beginning (glibc's first level).
const AT_ONCE: libc::pthread_key_t = 32;

/// The function, and libc's key for it. Of a library that is never unloaded, as this one is.
pub struct ThreadEnd {
    run: extern "C" fn(*mut c_void),
    /// 0 not asked for, [`NONE`], else two more than the key. Relaxed: the number is all that is
    /// said.
    key: AtomicU32,
}

impl ThreadEnd {
    /// `run` is called with a value that means nothing.
    #[must_use]
    pub const fn new(run: extern "C" fn(*mut c_void)) -> Self {
        Self { run, key: AtomicU32::new(0) }
    }

    /// Makes sure that the function is called when this thread ends. False if that cannot be had
    /// without allocating.
    pub fn watch(&'static self) -> bool {
        if self.key.load(Ordering::Relaxed) == 0 {
            let new = self.make().map_or(NONE, |key| key + 2);
            // A second one that another thread has made at the same moment stays unused.
            let _ = self.key.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed);
        }
        match self.key.load(Ordering::Relaxed) {
            0 | NONE => false,
            // SAFETY: the key was made above, and any value but null will do: the function takes
            // none from it.
            key => unsafe { libc::pthread_setspecific(key - 2, ptr::without_provenance(1)) == 0 },
        }
    }

    fn make(&self) -> Option<libc::pthread_key_t> {
        let mut key = 0;
        // SAFETY: `key` is ours to be written, and the function lives for ever (see the type).
        let made = unsafe { libc::pthread_key_create(&raw mut key, Some(self.run)) } == 0;
        (made && key < AT_ONCE).then_some(key)
    }
}
