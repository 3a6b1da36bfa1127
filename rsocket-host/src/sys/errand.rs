//! A process that lives for a moment. It shares this one's memory, does one thing that this one
//! must not do itself, and is gone before the calling thread goes on.
//!
//! No signal tells of its end, and no `wait` of the program's finds it (clone(2), `__WCLONE`). Must
//! not know what it is for. Entry points: [`alone`], inside it [`with_signals_blocked`], inside
//! that [`run`]; [`reap`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

use crate::failure::Failure;
use crate::sys::settle::Settle;

/// Whether a thread is at it.
static BUSY: AtomicBool = AtomicBool::new(false);

/// A stack for the process, which one thread uses at a time ([`BUSY`]).
#[repr(align(64))]
struct Stack(UnsafeCell<[u8; 16384]>);
// SAFETY: only ever used by the process that run() makes, while BUSY is held.
unsafe impl Sync for Stack {}
static STACK: Stack = Stack(UnsafeCell::new([0; 16384]));

/// Runs `f` while no other thread does; not at all if another one is at it still after so many
/// times of `waiting`. Whether it ran.
pub(crate) fn alone(patience: u32, waiting: impl Fn(), f: impl FnOnce()) -> bool {
    // Acquire: pairs with the release below, in the thread before.
    let take = || BUSY.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
    let taken = (0..patience).any(|_| {
        let taken = take();
        if !taken {
            waiting();
        }
        taken
    });
    if taken {
        f();
        BUSY.store(false, Ordering::Release);
    }
    taken
}

/// A handler could fork, or leave by a jump; and it must not run in another process.
pub(crate) fn with_signals_blocked(f: impl FnOnce()) {
    let mut before = 0_u64;
    mask(&u64::MAX, Some(&mut before));
    f();
    mask(&before, None);
}

fn mask(set: &u64, before: Option<&mut u64>) {
    let before = before.map_or(core::ptr::null_mut(), core::ptr::from_mut);
    // SAFETY: a set of the kernel's size, and null or room for one.
    let _ = unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, set, before, size_of::<u64>())
    };
}

/// What a process of this kind does.
pub(crate) type Child = extern "C" fn(*mut c_void) -> c_int;

/// Runs `child` in a process of its own, on a stack of its own, until that has ended; its number,
/// to be [`reap`]ed. `sharing` says what it shares with this one (`CLONE_VM`, `CLONE_FILES`).
///
/// # Errors
/// The kernel's, where there is no such process.
///
/// # Safety
/// Inside [`alone`] and [`with_signals_blocked`]. `argument` is what `child` expects, which makes
/// system calls by instructions of its own and touches no thread-local.
pub(crate) unsafe fn run(
    sharing: c_int,
    child: Child,
    argument: *mut c_void,
) -> Result<c_int, Failure> {
    let top = STACK.0.get().cast::<c_void>().wrapping_byte_add(size_of::<Stack>());
    // SAFETY: no other process or thread uses the stack while BUSY is held. This thread sleeps
    // until the process has ended (CLONE_VFORK), so that what the argument names lives. No signal
    // reaches the process.
    let pid = unsafe { libc::clone(child, top, sharing | libc::CLONE_VFORK, argument) };
    if pid > 0 { Ok(pid) } else { Err(Failure::last()) }
}

/// As [`run`], by the system call with which newer libraries of C make threads.
///
/// # Errors
/// As [`run`]; `ENOSYS` where the kernel, or a filter, does not know it.
///
/// # Safety
/// As [`run`].
pub(crate) unsafe fn run_as_threads(
    sharing: c_int,
    child: Child,
    argument: *mut c_void,
) -> Result<c_int, Failure> {
    let how = CloneArguments {
        flags: (sharing | libc::CLONE_VFORK) as u64,
        stack: STACK.0.get().expose_provenance() as u64,
        stack_size: size_of::<Stack>() as u64,
        ..CloneArguments::default()
    };
    // SAFETY: as in run(): the arguments are the kernel's structure, which says the same.
    let result = unsafe { clone3(&how, child, argument) };
    c_int::try_from(result).ok().filter(|pid| *pid > 0).ok_or(Failure::from_code(-result as c_int))
}

/// `struct clone_args`, as it was at first. With an exit signal of 0 the kernel sends none.
#[derive(Default)]
#[repr(C)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
}

/// # Safety
/// As [`run`]; the stack is one.
#[cfg(target_arch = "x86_64")]
unsafe fn clone3(how: &CloneArguments, child: Child, argument: *mut c_void) -> isize {
    let result: isize;
    // SAFETY: the registers are those of the kernel's calling convention. The process begins behind
    // the instruction with these registers and an aligned stack of its own, and never leaves this
    // text.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "mov edi, eax",
            "mov eax, {exit}",
            "syscall",
            "ud2",
            "2:",
            exit = const libc::SYS_exit,
            inlateout("rax") libc::SYS_clone3 as isize => result,
            in("rdi") how, in("rsi") size_of::<CloneArguments>(),
            in("r12") child, in("r13") argument,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// # Safety
/// As above.
#[cfg(target_arch = "aarch64")]
unsafe fn clone3(how: &CloneArguments, child: Child, argument: *mut c_void) -> isize {
    let result: isize;
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x21",
            "blr x20",
            "mov x8, {exit}",
            "svc 0",
            "brk 1",
            "2:",
            exit = const libc::SYS_exit,
            in("x8") libc::SYS_clone3,
            inlateout("x0") how => result,
            in("x1") size_of::<CloneArguments>(),
            in("x20") child, in("x21") argument,
            options(nostack),
        );
    }
    result
}

/// Takes back what the kernel keeps of a process that has ended.
pub(crate) fn reap(pid: c_int) {
    let (none, no_usage) = (core::ptr::null_mut::<c_int>(), core::ptr::null_mut::<c_void>());
    // SAFETY: no memory is passed.
    unsafe { libc::syscall(libc::SYS_wait4, pid, none, libc::__WALL, no_usage) };
}

/// Valgrind ends a program that makes such a process.
pub(crate) fn is_emulated() -> bool {
    crate::environment::current(c"LD_PRELOAD")
        .is_some_and(|list| list.to_bytes().windows(9).any(|part| part == b"vgpreload"))
}

/// In the child of a fork, which has one thread.
pub fn forked() {
    BUSY.settle(false);
}
