//! Sockets that this process did not make: by `vfork` and `exec`, from a service manager, or in a
//! message. Those that listen are tracked from the first call that shows it; connections are
//! counted.
//!
//! Only `listen` and `accept` ask, which are rare: the way past a foreign descriptor stays as short
//! as it is everywhere else. Must not know how connections are accepted. Entry points: [`listens`],
//! [`has_given`], [`count_inherited`].

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rsocket_edge::config::policy::{sandboxed, seccomp};
use rsocket_edge::socket;
use rsocket_edge::socket::adopted;
use rsocket_host::environment::variable;
use rsocket_host::facts::filter;
use rsocket_host::facts::trial::Seccomp;
use rsocket_host::given::Kept;
use rsocket_host::sys::sandbox;

use crate::edge::keeping_errno;
use crate::policy;
use crate::shadow::{self, Entry};

/// `listen` has succeeded on a descriptor of which nothing is known.
#[cold]
pub(crate) fn listens(fd: c_int) {
    keeping_errno(|| {
        if is_wanted() {
            adopt(fd);
        }
    });
}

/// `accept` on such a descriptor has given a connection, and its peer's name where that was asked
/// for.
#[cold]
pub(crate) fn has_given(fd: c_int, peer: Option<Kept<'_>>) {
    if peer.and_then(Kept::family) != Some(libc::AF_UNIX) {
        listens(fd);
    }
}

/// Whether anything new is tracked in this process. Makes no system call.
fn is_wanted() -> bool {
    !sandbox::inside() && !policy::disabled()
}

fn adopt(fd: c_int) {
    if let Some(domain) = adopted::tcp_domain(fd)
        && policy::enabled()
        && policy::takes(domain)
        && shadow::claim()
        && let Some(slot) = adopted::listener(fd)
    {
        shadow::put(fd, Entry::Listener(slot));
        socket::listening(slot, fd);
        count_inherited();
    }
}

/// Set when the descriptors that the process began with have been looked at.
static COUNTED: AtomicBool = AtomicBool::new(false);

/// When the library is loaded: if the counters are to be written (`RSOCKET_STATS`), each connection
/// that another program left open is counted. (Else that is done with the first socket,
/// [`count_inherited`].)
pub(crate) fn begin() {
    if variable(c"RSOCKET_STATS").is_some_and(|file| !file.is_empty())
        && !policy::disabled()
        && !filter::may_be_deadly(Seccomp::Refuse)
    {
        count_inherited();
    }
}

/// Counts, once, the connections that were here before anything was tracked. They stay on TCP.
#[cold]
pub(crate) fn count_inherited() {
    // Nothing of the kind has been asked yet.
    if filter::may_be_deadly(seccomp()) {
        return;
    }
    // Relaxed: one thread is to do it, and a thread that comes later does not need the outcome.
    if COUNTED.load(Relaxed) || COUNTED.swap(true, Relaxed) {
        return;
    }
    adopted::each_socket(|fd| {
        if shadow::entry(fd) == Entry::Foreign {
            count_if_connected(fd);
        }
    });
}

fn count_if_connected(fd: c_int) {
    if let Some(domain) = adopted::tcp_domain(fd)
        && adopted::is_connected(fd)
        && policy::enabled()
        && policy::takes(domain)
        && !sandboxed()
    {
        adopted::left_to_kernel();
    }
}

/// A TCP socket has come in a message to a process that has nothing else to do with TCP.
#[cold]
pub(crate) fn came_alone(fd: c_int) {
    keeping_errno(|| count_if_connected(fd));
}
