//! How far a receiver is from the switch offset, the byte at which its direction left TCP
//! (`life-of-a-connection §4`).
//!
//! Must not know what is read, or by whom. Entry points: [`bytes_ahead`], for the holder of the
//! receive lock; [`at_the_switch`] and [`all_here`], for a thread that waits; [`pass_the_switch`],
//! where nothing is left to be read before it.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use crate::channel::guard::RecvGuard;
use crate::channel::handover_state;
use crate::channel::link::Ends;
use crate::conn::machine::{ReceiveEvent, ReceiveMode};
use crate::conn::slot::{Slot, flag};
use crate::failure::Failure;
use crate::host::counters;
use crate::stats::{self, Counter};

/// How many of the first `n` bytes of the stream TCP still has to give. Too few while more of them
/// arrive, but 0 only when all were taken. `None`: more than `n` were taken. No other thread may be
/// taking any.
pub(super) fn bytes_ahead(fd: RawFd, ends: &Ends, n: u64) -> Result<Option<usize>, Failure> {
    let mut taken = counters::taken_at_most(fd);
    if taken.is_ok_and(|most| most >= n) {
        taken = counters::taken(fd).map(|t| t.bytes);
    }
    // A sender of urgent bytes goes back first. Its mark is looked at after the queue: before it is
    // set none of them was in there.
    if taken.is_ok() && handover_state::end(&ends.incoming).is_some() {
        taken = counters::taken_exactly(fd);
    }
    match taken {
        Ok(taken) => {
            Ok(n.checked_sub(taken).map(|left| usize::try_from(left).unwrap_or(usize::MAX)))
        }
        // Both sides have ended. There may be bytes behind the switch offset already, of a sender
        // that went back.
        Err(Failure::NotConnected) => {
            let left = counters::left_at_the_end(fd, n)?;
            Ok(left.map(|left| usize::try_from(left).unwrap_or(usize::MAX)))
        }
        Err(e) => Err(e),
    }
}

/// Whether all of the first `n` bytes of the stream have come by TCP. What its sender keeps back
/// for a while (Nagle's rule) comes before what is in the channel all the same.
pub(super) fn all_here(fd: RawFd, n: u64) -> bool {
    // FIN counts, too, and comes behind them.
    counters::arrived(fd).is_ok_and(|arrived| arrived >= n)
}

/// Before the switch, with bytes in the channel: whether they are next, that is, whether TCP's have
/// all been read. Without a descriptor the answer is what was found last, and yes if no thread has
/// looked.
pub(crate) fn at_the_switch(s: &Slot, fd: RawFd, ends: &Ends) -> bool {
    let Some(n) = handover_state::switch_offset(&ends.incoming) else { return false };
    // A low-water mark counts both together ([`super::rest::is_enough`]); if the channel alone has
    // as much, so have both, as soon as TCP has its part.
    if s.low_water.load(Ordering::Relaxed) > 1 && fd >= 0 {
        let all = all_here(fd, n);
        if !all && !s.has(flag::TCP_AHEAD) {
            s.set(flag::TCP_AHEAD);
        }
        return all;
    }
    if fd >= 0 {
        match bytes_ahead(fd, ends, n) {
            Ok(Some(1..)) | Err(Failure::Blocked) if !s.has(flag::TCP_AHEAD) => {
                s.set(flag::TCP_AHEAD)
            }
            Ok(Some(1..)) | Err(Failure::Blocked) => {}
            // Trouble is for the thread that reads to find.
            _ => return true,
        }
    }
    !s.has(flag::TCP_AHEAD)
}

/// Beside a bridge TCP has given all that it will. Once the switch offset is known the device is
/// next, and only what it has brought is something to read.
pub(crate) fn pass_the_switch(s: &Slot, fd: RawFd, ends: &Ends) {
    let Some(n) = handover_state::switch_offset(&ends.incoming) else { return };
    let Some(guard) = RecvGuard::take(s, ends) else { return };
    let next = match s.receive_mode() {
        mode @ ReceiveMode::Acknowledged if bytes_ahead(fd, ends, n) == Ok(Some(0)) => {
            mode.after(ReceiveEvent::SwitchReached)
        }
        _ => None,
    };
    if let Some(mode) = next {
        s.set_receive_mode(mode);
        stats::add(Counter::SwitchedReceiving, 1);
    }
    drop(guard);
    if next.is_some() {
        // As after a receive that reached the switch offset.
        ends.wake_own_readers();
    }
}
