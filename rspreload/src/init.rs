//! What happens when the library is loaded and unloaded, and around `fork`.
//!
//! Nothing here is needed for hooks to be right: they may run earlier (from another library's constructor,
//! or from an allocator that starts up inside the loader) and then look up what they need themselves. The
//! constructor only takes that work out of the program's first calls. It makes no system call of its own;
//! the configuration is read with the first TCP socket ([`crate::policy`]).

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rsocket_core::attach::sandbox;
use rsocket_core::{readiness, socket, stats, sys};

use crate::{policy, real, shadow};

// Not in unit tests, which need their panic messages.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static ENTER: extern "C" fn() = enter;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static LEAVE: extern "C" fn() = leave;

/// Set when the constructor has run, and so has libc's.
static ENTERED: AtomicBool = AtomicBool::new(false);

/// Whether the constructor has run. Relaxed: only the thread that runs constructors can see it unset.
pub(crate) fn entered() -> bool {
    ENTERED.load(Relaxed)
}

extern "C" fn enter() {
    ENTERED.store(true, Relaxed);
    // No panic can be reached from a hook by design; should one be after all, it must not print through the
    // hooked `write` (crates.md H4). A closure without captures is boxed without an allocation.
    std::panic::set_hook(Box::new(|_| {}));
    real::resolve_all();
    sys::install_ppoll(real::ppoll);
    socket::set_listeners(readiness::epoll::mode_changed, readiness::epoll::starved);
    // SAFETY: three functions that live as long as the library does, which is never unloaded by a preload.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}

/// At `exit` (not `_exit`), after the program's own handlers.
extern "C" fn leave() {
    if shadow::any() && !sandbox::inside() && shadow::mine() {
        socket::leaving();
        report();
    }
}

/// What this process moved, to where `RSOCKET_STATS` says: at its end, or before a sandbox closes around it.
pub(crate) fn report() {
    if shadow::any() && policy::variable(c"RSOCKET_STATS").is_some() {
        socket::tally::flush_all();
        stats::report_at_exit(policy::variable);
    }
}

thread_local! {
    /// Whether this thread's fork has been prepared: another thread may track the first socket between the
    /// steps, and a step without its first one would undo what was not done.
    static PREPARED: Cell<bool> = const { Cell::new(false) };
}

fn prepared(now: bool) -> bool {
    PREPARED.try_with(|p| p.replace(now)).unwrap_or(false)
}

unsafe extern "C" fn prepare() {
    if shadow::any() && !sandbox::inside() {
        readiness::epoll::fork_prepare();
        socket::fork_prepare();
        prepared(true);
    }
}

/// Also after a fork that failed.
unsafe extern "C" fn parent() {
    if prepared(false) {
        socket::fork_parent();
        readiness::epoll::fork_parent();
    }
}

unsafe extern "C" fn child() {
    if !sandbox::inside() {
        shadow::inherit();
    }
    if prepared(false) {
        socket::fork_child();
        readiness::epoll::forked();
    }
}
