//! `dlopen` and `dlmopen`: what they bring with `RTLD_DEEPBIND` binds past us, and is mended
//! afterwards ([`rebind`]). Such libraries also get a `dlsym` of ours, which no other library sees.
//!
//! They go by the place that they are called from: its search path, its namespace. So a hook must
//! jump there with the caller's return address on the stack. The hook stands in for the caller only
//! where that makes no difference.

use core::ffi::{c_char, c_int, c_long, c_void};
use core::mem::transmute;

use rsocket_edge::attach::own_waits;
use rsocket_host::stats;
use rsocket_host::stats::Counter;
use rsocket_host::sys::sandbox;

use crate::edge::keeping_errno;
use crate::{policy, real, rebind};

type Open = unsafe extern "C-unwind" fn(*const c_char, c_int) -> *mut c_void;
type OpenIn = unsafe extern "C-unwind" fn(c_long, *const c_char, c_int) -> *mut c_void;

by_caller! {
    /// `dlsym` for the libraries that bind past us, and for no others: what it finds in libc has
    /// its hook.
    dlsym_beside => before_dlsym;
}

/// Whether what is opened so binds past us, and that is any business of ours.
fn binds_past_us(mode: c_int) -> bool {
    mode & libc::RTLD_DEEPBIND != 0 && !policy::disabled() && !sandbox::inside()
}

/// Whether we can open it for the caller; if not, the process attaches no more.
fn stands_in(name: *const c_char, caller: usize) -> bool {
    // SAFETY: dlopen's argument.
    let yes = keeping_errno(|| unsafe { rebind::may_stand_in(name, caller) });
    // Without a name it is the program itself.
    if !yes && !name.is_null() {
        keeping_errno(|| rebind::left(1));
    }
    yes
}

pub(crate) extern "C-unwind" fn before_dlopen(
    name: *const c_char,
    mode: c_int,
    _: usize,
    caller: usize,
) -> *const () {
    own_waits::files_changed();
    if binds_past_us(mode) && stands_in(name, caller) {
        open_and_rebind as *const ()
    } else {
        real::dlopen()
    }
}

pub(crate) extern "C-unwind" fn before_dlmopen(
    space: c_long,
    name: *const c_char,
    mode: c_int,
    caller: usize,
) -> *const () {
    own_waits::files_changed();
    if space != 0 {
        // Another namespace has a libc of its own, with an `errno` of its own: our hooks are not
        // for it.
        stats::add(Counter::Namespaces, 1);
    } else if binds_past_us(mode) && stands_in(name, caller) {
        return open_in_and_rebind as *const ();
    }
    real::dlmopen()
}

unsafe extern "C-unwind" fn open_and_rebind(name: *const c_char, mode: c_int) -> *mut c_void {
    let before = keeping_errno(rebind::Before::now);
    // SAFETY: the next definition of dlopen, or what stands for it; the arguments are the caller's.
    let handle = unsafe { transmute::<*const (), Open>(real::dlopen())(name, mode) };
    keeping_errno(|| before.rebind(dlsym_beside as *const ()));
    handle
}

unsafe extern "C-unwind" fn open_in_and_rebind(
    space: c_long,
    name: *const c_char,
    mode: c_int,
) -> *mut c_void {
    let before = keeping_errno(rebind::Before::now);
    // SAFETY: as above.
    let handle = unsafe { transmute::<*const (), OpenIn>(real::dlmopen())(space, name, mode) };
    keeping_errno(|| before.rebind(dlsym_beside as *const ()));
    handle
}

extern "C-unwind" fn before_dlsym(
    handle: *mut c_void,
    name: *const c_char,
    _: usize,
    _: usize,
) -> *const () {
    // Everything that goes by the caller's place is libc's; of the names without a handle, only
    // ours do not.
    let by_place = handle == libc::RTLD_NEXT || name.is_null();
    // SAFETY: dlsym's argument.
    if by_place || handle == libc::RTLD_DEFAULT && unsafe { rebind::hook(name) }.is_none() {
        return libc::dlsym as *const ();
    }
    find_and_follow as *const ()
}

unsafe extern "C-unwind" fn find_and_follow(
    handle: *mut c_void,
    name: *const c_char,
) -> *mut c_void {
    // SAFETY: the caller's arguments.
    let found = unsafe { libc::dlsym(handle, name) };
    // SAFETY: as above.
    let hook = keeping_errno(|| unsafe { rebind::hook_instead_of(found as usize, name) });
    hook.map_or(found, |address| address as *mut c_void)
}
