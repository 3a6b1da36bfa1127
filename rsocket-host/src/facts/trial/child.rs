//! The short-lived process that makes the calls, and what its parent learns of it.
//!
//! Where the filter kills, it kills that process. The process has this one's memory (before Linux
//! 5.16 a copy of it), but neither its descriptors nor its handlers, and every signal is blocked in
//! it. It says which call is next before it makes the call, in memory that both see. So the parent
//! knows for which call the process was killed. Must not know what the outcome is good for. Entry
//! point: [`outcome`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_int, c_long, c_void};
use core::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use super::calls::{CALLS, Call, GET_CORE, NAME, Need, ROOM, ROOM_BYTES, SET_CORE};
use crate::failure::Failure;
use crate::sys::{self, PAGE_SIZE, errand, small_file};

/// By which system call the process is made: one that was seen to be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// The one that forks.
    Fork,
    /// The one that makes threads; where there is none, the other.
    Thread,
}

impl By {
    /// The one by which this process has made its threads: glibc has changed it (2.34).
    pub(super) fn threads() -> Self {
        #[cfg(target_env = "gnu")]
        {
            // SAFETY: gives a constant string.
            let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
            if is_since((2, 34), version.to_bytes()) {
                return Self::Thread;
            }
        }
        Self::Fork
    }
}

/// What was found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Every call that must be may be made; of those to which there is another way, these bits
    /// ([`super::calls::Way`]) have one that kills.
    Passed(u8),
    /// The call with this number in [`CALLS`] may not.
    Forbidden(usize),
    /// There can be no such process, for good: the filter has no place for it.
    NoProcess,
    /// Nothing: there was no room for it, or another thread was at it for too long.
    Unknown,
}

/// What the process says. Relaxed throughout: written by this thread, or by a process that has
/// ended.
#[repr(C, align(64))]
struct Report {
    /// The call that is being made.
    at: AtomicU32,
    /// Whether the kernel refused it.
    refused: AtomicU32,
    /// Where the first call is.
    from: AtomicU32,
    /// What calls write to, and read zeros from. The process's alone while it lives.
    room: UnsafeCell<[u64; ROOM_BYTES / 8]>,
}

const _: () = assert!(size_of::<Report>() <= PAGE_SIZE);

/// A name that nothing has.
const NOTHING: &CStr = c"rsockets-trial";
/// Looks of a thread that waits for another one, and nanoseconds between them.
const LOOKS: u32 = 100;
const LOOK_NS: u64 = 500_000;

/// Makes the process, and says what it found out; nothing if another thread is at it, and `is_over`
/// when that is done. Blocks for as long as it takes, some hundred microseconds.
pub(super) fn outcome(by: By, is_over: fn() -> bool) -> Outcome {
    let mut found = Outcome::Unknown;
    let mut find_out = || {
        if !is_over() {
            errand::with_signals_blocked(|| found = try_all(by));
        }
    };
    if !errand::is_emulated() {
        // Nothing is known of any call by which to give the processor away.
        errand::alone(LOOKS, || spin_for(LOOK_NS), &mut find_out);
    }
    found
}

fn spin_for(ns: u64) {
    let end = sys::now_ns().saturating_add(ns);
    while sys::now_ns() < end {
        core::hint::spin_loop();
    }
}

fn try_all(by: By) -> Outcome {
    let flags = MapFlags::SHARED;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh anonymous mapping at a place of the kernel's choice.
    let Ok(page) =
        (unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), PAGE_SIZE, prot, flags) })
    else {
        return Outcome::Unknown;
    };
    // SAFETY: the page is zeros, which is a report, large enough and aligned; it goes at the end.
    let outcome = try_from_first(by, unsafe { &*page.cast::<Report>() });
    // SAFETY: mapped above, and the process that had it, too, has ended.
    let _ = unsafe { rustix::mm::munmap(page, PAGE_SIZE) };
    outcome
}

/// Each process makes the calls behind the one for which the last one was killed, where there is
/// another way.
fn try_from_first(by: By, report: &Report) -> Outcome {
    let mut deadly = 0;
    loop {
        let made = try_rest(by, report);
        let at = report.at.load(Ordering::Relaxed) as usize;
        match made {
            Ok(()) => {}
            Err(Failure::NotPermitted | Failure::Denied | Failure::NoSuchCall) => {
                return Outcome::NoProcess;
            }
            Err(_) => return Outcome::Unknown,
        }
        let Some(call) = CALLS.get(at) else { return Outcome::Passed(deadly) };
        match call.need {
            Need::OtherWay(way) if report.refused.load(Ordering::Relaxed) == 0 => {
                deadly |= way as u8
            }
            _ => return Outcome::Forbidden(at),
        }
        report.from.store(at as u32 + 1, Ordering::Relaxed);
    }
}

fn try_rest(by: By, report: &Report) -> Result<(), Failure> {
    let sharing = if dies_alone() { libc::CLONE_VM } else { 0 };
    report.at.store(0, Ordering::Relaxed);
    let argument = core::ptr::from_ref(report).cast_mut().cast::<c_void>();
    // SAFETY: outcome() calls this inside both; the argument is a report.
    let made = unsafe {
        match by {
            By::Fork => Err(Failure::NoSuchCall),
            By::Thread => errand::run_as_threads(sharing, make_calls, argument),
        }
    };
    let pid = match made {
        // As the library of C does.
        // SAFETY: as above.
        Err(Failure::NoSuchCall) => unsafe { errand::run(sharing, make_calls, argument) }?,
        other => other?,
    };
    // Where the filter kills for the wait itself, what is left stays until this process ends.
    if report.from.load(Ordering::Relaxed) > 0 || report.at.load(Ordering::Relaxed) > 0 {
        errand::reap(pid);
    }
    Ok(())
}

/// Whether a process that dumps its core does not take along all that share its memory: since Linux
/// 5.16. Before that, the process has a copy of it.
fn dies_alone() -> bool {
    let mut text = [0; 64];
    let release =
        small_file::read_file(c"/proc/sys/kernel/osrelease", &mut text).unwrap_or_default();
    is_since((5, 16), release)
}

fn is_since(least: (u32, u32), release: &[u8]) -> bool {
    let mut parts = release.split(|b| !b.is_ascii_digit());
    let mut number = || core::str::from_utf8(parts.next()?).ok()?.parse::<u32>().ok();
    number().zip(number()).is_some_and(|is| is >= least)
}

/// The process. It touches its stack and the report, and nothing else.
extern "C" fn make_calls(report: *mut c_void) -> c_int {
    // SAFETY: outcome() passes a report that outlives this process.
    let report = unsafe { &*report.cast::<Report>() };
    let room = report.room.get().cast::<u64>();
    let from = report.from.load(Ordering::Relaxed) as usize;
    for (at, call) in CALLS.iter().enumerate().skip(from) {
        report.at.store(at as u32, Ordering::Relaxed);
        // SAFETY: the room is this process's while it lives.
        unsafe { prepare(room, at) };
        // SAFETY: the arguments are numbers that do nothing, and the room.
        let result = unsafe { make(call, room) };
        if !call.is_made(result) && call.need == Need::Must {
            report.refused.store(1, Ordering::Relaxed);
            return 1;
        }
    }
    report.at.store(CALLS.len() as u32, Ordering::Relaxed);
    // SAFETY: ends this process; where it does not, the wrapper that called us makes another call
    // for it.
    unsafe { raw(libc::SYS_exit_group, [0; 6]) };
    0
}

/// Zeros, but for the limit on core files that was just read. From here on this process leaves no
/// core file, and wakes no program that collects them (1 says that, core(5)).
///
/// # Safety
/// `room` is [`ROOM_BYTES`] of the caller's.
unsafe fn prepare(room: *mut u64, at: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if at == SET_CORE {
            let hard = room.add(1).read();
            room.write(hard.min(1));
            return;
        }
        for i in 0..ROOM_BYTES / 8 {
            room.add(i).write_volatile(0);
        }
    }
}

const _: () = assert!(SET_CORE == GET_CORE + 1);

/// # Safety
/// As [`prepare`]; the call does nothing with these arguments.
unsafe fn make(call: &Call, room: *mut u64) -> isize {
    let arguments = call.arguments.map(|a| match a {
        ROOM => room.expose_provenance(),
        NAME => NOTHING.as_ptr().expose_provenance(),
        number => number,
    });
    // SAFETY: the caller's promise.
    unsafe { raw(call.number, arguments) }
}

/// One system call, which leaves `errno` alone: that is the calling thread's in the process's
/// parent.
///
/// # Safety
/// The arguments must be what the call with this number expects.
#[cfg(target_arch = "x86_64")]
unsafe fn raw(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the registers are those of the kernel's calling convention, and rcx and r11 are
    // declared as destroyed. What the call does to memory is the caller's promise.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack, preserves_flags),
        );
    }
    result
}

/// As above.
///
/// # Safety
/// As above.
#[cfg(target_arch = "aarch64")]
unsafe fn raw(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the registers are those of the kernel's calling convention; what the call does to
    // memory is the caller's promise.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack, preserves_flags),
        );
    }
    result
}

#[cfg(not(miri))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_filter_every_call_is_made() {
        for by in [By::Fork, By::Thread, By::threads()] {
            assert_eq!(outcome(by, || false), Outcome::Passed(0), "{by:?}");
        }
    }

    #[test]
    fn nobody_sees_it_end() {
        // In a child, which no other test makes children in.
        // SAFETY: the child makes system calls only, and maps memory.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // Another test's thread may have been at it.
            errand::forked();
            let found = outcome(By::Thread, || false);
            // SAFETY: asks for any child, of which there is none.
            let none = unsafe { libc::waitpid(-1, core::ptr::null_mut(), libc::__WALL) } == -1;
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!none || found != Outcome::Passed(0))) };
        }
        let mut status = 0;
        // SAFETY: a child of ours, and room for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    #[test]
    fn releases() {
        for (release, since) in [
            ("6.18.44-x\n", true),
            ("5.16.0", true),
            ("5.15.199-generic", false),
            ("5.4.0", false),
            ("10.0", true),
            ("", false),
            ("x.y", false),
        ] {
            assert_eq!(is_since((5, 16), release.as_bytes()), since, "{release}");
        }
    }
}
