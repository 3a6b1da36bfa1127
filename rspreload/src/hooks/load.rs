//! `dlopen` and `dlmopen`: what they bring with `RTLD_DEEPBIND` binds past us, and is mended afterwards ([`rebind`]). Such
//! libraries also get a `dlsym` of ours, which nobody else sees.
//!
//! They go by the place that they are called from: its search path, its namespace. So a hook must jump there with
//! the caller's return address on the stack; it stands in for the caller only where that makes no difference.

use core::ffi::{c_char, c_int, c_long, c_void};
use core::mem::transmute;

use rsocket_core::socket::own_waits;
use rsocket_core::stats::{self, Counter};
use rsocket_core::sys::sandbox;

use crate::edge::keeping_errno;
use crate::{policy, real, rebind};

type Open = unsafe extern "C-unwind" fn(*const c_char, c_int) -> *mut c_void;
type OpenIn = unsafe extern "C-unwind" fn(c_long, *const c_char, c_int) -> *mut c_void;

/// Defines a hook that asks `prepare` where to go, with the first three arguments and the return address, and jumps there with
/// everything as it was.
macro_rules! by_caller {
    ($($(#[$meta:meta])* $name:ident => $prepare:path;)*) => {$(
        $(#[$meta])*
        ///
        /// # Safety
        /// The contract of libc's function of this name.
        #[unsafe(naked)]
        pub(crate) unsafe extern "C-unwind" fn $name() {
            // SAFETY: saves and restores the registers that hold arguments, keeps the stack aligned for the call,
            // and leaves by a jump.
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                ".cfi_startproc",
                "sub rsp, 24",
                ".cfi_adjust_cfa_offset 24",
                "mov [rsp], rdi",
                "mov [rsp+8], rsi",
                "mov [rsp+16], rdx",
                "mov rcx, [rsp+24]",
                "call {prepare}",
                "mov rdi, [rsp]",
                "mov rsi, [rsp+8]",
                "mov rdx, [rsp+16]",
                "add rsp, 24",
                ".cfi_adjust_cfa_offset -24",
                "jmp rax",
                ".cfi_endproc",
                prepare = sym $prepare,
            );
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-48]!",
                ".cfi_adjust_cfa_offset 48",
                ".cfi_rel_offset x29, 0",
                ".cfi_rel_offset x30, 8",
                "stp x0, x1, [sp, #16]",
                "str x2, [sp, #32]",
                "mov x3, x30",
                "bl {prepare}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldr x2, [sp, #32]",
                "ldp x29, x30, [sp], #48",
                ".cfi_adjust_cfa_offset -48",
                "br x16",
                ".cfi_endproc",
                prepare = sym $prepare,
            );
        }
    )*};
}

by_caller! {
    /// `dlopen`, as in its manual page.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    dlopen => before_dlopen;
    /// `dlmopen`, as in its manual page.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    dlmopen => before_dlmopen;
    /// `dlsym` for the libraries that bind past us, and for nobody else: what it finds in libc has its hook.
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

extern "C-unwind" fn before_dlopen(name: *const c_char, mode: c_int, _: usize, caller: usize) -> *const () {
    own_waits::files_changed();
    if binds_past_us(mode) && stands_in(name, caller) { open_and_rebind as *const () } else { real::dlopen() }
}

extern "C-unwind" fn before_dlmopen(
    space: c_long,
    name: *const c_char,
    mode: c_int,
    caller: usize,
) -> *const () {
    own_waits::files_changed();
    if space != 0 {
        // Another namespace has a libc of its own, with an `errno` of its own: our hooks are not for it.
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

extern "C-unwind" fn before_dlsym(handle: *mut c_void, name: *const c_char, _: usize, _: usize) -> *const () {
    // Everything that goes by the caller's place is libc's; of the names without a handle, only ours do not.
    let by_place = handle == libc::RTLD_NEXT || name.is_null();
    // SAFETY: dlsym's argument.
    if by_place || handle == libc::RTLD_DEFAULT && unsafe { rebind::hook(name) }.is_none() {
        return libc::dlsym as *const ();
    }
    find_and_follow as *const ()
}

unsafe extern "C-unwind" fn find_and_follow(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: the caller's arguments.
    let found = unsafe { libc::dlsym(handle, name) };
    // SAFETY: as above.
    let hook = keeping_errno(|| unsafe { rebind::hook_instead_of(found as usize, name) });
    hook.map_or(found, |address| address as *mut c_void)
}
