//! The way that most calls go: a few bytes, with nothing to wait for. The connection is on its
//! device, in the middle of its life.
//!
//! What it does is what [`super::send`] and [`super::receive`] do, in the same order under the same
//! locks. What it leaves out is everything that may be otherwise. That nothing is otherwise is
//! asked once, under the lock, and has a type: [`OrdinarySend`], [`OrdinaryReceive`]. `None` means
//! that nothing has happened, and that the whole way is to find out why. Must not know anything of
//! TCP. Entry points: [`send`], [`receive`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;

use super::reader;
use crate::channel::guard::{RecvGuard, SendGuard};
use crate::channel::link::Ends;
use crate::channel::{handover_state, link, room};
use crate::conn::listeners;
use crate::conn::machine::{Phase, ReceiveMode, SendMode};
use crate::conn::slot::{Slot, SlotId, flag};
use crate::copy::CopyHint;
use crate::device::shm::channel::receiver::First;
use crate::device::shm::layout;
use crate::sys::vectors::Cursor;

/// One of so many messages is sent the whole way when it is time to ask whether any process reads
/// them ([`reader::check`]).
const CARELESS: u32 = 8;

/// The only buffer of the list, if it is worth trying: it has bytes, and lies where memory can be.
#[inline]
fn only(list: &[libc::iovec]) -> Option<&libc::iovec> {
    match list {
        [buffer] if buffer.iov_len > 0 && Cursor::is_plausible(buffer) => Some(buffer),
        _ => None,
    }
}

/// A connection in the middle of its life that sends on its device, with no step of an attach that
/// is due. It stays so while this thread holds its lock for sending.
struct OrdinarySend<'g, 'a>(&'g mut SendGuard<'a>);

#[inline(always)]
fn as_ordinary_send<'g, 'a>(guard: &'g mut SendGuard<'a>) -> Option<OrdinarySend<'g, 'a>> {
    let s = guard.s;
    let ordinary = may_send(s)
        && (s.receives_by(ReceiveMode::Device) || s.receives_by(ReceiveMode::Acknowledged))
        && s.is_in(Phase::Paired);
    ordinary.then_some(OrdinarySend(guard))
}

/// What is worth knowing of it before the lock is taken.
#[inline(always)]
fn may_send(s: &Slot) -> bool {
    s.sends_by(SendMode::Device) && !s.has(flag::UNCOMMON)
}

/// How many bytes the buffers have together, if they are worth trying: one to [`layout::SMALL`],
/// where memory can be.
#[inline]
pub(super) fn few(list: &[libc::iovec]) -> Option<usize> {
    // Nearly every call has one buffer.
    if let [one] = list {
        let few = one.iov_len <= layout::SMALL;
        return (few && only(list).is_some()).then_some(one.iov_len);
    }
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
    if !may_send(s) {
        return None;
    }
    let len = few(from)?;
    let ends = link::ends_here(s)?;
    let mut guard = SendGuard::take(s, &ends)?;
    // Asked now that no other thread changes it.
    if !as_ordinary_send(&mut guard)?.put_into_channel(from, len) {
        return None;
    }
    // Whatever a handler does that came meanwhile: what was published is woken for.
    guard.unlock_then(|| ends.wake_reader_unlocked());
    s.poll_backoff.sent();
    Some(len)
}

impl OrdinarySend<'_, '_> {
    /// One message of all `total` bytes, if the current segment has room for it.
    #[inline(always)]
    fn put_into_channel(self, from: &[libc::iovec], total: usize) -> bool {
        let guard = self.0;
        let (s, ends) = (guard.s, guard.ends);
        if handover_state::is_asked_back(&ends.outgoing)
            || handover_state::receiver_closed(&ends.outgoing)
        {
            return false;
        }
        let mut sender = guard.sender();
        let Some(mut message) = sender.reserve_short(total as u32) else { return false };
        if message.position().is_multiple_of(CARELESS) && reader::is_due(s) {
            return false;
        }
        for buffer in from {
            let (from, len) = (buffer.iov_base.cast(), buffer.iov_len);
            // SAFETY: the program vouched that its buffers are readable; they are not the arena. An
            // empty one is not read.
            if len > 0 && !unsafe { message.fill(from, len, CopyHint::Ordinary) } {
                return false;
            }
        }
        room::sent_short(s, message.commit_before_others(), total);
        true
    }
}

/// What of recv(2)'s flags changes what is received, or when it is enough.
const OTHERWISE: i32 = libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_WAITALL;

/// A connection in the middle of its life that receives from its device, whatever comes. It stays
/// so while this thread holds its lock for receiving.
struct OrdinaryReceive<'g, 'a>(&'g mut RecvGuard<'a>);

#[inline(always)]
fn as_ordinary_receive<'g, 'a>(guard: &'g mut RecvGuard<'a>) -> Option<OrdinaryReceive<'g, 'a>> {
    let s = guard.s;
    let ordinary = may_receive(s)
        && !s.sends_by(SendMode::Kernel)
        && s.is_in(Phase::Paired)
        && s.low_water.load(Ordering::Relaxed) <= 1;
    ordinary.then_some(OrdinaryReceive(guard))
}

/// What is worth knowing of it before the lock is taken.
#[inline(always)]
fn may_receive(s: &Slot) -> bool {
    s.receives_by(ReceiveMode::Device) && !s.has(flag::UNCOMMON | flag::MAPPED)
}

/// Receives what is there, into one buffer; at least one byte.
#[inline]
pub(super) fn receive(id: SlotId, s: &Slot, to: &[libc::iovec], flags: i32) -> Option<usize> {
    if flags & OTHERWISE != 0 || !may_receive(s) {
        return None;
    }
    let buffer = only(to)?;
    let ends = link::ends_here(s)?;
    s.poll_backoff.before();
    let mut guard = RecvGuard::take(s, &ends)?;
    let got =
        as_ordinary_receive(&mut guard).and_then(|ordinary| ordinary.take_from_channel(buffer));
    guard.unlock_then(|| {
        if s.after_receive.load(Ordering::Relaxed) != 0 {
            after_receive(id, s, &ends);
        }
    });
    got
}

/// What most receives need not do.
#[inline(never)]
fn after_receive(id: SlotId, s: &Slot, ends: &Ends) {
    if s.takes_wake_of_sender() {
        ends.wake_writer();
    }
    // Relaxed: what this thread has just left there.
    if s.unread_hint.load(Ordering::Relaxed) as u32 != 0 {
        listeners::found_unread(id, s);
    }
}

impl OrdinaryReceive<'_, '_> {
    /// Takes messages until the buffer is full, or no more have come.
    #[inline(always)]
    fn take_from_channel(self, buffer: &libc::iovec) -> Option<usize> {
        let guard = self.0;
        let (s, ends) = (guard.s, guard.ends);
        let receiver = guard.receiver();
        // Each word is read once, and once only: a peer may change it.
        let mut next = match receiver.first() {
            First::Here => None,
            First::Arrived(word) => Some(word),
            // Something else than bytes is not ours to judge.
            First::Nothing => return None,
        };
        let mut taking = receiver.take();
        let first = taking.state().data_position;
        let mut done = 0;
        while done < buffer.iov_len {
            if taking.state().readable() == 0 {
                let arrived = || taking.arrived().filter(|word| word.is_bytes());
                let Some(word) = next.take().or_else(arrived) else {
                    // Behind the last byte of a sender that has gone back, the same call goes on
                    // with TCP's.
                    if handover_state::is_decided(&ends.incoming) {
                        return None;
                    }
                    break;
                };
                // What broke a rule the whole way finds again: nothing was committed.
                taking.accept(word).ok()?;
            }
            let left = u32::try_from(buffer.iov_len - done).unwrap_or(u32::MAX);
            let n = taking.state().readable().min(left);
            // SAFETY: the program vouched that its buffer is writable, of which `done` bytes are
            // used; it is not the arena.
            unsafe {
                taking.copy_out(n, buffer.iov_base.cast::<u8>().add(done), CopyHint::Ordinary)
            }
            .ok()?;
            done += n as usize;
        }
        if done == 0 {
            return None;
        }
        s.poll_backoff.after(taking.commit().data_position.wrapping_sub(first));
        room::follows(guard, done);
        Some(done)
    }
}
