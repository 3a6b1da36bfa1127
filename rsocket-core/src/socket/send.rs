//! Sending on a connection that is not plain TCP any more.
//!
//! Bytes go into TCP until the switch offset, into the device after it (`life-of-a-connection §4`).
//! Each attempt runs under the send lock and never sleeps. What it accepted is in the peer's memory
//! when it returns, whatever happens to this process.

use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use super::call::Call;
use super::{bypass, reader, verdict, wait};
use crate::bridge::Unconnected;
use crate::channel::guard::SendGuard;
use crate::channel::link::{self, Ends};
use crate::channel::switch::stay;
use crate::channel::{broken, handover_state, residual, room, said};
use crate::conn::machine::{SendEvent, SendMode};
use crate::conn::slot::{Slot, SlotId, flag};
use crate::conn::{own_news, pending};
use crate::copy::CopyHint;
use crate::device::shm::channel::sender::PIECE;
use crate::device::shm::channel::{LARGE, Refused, Sender};
use crate::device::shm::layout;
use crate::direct_placement::depart;
use crate::failure::Failure;
use crate::handover::detach::{self, Scope};
use crate::host::memory::{self, Left};
use crate::host::{counters, kernel};
use crate::live_segment::{self, conn_counters};
use crate::reason::Reason;
use crate::stats::{self, Counter};
use crate::sys::vectors::Cursor;
use crate::waiting::call_deadline::CallDeadline;
use crate::{bridge, fork_safe, pairing};

/// Where bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Into {
    /// To the end of the stream.
    Stream,
    /// To the peer's mapping at this offset ([`crate::direct_placement`]).
    Mapping(u64),
}

/// Sends as send(2) would. Never raises SIGPIPE: the caller does, on `EPIPE`.
///
/// # Errors
/// As send(2).
pub fn send(
    id: SlotId,
    s: &Slot,
    fd: RawFd,
    from: &[libc::iovec],
    flags: i32,
) -> Result<usize, Failure> {
    transfer(&Call { id, s, fd, flags }, from, Into::Stream)
}

/// As [`send`], to wherever `into` says.
///
/// # Errors
/// As send(2); `EFAULT` also for an offset that the peer has not mapped.
pub fn transfer(call: &Call<'_>, from: &[libc::iovec], into: Into) -> Result<usize, Failure> {
    let s = call.s;
    let mut cursor = Cursor::new(from);
    if !Cursor::plausible(from) {
        return Err(before_bytes(call));
    }
    if into == Into::Stream {
        bypass::send(s, &mut cursor);
        if cursor.done() > 0 && cursor.left() == 0 {
            return Ok(cursor.done());
        }
    }
    let mut deadline = CallDeadline::new(s, libc::SO_SNDTIMEO);
    if into == Into::Stream {
        bypass::send_on(call, &mut cursor, &mut deadline);
    }
    let sent = if cursor.done() > 0 && cursor.left() == 0 {
        Ok(cursor.done())
    } else {
        let fd = deadline.descriptor(call.fd);
        until_sent(Call { fd, ..*call }, &mut cursor, into, &mut deadline)
    };
    deadline.over();
    sent
}

/// What is wrong with a send whose bytes are nowhere: an end or an error of the connection comes
/// first, as with the kernel.
#[cold]
fn before_bytes(call: &Call<'_>) -> Failure {
    let mut deadline = CallDeadline::new(call.s, libc::SO_SNDTIMEO);
    let sent = until_sent(*call, &mut Cursor::new(&[]), Into::Stream, &mut deadline);
    deadline.over();
    sent.err().unwrap_or(Failure::BadAddress)
}

/// Sends and waits in turns.
fn until_sent(
    mut call: Call<'_>,
    cursor: &mut Cursor<'_>,
    into: Into,
    deadline: &mut CallDeadline,
) -> Result<usize, Failure> {
    loop {
        match attempt(&call, cursor, into, deadline) {
            Ok(()) if cursor.left() == 0 => return Ok(cursor.done()),
            Ok(()) => {}
            Err(e) if cursor.done() > 0 => {
                pending::note(call.s, e);
                return Ok(cursor.done());
            }
            Err(e) => return Err(deadline.why(call.s, call.fd, e)),
        }
        deadline.moved(cursor.done() > 0);
        let waited = wait::writable(&call, deadline);
        call.fd = deadline.descriptor(call.fd);
        match waited {
            Ok(()) => {}
            Err(_) if cursor.done() > 0 => return Ok(cursor.done()),
            Err(e) => return Err(e),
        }
    }
}

/// Sends what can be sent now, under the send lock.
pub(super) fn attempt(
    call: &Call<'_>,
    from: &mut Cursor<'_>,
    into: Into,
    deadline: &mut CallDeadline,
) -> Result<(), Failure> {
    let Call { id, s, fd, flags } = *call;
    deadline.may_go_on(s)?;
    if s.has(flag::BROKEN) {
        return Err(closed(s, fd));
    }
    if s.has(flag::PENDING | flag::UNREACHED) {
        return unconnected(s);
    }
    if !fork_safe::settle(id, s, fd, fork_safe::Use::Send) {
        return Ok(());
    }
    pairing::advance(id, s, fd);
    if s.send_mode() == SendMode::Kernel && !s.has(flag::STRICT) {
        return into_kernel(s, fd, from, flags);
    }
    // Asked first: another thread may be giving the connection its channel now.
    let without_channel = !link::has_channel(s);
    let Some(ends) = link::ends(s) else {
        return without_ends(call, from, without_channel, deadline);
    };
    if from.left() > layout::SMALL && !s.has(flag::LARGE_OPEN) && s.send_mode() == SendMode::Device
    {
        open_large(id, s, fd, &ends);
    }
    reader::check(s, fd);
    let Some(mut guard) = SendGuard::take(s, &ends) else {
        return deadline.may_go_on(s).and(Err(Failure::Blocked));
    };
    let before = from.done();
    let on_device = s.send_mode() == SendMode::Device;
    let r = if deadline.cut_short() {
        Err(Failure::Interrupted)
    } else {
        attempt_locked(&mut guard, fd, from, flags, into)
    };
    if from.left() > 0 {
        deadline.begin();
    }
    // The second: a receiver that sleeps must hear that TCP has the rest.
    let news = from.done() > before || on_device && s.send_mode() != SendMode::Device;
    unlock_and_tell(guard, news);
    r
}

/// What a send finds on a connection that does not stand.
#[cold]
fn unconnected(s: &Slot) -> Result<(), Failure> {
    match bridge::not_connected(s) {
        Unconnected::Pending => Ok(()),
        Unconnected::Failed(e) => Err(e),
        Unconnected::Over => Err(Failure::Ended),
    }
}

/// There are no ends of a channel. One that was `without_channel` before may get it yet; otherwise
/// TCP has the bytes, or the connection was closed just now, or is broken.
fn without_ends(
    call: &Call<'_>,
    from: &mut Cursor<'_>,
    without_channel: bool,
    deadline: &CallDeadline,
) -> Result<(), Failure> {
    let Call { s, fd, flags, .. } = *call;
    if s.has(flag::STRICT) && without_channel {
        return before_the_device(s, fd);
    }
    if s.send_mode().is_kernel() {
        return into_kernel(s, fd, from, flags);
    }
    deadline.may_go_on(s)?;
    broken::break_connection(s, fd, Reason::ResourceError);
    Err(Failure::Reset)
}

/// After the lock was released, whatever a handler does that came meanwhile: the peer hears of
/// news. Without any the device is looked at: it may have room for what fills the channel.
#[inline]
fn unlock_and_tell(guard: SendGuard<'_>, news: bool) {
    let (s, ends) = (guard.s, guard.ends);
    guard.unlock_then(|| {
        if news {
            bridge::carry_out(s, ends);
        }
    });
    if !news && s.has(flag::BRIDGED) {
        bridge::look(s);
    }
}

/// Before the first long message: two megabytes, or before a bridge half of one, are about to
/// become memory. Where a cgroup has no room for them the connection goes back to TCP, whose
/// buffers the kernel can keep small. A connection that may not go back, or has a bridge, is
/// served all the same.
#[cold]
pub(super) fn open_large(id: SlotId, s: &Slot, fd: RawFd, ends: &Ends) {
    match memory::memory_left() {
        Left::Nothing if !s.has(flag::STRICT | flag::RSOCKET | flag::BRIDGED) => {
            return detach::refuse(id, s, fd, Reason::MemoryLimit, Scope::Both);
        }
        // Now, so that the next look at the memory sees what is left.
        Left::Room => ends.outgoing.touch_large(link::beyond(s).class_len(LARGE)),
        Left::Nothing | Left::Unlimited => {}
    }
    s.set(flag::LARGE_OPEN);
}

fn attempt_locked(
    guard: &mut SendGuard<'_>,
    fd: RawFd,
    from: &mut Cursor<'_>,
    flags: i32,
    into: Into,
) -> Result<(), Failure> {
    let s = guard.s;
    if s.send_mode() == SendMode::Asked {
        fix_switch_offset(guard, fd)?;
    }
    match s.send_mode() {
        SendMode::Device => {
            // First: a peer that goes back and then closes has said before what it had not read.
            let gone =
                s.has(flag::PEER_GONE) || handover_state::receiver_closed(&guard.ends.outgoing);
            if handover_state::is_asked_back(&guard.ends.outgoing) {
                return after_residual(residual::give_way(guard, fd), s, fd, from, flags);
            }
            into_device(guard, fd, from, into, gone)
        }
        SendMode::Returned => {
            after_residual(residual::send_residual(guard, fd), s, fd, from, flags)
        }
        SendMode::Kernel | SendMode::Asked if s.has(flag::STRICT) => before_the_device(s, fd),
        SendMode::Kernel | SendMode::Asked => into_kernel(s, fd, from, flags),
    }
}

/// What follows the residual bytes by TCP, once all of that has gone: before, there is no room for
/// anything.
fn after_residual(
    residual: Result<(), Failure>,
    s: &Slot,
    fd: RawFd,
    from: &mut Cursor<'_>,
    flags: i32,
) -> Result<(), Failure> {
    match residual {
        Ok(()) => into_kernel(s, fd, from, flags),
        Err(Failure::Blocked) => Ok(()),
        Err(e) => Err(e),
    }
}

/// What the peer had not read when it went back must be sent before anything else is.
pub(super) fn residual_is_due(s: &Slot) -> bool {
    !s.has(flag::RESIDUAL_SENT)
        && link::ends(s).is_some_and(|e| handover_state::return_wanted(&e.outgoing).is_some())
}

/// Before a call that only the kernel can do. Sends what the peer had not read, and waits as
/// send(2) does until TCP has taken all of it.
///
/// # Errors
/// As send(2).
pub fn residual(id: SlotId, s: &Slot, fd: RawFd, flags: i32) -> Result<(), Failure> {
    let mut call = Call { id, s, fd, flags };
    if pending::is_kernels(s) {
        pending::check(s)?;
    }
    let mut deadline = CallDeadline::new(s, libc::SO_SNDTIMEO);
    let mut result = Ok(());
    while result.is_ok() && residual_is_due(s) {
        result = attempt(&call, &mut Cursor::new(&[]), Into::Stream, &mut deadline);
        if result.is_ok() && residual_is_due(s) {
            result = wait::writable(&call, &mut deadline);
            call.fd = deadline.descriptor(call.fd);
        }
    }
    deadline.over();
    result
}

/// A connection that may not use TCP, before its device takes bytes: is there still something to
/// wait for?
fn before_the_device(s: &Slot, fd: RawFd) -> Result<(), Failure> {
    // A direction that was shut first never switches.
    if s.has(flag::PEER_GONE | flag::WRITE_SHUT) {
        return Err(closed(s, fd));
    }
    verdict::noticed(s, fd);
    verdict::strict(s, fd)
}

/// Fixes the byte at which this direction leaves TCP, once no thread is inside the kernel to send.
/// Doubt leaves the direction on TCP for good.
pub(crate) fn fix_switch_offset(guard: &SendGuard<'_>, fd: RawFd) -> Result<(), Failure> {
    let (s, ends) = (guard.s, guard.ends);
    // SeqCst: pairs with enter_send, which counts itself in and then looks at the mode.
    if s.inside_send.load(Ordering::SeqCst) != 0 || s.has(flag::WRITE_SHUT) {
        return Ok(());
    }
    if handover_state::is_asked_back(&ends.outgoing) {
        return residual::give_way(guard, fd);
    }
    match counters::put_and_queued(fd, s.has(flag::CONNECTING)) {
        Ok(put) => {
            if let Some(mode) = s.send_mode().after(SendEvent::SwitchPublished) {
                // The switch offset first: a thread that finds it without its mode, after our
                // death, sets the mode (guard::repair_send).
                handover_state::publish_switch_offset(&ends.outgoing, put.bytes);
                s.set_send_mode(mode);
                stats::add(Counter::SwitchedSending, 1);
                if put.queued > 0 && counters::unsent(fd).is_ok_and(|unsent| unsent > 0) {
                    kernel::push_held_back(fd);
                }
            }
        }
        Err(_) => {
            said::stays(s, ends, Reason::ShutDownEarly);
            stay(guard);
            s.set_send_mode(SendMode::Returned);
        }
    }
    Ok(())
}

fn into_kernel(s: &Slot, fd: RawFd, from: &mut Cursor<'_>, flags: i32) -> Result<(), Failure> {
    if s.has(flag::RSOCKET) {
        // The peer wants its bytes by TCP, which an rsocket has not.
        return Err(closed(s, fd));
    }
    if from.left() == 0 {
        // As in to_nobody.
        return kernel::send(fd, &[], 0).map(drop).map_err(|e| first_said(s, e));
    }
    let kept = libc::MSG_MORE | libc::MSG_OOB;
    let before = from.done();
    let r = pour(fd, from, flags & kept);
    if from.done() > before {
        conn_counters::sent_tcp(s, from.done() - before);
        own_news::given();
    }
    r.map_err(|e| first_said(s, e))
}

/// Why TCP takes nothing: the kernel has given its error away once, to a call that reported bytes
/// instead. That call left it for this one.
#[cold]
fn first_said(s: &Slot, e: Failure) -> Failure {
    if e == Failure::Ended && pending::is_kernels(s) { pending::take(s, e) } else { e }
}

/// Until TCP takes no more.
fn pour(fd: RawFd, from: &mut Cursor<'_>, flags: i32) -> Result<(), Failure> {
    while from.left() > 0 {
        match kernel::send(fd, from.rest().list(), flags) {
            Ok(n) => from.advance(n),
            Err(Failure::Blocked) => return Ok(()),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Why nothing can be sent any more: what the bridge or the kernel knows, once; after that, that
/// the pipe is broken.
#[cold]
fn closed(s: &Slot, fd: RawFd) -> Failure {
    // The kernel's first: both say the same, and it is said once.
    let heard = kernel::take_error(fd).unwrap_or(Failure::Ended);
    pending::take(s, heard)
}

/// No process will read. TCP underneath says what TCP says: the first send is taken and answered by
/// a reset, the next one fails. What it takes is not carried anywhere, and not counted as if it
/// were.
#[cold]
fn to_nobody(s: &Slot, fd: RawFd, from: &mut Cursor<'_>) -> Result<(), Failure> {
    // Acquire inside: pairs with pending::note_reset, before the mark that brought us here.
    if s.has(flag::RSOCKET) || pending::exists(s) {
        return Err(closed(s, fd));
    }
    if from.left() == 0 {
        // A send of nothing is no news for the peer, but the kernel says whether the pipe is
        // broken.
        return kernel::send(fd, &[], 0).map(drop);
    }
    let before = from.done();
    let r = pour(fd, from, 0);
    stats::add(Counter::BytesSentUnread, (from.done() - before) as u64);
    r
}

/// Puts bytes into the peer's channel until they or the room are used up, unless the peer has
/// `gone`. Runs under the send lock.
fn into_device(
    guard: &mut SendGuard<'_>,
    fd: RawFd,
    from: &mut Cursor<'_>,
    into: Into,
    gone: bool,
) -> Result<(), Failure> {
    let s = guard.s;
    if s.has(flag::WRITE_SHUT) {
        return Err(closed(s, fd));
    }
    if s.has(flag::LOST) {
        return Err(pending::take(s, Failure::Ended));
    }
    if gone {
        return match into {
            Into::Stream => to_nobody(s, fd, from),
            Into::Mapping(_) => Err(closed(s, fd)),
        };
    }
    if let Into::Mapping(offset) = into {
        return depart::into_ring(guard, fd, from, offset);
    }
    let bulk = if s.has(flag::BRIDGED) { CopyHint::Near } else { hint(from.left()) };
    let shown = live_segment::record(s);
    let mut sender = guard.sender();
    loop {
        let full = sender.make_room(from.left()).map_err(|_| Refused::Broken);
        match full.and_then(|()| message(&mut sender, from, bulk)) {
            Ok(n) => conn_counters::sent_shm(s, shown, n),
            Err(Refused::Full) => {
                room::no_room(s);
                break;
            }
            Err(Refused::Broken) => {
                broken::break_connection(s, fd, Reason::Inconsistent);
                return Err(Failure::Reset);
            }
        }
        if from.left() == 0 {
            break;
        }
    }
    room::show_room(s, shown, sender.state());
    Ok(())
}

/// One message; how many bytes.
#[inline]
fn message(
    sender: &mut Sender<'_>,
    from: &mut Cursor<'_>,
    bulk: CopyHint,
) -> Result<usize, Refused> {
    let mut message = sender.reserve(from.left().min(PIECE) as u32)?;
    let n = message.len();
    // SAFETY: the cursor's stretch is readable for `len` bytes, as the program vouched, and not the
    // arena.
    let filled = from.each(n, |at, len, _| unsafe { message.fill(at, len, bulk) });
    if !filled {
        return Err(Refused::Broken);
    }
    message.commit();
    from.advance(n);
    Ok(n)
}

/// Long writes stream; whether the peer runs elsewhere, so that streaming pays, the device finds
/// out.
fn hint(len: usize) -> CopyHint {
    if len >= 16 * 1024 { CopyHint::Bulk } else { CopyHint::Ordinary }
}

/// Bytes that were sent and that the peer has not read: TCP's queue, and nothing for the device,
/// where sent bytes are already the peer's.
#[must_use]
pub fn unsent(s: &Slot, fd: RawFd) -> Option<usize> {
    if s.send_mode().is_kernel() {
        return None;
    }
    Some(counters::out_queue(fd).unwrap_or(0) as usize)
}
