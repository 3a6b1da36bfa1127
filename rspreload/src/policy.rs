//! Whether this process takes part at all. Read lazily, with the first socket or epoll set that
//! would be tracked: a program that never makes one never pays for it.
//!
//! Must not know sockets. Entry point: [`enabled`].

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

use rsocket_edge::rules::Rules;
use rsocket_host::environment::{self, privileged, variable};
use rsocket_host::stack;

/// 0 not read yet, 1 take part, 2 pass everything through. Reading twice gives the same answer, so
/// that relaxed is enough and no thread waits.
static STATE: AtomicU8 = AtomicU8::new(0);

/// Whether `preload_config` lets us take TCP over IPv4, and over IPv6.
static INET: AtomicBool = AtomicBool::new(true);
static INET6: AtomicBool = AtomicBool::new(true);

/// Set when the constructor of the library has run, and so has libc's. Relaxed: only the thread
/// that runs constructors can see it unset.
static CONSTRUCTED: AtomicBool = AtomicBool::new(false);

/// The constructor runs.
pub(crate) fn constructed() {
    CONSTRUCTED.store(true, Relaxed);
}

/// Whether the environment can be read. Before libc's own constructor ran it looks empty, and an
/// answer that was found then would be remembered. (What the program does to it after our
/// constructor has no effect.)
fn readable() -> bool {
    CONSTRUCTED.load(Relaxed) || environment::is_there()
}

/// False if everything is to be passed through and nothing tracked ([`disabled`]).
pub(crate) fn enabled() -> bool {
    match STATE.load(Relaxed) {
        0 if !readable() => false,
        0 => {
            let yes = !disabled();
            if yes {
                stack::on_own(|| {
                    rsocket_edge::socket::settings::resolve(variable);
                    read_rules();
                });
            }
            STATE.store(if yes { 1 } else { 2 }, Relaxed);
            yes
        }
        state => state == 1,
    }
}

/// Whether to leave the process alone: because `RSOCKET_DISABLE` says so, or because it has
/// privileges that its caller has not. Then nothing attaches, no file is written, and no variable
/// counts.
pub(crate) fn disabled() -> bool {
    privileged() || disables(variable(c"RSOCKET_DISABLE"))
}

/// Whether a TCP socket of this address family is for us. To be asked after [`enabled`].
pub(crate) fn takes(domain: c_int) -> bool {
    if domain == libc::AF_INET6 { INET6.load(Relaxed) } else { INET.load(Relaxed) }
}

fn read_rules() {
    let program = environment::program().to_bytes();
    let rules = Rules::load(variable(c"RSOCKET_CONF_DIR").map(CStr::to_bytes), program);
    INET.store(rules.inet, Relaxed);
    INET6.store(rules.inet6, Relaxed);
    if rules.odd_lines > 0 {
        rsocket_host::log_warn!("preload_config: {} lines mean nothing here", rules.odd_lines);
    }
    if !rules.inet || !rules.inet6 {
        rsocket_host::log_info!(
            "preload_config: IPv4 {}, IPv6 {}",
            if rules.inet { "taken" } else { "left alone" },
            if rules.inet6 { "taken" } else { "left alone" }
        );
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
