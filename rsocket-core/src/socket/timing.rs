//! Options of [`timers`](crate::conn::timers) were set: the slot learns them, and a bridge hears.
//!
//! Must not know what they mean. Entry point: [`changed`].
#![forbid(unsafe_code)]

use std::os::fd::RawFd;

use crate::channel::link::tell_bridge;
use crate::conn::fork_group;
use crate::conn::slot::SlotId;

/// The program has set one of them.
pub fn changed(id: SlotId, fd: RawFd) {
    let Some(s) = fork_group::slot(id) else { return };
    s.timers.learn(fd);
    tell_bridge(s);
}

/// A call of ours may have changed one of the facts that the slot keeps, and is over.
pub fn facts_changed(id: SlotId) {
    if let Some(s) = fork_group::slot(id) {
        s.option_cache.change();
    }
}
