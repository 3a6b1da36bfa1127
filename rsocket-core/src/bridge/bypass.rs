//! Bytes that go straight between a program's buffers and a queue pair, past the channel.
//!
//! The channel is for threads that are not here, or not awake: the service thread, siblings,
//! threads that poll. A thread of the bridge's own process that is inside a call needs it only for
//! what cannot go on now. While the channel is empty, what such a thread sends is posted from its
//! own buffers. What the device has brought is copied into them. That is a copy less in each
//! direction, and none of the channel's words.
//!
//! Nothing overtakes anything. The guard of the connection's direction says that no other thread of
//! the program's side is at it. Here the bridge's lock is held, so that no other thread moves bytes
//! between channel and device; then an empty channel stays empty. What does not fit stays where it
//! is ([`super::deferred`]), or the caller puts it into the channel, or [`Pump::run`] does so here.
//!
//! Not beside a TCP connection, where both ends count what passes the channel. Must not know
//! sockets' modes. Entry points: [`send`], [`receive`]; [`is_too_soon`] before the first look of a
//! call, [`give_way`] for one that has found nothing; [`waits_for_room`] for one that may sleep.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::sync::atomic::Ordering;

use super::pump::{Pump, ROUNDS};
use super::{FEW, deferred, note, service};
use crate::channel::guard::{RecvGuard, SendGuard};
use crate::conn::slot::Slot;
use crate::copy::{self, Bytes};
use crate::device::rdma::RdmaPair;
use crate::device::{PostError, QueuePair};
use crate::proto::ramp::Ramp;
use crate::proto::stream::Readable;
use crate::stats::{self, Counter};
use crate::sync::thread;
use crate::sys::vectors::Cursor;

/// Posts without a report, after which a thread that sends looks at the device. A thread that never
/// receives would not hear of its peer's end otherwise, nor have the room back.
const UNHEARD: u32 = 16;

/// What came of a look at the device for a thread that receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Looked {
    /// The device had news, or something was said to the peer.
    pub(super) moved: bool,
    /// There is nothing left that only [`Pump::run`] does.
    pub(super) done: bool,
    /// There are bytes left for which the buffers have no room.
    pub(super) left: bool,
}

/// Posts bytes of the program's while the device takes them; how many. Never waits.
pub(crate) fn send(guard: &SendGuard<'_>, from: &mut Cursor<'_>) -> usize {
    posted(guard.s, |pump| pump.send_bypassing(from, false))
}

/// The same; all of them or none.
#[inline]
pub(crate) fn send_whole(guard: &SendGuard<'_>, from: &[libc::iovec]) -> usize {
    posted(guard.s, |pump| pump.send_whole(from))
}

#[inline(always)]
fn posted(s: &Slot, post: impl FnOnce(&mut Pump<RdmaPair>) -> usize) -> usize {
    let Some(bridge) = super::of(s) else { return 0 };
    let sent = bridge.try_with(|slot| {
        let c = slot.as_mut().filter(|c| c.carries(s))?;
        if c.pump_mut()?.outstanding >= UNHEARD && !super::run(bridge, c) {
            service::nudge();
        }
        let sent = post(c.pump_mut()?);
        if sent > 0 {
            note(bridge, true);
            bridge.yield_predictor.sent();
        }
        Some(sent)
    });
    sent.flatten().unwrap_or(0)
}

/// Whether more of the program's bytes will be able to go straight. They can as soon as the device
/// has carried out what it was given, and what waits in the channel. (False also while another
/// thread is at the bridge.)
pub fn waits_for_room(s: &Slot) -> bool {
    let Some(bridge) = super::of(s) else { return false };
    let waits = bridge.try_with(|slot| {
        let c = slot.as_mut().filter(|c| c.carries(s) && c.running())?;
        c.pump_mut().map(|pump| pump.waits_for_room())
    });
    waits.flatten() == Some(true)
}

/// Whether some can go now; or perhaps, where another thread is at the bridge.
pub fn has_room(s: &Slot) -> bool {
    let Some(bridge) = super::of(s) else { return false };
    let room = bridge.try_with(|slot| {
        let c = slot.as_mut().filter(|c| c.carries(s) && c.running())?;
        c.pump_mut().map(|pump| pump.has_room())
    });
    room.is_none_or(|room| room == Some(true))
}

/// A sender has waited for room, and the device had no news: [`waits_for_room`] is false until it
/// has some.
pub fn waited_in_vain(s: &Slot) {
    let Some(bridge) = super::of(s) else { return };
    bridge.with(|slot| {
        if let Some(pump) = slot.as_mut().filter(|c| c.carries(s)).and_then(|c| c.pump_mut()) {
            pump.waited_in_vain();
        }
    });
}

/// Looks at the device, and copies what it has brought into the program's buffers, if the channel
/// is still `empty`; how many bytes. Waits as [`super::pump`].
/// With 0 the channel may have something by now.
#[inline(always)]
pub(crate) fn receive(
    guard: &RecvGuard<'_>,
    to: &mut Cursor<'_>,
    empty: impl Fn() -> bool,
) -> usize {
    let s = guard.s;
    let Some(bridge) = super::of(s) else { return 0 };
    let before = to.done();
    let alive = bridge.in_turn(|slot| {
        let c = slot.as_mut().filter(|c| c.carries(s) && c.running())?;
        let looked = match c.pump_mut().filter(|_| empty()) {
            Some(pump) => pump.receive_bypassing(to),
            None => Looked::default(),
        };
        if looked.done && !looked.left {
            deferred::none(bridge, c);
        }
        if looked.done && (!looked.left || deferred::may_stay(bridge, c)) {
            note(bridge, looked.moved);
            return Some(true);
        }
        Some(super::run(bridge, c))
    });
    if alive.flatten() == Some(false) {
        service::nudge();
    }
    let received = to.done() - before;
    if received > 0 {
        bridge.yield_predictor.received();
    }
    received
}

/// Before the first look of a call that is about to give the only CPU away: whether it may do so
/// before it looks ([`super::yield_predictor`]).
pub fn is_too_soon(s: &Slot) -> bool {
    super::of(s).is_some_and(|bridge| bridge.yield_predictor.too_soon())
}

/// What that look has brought, where it was taken.
pub fn looked_at_once(s: &Slot, found: bool) {
    if let Some(bridge) = super::of(s) {
        bridge.yield_predictor.looked(found);
    }
}

/// Before another [`receive`] of a program that has found nothing again and again: gives the CPU
/// away where there is only one, as [`super::look`] does. No lock may be held.
pub fn give_way(s: &Slot) {
    let Some(bridge) = super::of(s) else { return };
    // Relaxed: as in note().
    if bridge.vain.load(Ordering::Relaxed) >= FEW && thread::has_one_cpu() {
        stats::add(Counter::CpuYields, 1);
        thread::yield_now();
    }
}

impl<Q: QueuePair> Pump<Q> {
    /// Whether all that was put into the channel has gone out, and whatever is put in next may go
    /// too.
    fn clear_to_send(&self) -> bool {
        self.carries_on() && self.all_told() && !self.port.has_outgoing()
    }

    /// Whether what is missing for that, if anything, comes with the device's news.
    fn carries_on(&self) -> bool {
        self.beside.is_none()
            && self.opening.is_none()
            && !self.ending()
            && self.stream.state().writable()
    }

    /// See [`waits_for_room`].
    pub(super) fn waits_for_room(&self) -> bool {
        self.carries_on() && self.vain_at != Some(self.reports)
    }

    /// See [`has_room`].
    fn has_room(&self) -> bool {
        self.clear_to_send() && self.stream.room().min(self.pair.staging_room()) > 0
    }

    /// See [`waited_in_vain`].
    pub(super) fn waited_in_vain(&mut self) {
        self.vain_at = Some(self.reports);
    }

    /// See [`send_whole`]. What the device takes during the call goes there from where it is.
    #[inline]
    pub(super) fn send_whole(&mut self, from: &[libc::iovec]) -> usize {
        match from {
            [short] if short.iov_len <= self.pair.most_at_once() as usize => self.send_short(short),
            _ => self.send_bypassing(&mut Cursor::new(from), true),
        }
    }

    #[inline(always)]
    fn send_short(&mut self, short: &libc::iovec) -> usize {
        let len = short.iov_len as u32;
        if !self.clear_to_send() {
            return 0;
        }
        let Some(post) = self.stream.next_whole(len) else { return 0 };
        let bytes = core::ptr::slice_from_raw_parts(short.iov_base.cast(), len as usize);
        // SAFETY: the buffer is readable for `len` bytes, as the program vouched.
        let done = unsafe { self.pair.post_at_once(bytes, post.target, post.word, post.token) };
        if let Err(e) = done {
            self.refused(e);
            return 0;
        }
        self.outstanding += 1;
        self.carried.0 += u64::from(len);
        short.iov_len
    }

    #[cold]
    fn refused(&mut self, e: PostError) {
        match e {
            // Its end will be polled, and is for the ordinary way to tell.
            PostError::Ended => {}
            // Slots are counted so that this cannot be; a connection that miscounts is not to be
            // trusted.
            PostError::Full | PostError::Unsupported => self.hang_up(),
        }
    }

    /// See [`send`]; with `whole` all or none.
    pub(super) fn send_bypassing(&mut self, from: &mut Cursor<'_>, whole: bool) -> usize {
        let room = |pump: &Self| pump.stream.room().min(pump.pair.staging_room());
        if !self.clear_to_send() || whole && from.left() > room(self) as usize {
            return 0;
        }
        let before = from.done();
        let mut ramp = Ramp::FLAT;
        while from.left() > 0 {
            let most = u32::try_from(from.left()).unwrap_or(u32::MAX).min(self.pair.staging_room());
            if most == 0 {
                break;
            }
            let Some(post) = self.stream.next_data(&mut ramp, most) else { break };
            let n = post.target.len as usize;
            let fill = |to: &mut [u8]| {
                let to = to.get_mut(..n).unwrap_or(&mut []);
                from.each(to.len(), |at, len, done| {
                    let Some(to) = to.get_mut(done..done + len) else { return false };
                    // SAFETY: the cursor's stretch is readable for `len` bytes, as the program
                    // vouched, and is not the device's memory; `to` has as many.
                    unsafe { copy::near(to.as_mut_ptr(), at, len) };
                    true
                });
            };
            match self.pair.post_filled(post.target, Some(post.word), post.token, fill) {
                Ok(()) => {
                    self.outstanding += 1;
                    self.carried.0 += n as u64;
                    from.advance(n);
                }
                Err(e) => {
                    self.refused(e);
                    break;
                }
            }
        }
        from.done() - before
    }

    /// See [`receive`]. The channel is empty.
    pub(super) fn receive_bypassing(&mut self, to: &mut Cursor<'_>) -> Looked {
        if self.beside.is_some() || self.opening.is_some() || self.has_ended_delivering() {
            return Looked::default();
        }
        let (mut moved, mut more) = (false, true);
        for _ in 0..ROUNDS {
            let polled;
            (polled, more) = self.poll();
            moved |= polled;
            self.take_out(to);
            if !more || to.left() == 0 {
                break;
            }
        }
        moved |= self.control();
        // What is still to be taken may be words without end, which run() knows.
        let words = more && to.left() > 0;
        let left = self.stream.has_unread();
        // Where there was room for it, it is no more than an end.
        let done = !(words || left && to.left() > 0 || self.ending() || self.port.has_outgoing());
        Looked { moved, done, left }
    }

    /// From the device's buffer into the program's.
    fn take_out(&mut self, to: &mut Cursor<'_>) {
        while self.stream.has_unread()
            && let Some((at, room)) = to.stretch()
        {
            let region = match self.stream.next_read() {
                Ok(Readable::Bytes(region)) => region,
                // Ends are told by the channel.
                Ok(_) => break,
                Err(_) => {
                    self.hang_up();
                    break;
                }
            };
            let n = region.len.min(u32::try_from(room).unwrap_or(u32::MAX));
            let mut done = 0;
            let mut sink = |from: Bytes<'_>| {
                let len = from.len().min(n as usize - done);
                // SAFETY: `from` has `len` bytes; the cursor's stretch is writable for n bytes, as
                // the program vouched, of which `done` are used. They are not the same memory.
                unsafe { copy::near(at.add(done), from.at(), len) };
                done += len;
            };
            let from = self.arrival(&region);
            if self.pair.each_chunk(from, n, &mut sink).is_err() {
                self.fail();
                break;
            }
            self.stream.on_read(n);
            self.carried.1 += u64::from(n);
            to.advance(n as usize);
        }
    }
}
