//! `sendfile` on a connection that is on its device: the file's bytes are read straight into the
//! peer's window, which saves a copy of all of them.
//!
//! It happens under the send lock, so the file is only asked for what is in memory already
//! (`RWF_NOWAIT`, preadv2(2)). What is not, and files that cannot say, are the caller's, who reads
//! them into memory of its own and sends that. Entry point: [`send`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use super::guard::SendGuard;
use super::send::{PIECE, Placed, hint_word, next_message, refresh};
use super::slot::{Slot, SlotId, flag};
use super::{reader, tally, wait};
use crate::attach::link::{self, Ends};
use crate::attach::machine::SendMode;
use crate::attach::marks;
use crate::device::shm::channel::banks::offset_of;
use crate::device::shm::channel::{LARGE, SMALL, SendState};
use crate::device::shm::layout;
use crate::errno::Errno;
use crate::live;
use crate::proto::SendHalf;
use crate::relay;
use crate::sync::guarded::Draft;
use crate::sys;

/// What a call came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// So many bytes were sent, which is all that there will be.
    All(usize),
    /// So many, and the next ones are to be sent in the ordinary way, which also finds every error.
    Next(usize),
}

/// What one attempt came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// So many bytes were sent.
    Sent(usize),
    /// The file has no more.
    End,
    /// The window is full.
    Full,
    /// The caller must go on in the ordinary way.
    Ordinary,
}

/// Sends up to `length` bytes of the file from position `at` on, waiting for room as send(2) does.
///
/// # Errors
/// `EAGAIN`, `EINTR`, `EBADF` of a wait before which nothing had been sent.
pub fn send(
    id: SlotId,
    s: &Slot,
    mut fd: RawFd,
    file: RawFd,
    at: u64,
    length: usize,
) -> Result<Sent, Errno> {
    let mut patience = wait::Patience::new(s, libc::SO_SNDTIMEO);
    let mut sent = 0;
    let result = loop {
        if sent == length {
            break Ok(Sent::All(sent));
        }
        reader::check(s, fd);
        match attempt(s, file, at.saturating_add(sent as u64), length - sent) {
            Step::Sent(n) => {
                sent += n;
                continue;
            }
            Step::End => break Ok(Sent::All(sent)),
            Step::Ordinary => break Ok(Sent::Next(sent)),
            Step::Full => {}
        }
        patience.moved(sent > 0);
        let waited = wait::writable(id, s, fd, 0, &mut patience);
        fd = patience.descriptor(fd);
        match waited {
            Ok(()) => {}
            Err(_) if sent > 0 => break Ok(Sent::All(sent)),
            Err(e) => break Err(e),
        }
    };
    patience.over();
    result
}

/// Whether the connection is in its ordinary state: anything else is for the ordinary way to find
/// out about.
fn common(s: &Slot) -> bool {
    !s.has(flag::UNCOMMON) && s.has(flag::LARGE_OPEN) && s.send_mode() == SendMode::Device
}

/// One message, under the send lock.
fn attempt(s: &Slot, file: RawFd, at: u64, length: usize) -> Step {
    let Some(ends) = link::ends(s).filter(|_| common(s)) else { return Step::Ordinary };
    let Some(mut guard) = SendGuard::take(s, &ends) else { return Step::Ordinary };
    let over = marks::is_asked_back(&ends.outgoing) || marks::receiver_closed(&ends.outgoing);
    // Asked again, now that nobody else changes it.
    let step = if over || !common(s) {
        Step::Ordinary
    } else {
        fill(&mut guard, length, |to, len| read(to, len, file, at))
    };
    drop(guard);
    if let Step::Sent(_) = step {
        relay::carry_out(s, &ends);
    }
    step
}

/// Has one message read into the window and publishes it. `read` says how many bytes it put there,
/// 0 at the end, and `None` where the caller has to go on in another way.
pub(super) fn fill(
    guard: &mut SendGuard<'_>,
    length: usize,
    read: impl FnOnce(*mut u8, usize) -> Option<usize>,
) -> Step {
    let (s, ends) = (guard.s, guard.ends);
    let mut state = guard.draft();
    if state.banks.get(LARGE).is_none_or(|half| half.room() == 0) {
        if !refresh(&mut state, ends) {
            return Step::Ordinary;
        }
        state.flip();
        state = guard.draft();
    }
    let (step, state) = match next_message(&mut state, length.min(PIECE) as u32) {
        None => {
            s.room_epoch.fetch_add(1, Ordering::Relaxed);
            s.clear(flag::PLACES_FULL);
            (Step::Full, state.unchanged())
        }
        Some(message) => match target(ends, &message).and_then(|(to, len)| read(to, len)) {
            None => return Step::Ordinary,
            Some(0) => return Step::End,
            Some(n) if n < message.target.len as usize => {
                // A shorter message, whose bytes are in place already.
                state = guard.draft();
                match shorter(&mut state, &message, n as u32) {
                    Some(shorter) if shorter.target.addr == message.target.addr => {
                        publish(s, ends, state, &shorter)
                    }
                    _ => return Step::Ordinary,
                }
            }
            Some(_) => publish(s, ends, state, &message),
        },
    };
    s.room_hint.store(hint_word(state, state.room()), Ordering::Release);
    step
}

/// The message, with `n` of its bytes. In the same bank, where they are by now, however few they
/// are.
fn shorter(state: &mut SendState, message: &Placed, n: u32) -> Option<Placed> {
    let bank = message.word & layout::LARGE_BANK;
    let half = state.banks.get_mut(if bank != 0 { LARGE } else { SMALL })?;
    half.next_data(n).map(|w| Placed { target: w.target, word: w.word.0 | bank })
}

fn publish<'a>(
    s: &Slot,
    ends: &Ends,
    mut state: Draft<'a, SendState>,
    message: &Placed,
) -> (Step, &'a SendState) {
    let n = message.target.len as usize;
    let position = state.data_position;
    state.data_position = position.wrapping_add(1);
    // As in send::into_device: the draft is whole before the message is published.
    ends.outgoing.publish_data(position, message.word);
    let state = state.flip();
    let shown = live::record(s);
    tally::sent_shm(s, shown, n);
    if let Some(r) = shown {
        r.room(state.room(), state.banks.each_ref().map(SendHalf::credits));
    }
    (Step::Sent(n), state)
}

/// Where the message's bytes go, and how many they are.
fn target(ends: &Ends, message: &Placed) -> Option<(*mut u8, usize)> {
    let len = message.target.len as usize;
    Some((ends.outgoing.payload(u64::from(offset_of(&message.target)?), len)?, len))
}

/// How many of `len` bytes the file had in memory, which are in their place now; `None` if that
/// cannot be said without waiting.
fn read(to: *mut u8, len: usize, file: RawFd, at: u64) -> Option<usize> {
    let place = libc::iovec { iov_base: to.cast(), iov_len: len };
    let errno = sys::errno();
    // SAFETY: the window has `len` bytes at `to` (Direction::payload), which are the sender's to
    // write until it publishes them. The call is no cancellation point, and does not wait.
    let n = unsafe {
        libc::syscall(
            libc::SYS_preadv2,
            file,
            &raw const place,
            1_usize,
            at,
            0_usize,
            libc::RWF_NOWAIT,
        )
    };
    // That the file cannot say is no error of the program's call.
    sys::set_errno(errno);
    usize::try_from(n).ok()
}
