//! Descriptors that travel in messages (`SCM_RIGHTS`), out and in: what the hooks on `sendmsg` and
//! `recvmsg` do about them.
//!
//! Must not know who may go on with what (`rsocket_edge::handover::fds_in_flight`). Entry points:
//! [`before_passing`], [`not_passed`], [`came`].

use core::ffi::c_int;

use rsocket_edge::conn::fork_group;
use rsocket_edge::message::Message;
use rsocket_edge::socket;
use rsocket_edge::socket::adopted;
use rsocket_edge::socket::adopted::Came;
use rsocket_host::sys::sandbox;

use crate::shadow::{self, Entry};
use crate::{adopted as here, policy};

/// A message is about to be sent: a connection in it goes on with a sibling that has this library,
/// or back to TCP.
#[cold]
pub(crate) fn before_passing(message: Message<'_>) {
    message.each_descriptor(|fd| match shadow::entry(fd) {
        Entry::Connection(slot) => socket::passing(slot, fd),
        Entry::Listener(slot) => socket::passing_listener(slot, fd),
        Entry::Set | Entry::Foreign => {}
    });
}

/// It was not sent.
#[cold]
pub(crate) fn not_passed(message: Message<'_>) {
    message.each_descriptor(|fd| {
        if let Entry::Connection(slot) | Entry::Listener(slot) = shadow::entry(fd) {
            socket::not_passed(slot);
        }
    });
}

/// A message has been received: its descriptors are new numbers of this process.
#[cold]
pub(crate) fn came(message: Message<'_>, flags: c_int) {
    message.each_descriptor(|fd| one_came(fd, flags & libc::MSG_PEEK != 0));
}

fn one_came(fd: c_int, peeked: bool) {
    shadow::fresh(fd);
    // A process that has nothing to do with TCP, nor had its siblings, may be in a sandbox of its
    // own making. Our system calls are fatal there. So the library asks the kernel about the
    // descriptor only where no hook has seen a sandbox.
    let alone = fork_group::get().is_none();
    if sandbox::inside() || alone && (peeked || sandbox::entered()) {
        return;
    }
    if alone {
        // One that listens is found by its first `accept`.
        return here::came_alone(fd);
    }
    let Some(domain) = adopted::tcp_domain(fd) else { return };
    if !policy::enabled() || !policy::takes(domain) || !shadow::claim() {
        return;
    }
    match adopted::came(fd, peeked) {
        Came::Listener(slot) => {
            shadow::put(fd, Entry::Listener(slot));
            socket::listening(slot, fd);
        }
        Came::Connection(slot) => shadow::put(fd, Entry::Connection(slot)),
        Came::Stranger => {}
    }
}
