//! `SO_TIMESTAMP` and `SO_TIMESTAMPNS`: the kernel notes when bytes arrive, and tells a caller that
//! gives `recvmsg` room for control messages. Neither end notes that of a channel. Most programs
//! that set the option never look, so that it alone keeps no connection on TCP. A program that
//! gives the room gets the kernel's word, by TCP from then on. Entry points: [`concerns`],
//! [`changed`], [`wanted`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::RawFd;

use super::options;
use crate::conn::fork_group;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::host::kernel;

/// The two options, and their spellings with seconds of 64 bits.
const OPTIONS: [i32; 4] = [libc::SO_TIMESTAMP, libc::SO_TIMESTAMPNS, 63, 64];

/// Whether the option is one of these.
#[inline]
#[must_use]
pub fn concerns(level: i32, name: i32) -> bool {
    level == libc::SOL_SOCKET && OPTIONS.contains(&name)
}

/// The program has set one of them on a connection or a listener.
pub fn changed(id: SlotId, fd: RawFd) {
    let Some(s) = fork_group::slot(id) else { return };
    // Each of them switches the others off; the kernel's word is what counts.
    if OPTIONS
        .iter()
        .any(|name| kernel::integer(fd, libc::SOL_SOCKET, *name).is_some_and(|on| on != 0))
    {
        s.set(flag::STAMPED);
    } else {
        s.clear(flag::STAMPED);
    }
}

/// What a listener gives has its options.
pub(super) fn inherit(s: &Slot, listener: &Slot) {
    if listener.has(flag::STAMPED) {
        s.set(flag::STAMPED);
    }
}

/// The program is about to receive, and has room for control messages.
pub fn wanted(id: SlotId, fd: RawFd) {
    if fork_group::slot(id).is_some_and(|s| s.has(flag::STAMPED)) {
        let is_on =
            |name: &&i32| kernel::integer(fd, libc::SOL_SOCKET, **name).is_some_and(|on| on != 0);
        let name = OPTIONS.iter().find(is_on).copied().unwrap_or(libc::SO_TIMESTAMP);
        options::refuse_for(id, fd, libc::SOL_SOCKET, name);
    }
}
