//! `dlopen` and `dlmopen`: what they bring with `RTLD_DEEPBIND` binds past us, and is mended
//! afterwards ([`rebind`]). Such libraries also get a `dlsym` of ours, which no other library sees.
//!
//! They go by the place that they are called from: its search path, its namespace. So a hook must
//! jump there with the caller's return address on the stack. The hook stands in for the caller only
//! where that makes no difference.

use core::ffi::{CStr, c_int, c_long, c_void};

use rsocket_edge::attach::own_waits;
use rsocket_host::objects::Function;
use rsocket_host::stats;
use rsocket_host::stats::Counter;
use rsocket_host::sys::sandbox;

use crate::edge::keeping_errno;
use crate::{policy, rebind};

/// Whether what is opened so binds past us, and that is any business of ours.
fn binds_past_us(mode: c_int) -> bool {
    mode & libc::RTLD_DEEPBIND != 0 && !policy::disabled() && !sandbox::inside()
}

/// Before `dlopen`: whether the hook is to open it for the caller. If it should and cannot, the
/// process attaches no more.
pub(crate) fn stands_in(name: Option<&CStr>, mode: c_int, caller: usize) -> bool {
    own_waits::files_changed();
    // Without a name it is the program itself.
    let Some(name) = name.filter(|_| binds_past_us(mode)) else { return false };
    keeping_errno(|| {
        let can = rebind::may_stand_in(name, caller);
        if !can {
            rebind::left(1);
        }
        can
    })
}

/// The same before `dlmopen`.
pub(crate) fn stands_in_within(
    space: c_long,
    name: Option<&CStr>,
    mode: c_int,
    caller: usize,
) -> bool {
    if space == 0 {
        return stands_in(name, mode, caller);
    }
    own_waits::files_changed();
    // Another namespace has a libc of its own, with an `errno` of its own: our hooks are not for
    // it.
    stats::add(Counter::Namespaces, 1);
    false
}

/// Opens it by `real`, and points what then binds past us at our hooks; `dlsym` is for it alone.
pub(crate) fn opened(dlsym: Function<'_>, real: impl FnOnce() -> *mut c_void) -> *mut c_void {
    let before = keeping_errno(rebind::Before::now);
    let handle = real();
    keeping_errno(|| before.rebind(dlsym));
    handle
}

/// Before `dlsym` in such a library: whether what it finds may be a function that has a hook.
/// Everything that goes by the caller's place is libc's; of the names without a handle, only ours
/// do not.
pub(crate) fn may_find_hooked(handle: *mut c_void, name: Option<&CStr>) -> bool {
    handle != libc::RTLD_NEXT
        && name.is_some_and(|name| handle != libc::RTLD_DEFAULT || rebind::is_hook(name))
}

/// What `dlsym` has found in libc has its hook.
pub(crate) fn followed(found: *mut c_void, name: &CStr) -> *mut c_void {
    let hook = keeping_errno(|| rebind::hook_instead_of(found as usize, name));
    hook.map_or(found, |address| address as *mut c_void)
}
