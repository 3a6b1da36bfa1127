//! `TCP_INQ` (linux/tcp.h): each `recvmsg` tells how much can be read after it, in a control
//! message. On a device it is served here: what TCP and the channel have together. Must not know
//! how a control message is laid out. Entry points: [`concerns`], [`changed`], [`is_told`],
//! [`hint`], [`beside_tcp`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use super::ready;
use crate::conn::fork_group;
use crate::conn::slot::{Slot, SlotId};
use crate::host::events::Events;
use crate::host::{counters, kernel};

/// Whether the option is this one.
#[inline]
#[must_use]
pub fn concerns(level: i32, name: i32) -> bool {
    (level, name) == (libc::IPPROTO_TCP, libc::TCP_INQ)
}

/// The program has set it on a connection or a listener: the kernel's word is what counts.
pub fn changed(id: SlotId, fd: RawFd) {
    if let Some(s) = fork_group::slot(id) {
        let on = kernel::integer(fd, libc::IPPROTO_TCP, libc::TCP_INQ).is_some_and(|on| on != 0);
        // Relaxed: a call that runs meanwhile may go by either, as with the kernel.
        s.tells_inq.store(on.into(), Ordering::Relaxed);
    }
}

/// What a listener gives has its options.
pub(super) fn inherit(s: &Slot, listener: &Slot) {
    s.tells_inq.store(listener.tells_inq.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// Whether the program wants to be told.
#[inline]
#[must_use]
pub fn is_told(id: SlotId) -> bool {
    fork_group::slot(id).is_some_and(|s| s.tells_inq.load(Ordering::Relaxed) != 0)
}

/// What the control message of a message that TCP gave has to say, or `None` where the kernel
/// knows. Beside the switch offset TCP and the channel both have bytes.
#[must_use]
pub fn beside_tcp(id: SlotId, fd: RawFd) -> Option<i32> {
    match super::unread(id, fd)? {
        // The kernel tells of an end by itself.
        0 => None,
        n => Some(with_end(id, fd, n)),
    }
}

/// What the control message says: the bytes that can be read now.
#[must_use]
pub fn hint(id: SlotId, fd: RawFd) -> i32 {
    let unread = super::unread(id, fd).unwrap_or_else(|| {
        usize::try_from(counters::in_queue(fd).unwrap_or(0)).unwrap_or(usize::MAX)
    });
    with_end(id, fd, unread)
}

/// As in TCP the end of the stream counts as one byte, from when it came and for good, so that the
/// program reads it.
fn with_end(id: SlotId, fd: RawFd, unread: usize) -> i32 {
    let unread = i32::try_from(unread).unwrap_or(i32::MAX);
    unread.saturating_add(has_end(id, fd).into())
}

fn has_end(id: SlotId, fd: RawFd) -> bool {
    // While TCP may have a part of the stream, its end is the kernel's to tell, too.
    let kernels = || {
        super::look(id, fd).ask.contains(Events::IN)
            && kernel::poll_now(fd, Events::RDHUP).contains(Events::RDHUP)
    };
    fork_group::slot(id).is_some_and(ready::is_over) || kernels()
}
