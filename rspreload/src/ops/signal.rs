//! The older ways to install signal handlers, over [`crate::handlers`].
//!
//! libc's own `signal` and its kin call `sigaction` inside libc, past our hook, so they are written
//! out here over it.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

use libc::{sigaction as action, sighandler_t};
use rsocket_host::failure::Failure;
use rsocket_host::given::{In, Place};
use rsocket_host::sigaction::{Handler, Set};

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

/// `signal`, as BSD has it.
pub(crate) fn bsd(
    number: c_int,
    handler: Handler,
    real: impl Fn(In<'_, action>, Place<'_, action>) -> c_int,
) -> sighandler_t {
    // Relaxed, here and below: one word, and nothing goes with it.
    let interrupts = INTERRUPTING.load(Ordering::Relaxed) & bit(number) != 0;
    let flags = if interrupts { 0 } else { libc::SA_RESTART };
    handlers::exchange(number, handler, flags, Set::of_kernels(bit(number)), real)
}

/// `signal`, as System V has it.
pub(crate) fn system_v(
    number: c_int,
    handler: Handler,
    real: impl Fn(In<'_, action>, Place<'_, action>) -> c_int,
) -> sighandler_t {
    handlers::exchange(number, handler, libc::SA_RESETHAND | libc::SA_NODEFER, Set::EMPTY, real)
}

/// `sigset`.
pub(crate) fn sigset(
    number: c_int,
    handler: Handler,
    real: impl Fn(In<'_, action>, Place<'_, action>) -> c_int,
) -> sighandler_t {
    let wanted = Some(handler.get()).filter(|handler| *handler != libc::SIG_ERR);
    let Some(set) = wanted.and_then(|_| Set::EMPTY.with(number)) else {
        fail(Failure::Invalid);
        return libc::SIG_ERR;
    };
    if handler.get() == SIG_HOLD {
        let was = set.block();
        let mut now = handlers::NOTHING;
        return match handlers::change(number, In::NULL, Place::of(&mut now), real) {
            _ if was.has(number) => SIG_HOLD,
            0 => now.sa_sigaction,
            _ => libc::SIG_ERR,
        };
    }
    let old = handlers::exchange(number, handler, 0, Set::EMPTY, real);
    if old == libc::SIG_ERR {
        return old;
    }
    if set.unblock().has(number) { SIG_HOLD } else { old }
}

/// `siginterrupt`.
pub(crate) fn siginterrupt(
    number: c_int,
    interrupts: bool,
    real: impl Fn(In<'_, action>, Place<'_, action>) -> c_int,
) -> c_int {
    let mut now = handlers::NOTHING;
    if handlers::change(number, In::NULL, Place::of(&mut now), &real) != 0 {
        return -1;
    }
    if interrupts {
        INTERRUPTING.fetch_or(bit(number), Ordering::Relaxed);
        now.sa_flags &= !libc::SA_RESTART;
    } else {
        INTERRUPTING.fetch_and(!bit(number), Ordering::Relaxed);
        now.sa_flags |= libc::SA_RESTART;
    }
    handlers::change(number, In::of(&now), Place::NULL, &real)
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
