//! Signals that arrive inside a section, and what handlers did while a thread was inside a call.
//!
//! A handler may call send, recv or close on the very connection whose lock the interrupted thread
//! holds. It is to get what the kernel would answer. So the installer of the program's handlers
//! (the preload library) asks [`arrived`] first. Inside a section the signal is kept, and
//! everything else is blocked in the interrupted context. The end of the section
//! ([`section_over`]) gives the signal back to the kernel, which runs the handler there. (A queued
//! signal would go behind its own kind then, so its handler is called instead.) Faults cannot
//! wait: their handlers run at once.
//!
//! A thread that waits compares [`seen`] before and after: so it knows whether a handler ran, and
//! of which kind (signal(7)). Must not know sockets, nor how handlers are installed. A library
//! without hooks never calls [`arrived`]; then the counts stand still, and [`restarts`] has to
//! guess.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_long, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::own;
use crate::sys;

/// Due at the end of a section: the signal that waits.
const WAITING: u32 = 1;
/// Due at the end of a section: nothing; but until then signals do not wait. A fault's handler may
/// have left by a jump, and then the end never comes.
const FAULTED: u32 = 2;

/// What the kernel calls a set of signals.
type Mask = u64;

/// A signal that waits for the end of a section.
struct Kept {
    number: c_int,
    /// Called before it is given back, if the kernel forgot the handler when it ran it
    /// (`SA_RESETHAND`).
    install: Option<unsafe fn(c_int)>,
    handler: usize,
    restarts: bool,
    /// What else is blocked while the handler runs.
    blocks: Mask,
    /// The interrupted thread's own mask.
    mask: Mask,
    info: Info,
    registers: Registers,
}

type Info = MaybeUninit<libc::siginfo_t>;

/// Where the thread was interrupted, for profilers, as far as that is a matter of few bytes.
#[cfg(target_arch = "x86_64")]
type Registers = [libc::greg_t; 23];
#[cfg(not(target_arch = "x86_64"))]
type Registers = [u64; 1];

thread_local! {
    static KEPT: UnsafeCell<Kept> = const {
        UnsafeCell::new(Kept {
            number: 0,
            install: None,
            handler: 0,
            restarts: true,
            blocks: 0,
            mask: 0,
            info: MaybeUninit::zeroed(),
            registers: [0; _],
        })
    };
}

unsafe extern "C-unwind" {
    // A handler that runs in here may end the thread, which unwinds through us.
    fn syscall(number: c_long, ...) -> c_long;
}

/// How many handlers have run on this thread, with and without `SA_RESTART`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    restarting: u32,
    breaking: u32,
}

/// What happened to a thread since [`seen`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Since {
    /// No handler ran that we know of.
    Nothing,
    /// Handlers ran, all of them with `SA_RESTART`.
    Restarting,
    /// A handler ran without.
    Breaking,
}

/// How many handlers have run on this thread so far.
#[must_use]
pub fn seen() -> Seen {
    own::with(|own| Seen { restarting: own.restarting.get(), breaking: own.breaking.get() })
}

impl Seen {
    /// What has run since then.
    #[must_use]
    pub fn since(self) -> Since {
        self.until(seen())
    }

    /// What ran from then until `now`.
    #[must_use]
    pub fn until(self, now: Self) -> Since {
        if now.breaking != self.breaking {
            Since::Breaking
        } else if now.restarting != self.restarting {
            Since::Restarting
        } else {
            Since::Nothing
        }
    }
}

/// The stack that this thread's handlers may have to themselves.
#[must_use]
pub fn own_stack() -> core::ops::Range<usize> {
    // SAFETY: all zeroes are a value of this struct.
    let mut stack: libc::stack_t = unsafe { core::mem::zeroed() };
    // SAFETY: nothing is set, and there is room for the answer.
    let asked = unsafe { libc::sigaltstack(core::ptr::null(), &raw mut stack) };
    if asked != 0 || stack.ss_flags & libc::SS_DISABLE != 0 {
        return 0..0;
    }
    let from = stack.ss_sp.addr();
    from..from.saturating_add(stack.ss_size)
}

/// A signal as its handler gets it.
pub struct Signal {
    /// Its number.
    pub number: c_int,
    /// What the kernel says of it.
    pub info: *const libc::siginfo_t,
    /// The interrupted context.
    pub context: *mut c_void,
    /// The program's handler.
    pub handler: usize,
    /// Whether calls go on after it (`SA_RESTART`).
    pub restarts: bool,
    /// What is blocked while it runs, in the kernel's form: bit 0 is signal 1.
    pub blocks: u64,
    /// To be called before the signal is given back to the kernel, which has forgotten the handler
    /// (`SA_RESETHAND`).
    pub install: Option<unsafe fn(c_int)>,
}

/// A signal has arrived on this thread: true if its handler is to run now. Otherwise the caller
/// returns to what was interrupted, and will be called again.
///
/// # Safety
/// Called by the handler that the kernel called, with what the kernel gave it.
pub unsafe fn arrived(signal: &Signal) -> bool {
    // In a sandbox it could not be given back.
    if !own::inside() || sys::is_sandboxed() {
        return counted(signal.restarts);
    }
    // SAFETY: the kernel gave it, by the caller's promise.
    let fault = is_fault(signal.number) && unsafe { (*signal.info).si_code } > 0;
    match own::due() {
        0 if fault => own::set_due(FAULTED),
        0 => {
            // SAFETY: as above.
            unsafe { keep(signal) };
            own::set_due(WAITING);
            return false;
        }
        WAITING => {
            // All others are blocked: a fault. Its handler may never come back to the section.
            // SAFETY: as above. The signal is blocked here, and let in when the fault's handler
            // returns.
            unsafe {
                if let Some(mask) = give_back() {
                    own::set_due(FAULTED);
                    set_mask_of(signal.context, mask);
                }
            }
        }
        _ => {}
    }
    counted(signal.restarts)
}

/// The handler runs now.
fn counted(restarts: bool) -> bool {
    own::with(|own| {
        let count = if restarts { &own.restarting } else { &own.breaking };
        count.set(count.get().wrapping_add(1));
    });
    true
}

/// What the processor raises for an instruction that cannot go on.
fn is_fault(number: c_int) -> bool {
    FAULTS.contains(&number)
}

const FAULTS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Every signal but those.
const OTHERS: Mask = {
    let mut mask = Mask::MAX;
    let mut i = 0;
    while i < FAULTS.len() {
        #[allow(clippy::indexing_slicing)] // At compile time.
        let number = FAULTS[i];
        mask &= !(1 << (number - 1));
        i += 1;
    }
    mask
};

/// The mask that a context restores. The kernel has written only this much of it.
///
/// # Safety
/// `context` is what the kernel gave a handler.
unsafe fn mask_in(context: *mut c_void) -> *mut Mask {
    // SAFETY: its place in the frame is the ABI's, which libc's type follows.
    unsafe { (&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast() }
}

/// # Safety
/// As [`mask_in`].
unsafe fn set_mask_of(context: *mut c_void, mask: Mask) {
    // SAFETY: by the caller's promise.
    unsafe { mask_in(context).write(mask) }
}

/// Keeps the signal, and blocks further ones in the interrupted context.
///
/// # Safety
/// As [`arrived`]; none is kept already.
unsafe fn keep(signal: &Signal) {
    let _ = KEPT.try_with(|kept| {
        // SAFETY: only this thread reaches it; no other signal can be kept, or given back, before
        // we return. Info and context are the kernel's.
        unsafe {
            let kept = &mut *kept.get();
            kept.number = signal.number;
            kept.install = signal.install;
            kept.handler = signal.handler;
            kept.restarts = signal.restarts;
            kept.blocks = signal.blocks;
            kept.info.as_mut_ptr().copy_from_nonoverlapping(signal.info, 1);
            #[cfg(target_arch = "x86_64")]
            {
                kept.registers = (*signal.context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
            }
            let mask = mask_in(signal.context);
            kept.mask = mask.read();
            mask.write(kept.mask | OTHERS);
        }
    });
}

/// Called when this thread left its outermost section and something was due.
#[cold]
#[inline(never)]
pub(super) fn section_over() {
    let due = own::due();
    own::set_due(0);
    if due == WAITING {
        let errno = sys::errno();
        // SAFETY: one is kept, and this thread holds nothing. All else is blocked.
        unsafe {
            let queued = KEPT.try_with(|k| (*k.get()).number >= FIRST_QUEUED).unwrap_or(false);
            match if queued { None } else { give_back() } {
                // It runs in here.
                Some(mask) => set_mask(mask),
                // No room, a sandbox, or a place in its queue that is lost.
                None => run(),
            }
        }
        sys::set_errno(errno);
    }
}

/// The first signal of those that are queued in order, and with their values.
const FIRST_QUEUED: c_int = 32;

/// Gives the kept signal to the kernel again, for this thread, and tells which mask it found;
/// `None` if the kernel does not take it.
///
/// # Safety
/// A signal is kept, and blocked.
unsafe fn give_back() -> Option<Mask> {
    KEPT.try_with(|kept| {
        // SAFETY: only this thread reaches it, and nothing interrupts us. What the kernel said of a
        // signal is given back to this very thread, where that is allowed. The function is one that
        // the installer vouched for.
        unsafe {
            let kept = &*kept.get();
            if let Some(install) = kept.install {
                install(kept.number);
            }
            let (pid, tid) = (syscall(libc::SYS_getpid), syscall(libc::SYS_gettid));
            let number = c_long::from(kept.number);
            let r = syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, number, kept.info.as_ptr());
            (r == 0).then_some(kept.mask)
        }
    })
    .unwrap_or(None)
}

/// Calls the handler of the kept signal as the kernel would, on this stack.
///
/// # Safety
/// A signal is kept, everything is blocked, and the thread is in no section.
#[cold]
#[inline(never)]
unsafe fn run() {
    type Handler = unsafe extern "C-unwind" fn(c_int, *mut libc::siginfo_t, *mut c_void);
    // SAFETY: as in `give_back`; others are let in only after these are copies.
    let Ok((number, handler, restarts, inside, mask, mut info, registers)) =
        KEPT.try_with(|kept| unsafe {
            let k = &*kept.get();
            (k.number, k.handler, k.restarts, k.mask | k.blocks, k.mask, k.info, k.registers)
        })
    else {
        return;
    };
    let mut context = MaybeUninit::<libc::ucontext_t>::zeroed();
    counted(restarts);
    // SAFETY: a handler of either kind can be called with three arguments on the ABIs that we know.
    // It may change the mask that is to be restored.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        {
            (*context.as_mut_ptr()).uc_mcontext.gregs = registers;
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = registers;
        set_mask_of(context.as_mut_ptr().cast(), mask);
        set_mask(inside);
        let handler = core::mem::transmute::<usize, Handler>(handler);
        handler(number, info.as_mut_ptr(), context.as_mut_ptr().cast());
        set_mask(mask_in(context.as_mut_ptr().cast()).read());
    }
}

/// # Safety
/// None beyond the kernel's own checks; handlers may run in here.
unsafe fn set_mask(mask: Mask) {
    let how = c_long::from(libc::SIG_SETMASK);
    let null = core::ptr::null::<Mask>();
    // SAFETY: eight readable bytes, and nothing to write to.
    unsafe { syscall(libc::SYS_rt_sigprocmask, how, &raw const mask, null, size_of::<Mask>()) };
}

/// In the child of a fork: a signal that the parent's thread has kept is the parent's, but the mask
/// is ours.
pub(super) fn forked(due: u32) {
    if due == WAITING {
        let mask = KEPT.try_with(|kept| {
            // SAFETY: as in `give_back`.
            unsafe { (*kept.get()).mask }
        });
        if let Ok(mask) = mask {
            // SAFETY: our own mask, as it was.
            unsafe { set_mask(mask) };
        }
    }
}

/// The handler that the kernel calls in place of the program's, or 0.
static INSTALLED: AtomicUsize = AtomicUsize::new(0);

/// From now on, whatever the kernel calls at this address asks [`arrived`].
pub fn install(handler: usize) {
    INSTALLED.store(handler, Ordering::Relaxed);
}

/// That address; 0 before there is one.
#[must_use]
pub fn installed() -> usize {
    INSTALLED.load(Ordering::Relaxed)
}

/// Whether a call that waited since then, and was interrupted, goes on, if nothing else speaks
/// against it.
#[must_use]
pub fn goes_on(since: Seen) -> bool {
    match since.since() {
        Since::Nothing => restarts(),
        Since::Restarting => true,
        Since::Breaking => false,
    }
}

/// Whether a call goes on that was interrupted by a handler of which [`arrived`] was not told. It
/// goes on when there is such a handler, and each was installed with `SA_RESTART`.
#[must_use]
pub fn restarts() -> bool {
    #[repr(C)]
    struct KernelSigaction {
        handler: usize,
        flags: u64,
        restorer: usize,
        mask: u64,
    }
    let known = INSTALLED.load(Ordering::Relaxed);
    // Without any that we do not know of, nothing of the program's has run.
    let mut any = known != 0;
    for signal in 1..=64 {
        let mut action = KernelSigaction { handler: 0, flags: 0, restorer: 0, mask: 0 };
        let null = core::ptr::null::<KernelSigaction>();
        // SAFETY: the kernel writes one struct of its own layout; nothing is changed.
        let r = unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, null, &raw mut action, 8) };
        if r == 0 && action.handler > 1 && action.handler != known {
            if action.flags & libc::SA_RESTART as u64 == 0 {
                return false;
            }
            any = true;
        }
    }
    any
}
