//! The program's signal handlers. [`change`] gives libc one function in place of each
//! (`hooks/handlers.rs`). That function asks `rsocket_host::signals` and then jumps to the
//! program's own handler. The handler runs on the same frame, with the same arguments, flags and
//! mask, and returns to the kernel's own return address.
//!
//! What the program asked for stays with the kernel (mask, `SA_RESTART`, `SA_ONSTACK`, ...). The
//! table here has the handler that was exchanged, and a copy of its flags and mask: `SA_SIGINFO` is
//! always set for the kernel. `SIG_DFL` and `SIG_IGN` pass, and so does everything in a vfork
//! child, whose memory is its parent's, and in a sandbox. Must not know sockets.
//!
//! Everything may run in a handler, too. Two threads that change one signal at one time may
//! exchange their old handlers, no more. Entry points: [`change`], and [`signal`] for the kernel.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use libc::sigaction as action;
use rsocket_host::given::{In, Place};
use rsocket_host::sigaction::{Handler, Set};
use rsocket_host::signals;
use rsocket_host::signals::Signal;
use rsocket_host::sys;
use rsocket_host::sys::sandbox;

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
/// is. That one stands in the place of each.
pub(crate) fn begin(off: bool, stands_in: Handler) {
    // The address first: without one no handler is exchanged.
    signals::install(stands_in.get());
    OFF.store(off, Ordering::Relaxed);
    inherit();
    sys::after_forks(forked);
}

extern "C" fn forked() {
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
    fn stands_before(&self, action: &mut action) {
        let mask = Set::of(action.sa_mask).kernels();
        // Release: pairs with the Acquire in `signal`.
        self.mask.store(mask, Ordering::Release);
        self.flags.store(action.sa_flags as u32, Ordering::Release);
        self.handler.store(action.sa_sigaction, Ordering::Release);
        action.sa_sigaction = signals::installed();
        action.sa_flags |= libc::SA_SIGINFO;
    }
}

fn entry(number: c_int) -> Option<&'static Entry> {
    usize::try_from(number).ok().filter(|n| *n != 0).and_then(|n| TABLE.get(n))
}

/// sigaction(2); `real` is the pass-through.
pub(crate) fn change(
    number: c_int,
    new: In<'_, action>,
    old: Place<'_, action>,
    real: impl Fn(In<'_, action>, Place<'_, action>) -> c_int,
) -> c_int {
    let Some(entry) = entry(number) else { return real(new, old) };
    let before = (entry.handler.load(Ordering::Acquire), entry.flags.load(Ordering::Acquire));
    let address = signals::installed();
    // The two may be one.
    let wanted = new.get();
    let handler = wanted.map_or(0, |a| a.sa_sigaction).wrapping_add(1);
    // Neither SIG_ERR, SIG_DFL nor SIG_IGN, nor what another interposer read from the kernel.
    let ours = handler > 2 && wanted.is_some_and(|a| a.sa_sigaction != address) && {
        // Acquire: as everywhere here, only so that a thread sees what it did itself in another's
        // name (vfork).
        let owner = OWNER.load(Ordering::Acquire);
        owner != 0 && !sandbox::inside() && owner == sys::pid()
    };
    let answer = match wanted {
        Some(mut action) if ours => {
            entry.stands_before(&mut action);
            let answer = real(In::of(&action), old);
            if answer != 0 {
                entry.flags.store(before.1, Ordering::Release);
                entry.handler.store(before.0, Ordering::Release);
            }
            answer
        }
        _ => real(new, old),
    };
    if answer == 0
        && address != 0
        && let Some(mut was) = old.get().filter(|a| a.sa_sigaction == address)
    {
        was.sa_sigaction = before.0;
        was.sa_flags &= !libc::SA_SIGINFO | before.1 as c_int;
        old.set(was);
    }
    answer
}

/// An action that does nothing yet.
pub(crate) const NOTHING: action =
    action { sa_sigaction: 0, sa_mask: Set::EMPTY.get(), sa_flags: 0, sa_restorer: None };

/// As `signal` and its kin: the old handler, or `SIG_ERR`. The signal is blocked while the handler
/// runs if it is in `mask`.
pub(crate) fn exchange(
    number: c_int,
    handler: Handler,
    flags: c_int,
    mask: Set,
    real: impl Fn(In<'_, action>, Place<'_, action>) -> c_int,
) -> usize {
    if handler.get() == libc::SIG_ERR || !(1..SIGNALS as c_int).contains(&number) {
        sys::set_errno(libc::EINVAL);
        return libc::SIG_ERR;
    }
    let new =
        action { sa_sigaction: handler.get(), sa_flags: flags, sa_mask: mask.get(), ..NOTHING };
    let mut old = NOTHING;
    match change(number, In::of(&new), Place::of(&mut old), real) {
        0 => old.sa_sigaction,
        _ => libc::SIG_ERR,
    }
}

/// Puts back what `SA_RESETHAND` has taken away, for a signal that will be delivered once more.
pub(crate) fn put_back(number: c_int, real: impl Fn(In<'_, action>, Place<'_, action>) -> c_int) {
    let Some(entry) = entry(number) else { return };
    let again = action {
        sa_sigaction: signals::installed(),
        sa_flags: entry.flags.load(Ordering::Acquire) as c_int | libc::SA_SIGINFO,
        sa_mask: Set::of_kernels(entry.mask.load(Ordering::Acquire)).get(),
        sa_restorer: None,
    };
    real(In::of(&again), Place::NULL);
}

/// What the kernel has given for a handler of the program's; `None` if there is none. `put_back` is
/// called where the kernel has forgotten the handler.
pub(crate) fn signal(
    number: c_int,
    info: *const libc::siginfo_t,
    context: *mut c_void,
    put_back: unsafe fn(c_int),
) -> Option<Signal> {
    let entry = entry(number)?;
    // Acquire: pairs with the Release in `change`.
    let handler = entry.handler.load(Ordering::Acquire);
    let flags = entry.flags.load(Ordering::Acquire) as c_int;
    let own = if flags & libc::SA_NODEFER != 0 { 0 } else { 1 << (number - 1) };
    (handler != 0).then(|| Signal {
        number,
        info,
        context,
        handler,
        restarts: flags & libc::SA_RESTART != 0,
        blocks: entry.mask.load(Ordering::Acquire) | own,
        install: (flags & libc::SA_RESETHAND != 0).then_some(put_back),
    })
}
