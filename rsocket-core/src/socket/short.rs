//! The way that most calls go: a few bytes, on a connection on its device in the middle of its life, with nothing to wait
//! for.
//!
//! What it does is what [`super::send`] and [`super::receive`] do, in the same order under the same locks; what it leaves out
//! is everything that may be otherwise. `None` means that nothing has happened, and that the ordinary way is to find out
//! why. Must not know anything of TCP. Entry points: [`send`], [`receive`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;

use super::receive::accept_word;
use super::send::hint_word;
use super::slot::{SMALL, Slot, flag};
use super::vectors::Cursor;
use super::{guard, room, tally};
use crate::attach::link::{self, Ends};
use crate::attach::machine::{Phase, ReceiveMode, SendMode};
use crate::attach::marks;
use crate::device::shm::copy::CopyHint;
use crate::device::shm::layout;
use crate::live;
use crate::sync::thread::tid;
use crate::wire::word::{Message, Word};

/// The only buffer of the list, if it is worth trying: it has bytes, and lies where memory can be.
#[inline]
fn only(list: &[libc::iovec]) -> Option<&libc::iovec> {
    match list {
        [buffer] if buffer.iov_len > 0 && Cursor::plausible(list) => Some(buffer),
        _ => None,
    }
}

/// Whether the connection is in the middle of its life and sends on its device, with no step of an attach that is due.
#[inline]
fn sends(s: &Slot) -> bool {
    !s.has(flag::UNCOMMON)
        && s.send_mode() == SendMode::Device
        && matches!(s.receive_mode(), ReceiveMode::Device | ReceiveMode::Acknowledged)
        && s.phase() == Phase::Paired
}

/// How many bytes the buffers have together, if they are worth trying: one to [`layout::SMALL`], where memory can be.
#[inline]
fn few(list: &[libc::iovec]) -> Option<usize> {
    let mut len = 0;
    for buffer in list {
        if buffer.iov_len > layout::SMALL {
            return None;
        }
        len += buffer.iov_len;
    }
    (len > 0 && len <= layout::SMALL && Cursor::plausible(list)).then_some(len)
}

/// Sends at most [`layout::SMALL`] bytes, all of them.
#[inline]
pub(super) fn send(s: &Slot, from: &[libc::iovec]) -> Option<usize> {
    let len = few(from)?;
    if !sends(s) {
        return None;
    }
    let ends = link::ends(s)?;
    if !guard::take_send(s, &ends) {
        return None;
    }
    // Asked again, now that nobody else changes it.
    let sent = sends(s) && into_window(s, &ends, from, len);
    s.send.lock.unlock(tid());
    if !sent {
        return None;
    }
    ends.wake_reader_unlocked();
    Some(len)
}

/// One message of all `total` bytes, if the current segment has room for it. Runs under the send lock.
#[inline]
fn into_window(s: &Slot, ends: &Ends, from: &[libc::iovec], total: usize) -> bool {
    if marks::return_wanted(&ends.outgoing).is_some() || marks::receiver_closed(&ends.outgoing) {
        return false;
    }
    let len = total as u32;
    // SAFETY: our caller holds the send lock, and the state was set when the window was; the draft is made when this is not
    // used any more.
    let state = unsafe { s.send.view() };
    let Some(half) = state.banks.get(SMALL).filter(|half| half.room() >= len) else { return false };
    ends.outgoing.claim(state.data_position, half.at(), total);
    // SAFETY: as above. As in send::into_device the spare copy counts for nothing until it is flipped.
    let state = unsafe { s.send.draft() };
    let Some(message) = state.banks.get_mut(SMALL).and_then(|half| half.next_data(len)) else { return false };
    let Some(offset) = link::offset_of(&message.target) else { return false };
    let mut at = u64::from(offset);
    for buffer in from {
        let (from, len) = (buffer.iov_base.cast(), buffer.iov_len);
        // SAFETY: the program vouched that its buffers are readable; they are not the arena. An empty one is not read.
        if len > 0 && !unsafe { ends.outgoing.write(at, from, len, CopyHint::Ordinary) } {
            return false;
        }
        at += len as u64;
    }
    let position = state.data_position;
    state.data_position = position.wrapping_add(1);
    // As in send::into_device: the spare copy is whole before the message is published.
    ends.outgoing.publish_data(position, message.word.0);
    ends.outgoing.claim_ahead(position, at, total);
    s.send.flip();
    let shown = live::record(s);
    tally::sent_shm(s, shown, total);
    let room = state.room();
    s.room_hint.store(hint_word(state, room), Ordering::Release);
    if let Some(r) = shown {
        r.room(room, state.banks.each_ref().map(crate::proto::SendHalf::credits));
    }
    true
}

/// What of recv(2)'s flags changes what is received, or when it is enough.
const OTHERWISE: i32 = libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_WAITALL;

/// Whether the connection is in the middle of its life and receives from its device, whatever comes.
#[inline]
fn receives(s: &Slot) -> bool {
    !s.has(flag::UNCOMMON | flag::MAPPED)
        && s.receive_mode() == ReceiveMode::Device
        && s.send_mode() != SendMode::Kernel
        && s.phase() == Phase::Paired
        && s.low_water.load(Ordering::Relaxed) <= 1
}

/// Receives what is there, into one buffer; at least one byte.
#[inline]
pub(super) fn receive(s: &Slot, to: &[libc::iovec], flags: i32) -> Option<usize> {
    let buffer = only(to)?;
    if flags & OTHERWISE != 0 || !receives(s) {
        return None;
    }
    let ends = link::ends(s)?;
    s.pace.before();
    if !guard::take_receive(s, &ends) {
        return None;
    }
    let got = if receives(s) { from_window(s, &ends, buffer) } else { None };
    s.receive.lock.unlock(tid());
    if s.wake_due.load(Ordering::Relaxed) != 0 && s.wake_due.swap(0, Ordering::Relaxed) != 0 {
        ends.wake_writer();
    }
    got
}

/// Takes messages until the buffer is full, or no more have come. Runs under the receive lock.
#[inline]
fn from_window(s: &Slot, ends: &Ends, buffer: &libc::iovec) -> Option<usize> {
    // SAFETY: our caller holds the receive lock, and the state was set when the window was; the draft is made when this is
    // not used any more.
    let state = unsafe { s.receive.view() };
    // Nothing there, or something else than bytes: not ours to judge.
    if state.ended != 0 || state.readable() == 0 && !data_at(ends, state.data_position) {
        return None;
    }
    // SAFETY: as above; it counts for nothing until it is published.
    let state = unsafe { s.receive.draft() };
    let first = state.data_position;
    let mut done = 0;
    while done < buffer.iov_len {
        if state.readable() == 0 {
            // Read once more, and once only: a peer may have changed it.
            let Some(word) = ends.incoming.poll_data(state.data_position) else { break };
            if !matches!(Word(word).message(), Ok(Message::Data(_))) {
                break;
            }
            state.data_position = state.data_position.wrapping_add(1);
            if !accept_word(state, word) {
                // What broke a rule the ordinary way finds again: nothing was published.
                return None;
            }
            continue;
        }
        let region = state.half().next_read();
        let n = region.len.min(u32::try_from(buffer.iov_len - done).unwrap_or(u32::MAX));
        let offset = link::bank_start(state.current) + u64::from(region.offset);
        // SAFETY: the program vouched that its buffer is writable, of which `done` bytes are used; it is not the arena.
        let copied = unsafe {
            let at = buffer.iov_base.cast::<u8>().add(done);
            ends.incoming.read(offset, n as usize, at, CopyHint::Ordinary)
        };
        if !copied {
            return None;
        }
        state.half().on_read(n);
        done += n as usize;
    }
    if done == 0 {
        return None;
    }
    s.pace.after(state.data_position.wrapping_sub(first));
    room::publish(s, ends, done);
    Some(done)
}

/// Whether a message with bytes is published there.
#[inline]
fn data_at(ends: &Ends, position: u32) -> bool {
    ends.incoming.poll_data(position).is_some_and(|word| matches!(Word(word).message(), Ok(Message::Data(_))))
}
