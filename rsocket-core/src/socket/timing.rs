//! Options of [`timers`](crate::conn::timers) were set: the slot learns them, and a relay hears.
//!
//! Must not know what they mean. Entry point: [`changed`].
#![forbid(unsafe_code)]

use std::os::fd::RawFd;

use crate::attach::link;
use crate::conn::family;
use crate::conn::slot::{Slot, SlotId, flag};

/// The program has set one of them.
pub fn changed(id: SlotId, fd: RawFd) {
    let Some(s) = family::slot(id) else { return };
    s.timers.learn(fd);
    tell_relay(s);
}

/// The relay, in whatever process, looks at the connection and finds the rules changed.
pub(crate) fn tell_relay(s: &Slot) {
    if s.has(flag::RELAYED)
        && let Some(ends) = link::ends(s)
    {
        ends.wake_reader();
    }
}

/// A call of ours may have changed one of the facts that the slot keeps, and is over.
pub fn facts_changed(id: SlotId) {
    if let Some(s) = family::slot(id) {
        s.known.change();
    }
}
