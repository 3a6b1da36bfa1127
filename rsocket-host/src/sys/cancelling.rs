//! Whether the calling thread can be cancelled (pthread_setcancelstate(3)).
//!
//! Must not know why a caller asks for it. Entry point: [`set`].

unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
}

/// Whether the calling thread can be cancelled from now on; gives what it was.
#[inline]
pub fn set(on: bool) -> bool {
    const ENABLE: libc::c_int = 0;
    const DISABLE: libc::c_int = 1;
    let mut old = ENABLE;
    // SAFETY: changes a flag of the calling thread and writes one integer.
    unsafe { pthread_setcancelstate(if on { ENABLE } else { DISABLE }, &raw mut old) };
    old == ENABLE
}
