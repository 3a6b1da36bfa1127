//! Descriptors that travel in messages (`SCM_RIGHTS`), out and in: what the hooks on `sendmsg` and
//! `recvmsg` do about them.
//!
//! Must not know who may go on with what (`rsocket_edge::handover::fds_in_flight`). Entry points:
//! [`before_passing`], [`not_passed`], [`came`].

use core::ffi::c_int;

use libc::msghdr;
use rsocket_edge::conn::fork_group;
use rsocket_edge::socket;
use rsocket_edge::socket::adopted;
use rsocket_edge::socket::adopted::Came;
use rsocket_host::sys::sandbox;

use crate::edge::{nowhere, readable};
use crate::shadow::{self, Entry};
use crate::{adopted as here, policy};

/// Calls `f` for each descriptor that a message carries.
///
/// # Safety
/// `message` points to a valid header with valid control data.
unsafe fn each_passed(message: *const msghdr, mut f: impl FnMut(c_int)) {
    // SAFETY: the control data is valid for its length, by the caller's promise. The CMSG functions
    // stay inside it. `data` is inside the header's own length, which is checked against the end.
    unsafe {
        if (*message).msg_control.is_null() {
            return;
        }
        if !readable((*message).msg_control, (*message).msg_controllen) {
            return;
        }
        let end = (*message).msg_control as usize + (*message).msg_controllen;
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let data = libc::CMSG_DATA(header);
            let stop = (header as usize).saturating_add((*header).cmsg_len).min(end);
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let fds = stop.saturating_sub(data as usize) / size_of::<c_int>();
                for i in 0..fds {
                    f(data.cast::<c_int>().add(i).read_unaligned());
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// A message is about to be sent: a connection in it goes on with a sibling that has this library,
/// or back to TCP.
///
/// # Safety
/// As [`each_passed`].
#[cold]
pub(crate) unsafe fn before_passing(message: *const msghdr) {
    // SAFETY: the caller's promise.
    unsafe {
        each_passed(message, |fd| match shadow::entry(fd) {
            Entry::Connection(slot) => socket::passing(slot, fd),
            Entry::Listener(slot) => socket::passing_listener(slot, fd),
            Entry::Set | Entry::Foreign => {}
        });
    }
}

/// It was not sent.
///
/// # Safety
/// As [`each_passed`].
#[cold]
pub(crate) unsafe fn not_passed(message: *const msghdr) {
    // SAFETY: the caller's promise.
    unsafe {
        each_passed(message, |fd| {
            if let Entry::Connection(slot) | Entry::Listener(slot) = shadow::entry(fd) {
                socket::not_passed(slot);
            }
        });
    }
}

/// Whether the caller of a receiving call has room for descriptors.
///
/// # Safety
/// `message` is null or points to a valid header.
#[inline(always)]
pub(crate) unsafe fn may_bring(message: *const msghdr) -> bool {
    // SAFETY: not null; the caller's promise.
    !nowhere(message) && unsafe { (*message).msg_controllen } != 0
}

/// A message has been received: its descriptors are new numbers of this process.
///
/// # Safety
/// The kernel has filled in the header that `message` points to.
#[cold]
pub(crate) unsafe fn came(message: *const msghdr, flags: c_int) {
    // SAFETY: the kernel's own control data.
    unsafe { each_passed(message, |fd| one_came(fd, flags & libc::MSG_PEEK != 0)) }
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
