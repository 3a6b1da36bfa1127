//! The older ways to install signal handlers, over [`crate::handlers`].
//!
//! libc's own `signal` and its kin call `sigaction` inside libc, past our hook, so they are written
//! out here over it.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

use libc::{sigaction as action, sighandler_t};
use rsocket_host::failure::Failure;

use crate::edge::fail;
use crate::handlers;

/// Signals whose handlers `signal` installs without `SA_RESTART`: siginterrupt(3). Libc keeps a
/// list of its own.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

/// `sigset`'s "block it" (signal.h).
const SIG_HOLD: sighandler_t = 2;

fn bit(number: c_int) -> u64 {
    u32::try_from(number - 1).ok().and_then(|n| 1_u64.checked_shl(n)).unwrap_or(0)
}

/// # Safety
/// As signal(2).
pub(crate) unsafe fn bsd(number: c_int, handler: sighandler_t) -> sighandler_t {
    // Relaxed, here and below: one word, and nothing goes with it.
    let interrupts = INTERRUPTING.load(Ordering::Relaxed) & bit(number) != 0;
    // SAFETY: by the caller's promise.
    unsafe {
        handlers::exchange(number, handler, if interrupts { 0 } else { libc::SA_RESTART }, true)
    }
}

/// # Safety
/// As signal(2).
pub(crate) unsafe fn system_v(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: by the caller's promise.
    unsafe { handlers::exchange(number, handler, libc::SA_RESETHAND | libc::SA_NODEFER, false) }
}

/// `sigset`.
///
/// # Safety
/// As sigset(3).
pub(crate) unsafe fn sigset(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: zero is an empty value of each; libc's functions stay inside them. The handler is the
    // caller's promise.
    unsafe {
        let mut set: libc::sigset_t = core::mem::zeroed();
        let mut was: libc::sigset_t = core::mem::zeroed();
        if handler == libc::SIG_ERR || libc::sigaddset(&raw mut set, number) != 0 {
            fail(Failure::Invalid);
            return libc::SIG_ERR;
        }
        if handler == SIG_HOLD {
            let mut now: action = core::mem::zeroed();
            libc::sigprocmask(libc::SIG_BLOCK, &raw const set, &raw mut was);
            return match handlers::change(number, core::ptr::null(), &raw mut now) {
                _ if libc::sigismember(&raw const was, number) == 1 => SIG_HOLD,
                0 => now.sa_sigaction,
                _ => libc::SIG_ERR,
            };
        }
        let old = handlers::exchange(number, handler, 0, false);
        if old == libc::SIG_ERR {
            return old;
        }
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, &raw mut was);
        if libc::sigismember(&raw const was, number) == 1 { SIG_HOLD } else { old }
    }
}

/// `siginterrupt`.
///
/// # Safety
/// As siginterrupt(3).
pub(crate) unsafe fn siginterrupt(number: c_int, interrupts: c_int) -> c_int {
    // SAFETY: zero is a value of it, which `change` fills in; what is installed was the caller's
    // before.
    unsafe {
        let mut now: action = core::mem::zeroed();
        if handlers::change(number, core::ptr::null(), &raw mut now) != 0 {
            return -1;
        }
        if interrupts != 0 {
            INTERRUPTING.fetch_or(bit(number), Ordering::Relaxed);
            now.sa_flags &= !libc::SA_RESTART;
        } else {
            INTERRUPTING.fetch_and(!bit(number), Ordering::Relaxed);
            now.sa_flags |= libc::SA_RESTART;
        }
        handlers::change(number, &raw const now, core::ptr::null_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_a_bit_or_none() {
        assert_eq!((bit(1), bit(64)), (1, 1 << 63));
        assert_eq!((bit(0), bit(-1), bit(65)), (0, 0, 0));
    }
}
