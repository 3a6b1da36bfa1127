//! What a receiver has not read yet: bytes, messages and the end of the stream, counted on a copy
//! of its state.
//!
//! Must not know which caller asks. Entry points: [`in_channel`], [`ended_ahead`],
//! [`no_more_fits`].

use core::sync::atomic::Ordering;

use super::guard::RecvGuard;
use super::handover_state;
use super::link::{self, Ends};
use crate::conn::machine::ReceiveMode;
use crate::conn::progress::{BEHIND, OVER};
use crate::conn::slot::{Slot, flag};
use crate::device::shm::channel::{Beyond, LARGE, RecvState};
use crate::device::shm::layout;
use crate::wire::word::{Ctrl, Message, Word};

/// Unread bytes in the channel; `None` where the lock is not to be had.
pub(crate) fn in_channel_now(s: &Slot, ends: &Ends) -> Option<usize> {
    RecvGuard::take(s, ends).map(|guard| in_channel(guard.view(), ends))
}

/// Whether the channel has as much as SO_RCVLOWAT asks for, or all there will be.
#[must_use]
pub(crate) fn reaches_low_water(s: &Slot, ends: &Ends) -> bool {
    let Some(guard) = RecvGuard::take(s, ends) else { return true };
    let state = guard.view();
    let enough = in_channel(state, ends) >= s.low_water.load(Ordering::Relaxed) as usize;
    // What follows the end comes by TCP, with which it cannot be waited for together. What is
    // before the switch offset counts as well, and the kernel knows of that.
    let follows =
        || s.receive_mode() == ReceiveMode::Device && handover_state::end(&ends.incoming).is_some();
    let all = no_more_fits(state, ends, link::beyond(s)) || follows();
    drop(guard);
    enough || all
}

/// Whether nothing can follow what is unread: it ends the stream, or has left the sender so little
/// room that poll calls it not writable. (The kernel calls a socket readable, too, before its
/// channel closes, whatever is asked for.)
pub(crate) fn no_more_fits(state: &RecvState, ends: &Ends, beyond: Beyond) -> bool {
    let [_, large] = by_class(state, ends);
    state.ended != 0
        || ended_ahead(state, ends)
        || !state.leaves_ample(large.messages, large.bytes, beyond)
}

/// Whether the end of the stream stands in the ring behind what is unread.
pub(crate) fn ended_ahead(state: &RecvState, ends: &Ends) -> bool {
    ended_behind(state.data_position, ends)
}

/// The same of the words from this position on.
fn ended_behind(position: u32, ends: &Ends) -> bool {
    let ahead = ends.incoming.data_ready(position, u32::MAX);
    ahead > 0 && is_end(position.wrapping_add(ahead - 1), ends)
}

/// Whether the word at this position ends the stream.
fn is_end(position: u32, ends: &Ends) -> bool {
    matches!(
        ends.incoming.poll_data(position).map(|w| Word(w).message()),
        Some(Ok(Message::Ctrl(_)))
    )
}

/// Unread bytes in the channel, counted on a copy of the state.
#[must_use]
pub(crate) fn in_channel(state: &RecvState, ends: &Ends) -> usize {
    by_class(state, ends).iter().map(|unread| unread.bytes).sum()
}

/// What of a class is unread.
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

fn by_class(state: &RecvState, ends: &Ends) -> [Unread; 2] {
    let mut small = Unread::default();
    let mut large = Unread::default();
    if state.readable() > 0 {
        let current = if state.current as usize == LARGE { &mut large } else { &mut small };
        current.add(state.readable());
    }
    let mut position = state.data_position;
    while let Some(word) = ends.incoming.poll_data(position) {
        match Word(word).message() {
            Ok(Message::Data(len)) if len & layout::LARGE_CLASS != 0 => {
                large.add(len & !layout::LARGE_CLASS)
            }
            Ok(Message::Data(len)) => small.add(len),
            _ => break,
        }
        position = position.wrapping_add(1);
    }
    [small, large]
}

/// Whether what the receiver would find next is the end of the stream. Then it is said beside what
/// can be read, as on TCP, where both come at once.
#[inline]
pub(crate) fn end_is_next(s: &Slot, ends: &Ends) -> bool {
    // Acquire: pairs with the release in room::follows.
    let hint = s.unread_hint.load(Ordering::Acquire);
    hint as u32 == 0
        && ends.incoming.poll_data((hint >> 32) as u32).is_some_and(|word| {
            matches!(Word(word).message(), Ok(Message::Ctrl(Ctrl::Shutdown | Ctrl::Disconnect)))
        })
}

/// Whether the end of the stream stands in the ring, whatever is unread before it: TCP tells of a
/// FIN when it comes.
pub(crate) fn end_is_ahead(s: &Slot, ends: &Ends) -> bool {
    // Acquire: pairs with the release in room::follows.
    let position = (s.unread_hint.load(Ordering::Acquire) >> 32) as u32;
    ended_behind(position, ends)
}

/// How far the receiving direction has come, as `Progress::received` says it: messages that were
/// published for us, read or not, and how their sender ended.
#[inline]
pub(crate) fn received(s: &Slot, ends: &Ends) -> u64 {
    let position = (s.unread_hint.load(Ordering::Acquire) >> 32) as u32;
    let ahead = ends.incoming.data_ready(position, u32::MAX);
    // A sender that goes back sends by TCP at once: behind unread bytes, where no receiver asks
    // the kernel yet.
    let back =
        handover_state::end(&ends.incoming).is_some() && s.receive_mode() == ReceiveMode::Device;
    let behind = if back { BEHIND } else { 0 };
    let over = s.has(flag::ENDED) || ahead > 0 && is_end(position.wrapping_add(ahead - 1), ends);
    let over = if over { OVER } else { 0 };
    u64::from(position.wrapping_add(ahead)) | behind | over
}
