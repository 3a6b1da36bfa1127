//! `sendfile` on a connection that is on its device. The file's bytes are read straight into the
//! peer's channel, which saves a copy of all of them.
//!
//! It happens under the send lock, so the file is only asked for what is in memory already
//! (`RWF_NOWAIT`, preadv2(2)). What is not in memory is left to the caller, as is a file that
//! cannot say. The caller reads it into memory of its own and sends that. Entry point: [`send`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::RawFd;

use super::call::Call;
use super::{reader, wait};
use crate::channel::guard::SendGuard;
use crate::channel::{handover_state, link, room};
use crate::conn::machine::SendMode;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::device::shm::channel::Refused;
use crate::device::shm::channel::sender::PIECE;
use crate::failure::Failure;
use crate::sys::nowait;
use crate::waiting::call_deadline::CallDeadline;
use crate::{bridge, sys};

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
    /// The channel is full.
    Full,
    /// The caller must go on in the ordinary way.
    Ordinary,
}

/// A part of a file.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The file's descriptor.
    pub file: RawFd,
    /// Where the part begins.
    pub at: u64,
    /// How many bytes it has.
    pub length: usize,
}

/// Sends the part, as far as the file has it, waiting for room as send(2) does.
///
/// # Errors
/// `EAGAIN`, `EINTR`, `EBADF` of a wait before which nothing had been sent.
pub fn send(id: SlotId, s: &Slot, fd: RawFd, part: Part) -> Result<Sent, Failure> {
    let Part { file, at, length } = part;
    let mut call = Call { id, s, fd, flags: 0 };
    let mut deadline = CallDeadline::new(s, libc::SO_SNDTIMEO);
    let mut sent = 0;
    let result = loop {
        if sent == length {
            break Ok(Sent::All(sent));
        }
        reader::check(s, call.fd);
        match attempt(s, file, at.saturating_add(sent as u64), length - sent) {
            Step::Sent(n) => {
                sent += n;
                continue;
            }
            Step::End => break Ok(Sent::All(sent)),
            Step::Ordinary => break Ok(Sent::Next(sent)),
            Step::Full => {}
        }
        deadline.moved(sent > 0);
        let waited = wait::writable(&call, &mut deadline);
        call.fd = deadline.descriptor(call.fd);
        match waited {
            Ok(()) => {}
            Err(_) if sent > 0 => break Ok(Sent::All(sent)),
            Err(e) => break Err(e),
        }
    };
    deadline.over();
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
    let over = handover_state::is_asked_back(&ends.outgoing)
        || handover_state::receiver_closed(&ends.outgoing);
    // Asked again, now that no other thread changes it.
    let step = if over || !common(s) {
        Step::Ordinary
    } else {
        fill(&mut guard, length, |to, len| read(to, len, file, at))
    };
    drop(guard);
    if let Step::Sent(_) = step {
        bridge::carry_out(s, &ends);
    }
    step
}

/// Has one message read into the channel and publishes it. `read` says how many bytes it put there,
/// 0 at the end, and `None` where the caller has to go on in another way.
pub(super) fn fill(
    guard: &mut SendGuard<'_>,
    length: usize,
    read: impl FnOnce(*mut u8, usize) -> Option<usize>,
) -> Step {
    let s = guard.s;
    let mut sender = guard.sender();
    if sender.make_room(length).is_err() {
        return Step::Ordinary;
    }
    let mut message = match sender.reserve(length.min(PIECE) as u32) {
        Ok(message) => message,
        Err(Refused::Full) => {
            room::no_room(s);
            room::show_room(s, None, sender.state());
            return Step::Full;
        }
        Err(Refused::Broken) => return Step::Ordinary,
    };
    match message.fill_by(read) {
        None => Step::Ordinary,
        Some(0) => Step::End,
        Some(n) => {
            room::sent(s, message.commit(), n);
            Step::Sent(n)
        }
    }
}

/// How many of `len` bytes the file had in memory, which are in their place now; `None` if that
/// cannot be said without waiting.
fn read(to: *mut u8, len: usize, file: RawFd, at: u64) -> Option<usize> {
    // SAFETY: the channel has `len` bytes at `to` (Reservation::fill_by), which are the sender's to
    // write until it publishes them. The call is no cancellation point, and does not wait.
    let call = || unsafe { nowait::read_at(file, at, to, len) };
    // That the file cannot say is no error of the program's call.
    sys::keeping_errno(call).ok()
}
