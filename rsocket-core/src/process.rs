//! The life of a process that one of our libraries is loaded into: forks, its end.
//!
//! The same for every library that exports C functions; each calls [`watch_forks`] when it is
//! loaded and [`leaving`] at `exit`. Must not know which functions those are. Nothing here is
//! needed before the first socket is tracked, and nothing happens where none is.

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::attach::meet::offers;
use crate::conn::fork_group;
use crate::device::rdma;
use crate::environment::variable;
use crate::host::trial;
use crate::live_segment::conn_counters;
use crate::sync::{stack, thread};
use crate::sys::{self, errand, sandbox};
use crate::{bridge, datagram, descriptors, live_segment, readiness, socket, stats};

/// Registers the steps around `fork`. To be called once, when the library is loaded; it must never
/// be unloaded after that.
pub fn watch_forks() {
    sys::around_forks(prepare, parent, child);
}

/// At `exit` (not `_exit`), after the program's own handlers.
pub fn leaving() {
    if descriptors::any() && !sandbox::inside() && descriptors::mine() {
        offers::withdraw_all();
        socket::leaving();
        socket::ending();
        datagram::leaving();
        bridge::drain(true);
        report();
        live_segment::ended();
    } else if sandbox::inside() {
        live_segment::ending(true);
    } else if socket::adopted::any_left() {
        stack::on_own(|| stats::report_at_exit(variable));
    }
}

/// At `_exit`, which no handler of `exit` sees. What the program has sent goes all the same, also
/// where the peer wants it by TCP. What siblings go on with is handed over, and the report is
/// written. It takes nothing that a signal handler may not have, since it may be inside one.
pub fn vanishing() {
    if descriptors::any() && !sandbox::inside() && descriptors::mine() {
        offers::withdraw_all();
        socket::ending();
        socket::leaving();
        bridge::drain(true);
        report();
        live_segment::ended();
    }
}

/// The process that has reported: a handler of `exit` may end it by `_exit`, behind [`leaving`]. It
/// orders nothing.
static REPORTED: AtomicU32 = AtomicU32::new(0);

/// What this process moved, to where `RSOCKET_STATS` says: at its end, or before a sandbox closes
/// around it.
pub fn report() {
    let own = sys::pid();
    if descriptors::any()
        && variable(c"RSOCKET_STATS").is_some()
        && REPORTED.swap(own, Ordering::Relaxed) != own
    {
        conn_counters::flush_all();
        stack::on_own(|| stats::report_at_exit(variable));
    }
}

thread_local! {
    /// Whether this thread's fork has been prepared. Another thread may track the first socket
    /// between the steps, and a step without its first one would undo what was not done.
    static PREPARED: Cell<bool> = const { Cell::new(false) };
}

fn prepared(now: bool) -> bool {
    PREPARED.try_with(|p| p.replace(now)).unwrap_or(false)
}

extern "C" fn prepare() {
    if descriptors::any() && !sandbox::inside() {
        // One section up to the end of the last step: a handler in between might fork, or leave by
        // a jump.
        thread::enter();
        // It waits for threads that are inside a step, and those may wait for a set.
        socket::fork_prepare();
        readiness::epoll::fork_prepare();
        rdma::fork_prepare();
        bridge::ends::fork_prepare();
        prepared(true);
    }
}

/// Also after a fork that failed.
extern "C" fn parent() {
    if prepared(false) {
        bridge::ends::fork_parent();
        rdma::fork_parent();
        readiness::epoll::fork_parent();
        socket::fork_parent();
        thread::leave();
    }
}

extern "C" fn child() {
    if !sandbox::inside() {
        descriptors::inherit();
    }
    if prepared(false) {
        errand::forked();
        rdma::fork_child();
        bridge::forked();
        datagram::forked();
        socket::fork_child();
        readiness::epoll::forked();
    } else if !sandbox::inside() {
        // The program before this one may have left a fork group, and no socket.
        fork_group::fork_child();
    }
    trial::has_forked();
}
