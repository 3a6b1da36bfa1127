//! What the kernel calls in place of the program's signal handlers. What is known of those is
//! [`crate::handlers`]'.

use core::ffi::{c_int, c_void};
use core::ptr;

use libc::sigaction as action;
use rsocket_host::given::{In, Place};
use rsocket_host::sigaction::Handler;
use rsocket_host::signals;

use crate::{handlers, real};

/// From the constructor: see [`handlers::begin`].
pub(crate) fn begin(off: bool) {
    // SAFETY: a function that may be called for any signal.
    handlers::begin(off, unsafe { Handler::new(entered as *const () as usize) });
}

/// The next definition of `sigaction`.
pub(super) fn next(number: c_int) -> impl Fn(In<'_, action>, Place<'_, action>) -> c_int {
    // SAFETY: null or an action, and null or room for one, as the two types promise. A handler is
    // one by the promise of the hook, or ours.
    move |new, old| unsafe { real::sigaction(number, new.as_ptr(), old.as_ptr()) }
}

fn put_back(number: c_int) {
    handlers::put_back(number, next(number));
}

/// Which function of the program's is to run now; null for none.
unsafe extern "C-unwind" fn prepare(
    number: c_int,
    info: *const libc::siginfo_t,
    context: *mut c_void,
) -> *const () {
    let signal = handlers::signal(number, info, context, put_back);
    // SAFETY: what the kernel gave, since `entered` is what it called.
    let runs = signal.filter(|signal| unsafe { signals::arrived(signal) });
    runs.map_or(ptr::null(), |signal| signal.handler as *const ())
}

/// What the kernel calls for every handler of the program's.
///
/// # Safety
/// Called by the kernel alone, as a handler with `SA_SIGINFO`.
#[unsafe(naked)]
unsafe extern "C-unwind" fn entered() {
    // SAFETY: the three arguments are as they were when it leaves. It leaves by a jump to the
    // handler with the kernel's own return address on the stack, or by a return there.
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        ".cfi_startproc",
        "sub rsp, 24",
        ".cfi_adjust_cfa_offset 24",
        "mov [rsp], rdi",
        "mov [rsp+8], rsi",
        "mov [rsp+16], rdx",
        "call {prepare}",
        "mov rdi, [rsp]",
        "mov rsi, [rsp+8]",
        "mov rdx, [rsp+16]",
        "add rsp, 24",
        ".cfi_adjust_cfa_offset -24",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2: ret",
        ".cfi_endproc",
        prepare = sym prepare,
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
        "bl {prepare}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldr x2, [sp, #32]",
        "ldp x29, x30, [sp], #48",
        ".cfi_adjust_cfa_offset -48",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "cbz x16, 2f",
        "br x16",
        "2: ret",
        ".cfi_endproc",
        prepare = sym prepare,
    );
}
