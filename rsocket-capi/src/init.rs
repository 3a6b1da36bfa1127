//! What happens when the library is loaded and unloaded. Nothing here is needed for calls to be
//! right: they may come earlier, from another library's constructor.

use rsocket_edge::config::policy;
use rsocket_edge::socket;
use rsocket_edge::socket::{Listeners, settings};
use rsocket_edge::{process, readiness};
use rsocket_host::environment;

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
    // No panic can be reached from a call by design; should one be after all, it must not print
    // into the program.
    std::panic::set_hook(Box::new(|_| {}));
    environment::remember();
    // Linked with `-z nodelete`: never unloaded.
    process::watch_forks();
}

extern "C" fn leave() {
    process::leaving();
}

/// Reads the settings, with the first socket or set.
pub(crate) fn settle() {
    socket::set_listeners(Listeners {
        mode_changed: readiness::epoll::mode_changed,
        starved: readiness::epoll::starved,
        error_taken: readiness::epoll::error_taken,
        found_unread: readiness::epoll::found_unread,
    });
    policy::rsockets();
    settings::resolve(environment::variable);
}
