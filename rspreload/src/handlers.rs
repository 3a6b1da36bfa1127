//! The program's signal handlers. [`change`] gives libc [`entered`] in place of each. [`entered`]
//! asks `rsocket_host::signals` and then jumps to the program's own handler. That runs on the same
//! frame, with the same arguments, flags and mask, and returns to the kernel's own return address.
//!
//! What the program asked for stays with the kernel (mask, `SA_RESTART`, `SA_ONSTACK`, ...). The
//! table here has the handler that was exchanged, and a copy of its flags and mask: `SA_SIGINFO` is
//! always set for the kernel. `SIG_DFL` and `SIG_IGN` pass, and so does everything in a vfork
//! child, whose memory is its parent's, and in a sandbox. Must not know sockets.
//!
//! Everything may run in a handler, too. Two threads that change one signal at one time may
//! exchange their old handlers, no more. Entry point: [`change`].

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rsocket_host::signals;
use rsocket_host::signals::Signal;
use rsocket_host::sys;
use rsocket_host::sys::sandbox;

use crate::real;

/// One more than the highest signal.
const SIGNALS: usize = 65;

/// What the program has installed.
struct Entry {
    /// The last handler; it stays when the signal is ignored later, for a thread that is on its way
    /// to it.
    handler: AtomicUsize,
    /// `sa_flags`, as the program gave them.
    flags: AtomicU32,
    /// `sa_mask`, as much of it as the kernel knows.
    mask: AtomicU64,
}

static TABLE: [Entry; SIGNALS] = [const {
    Entry { handler: AtomicUsize::new(0), flags: AtomicU32::new(0), mask: AtomicU64::new(0) }
}; SIGNALS];

/// The process whose table this is; 0 if handlers are left alone.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Set in a process that was told to leave everything alone.
static OFF: AtomicBool = AtomicBool::new(false);

/// From the constructor: handlers that are installed from now on are ours to call. With `off`, none
/// is.
pub(crate) fn begin(off: bool) {
    OFF.store(off, Ordering::Relaxed);
    inherit();
    // SAFETY: a function that lives as long as the library, which is never unloaded.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    signals::install(address());
}

unsafe extern "C" fn forked() {
    if !sandbox::inside() {
        inherit();
    }
}

/// The table is this process's.
fn inherit() {
    if !OFF.load(Ordering::Relaxed) {
        OWNER.store(sys::pid(), Ordering::Relaxed);
    }
}

impl Entry {
    /// Remembers the program's handler, and has the kernel call ours in its place. Before the
    /// kernel knows of it: it may call at once.
    fn stands_before(&self, action: &mut libc::sigaction) {
        // SAFETY: a set of signals begins with the kernel's word, and is longer than that.
        let mask = unsafe { (&raw const action.sa_mask).cast::<u64>().read() };
        // Release: pairs with the Acquire in `prepare`.
        self.mask.store(mask, Ordering::Release);
        self.flags.store(action.sa_flags as u32, Ordering::Release);
        self.handler.store(action.sa_sigaction, Ordering::Release);
        action.sa_sigaction = address();
        action.sa_flags |= libc::SA_SIGINFO;
    }
}

fn address() -> usize {
    entered as *const () as usize
}

fn entry(number: c_int) -> Option<&'static Entry> {
    usize::try_from(number).ok().filter(|n| *n != 0).and_then(|n| TABLE.get(n))
}

/// sigaction(2).
///
/// # Safety
/// As sigaction(2).
pub(crate) unsafe fn change(
    number: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    let Some(entry) = entry(number) else {
        // SAFETY: by the caller's promise.
        return unsafe { real::sigaction(number, new, old) };
    };
    let before = (entry.handler.load(Ordering::Acquire), entry.flags.load(Ordering::Acquire));
    // SAFETY: null or valid, by the caller's promise; the two may be one.
    let wanted = unsafe { new.as_ref() }.copied();
    let handler = wanted.map_or(0, |a| a.sa_sigaction).wrapping_add(1);
    // Neither SIG_ERR, SIG_DFL nor SIG_IGN, nor what another interposer read from the kernel.
    let ours = handler > 2 && wanted.is_some_and(|a| a.sa_sigaction != address()) && {
        // Acquire: as everywhere here, only so that a thread sees what it did itself in another's
        // name (vfork).
        let owner = OWNER.load(Ordering::Acquire);
        owner != 0 && !sandbox::inside() && owner == sys::pid()
    };
    let answer = match wanted {
        Some(mut action) if ours => {
            entry.stands_before(&mut action);
            // SAFETY: by the caller's promise.
            let answer = unsafe { real::sigaction(number, &raw const action, old) };
            if answer != 0 {
                entry.flags.store(before.1, Ordering::Release);
                entry.handler.store(before.0, Ordering::Release);
            }
            answer
        }
        // SAFETY: by the caller's promise.
        _ => unsafe { real::sigaction(number, new, old) },
    };
    // SAFETY: null or valid, by the caller's promise.
    let old = unsafe { old.as_mut() };
    if let Some(old) = old.filter(|a| answer == 0 && a.sa_sigaction == address()) {
        old.sa_sigaction = before.0;
        old.sa_flags &= !libc::SA_SIGINFO | before.1 as c_int;
    }
    answer
}

/// As `signal` and its kin: the old handler, or `SIG_ERR`.
///
/// # Safety
/// As signal(2): a handler is one.
pub(crate) unsafe fn exchange(
    number: c_int,
    handler: usize,
    flags: c_int,
    also_blocked: bool,
) -> usize {
    if handler == libc::SIG_ERR || !(1..SIGNALS as c_int).contains(&number) {
        sys::set_errno(libc::EINVAL);
        return libc::SIG_ERR;
    }
    // SAFETY: all zeroes is an action; sets are filled by libc.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        let mut old: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        libc::sigemptyset(&raw mut action.sa_mask);
        if also_blocked {
            libc::sigaddset(&raw mut action.sa_mask, number);
        }
        match change(number, &raw const action, &raw mut old) {
            0 => old.sa_sigaction,
            _ => libc::SIG_ERR,
        }
    }
}

/// Puts back what `SA_RESETHAND` has taken away, for a signal that will be delivered once more.
///
/// # Safety
/// None.
unsafe fn put_back(number: c_int) {
    let Some(entry) = entry(number) else { return };
    // SAFETY: all zeroes is an action, and a set begins with the kernel's word.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = address();
        action.sa_flags = entry.flags.load(Ordering::Acquire) as c_int | libc::SA_SIGINFO;
        (&raw mut action.sa_mask).cast::<u64>().write(entry.mask.load(Ordering::Acquire));
        real::sigaction(number, &raw const action, core::ptr::null_mut());
    }
}

/// Which function of the program's is to run now; null for none.
unsafe extern "C-unwind" fn prepare(
    number: c_int,
    info: *const libc::siginfo_t,
    context: *mut c_void,
) -> *const () {
    let Some(entry) = entry(number) else { return core::ptr::null() };
    // Acquire: pairs with the Release in `change`.
    let handler = entry.handler.load(Ordering::Acquire);
    let flags = entry.flags.load(Ordering::Acquire) as c_int;
    let own = if flags & libc::SA_NODEFER != 0 { 0 } else { 1 << (number - 1) };
    let signal = Signal {
        number,
        info,
        context,
        handler,
        restarts: flags & libc::SA_RESTART != 0,
        blocks: entry.mask.load(Ordering::Acquire) | own,
        install: (flags & libc::SA_RESETHAND != 0).then_some(put_back as unsafe fn(c_int)),
    };
    // SAFETY: what the kernel gave, since `entered` is what it called.
    if handler != 0 && unsafe { signals::arrived(&signal) } {
        handler as *const ()
    } else {
        core::ptr::null()
    }
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
