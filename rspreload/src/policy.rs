//! Whether this process takes part at all. Read lazily, with the first socket or epoll set that would be
//! tracked: a program that never makes one never pays for it.
//!
//! Must not know sockets. Entry point: [`enabled`].

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use rsocket_core::process::variable;

/// 0 not read yet, 1 take part, 2 pass everything through. Reading twice gives the same answer, so that
/// relaxed is enough and nobody waits.
static STATE: AtomicU8 = AtomicU8::new(0);

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Whether the environment can be read. Before libc's own constructor ran it looks empty, and an answer that was
/// found then would be remembered. (A program may empty it later, too; then empty is what it is.)
fn readable() -> bool {
    // SAFETY: libc's variable, read as getenv reads it.
    crate::init::entered() || !unsafe { environ }.is_null()
}

/// False if `RSOCKET_DISABLE` says to pass everything through and track nothing.
pub(crate) fn enabled() -> bool {
    match STATE.load(Relaxed) {
        0 if !readable() => false,
        0 => {
            let yes = !disables(variable(c"RSOCKET_DISABLE"));
            if yes {
                rsocket_core::socket::policy::resolve(variable);
            }
            STATE.store(if yes { 1 } else { 2 }, Relaxed);
            yes
        }
        state => state == 1,
    }
}

fn disables(value: Option<&CStr>) -> bool {
    value.is_some_and(|v| !matches!(v.to_bytes(), b"" | b"0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_real_yes_disables() {
        assert!(!disables(None));
        assert!(!disables(Some(c"")));
        assert!(!disables(Some(c"0")));
        assert!(disables(Some(c"1")));
        assert!(disables(Some(c"yes")));
    }
}
