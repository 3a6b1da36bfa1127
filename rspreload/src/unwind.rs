//! The unwinder's functions, found when they are first needed instead of with the library.
//!
//! A thread that is cancelled unwinds through our frames, so the standard library's code for that
//! is in here, and it calls libgcc_s. Few C programs load that, and loading it took longer than all
//! the rest of a start with our library. So the names that the standard library refers to are
//! defined here, hidden from all other libraries, as jumps through a pointer. Before the first call
//! that pointer holds the address of a piece of code that looks the function up. By then there is
//! an unwinder in the process: no other code unwinds through us.
//!
//! Must not know the unwinder's types. No entry point: the linker finds the names.

use core::arch::global_asm;
use core::ffi::{CStr, c_char, c_void};

use rsocket_host::{objects, sys};

/// The function of this name in the process's unwinder: the one that all its libraries see, or,
/// like the C library does it, libgcc_s. Ends the process if there is none, as nothing could go on.
/// `errno` is as before.
unsafe extern "C" fn find(name: *const c_char) -> *mut c_void {
    // SAFETY: one of the C strings below.
    let name = unsafe { CStr::from_ptr(name) };
    let before = sys::errno();
    let mut found = objects::definition(name);
    if found.is_null() {
        found = objects::definition_in(c"libgcc_s.so.1", name);
    }
    if found.is_null() {
        std::process::abort();
    }
    sys::set_errno(before);
    found
}

// Each name is a jump, so that the unwinder sees the caller's frame as if it had been called
// directly. All arguments are in the six registers that the first call keeps. (48 bytes and the
// return address are on the stack then, and 8 more align it.)
global_asm!(
    ".macro unwinder name",
    "    .section .rodata",
    ".Lunwinder_name_\\name: .asciz \"\\name\"",
    "    .data",
    "    .p2align 3",
    ".Lunwinder_next_\\name: .quad .Lunwinder_first_\\name",
    "    .text",
    "    .globl \\name",
    "    .hidden \\name",
    "    .type \\name, @function",
    "\\name:",
    "    jmp *.Lunwinder_next_\\name(%rip)",
    "    .size \\name, . - \\name",
    ".Lunwinder_first_\\name:",
    "    push %rdi",
    "    push %rsi",
    "    push %rdx",
    "    push %rcx",
    "    push %r8",
    "    push %r9",
    "    sub $8, %rsp",
    "    lea .Lunwinder_name_\\name(%rip), %rdi",
    "    call {find}",
    "    mov %rax, .Lunwinder_next_\\name(%rip)",
    "    add $8, %rsp",
    "    pop %r9",
    "    pop %r8",
    "    pop %rcx",
    "    pop %rdx",
    "    pop %rsi",
    "    pop %rdi",
    "    jmp *.Lunwinder_next_\\name(%rip)",
    ".endm",
    "unwinder _Unwind_Backtrace",
    "unwinder _Unwind_DeleteException",
    "unwinder _Unwind_GetDataRelBase",
    "unwinder _Unwind_GetIP",
    "unwinder _Unwind_GetIPInfo",
    "unwinder _Unwind_GetLanguageSpecificData",
    "unwinder _Unwind_GetRegionStart",
    "unwinder _Unwind_GetTextRelBase",
    "unwinder _Unwind_RaiseException",
    "unwinder _Unwind_Resume",
    "unwinder _Unwind_SetGR",
    "unwinder _Unwind_SetIP",
    ".purgem unwinder",
    find = sym find,
    options(att_syntax),
);
