//! What happens when the library is loaded and unloaded. The steps around `fork` are
//! `rsocket_edge::process`'s.
//!
//! Nothing here is needed for hooks to be right. Hooks may run earlier (from another library's
//! constructor, or from an allocator that starts up inside the loader). They then look up what they
//! need themselves. The constructor only takes that work out of the program's first calls, and
//! copies our variables before the program can change them. It makes one system call of its own,
//! `getpid`. The configuration is read with the first TCP socket, or if the last program left some
//! ([`crate::policy`]), or if there are statistics to be written.

use rsocket_edge::socket::Listeners;
use rsocket_edge::{exec_handover, process, readiness, socket};
use rsocket_host::stdio::cookie;
use rsocket_host::{environment, sys};

use crate::hooks::{first_bytes_tap, handlers, streams};
use crate::ops::standard;
use crate::{adopted, policy, real, shadow};

// Not in unit tests, which need their panic messages.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static ENTER: extern "C" fn() = enter;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static LEAVE: extern "C" fn() = leave;

extern "C" fn enter() {
    policy::constructed();
    // No panic can be reached from a hook by design; should one be after all, it must not print
    // through the hooked `write` (`hazards H4`). A closure without captures is boxed without an
    // allocation.
    std::panic::set_hook(Box::new(|_| {}));
    environment::remember();
    real::resolve_all();
    sys::install_ppoll(real::ppoll);
    streams::install();
    first_bytes_tap::install();
    socket::set_listeners(Listeners {
        mode_changed: readiness::epoll::mode_changed,
        starved: readiness::epoll::starved,
        error_taken: readiness::epoll::error_taken,
        found_unread: readiness::epoll::found_unread,
    });
    // A preloaded library is never unloaded.
    process::watch_forks();
    handlers::begin(policy::disabled());
    if exec_handover::announced() {
        // The settings first: what cannot be taken over is logged.
        let enabled = policy::enabled();
        if exec_handover::inherit() && enabled {
            exec_handover::show();
        }
    }
    // What has been taken over, or what other constructors have put there.
    (0..=2).filter(|fd| shadow::connection(*fd).is_some()).for_each(standard::stands);
    adopted::begin();
}

extern "C" fn leave() {
    // Before the connections end: libc would write what its streams hold only after that.
    cookie::flush();
    process::leaving();
}
