//! Whether there is still a process to read what is sent.
//!
//! A peer that closes says so in the channel. One that is killed, or leaves without closing, says
//! nothing there. The kernel closes its socket for it. All that TCP shows is FIN, as of a peer that
//! sends no more and goes on reading. So a sender looks at TCP now and then, whether it finds room
//! or waits for some. After FIN it asks the kernel whether any process holds the other end. Of a
//! peer beyond a bridge the bridge tells.
//!
//! Must not know who sends or waits. Entry points: [`check`], [`heard_fin`], [`recheck_after`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::os::fd::RawFd;

use super::hints;
use crate::channel::link;
use crate::conn::machine::SendMode;
use crate::conn::slot::{Slot, flag};
use crate::handover::gone::peer_gone;
use crate::host::events::Events;
use crate::host::kernel;
use crate::sys;

/// How soon a sender that waits for room looks again whether a half-closed peer is still there.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// How often, at most, the kernel is asked, in ticks of [`sys::ticks`]: some tens of milliseconds.
const ASK_EVERY: u64 = 100_000_000;

/// Whether it is time to ask the kernel.
#[inline]
pub(super) fn is_due(s: &Slot) -> bool {
    // Relaxed: a hint; asking once too often costs a system call, and a thread that needs the
    // kernel asked stores 0.
    sys::ticks().wrapping_sub(s.reader_asked_at.load(Ordering::Relaxed)) >= ASK_EVERY
}

/// A wait has heard that the peer sends no more: whether it still reads is to be asked now.
pub(super) fn heard_fin(s: &Slot) {
    if s.set_first(flag::PEER_FIN) {
        s.reader_asked_at.store(0, Ordering::Relaxed);
    }
}

/// Whether what goes into the channel has no reader any more, as is found out if that was not done
/// lately. From then on [`flag::PEER_GONE`] says so.
pub(super) fn check(s: &Slot, fd: RawFd) -> bool {
    if s.has(flag::PEER_GONE) {
        return true;
    }
    if fd < 0 || s.has(flag::BRIDGED) || !s.sends_by(SendMode::Device) || !is_due(s) {
        return false;
    }
    s.reader_asked_at.store(sys::ticks(), Ordering::Relaxed);
    let said = kernel::poll_now(fd, Events::RDHUP);
    if said.is_empty() {
        return false;
    }
    s.set(flag::PEER_FIN);
    let gone = peer_gone(s, fd, said.bits() as i16);
    if gone {
        s.set(flag::PEER_GONE);
    }
    gone
}

/// Whether the channel has no room, as poll sees it.
pub(super) fn is_full(s: &Slot) -> bool {
    link::ends(s).is_some_and(|ends| !hints::writable(s, &ends))
}

/// How soon a thread that waits for room must look again, since a half-closed peer that dies wakes
/// no thread.
pub(super) fn recheck_after(s: &Slot) -> Option<Duration> {
    let half_closed = s.has(flag::PEER_FIN) && !s.has(flag::PEER_GONE | flag::BRIDGED);
    (half_closed && s.sends_by(SendMode::Device) && is_full(s)).then_some(LOOK_AGAIN)
}
