//! `splice` between a pipe and a connection that is on its device: the pipe is written from the
//! channel, and read into it.
//!
//! Nothing is taken from either side that the other one does not take. The pipe is written and read
//! without waiting while the lock is held, and what it took is what counts. Waiting is done with no
//! lock held. Must not know of hooks, or of what the kernel checks before it moves a byte. Entry
//! points: [`to_pipe`], [`from_pipe`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::RawFd;

use super::call::Call;
use super::file::{Step, fill};
use super::send::{Into, open_large};
use super::{Route, boundary, reader, send, wait};
use crate::bridge;
use crate::channel::guard::{RecvGuard, SendGuard};
use crate::channel::{handover_state, link};
use crate::conn::machine::{ReceiveMode, SendMode};
use crate::conn::slot::{Slot, SlotId, flag};
use crate::conn::{fork_group, listeners, pending};
use crate::failure::Failure;
use crate::handover::pipe::{Pipe, take_messages};
use crate::sys::vectors::Cursor;
use crate::waiting::call_deadline::CallDeadline;

/// As much of the stream as goes by way of memory of ours, where the channel is not all there is. A
/// free place of a pipe takes it whole.
const FEW: usize = 512;

/// Moves up to `length` bytes from the connection into the pipe, waiting for the first as recv(2)
/// does. `None` when the kernel has to do it.
///
/// # Errors
/// As splice(2).
pub fn to_pipe(id: SlotId, fd: RawFd, pipe: Pipe, length: usize) -> Result<Option<usize>, Failure> {
    let mut moved = 0;
    let result = loop {
        if moved == length {
            break Ok(());
        }
        if let Err(e) = pipe.ready(libc::POLLOUT, pipe.waits && moved == 0) {
            break Err(e);
        }
        let Some(s) = fork_group::slot(id) else { break Err(Failure::BadDescriptor) };
        match out_of_channel(s, pipe, length - moved) {
            0 => {}
            n => {
                moved += n;
                listeners::found_unread(id, s);
                continue;
            }
        }
        if moved > 0 && boundary::has_failed(fd) {
            // An error is all that is left, and the next call's, which the kernel may have to do.
            break Ok(());
        }
        match step_to_pipe(id, fd, pipe, length - moved, moved > 0) {
            Ok(Some(0)) => break Ok(()),
            Ok(Some(n)) => moved += n,
            Ok(None) if moved == 0 => return Ok(None),
            Ok(None) => break Ok(()),
            Err(e) => break Err(e),
        }
    };
    match result {
        Err(e) if moved > 0 => {
            note(id, e);
            Ok(Some(moved))
        }
        result => result.map(|()| Some(moved)),
    }
}

/// The connection ended after a part had been moved, which is reported: the next call says how.
fn note(id: SlotId, e: Failure) {
    if let Some(s) = fork_group::slot(id) {
        pending::note(s, e);
    }
}

/// A few bytes in the ordinary way, which knows everything that can happen.
fn step_to_pipe(
    id: SlotId,
    fd: RawFd,
    pipe: Pipe,
    length: usize,
    at_once: bool,
) -> Result<Option<usize>, Failure> {
    if super::enter_receive(id, fd) == Route::Kernel {
        super::leave_receive(id, fd, 0);
        return Ok(None);
    }
    let mut few = [0_u8; FEW];
    let to = [libc::iovec { iov_base: few.as_mut_ptr().cast(), iov_len: length.min(FEW) }];
    let n = super::receive(id, fd, &to, if at_once { libc::MSG_DONTWAIT } else { 0 })?;
    pipe.put_all(few.get_mut(..n).unwrap_or_default())?;
    Ok(Some(n))
}

/// What the channel has, as far as the pipe takes it; 0 where the ordinary way is to find out why.
fn out_of_channel(s: &Slot, pipe: Pipe, length: usize) -> usize {
    let ordinary = flag::BROKEN | flag::UNDECIDED | flag::READ_SHUT | flag::MAPPED | flag::DATAGRAM;
    if super::tapped() || s.has(ordinary) || s.receive_mode() != ReceiveMode::Device {
        return 0;
    }
    let Some(ends) = link::ends(s) else { return 0 };
    let Some(mut guard) = RecvGuard::take(s, &ends) else { return 0 };
    let moved = if s.receive_mode() == ReceiveMode::Device {
        take_messages(&mut guard, pipe, length)
    } else {
        0
    };
    // As in receive::attempt.
    guard.unlock_then(|| {
        if s.takes_wake_of_sender() {
            bridge::carry_back(s, &ends);
        }
    });
    moved
}

/// Moves up to `length` bytes from the pipe into the connection. It waits for the first as read(2)
/// of the pipe does, and for room as send(2) does. `None` when the kernel has to do it.
///
/// # Errors
/// As splice(2); `EPIPE` without a signal, which is the caller's to raise.
pub fn from_pipe(
    id: SlotId,
    fd: RawFd,
    pipe: Pipe,
    length: usize,
) -> Result<Option<usize>, Failure> {
    let Some(s) = fork_group::slot(id).filter(|_| !super::tapped()) else { return Ok(None) };
    s.poll_backoff.sent();
    let mut deadline = CallDeadline::new(s, libc::SO_SNDTIMEO);
    let mut moved = 0;
    let call = Call { id, s, fd, flags: 0 };
    let result = into_channel(call, pipe, length, &mut moved, &mut deadline);
    deadline.over();
    if moved < length && result != Err(Stop::Kernel) {
        listeners::starved(id);
    }
    match result {
        Err(Stop::Error(e)) if moved > 0 => {
            note(id, e);
            Ok(Some(moved))
        }
        _ if moved > 0 => Ok(Some(moved)),
        Ok(()) => Ok(Some(0)),
        Err(Stop::Kernel) => Ok(None),
        Err(Stop::Error(e)) => Err(e),
    }
}

/// Of a connection that left TCP and may not use it of its own accord: whether its sends go to the
/// kernel all the same. They do since it has gone back ([`super::refuse_sending`]), or since no
/// process reads any more and TCP is to say so.
#[must_use]
pub fn goes_by_kernel(id: SlotId) -> bool {
    let Some(s) = fork_group::slot(id).filter(|s| s.has(flag::STRICT)) else { return false };
    if s.has(flag::RSOCKET | flag::BRIDGED) {
        return false;
    }
    let Some(ends) = link::ends(s) else { return false };
    let back = s.send_mode() == SendMode::Returned && !send::residual_is_due(s);
    back || handover_state::receiver_closed(&ends.outgoing)
}

/// Why no more is moved.
#[derive(PartialEq, Eq)]
enum Stop {
    /// The rest is the kernel's.
    Kernel,
    Error(Failure),
}

impl From<Failure> for Stop {
    fn from(e: Failure) -> Self {
        Self::Error(e)
    }
}

fn into_channel(
    mut call: Call<'_>,
    pipe: Pipe,
    length: usize,
    moved: &mut usize,
    deadline: &mut CallDeadline,
) -> Result<(), Stop> {
    let s = call.s;
    let mut advanced = false;
    while *moved < length {
        reader::check(s, call.fd);
        let mut refusal = None;
        match message(s, pipe, length - *moved, &mut refusal) {
            Step::Sent(n) => {
                *moved += n;
                advanced = false;
            }
            Step::End => return Ok(()),
            Step::Full => call.fd = room(&call, deadline)?,
            Step::Ordinary => match refusal {
                Some(Failure::Blocked) if *moved > 0 => return Ok(()),
                Some(Failure::Blocked) => pipe.ready(libc::POLLIN, pipe.waits)?,
                Some(e) => return Err(e.into()),
                None if advanced => return Err(Stop::Kernel),
                None => {
                    send::attempt(&call, &mut Cursor::new(&[]), Into::Stream, deadline)?;
                    match s.send_mode() {
                        SendMode::Device => advanced = prepare(&call),
                        _ if !s.has(flag::STRICT) || link::has_channel(s) => {
                            return Err(Stop::Kernel);
                        }
                        _ => call.fd = room(&call, deadline)?,
                    }
                }
            },
        }
    }
    Ok(())
}

/// Waits until there may be room to send.
fn room(call: &Call<'_>, deadline: &mut CallDeadline) -> Result<RawFd, Failure> {
    wait::writable(call, deadline)?;
    Ok(deadline.descriptor(call.fd))
}

/// Before the first long message. Always true: what can be done ahead of a message has been done.
fn prepare(call: &Call<'_>) -> bool {
    let Call { id, s, fd, .. } = *call;
    if !s.has(flag::LARGE_OPEN)
        && let Some(ends) = link::ends(s)
    {
        open_large(id, s, fd, &ends);
    }
    true
}

/// Whether bytes may be put into the channel with no more questions.
fn sends(s: &Slot) -> bool {
    let received =
        flag::BRIDGED | flag::ENDED | flag::READ_SHUT | flag::FIN_FIRST | flag::CONNECT_NEWS;
    !s.has(flag::UNCOMMON & !received)
        && s.has(flag::LARGE_OPEN)
        && s.send_mode() == SendMode::Device
}

/// One message, under the send lock; `refusal` is why the pipe gave nothing.
fn message(s: &Slot, pipe: Pipe, length: usize, refusal: &mut Option<Failure>) -> Step {
    let Some(ends) = link::ends(s).filter(|_| sends(s)) else { return Step::Ordinary };
    let Some(mut guard) = SendGuard::take(s, &ends) else { return Step::Ordinary };
    let over = handover_state::is_asked_back(&ends.outgoing)
        || handover_state::receiver_closed(&ends.outgoing);
    // Asked again, now that no other thread changes it.
    let step = if over || !sends(s) {
        Step::Ordinary
    } else {
        fill(&mut guard, length, |to, len| pipe.take(to, len).map_err(|e| *refusal = Some(e)).ok())
    };
    drop(guard);
    if let Step::Sent(_) = step {
        bridge::carry_out(s, &ends);
    }
    step
}
