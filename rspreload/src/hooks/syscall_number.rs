//! libc's `syscall`: the few numbers by which many programs do what we must know of. What is done
//! for them stands in [`by_number`]. `io_uring_setup` makes a ring. `close` is how libuv closes
//! every descriptor, since libc's function is a cancellation point. `close_range` is called so
//! where libc is older than the kernel. `seccomp` and Landlock have no function of libc's, and so
//! sandboxes begin here (libseccomp's do), some of them by `prctl`. By others a program waits past
//! every hook ([`waits`]). All the rest jump on.
//!
//! `syscall` carries the futexes of every caller and the calls of sandboxes, with up to seven
//! arguments, before any constructor and in any state. So it is wrapped by comparisons and jumps:
//! no frame, no memory but the pointer, no register that could hold an argument.

use core::sync::atomic::{AtomicPtr, Ordering};

use super::by_number;
use crate::ops::waits;
use crate::real;

/// The next definition of `syscall`; before that is known, what finds it.
static NEXT: AtomicPtr<()> = AtomicPtr::new(find as *mut ());

/// Finds the next definition, for good; every later call jumps there.
extern "C-unwind" fn look_up() -> *const () {
    let found = real::syscall();
    // Relaxed: every thread stores the same pointer, and it carries no data with it.
    NEXT.store(found.cast_mut(), Ordering::Relaxed);
    found
}

passing_on! {
    /// `syscall` as it is before the first one: finds the next definition, then goes there.
    find => look_up;
}

/// `syscall`, as in its manual page.
///
/// # Safety
/// The contract of libc's function of this name.
#[cfg(target_arch = "x86_64")]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub(crate) unsafe extern "C-unwind" fn syscall() {
    // SAFETY: changes nothing but the flags, and leaves by a jump every way.
    core::arch::naked_asm!(
        ".cfi_startproc",
        "cmp rdi, {close}", "je {closes}",
        "cmp rdi, {close_range}", "je {closes_range}",
        "cmp rdi, {setup}", "je {sets_up}",
        "cmp rdi, {seccomp}", "je {filters}",
        "cmp rdi, {landlock}", "je {restricts}",
        "cmp rdi, {prctl}", "je {controls}",
        "cmp rdi, {waits_end}",
        "jae 2f",
        "bt qword ptr [rip + {waits}], rdi",
        "jc {waits_so}",
        "2:",
        "jmp qword ptr [rip + {next}]",
        ".cfi_endproc",
        close = const libc::SYS_close,
        closes = sym by_number::close,
        close_range = const libc::SYS_close_range,
        closes_range = sym by_number::close_range,
        setup = const libc::SYS_io_uring_setup,
        sets_up = sym by_number::io_uring_setup,
        seccomp = const libc::SYS_seccomp,
        filters = sym by_number::seccomp,
        landlock = const libc::SYS_landlock_restrict_self,
        restricts = sym by_number::landlock,
        prctl = const libc::SYS_prctl,
        controls = sym by_number::prctl,
        waits_end = const waits::END,
        waits = sym waits::NUMBERS,
        waits_so = sym by_number::wait,
        next = sym NEXT,
    );
}

/// `syscall`, as in its manual page.
///
/// # Safety
/// The contract of libc's function of this name.
#[cfg(target_arch = "aarch64")]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub(crate) unsafe extern "C-unwind" fn syscall() {
    // SAFETY: changes nothing but the flags and x16, and leaves by a jump every way. The code that
    // stands between caller and callee owns x16.
    core::arch::naked_asm!(
        ".cfi_startproc",
        "cmp x0, {close}", "b.eq {closes}",
        "cmp x0, {close_range}", "b.eq {closes_range}",
        "cmp x0, {setup}", "b.eq {sets_up}",
        "cmp x0, {seccomp}", "b.eq {filters}",
        "cmp x0, {landlock}", "b.eq {restricts}",
        "cmp x0, {prctl}", "b.eq {controls}",
        "cmp x0, {submit}", "b.eq {waits_so}",
        "cmp x0, {pselect}", "b.eq {waits_so}",
        "cmp x0, {ppoll}", "b.eq {waits_so}",
        "cmp x0, {pwait}", "b.eq {waits_so}",
        "cmp x0, {pwait2}", "b.eq {waits_so}",
        "adrp x16, {next}",
        "ldr x16, [x16, :lo12:{next}]",
        "br x16",
        ".cfi_endproc",
        close = const libc::SYS_close,
        closes = sym by_number::close,
        close_range = const libc::SYS_close_range,
        closes_range = sym by_number::close_range,
        setup = const libc::SYS_io_uring_setup,
        sets_up = sym by_number::io_uring_setup,
        seccomp = const libc::SYS_seccomp,
        filters = sym by_number::seccomp,
        landlock = const libc::SYS_landlock_restrict_self,
        restricts = sym by_number::landlock,
        prctl = const libc::SYS_prctl,
        controls = sym by_number::prctl,
        submit = const libc::SYS_io_submit,
        pselect = const libc::SYS_pselect6,
        ppoll = const libc::SYS_ppoll,
        pwait = const libc::SYS_epoll_pwait,
        pwait2 = const libc::SYS_epoll_pwait2,
        waits_so = sym by_number::wait,
        next = sym NEXT,
    );
}
