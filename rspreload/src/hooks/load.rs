//! `dlopen` and `dlmopen`, and a `dlsym` for what binds past us. What they do is
//! [`crate::ops::load`]'s.

use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::mem::transmute;

use rsocket_host::given::string;
use rsocket_host::objects::Function;

use crate::ops::load as ops;
use crate::real;

by_caller! {
    /// `dlopen`, as in its manual page.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    dlopen => before_dlopen;
    /// `dlmopen`, as in its manual page.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    dlmopen => before_dlmopen;
    /// `dlsym` for the libraries that bind past us, and for no others: what it finds in libc has
    /// its hook.
    dlsym_beside => before_dlsym;
}

type Open = unsafe extern "C-unwind" fn(*const c_char, c_int) -> *mut c_void;
type OpenIn = unsafe extern "C-unwind" fn(c_long, *const c_char, c_int) -> *mut c_void;

fn dlsym() -> Function<'static> {
    // SAFETY: it is called as `dlsym` is, and there for good.
    unsafe { Function::new(b"dlsym", dlsym_beside as *const () as usize) }
}

unsafe extern "C-unwind" fn before_dlopen(
    name: *const c_char,
    mode: c_int,
    _: usize,
    caller: usize,
) -> *const () {
    // SAFETY: dlopen's argument.
    let ours = ops::stands_in(unsafe { string(name) }, mode, caller);
    if ours { open_and_rebind as *const () } else { real::dlopen() }
}

unsafe extern "C-unwind" fn before_dlmopen(
    space: c_long,
    name: *const c_char,
    mode: c_int,
    caller: usize,
) -> *const () {
    // SAFETY: dlmopen's argument.
    let ours = ops::stands_in_within(space, unsafe { string(name) }, mode, caller);
    if ours { open_in_and_rebind as *const () } else { real::dlmopen() }
}

unsafe extern "C-unwind" fn open_and_rebind(name: *const c_char, mode: c_int) -> *mut c_void {
    // SAFETY: the next definition of dlopen, or what stands for it; the arguments are the caller's.
    ops::opened(dlsym(), || unsafe { transmute::<*const (), Open>(real::dlopen())(name, mode) })
}

unsafe extern "C-unwind" fn open_in_and_rebind(
    space: c_long,
    name: *const c_char,
    mode: c_int,
) -> *mut c_void {
    // SAFETY: as above.
    ops::opened(dlsym(), || unsafe {
        transmute::<*const (), OpenIn>(real::dlmopen())(space, name, mode)
    })
}

unsafe extern "C-unwind" fn before_dlsym(
    handle: *mut c_void,
    name: *const c_char,
    _: usize,
    _: usize,
) -> *const () {
    // SAFETY: dlsym's argument.
    let ours = ops::may_find_hooked(handle, unsafe { string(name) });
    if ours { find_and_follow as *const () } else { libc::dlsym as *const () }
}

unsafe extern "C-unwind" fn find_and_follow(
    handle: *mut c_void,
    name: *const c_char,
) -> *mut c_void {
    // SAFETY: the caller's arguments; there is a name, as `before_dlsym` has seen.
    unsafe { ops::followed(libc::dlsym(handle, name), CStr::from_ptr(name)) }
}
