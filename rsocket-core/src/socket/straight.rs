//! Sending and receiving past the window, where a relay of this process is beyond it ([`crate::relay::straight`]).
//!
//! Here is what the socket layer has to say to that: the connection is in the middle of its life, the lock of the direction is
//! held, and the window has nothing that comes first. Whatever is otherwise is for [`super::send`] and [`super::receive`],
//! which go on where this has stopped. Must not know queue pairs. Entry points: [`send`], [`send_at_once`] and [`first`] before
//! the ordinary way; [`receive`] in it; [`take`] for a thread that waits.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;

use super::slot::{Slot, flag};
use super::vectors::Cursor;
use super::{guard, ready, tally, wait};
use crate::attach::link::{self, Ends};
use crate::attach::marks;
use crate::device::shm::layout;
use crate::sync::thread::tid;
use crate::{live, relay};

/// With any of these set the bytes go by the window, or nowhere.
const OTHERWISE: u32 = flag::UNCOMMON & !flag::RELAYED | flag::BESIDE;

/// Whether the connection is in the middle of its life over a relay.
#[inline]
fn common(s: &Slot) -> bool {
    s.has(flag::RELAYED) && !s.has(OTHERWISE) && ready::settled(s)
}

/// Whether what a receive with these flags wants may come straight from the device.
#[inline]
pub(super) fn may_receive(s: &Slot, flags: i32) -> bool {
    common(s)
        && !s.has(flag::MAPPED)
        && flags & (libc::MSG_PEEK | libc::MSG_TRUNC) == 0
        && s.low_water.load(Ordering::Relaxed) <= 1
}

/// Sends what the device takes now.
pub(super) fn send(s: &Slot, from: &mut Cursor<'_>) {
    if common(s) && from.left() > 0 {
        sent(s, from, false);
    }
}

/// Sends at most [`layout::SMALL`] bytes, all of them; `None` if nothing has happened.
#[inline]
pub(super) fn send_at_once(s: &Slot, from: &[libc::iovec]) -> Option<usize> {
    if !common(s) {
        return None;
    }
    let mut cursor = Cursor::new(from);
    let all = cursor.left();
    if all == 0 || all > layout::SMALL || !Cursor::plausible(from) {
        return None;
    }
    (sent(s, &mut cursor, true) == all).then_some(all)
}

fn sent(s: &Slot, from: &mut Cursor<'_>, whole: bool) -> usize {
    let Some(ends) = link::ends(s).filter(|ends| guard::take_send(s, ends)) else { return 0 };
    // Asked now that nobody else changes it.
    let n = if common(s) && !marks::receiver_closed(&ends.outgoing) {
        relay::straight::send(s, from, whole)
    } else {
        0
    };
    if n > 0 {
        tally::sent_shm(s, live::record(s), n);
    }
    s.send.lock.unlock(tid());
    n
}

/// Receives what the device has brought; how many bytes. The caller holds the receive lock, and has found the window empty
/// and nothing to be done about it (`receive::quiet`), which is so no more after 0.
pub(super) fn receive(s: &Slot, ends: &Ends, to: &mut Cursor<'_>) -> usize {
    // SAFETY: the lock is our caller's, and this is used at once.
    let position = unsafe { s.receive.view() }.data_position;
    let n = relay::straight::receive(s, to, || ends.incoming.poll_data(position).is_none());
    if n > 0 {
        tally::received_shm(s, live::record(s), n);
    }
    n
}

/// What a look has brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Looked {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing; and the window has nothing, and nothing is to be done about it.
    Nothing,
    /// The ordinary way is to look.
    Otherwise,
}

/// The first look of a call that receives.
pub(super) fn first(s: &Slot, to: &mut Cursor<'_>, flags: i32, born: u32) -> Looked {
    if !may_receive(s, flags) || wait::kernel_was_heard(s) {
        return Looked::Otherwise;
    }
    relay::straight::give_way(s);
    let Some(ends) = link::ends(s).filter(|ends| guard::take_receive(s, ends)) else {
        return Looked::Otherwise;
    };
    let looked = look(s, &ends, to, flags, born);
    s.receive.lock.unlock(tid());
    match looked {
        // The kernel may know of an end. A call that may sleep hears of it then.
        Looked::Nothing if flags & libc::MSG_DONTWAIT != 0 && wait::is_kernel_due(s) => Looked::Otherwise,
        looked => looked,
    }
}

/// Under the receive lock.
fn look(s: &Slot, ends: &Ends, to: &mut Cursor<'_>, flags: i32, born: u32) -> Looked {
    let own = s.generation.load(Ordering::Acquire) == born;
    if !(own && may_receive(s, flags) && super::receive::quiet(s, ends)) {
        return Looked::Otherwise;
    }
    match receive(s, ends, to) {
        0 if super::receive::quiet(s, ends) => Looked::Nothing,
        0 => Looked::Otherwise,
        n => Looked::Bytes(n),
    }
}

/// A look at the connection by a thread that waits to receive, before it looks at the window: true when bytes came straight.
/// The thread was called when the slot was `born`: another connection's bytes are not for it.
#[inline]
pub(super) fn take(s: &Slot, ends: &Ends, to: &mut Cursor<'_>, flags: i32, born: u32) -> bool {
    s.has(flag::RELAYED) && take_from_relay(s, ends, to, flags, born)
}

fn take_from_relay(s: &Slot, ends: &Ends, to: &mut Cursor<'_>, flags: i32, born: u32) -> bool {
    if !may_receive(s, flags) || ready::data_waiting(s, ends) || !guard::take_receive(s, ends) {
        relay::pump(s);
        return false;
    }
    let looked = look(s, ends, to, flags, born);
    s.receive.lock.unlock(tid());
    matches!(looked, Looked::Bytes(_))
}
