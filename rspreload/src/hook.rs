//! The `hook!` macro: how a function of libc's is defined here.
//!
//! A hook has libc's name and libc's signature. Its body runs under the contract of that function's
//! manual page, which the C caller upholds. The body must not keep a value with a destructor alive
//! across a call into [`crate::real`]. Such a call may be cancelled and unwind through the body.
//!
//! Variadic functions (`fcntl`, `ioctl`, `prctl`) are defined with a fixed number of arguments. On
//! x86-64 and AArch64 Linux variadic integer arguments travel exactly as ordinary ones do. An
//! argument that the caller did not pass is a register whose value no function uses. Functions
//! whose number of arguments has no bound (`execl`, `dprintf`) cannot be written so; see
//! [`passing_on!`] and [`listed!`].

/// Defines and exports hooks. Under `cfg(test)` they are not exported, so that the test binary is
/// not interposed. Three forms:
///
/// - `fn name(…) -> T, with slot of fd => { … }`: the body runs for a descriptor that stands for a
///   TCP connection of ours; every other call goes to the next definition.
/// - `fn name(…) -> T, when condition => { … }`: the body runs where the condition holds.
/// - `fn name(…) -> T { … }`: the body always runs.
///
/// In the first two a call that succeeds leaves `errno` as it was. Their body stands in a function
/// of its own, out of line and of the same signature. So the way past it is a test and a jump: no
/// frame, no saved register.
macro_rules! hook {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $ret:ty, with $slot:ident of $fd:ident => $body:block)+) => {
        hook! {$(
            $(#[$meta])*
            fn $name($($arg: $type),*) -> $ret, when $crate::shadow::tracked($fd) => {
                let Some($slot) = $crate::shadow::connection($fd) else { return $crate::real::$name($($arg),*) };
                $body
            }
        )+}
    };
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $ret:ty, when $condition:expr => $body:block)+) => {
        hook! {$(
            $(#[$meta])*
            fn $name($($arg: $type),*) -> $ret {
                #[inline(never)]
                #[allow(unused_variables, unused_unsafe)]
                unsafe extern "C-unwind" fn ours($($arg: $type),*) -> $ret {
                    // SAFETY: as for the hook itself, whose arguments these are.
                    $crate::edge::leaving_errno(|| unsafe { $body })
                }
                if $condition { ours($($arg),*) } else { $crate::real::$name($($arg),*) }
            }
        )+}
    };
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)? $body:block)+) => {$(
        $(#[$meta])*
        #[doc = concat!("`", stringify!($name), "`, as in its manual page.")]
        ///
        /// # Safety
        /// The contract of libc's function of this name.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[allow(clippy::too_many_arguments, unused_unsafe)]
        pub(crate) unsafe extern "C-unwind" fn $name($($arg: $type),*) $(-> $ret)? {
            // SAFETY: whatever the body does with the arguments, the contract of libc's function of
            // this name allows it, and the C caller upholds that contract.
            unsafe { $body }
        }
    )+};
}

/// Defines a hook with an unbounded argument list, which is exported if it says so. The hook calls
/// a preparing function, which sees the first argument and gives the address of the next
/// definition. The hook then jumps there with every argument register and the stack as they were.
macro_rules! passing_on {
    ($($(#[$meta:meta])* $name:ident => $prepare:path;)*) => {$(
        $(#[$meta])*
        ///
        /// # Safety
        /// The contract of libc's function of this name.
        #[unsafe(naked)]
        pub(crate) unsafe extern "C-unwind" fn $name() {
            // SAFETY: saves and restores every register that can hold an argument (al counts the
            // vector registers), and keeps the stack aligned for the call. It leaves by a jump, so
            // that the next function finds what the caller of this one gave.
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                ".cfi_startproc",
                "sub rsp, 184",
                ".cfi_adjust_cfa_offset 184",
                "movups [rsp], xmm0",
                "movups [rsp+16], xmm1",
                "movups [rsp+32], xmm2",
                "movups [rsp+48], xmm3",
                "movups [rsp+64], xmm4",
                "movups [rsp+80], xmm5",
                "movups [rsp+96], xmm6",
                "movups [rsp+112], xmm7",
                "mov [rsp+128], rdi",
                "mov [rsp+136], rsi",
                "mov [rsp+144], rdx",
                "mov [rsp+152], rcx",
                "mov [rsp+160], r8",
                "mov [rsp+168], r9",
                "mov [rsp+176], rax",
                "call {prepare}",
                "mov r11, rax",
                "movups xmm0, [rsp]",
                "movups xmm1, [rsp+16]",
                "movups xmm2, [rsp+32]",
                "movups xmm3, [rsp+48]",
                "movups xmm4, [rsp+64]",
                "movups xmm5, [rsp+80]",
                "movups xmm6, [rsp+96]",
                "movups xmm7, [rsp+112]",
                "mov rdi, [rsp+128]",
                "mov rsi, [rsp+136]",
                "mov rdx, [rsp+144]",
                "mov rcx, [rsp+152]",
                "mov r8, [rsp+160]",
                "mov r9, [rsp+168]",
                "mov rax, [rsp+176]",
                "add rsp, 184",
                ".cfi_adjust_cfa_offset -184",
                "jmp r11",
                ".cfi_endproc",
                prepare = sym $prepare,
            );
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-224]!",
                ".cfi_adjust_cfa_offset 224",
                ".cfi_rel_offset x29, 0",
                ".cfi_rel_offset x30, 8",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "str x8, [sp, #80]",
                "stp q0, q1, [sp, #96]",
                "stp q2, q3, [sp, #128]",
                "stp q4, q5, [sp, #160]",
                "stp q6, q7, [sp, #192]",
                "bl {prepare}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x3, [sp, #32]",
                "ldp x4, x5, [sp, #48]",
                "ldp x6, x7, [sp, #64]",
                "ldr x8, [sp, #80]",
                "ldp q0, q1, [sp, #96]",
                "ldp q2, q3, [sp, #128]",
                "ldp q4, q5, [sp, #160]",
                "ldp q6, q7, [sp, #192]",
                "ldp x29, x30, [sp], #224",
                ".cfi_adjust_cfa_offset -224",
                "br x16",
                ".cfi_endproc",
                prepare = sym $prepare,
            );
        }
    )*};
}

/// Defines and exports a hook whose arguments are a string and a list that ends in a null pointer.
/// The hook lays the argument registers down right before the arguments that the caller left on the
/// stack. All of them together are then an array. The hook calls `(first, array)`.
macro_rules! listed {
    ($($(#[$meta:meta])* $name:ident => $with_array:path;)*) => {$(
        $(#[$meta])*
        ///
        /// # Safety
        /// The contract of libc's function of this name.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub(crate) unsafe extern "C-unwind" fn $name() {
            // SAFETY: the return address moves below the array and is put back; nothing else that
            // is the caller's is written. The stack is aligned at the call: 8 - 8 + 5 * 8 + 8 bytes
            // below the frame.
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                ".cfi_startproc",
                "pop rax",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push rax",
                ".cfi_def_cfa_offset 48",
                ".cfi_offset rip, -48",
                "call {with_array}",
                "pop rdx",
                "add rsp, 40",
                "push rdx",
                ".cfi_def_cfa_offset 8",
                ".cfi_offset rip, -8",
                "ret",
                ".cfi_endproc",
                with_array = sym $with_array,
            );
            // SAFETY: as above; the link register is kept in a frame below the array.
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-80]!",
                ".cfi_adjust_cfa_offset 80",
                ".cfi_rel_offset x29, 0",
                ".cfi_rel_offset x30, 8",
                "stp x1, x2, [sp, #24]",
                "stp x3, x4, [sp, #40]",
                "stp x5, x6, [sp, #56]",
                "str x7, [sp, #72]",
                "add x1, sp, #24",
                "bl {with_array}",
                "ldp x29, x30, [sp], #80",
                ".cfi_adjust_cfa_offset -80",
                "ret",
                ".cfi_endproc",
                with_array = sym $with_array,
            );
        }
    )*};
}

/// Defines a hook that asks `prepare` where to go, with the first three arguments and the return
/// address. The hook then jumps there with everything as it was.
macro_rules! by_caller {
    ($($(#[$meta:meta])* $name:ident => $prepare:path;)*) => {$(
        $(#[$meta])*
        ///
        /// # Safety
        /// The contract of libc's function of this name.
        #[unsafe(naked)]
        pub(crate) unsafe extern "C-unwind" fn $name() {
            // SAFETY: saves and restores the registers that hold arguments, keeps the stack aligned
            // for the call, and leaves by a jump.
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
