//! A stack of the library's own, for what needs more room than the program's threads have to spare.
//!
//! A hook runs on whatever stack calls it, and a program may give a thread 16 KiB. Rare and large
//! work (reading settings, pairing, a report, whatever calls the RDMA libraries) runs here.
//! Frequent work keeps its frames small, and stays where it is. `tests/tests/frames.rs` holds both
//! to it.
//!
//! A stack is taken by one exchange and given back by another, without a lock, so that this is
//! right in a signal handler. Handlers of the program's wait until it is over (`thread::deepen`). A
//! handler that leaves by a jump would find itself on a stack that is none of the thread's. Stacks
//! are kept for the next caller. A caller that sleeps, or lets handlers run, can still have the
//! memory of a stack for its buffers ([`lend`]). Must not know what runs. Entry points: [`on_own`],
//! [`lend`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::ffi::c_void;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use super::thread;
use crate::sys::{self, PAGE_SIZE};

/// Bytes of one stack, of which only what is used takes memory.
const SIZE: usize = 256 << 10;

/// Stacks that no thread uses now. Acquire and release: the thread that takes a stack finds its
/// guard page in place.
static SPARE: [AtomicPtr<c_void>; 4] = [const { AtomicPtr::new(null_mut()) }; 4];

/// Calls `f` on a stack of the library's own, with signals put off. Calls it on the caller's where
/// there is none to be had, or where this is one already. Does not block by itself. `f` must not be
/// a cancellation point.
pub fn on_own<R>(f: impl FnOnce() -> R) -> R {
    if !thread::deepen() {
        return call(null_mut(), f);
    }
    let stack = take();
    let result = call(stack.map_or(null_mut(), |s| s.wrapping_byte_add(SIZE)), f);
    if let Some(stack) = stack {
        give_back(stack);
    }
    thread::surface();
    result
}

/// As [`on_own`], and not at all where there is no memory for one: for what needs more than a small
/// stack has. In a sandbox, where none is made, it is called all the same, since it will refuse
/// itself there.
pub fn on_own_only<R>(f: impl FnOnce() -> R) -> Option<R> {
    if !thread::deepen() {
        return Some(call(null_mut(), f));
    }
    let stack = take();
    let may = stack.is_some() || cfg!(miri) || sys::is_sandboxed();
    let top = stack.map_or(null_mut(), |s| s.wrapping_byte_add(SIZE));
    let result = may.then(|| call(top, f));
    if let Some(stack) = stack {
        give_back(stack);
    }
    thread::surface();
    result
}

/// Bytes that [`lend`] gives.
pub const LENT: usize = SIZE - PAGE_SIZE;

/// The memory of a stack, aligned to a page, for the caller alone until [`take_back`]; what is in
/// it is undefined. `None` where there is none to be had. A thread that is cancelled in between
/// keeps it for good: there is no destructor, since hooks must not have one across a sleep.
#[must_use]
pub fn lend() -> Option<*mut c_void> {
    take().map(|stack| stack.wrapping_byte_add(PAGE_SIZE))
}

/// Takes back what [`lend`] gave.
pub fn take_back(lent: *mut c_void) {
    give_back(lent.wrapping_byte_sub(PAGE_SIZE));
}

fn take() -> Option<*mut c_void> {
    let kept = SPARE.iter().map(|s| s.swap(null_mut(), Ordering::Acquire)).find(|s| !s.is_null());
    kept.or_else(make)
}

fn give_back(stack: *mut c_void) {
    let kept = |s: &AtomicPtr<c_void>| {
        s.compare_exchange(null_mut(), stack, Ordering::Release, Ordering::Relaxed).is_ok()
    };
    if !SPARE.iter().any(kept) && !sys::is_sandboxed() {
        // SAFETY: mapped by make() with this length, and no thread runs on it.
        let _ = unsafe { rustix::mm::munmap(stack, SIZE) };
    }
}

/// Maps one, with a page below it that nothing may touch.
#[cold]
fn make() -> Option<*mut c_void> {
    if cfg!(miri) || sys::is_sandboxed() {
        return None;
    }
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::STACK;
    // SAFETY: a fresh anonymous mapping at a place of the kernel's choice.
    let at =
        unsafe { rustix::mm::mmap_anonymous(null_mut(), SIZE, ProtFlags::empty(), flags) }.ok()?;
    // Under mlockall(MCL_FUTURE) it would take its full size.
    // SAFETY: the mapping just made.
    let _ = unsafe { rustix::mm::munlock(at, SIZE) };
    let prot = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: the mapping just made, but for its lowest page.
    let open = unsafe { rustix::mm::mprotect(at.byte_add(PAGE_SIZE), SIZE - PAGE_SIZE, prot) };
    if open.is_err() {
        // SAFETY: as above, and no other thread has seen it.
        let _ = unsafe { rustix::mm::munmap(at, SIZE) };
        return None;
    }
    Some(at)
}

/// What is called, and what it gives.
struct Job<F, R> {
    f: ManuallyDrop<F>,
    result: MaybeUninit<R>,
}

/// Calls `f` with the stack that ends at `top`, or, if that is null, with the current stack.
fn call<F: FnOnce() -> R, R>(top: *mut c_void, f: F) -> R {
    let mut job = Job { f: ManuallyDrop::new(f), result: MaybeUninit::<R>::uninit() };
    // SAFETY: the stack is this thread's alone, its end is aligned to a page, and `run` is given
    // the job that it is made for.
    unsafe { switch((&raw mut job).cast(), run::<F, R>, top) };
    // SAFETY: run() has come back, so it has written the result.
    unsafe { job.result.assume_init() }
}

/// # Safety
/// `job` is a `Job<F, R>` whose function was not taken yet.
unsafe extern "C-unwind" fn run<F: FnOnce() -> R, R>(job: *mut c_void) {
    // SAFETY: the caller's promise; the function is taken once.
    unsafe {
        let job = &mut *job.cast::<Job<F, R>>();
        let f = ManuallyDrop::take(&mut job.f);
        job.result.write(f());
    }
}

type Run = unsafe extern "C-unwind" fn(*mut c_void);

/// Calls `run(job)` with the stack pointer at `top`, or, if that is null, where it is.
///
/// # Safety
/// `top` is null or the aligned end of a stack that no other thread uses; `run` accepts `job`.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C-unwind" fn switch(job: *mut c_void, run: Run, top: *mut c_void) {
    // The frame is described by rbp, so that an unwinder finds its way back to the caller's stack.
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "test rdx, rdx",
        "cmovnz rsp, rdx",
        "call rsi",
        "mov rsp, rbp",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    )
}

/// As above.
///
/// # Safety
/// As above.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C-unwind" fn switch(job: *mut c_void, run: Run, top: *mut c_void) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "stp x29, x30, [sp, #-16]!",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset x29, -16",
        ".cfi_offset x30, -8",
        "mov x29, sp",
        ".cfi_def_cfa_register x29",
        "mov x9, sp",
        "cmp x2, #0",
        "csel x2, x9, x2, eq",
        "mov sp, x2",
        "blr x1",
        "mov sp, x29",
        "ldp x29, x30, [sp], #16",
        ".cfi_def_cfa sp, 0",
        "ret",
        ".cfi_endproc",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the stack is. Not the address of a variable, which a sanitizer keeps elsewhere.
    #[cfg(not(miri))]
    fn here() -> usize {
        let at: usize;
        // SAFETY: reads the stack pointer, and touches nothing.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            core::arch::asm!("mov {}, rsp", out(reg) at, options(nomem, nostack, preserves_flags));
            #[cfg(target_arch = "aarch64")]
            core::arch::asm!("mov {}, sp", out(reg) at, options(nomem, nostack, preserves_flags));
        }
        at
    }
    #[cfg(miri)]
    fn here() -> usize {
        let mark = 0_u8;
        core::hint::black_box(&raw const mark).addr()
    }

    #[test]
    fn runs_elsewhere_and_comes_back() {
        let outside = here();
        let text = String::from("moved in");
        let (inside, nested, text) = on_own(|| (here(), on_own(here), text + " and out"));
        assert_eq!(text, "moved in and out");
        assert!(inside.abs_diff(outside) > SIZE || cfg!(miri), "another stack");
        assert!(nested.abs_diff(inside) < SIZE, "the same one");
        assert!(here().abs_diff(outside) < SIZE);
        let alone = on_own_only(here).unwrap();
        assert!(alone.abs_diff(outside) > SIZE || cfg!(miri), "that, too");
        assert_eq!(on_own(|| on_own_only(|| 7)), Some(7));
    }

    #[test]
    fn many_threads_have_one_each() {
        let deep = |n: u64| {
            let mut room = [0_u64; 8192];
            for (i, word) in room.iter_mut().enumerate() {
                *word = n + i as u64;
            }
            core::hint::black_box(&room).iter().sum::<u64>()
        };
        let all: Vec<_> = (0..16_u64)
            .map(|n| std::thread::spawn(move || (0..50).all(|_| on_own(|| deep(n)) == deep(n))))
            .collect();
        assert!(all.into_iter().all(|t| t.join().unwrap()));
    }

    #[test]
    fn an_unwinding_passes_through() {
        let caught = std::panic::catch_unwind(|| on_own(|| std::panic::resume_unwind(Box::new(7))));
        assert_eq!(caught.unwrap_err().downcast_ref::<i32>(), Some(&7));
        // Only a test unwinds so: the mark is put right by hand.
        thread::surface();
    }
}
