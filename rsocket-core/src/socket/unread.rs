//! What could be received now, without receiving it.
//!
//! The other part of [`super::receive`]: nothing here changes any state. Entry points: [`unread`],
//! [`in_window`].

use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use super::cut::all_here;
use crate::attach::guard::RecvGuard;
use crate::attach::link::{self, Ends};
use crate::attach::{marks, pairing};
use crate::conn::machine::ReceiveMode;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::device::shm::channel::{LARGE, RecvState};
use crate::device::shm::layout;
use crate::host::counters;
use crate::relay;
use crate::wire::word::{Message, Word};

/// Bytes that could be received now: TCP's before the cut, plus the window's.
#[must_use]
pub fn unread(id: SlotId, s: &Slot, fd: RawFd) -> Option<usize> {
    pairing::advance(id, s, fd);
    let mode = s.receive_mode();
    if mode.is_kernel() {
        return None;
    }
    let in_tcp = || counters::in_queue(fd).ok().map(|n| n as usize);
    let Some(ends) = link::ends(s) else {
        return if mode == ReceiveMode::Device { None } else { in_tcp() };
    };
    // Before the switch the window's bytes follow as soon as all of TCP's are here.
    let here = |n| all_here(fd, n);
    let follows = match mode {
        ReceiveMode::Device => true,
        ReceiveMode::Acknowledged => marks::cut(&ends.incoming).is_some_and(here),
        _ => false,
    };
    if !follows {
        return in_tcp();
    }
    if s.has(flag::RELAYED) {
        // A program may do nothing else than to ask this, until there is as much as it wants.
        relay::look(s);
    }
    let Some(guard) = RecvGuard::take(s, &ends) else { return Some(0) };
    let total = in_window(guard.view(), &ends);
    drop(guard);
    // A sender that has gone back to TCP: what follows the window's bytes is in the kernel already.
    // Otherwise the kernel, which some programs would have us ask after each receive, has none.
    let kernels = mode != ReceiveMode::Device || marks::end(&ends.incoming).is_some();
    Some(total + if kernels { in_tcp()? } else { 0 })
}

/// Unread bytes in the window; `None` where the lock is not to be had.
pub(crate) fn in_window_now(s: &Slot, ends: &Ends) -> Option<usize> {
    RecvGuard::take(s, ends).map(|guard| in_window(guard.view(), ends))
}

/// Whether the window has as much as SO_RCVLOWAT asks for, or all there will be.
#[must_use]
pub(crate) fn reaches_low_water(s: &Slot, ends: &Ends) -> bool {
    let Some(guard) = RecvGuard::take(s, ends) else { return true };
    let state = guard.view();
    let enough = in_window(state, ends) >= s.low_water.load(Ordering::Relaxed) as usize;
    // What follows the end comes by TCP, with which it cannot be waited for together. What is
    // before the cut counts as well, and the kernel knows of that.
    let follows =
        || s.receive_mode() == ReceiveMode::Device && marks::end(&ends.incoming).is_some();
    let all = no_more_fits(state, ends) || follows();
    drop(guard);
    enough || all
}

/// Whether nothing can follow what is unread: it ends the stream, or has left the sender no room.
/// (The kernel calls a socket readable, too, before its window closes, whatever is asked for.)
pub(crate) fn no_more_fits(state: &RecvState, ends: &Ends) -> bool {
    let banks = state.banks.iter().zip(by_bank(state, ends));
    state.ended != 0
        || ended_ahead(state, ends)
        || banks.into_iter().all(|(half, unread)| {
            unread.messages >= u32::from(half.allowed()) || unread.bytes >= half.promised() as usize
        })
}

/// Whether the end of the stream stands in the lane behind what is unread.
pub(crate) fn ended_ahead(state: &RecvState, ends: &Ends) -> bool {
    ended_behind(state.data_position, ends)
}

/// The same of the words from this position on.
pub(crate) fn ended_behind(position: u32, ends: &Ends) -> bool {
    let ahead = ends.incoming.data_ready(position, u32::MAX);
    ahead > 0 && is_end(position.wrapping_add(ahead - 1), ends)
}

/// Whether the word at this position ends the stream.
pub(crate) fn is_end(position: u32, ends: &Ends) -> bool {
    matches!(
        ends.incoming.poll_data(position).map(|w| Word(w).message()),
        Some(Ok(Message::Ctrl(_)))
    )
}

/// Unread bytes in the window, counted on a copy of the state.
#[must_use]
pub(crate) fn in_window(state: &RecvState, ends: &Ends) -> usize {
    by_bank(state, ends).iter().map(|unread| unread.bytes).sum()
}

/// What of a bank is unread.
#[derive(Clone, Copy, Default)]
struct Unread {
    messages: u32,
    bytes: usize,
}

impl Unread {
    fn add(&mut self, bytes: u32) {
        self.messages += 1;
        self.bytes += bytes as usize;
    }
}

fn by_bank(state: &RecvState, ends: &Ends) -> [Unread; 2] {
    let mut small = Unread::default();
    let mut large = Unread::default();
    if state.readable() > 0 {
        let current = if state.current as usize == LARGE { &mut large } else { &mut small };
        current.add(state.readable());
    }
    let mut position = state.data_position;
    while let Some(word) = ends.incoming.poll_data(position) {
        match Word(word).message() {
            Ok(Message::Data(len)) if len & layout::LARGE_BANK != 0 => {
                large.add(len & !layout::LARGE_BANK)
            }
            Ok(Message::Data(len)) => small.add(len),
            _ => break,
        }
        position = position.wrapping_add(1);
    }
    [small, large]
}
