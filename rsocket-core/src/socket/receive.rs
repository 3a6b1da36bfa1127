//! Receiving on a connection that is not plain TCP any more.
//!
//! The bytes of a direction come from TCP up to the cut and from the device after it
//! (`life-of-a-connection §4`). Each attempt runs under the receive lock and never sleeps; waiting
//! is done by [`super::wait`] with no lock held.

use core::mem;
use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use super::boundary::{
    behind_the_end, by_kernel, has_failed, is_over, own_end, the_end, up_to_the_cut,
};
use super::call::Call;
pub(crate) use super::cut::{at_the_cut, pass_the_cut};
use super::guard::RecvGuard;
use super::peek::{nothing_wanted, peek};
use super::returned::follow;
pub(crate) use super::returned::follow_back;
use super::room::follow_up;
use super::straight::Looked;
pub use super::unread::unread;
pub(crate) use super::unread::{
    ended_ahead, ended_behind, in_window, in_window_now, is_end, no_more_fits, reaches_low_water,
};
use super::vectors::Cursor;
use super::{asking, pending, ready, straight, verdict, wait};
use crate::attach::link::{self, Ends};
use crate::attach::{detach, marks, pairing};
use crate::conn::machine::ReceiveMode;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::device::shm::channel::{RecvState, Taking};
use crate::device::shm::copy::CopyHint;
use crate::errno::Errno;
use crate::fork_safe;
use crate::host::counters;
use crate::host::kernel::{self, Ending};
use crate::host::tcp_state as state;
use crate::live::tally;
use crate::placement::{Placed, Placer};
use crate::reason::Reason;
use crate::relay;
use crate::sys::sandbox;

/// What one attempt brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Got {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing yet.
    Nothing,
    /// Nothing, now or ever: the end of the stream.
    End,
}

/// Receives as recv(2) would: `flags` are `MSG_*`, blocking follows the descriptor's own flags.
///
/// # Errors
/// As recv(2).
pub fn receive(
    id: SlotId,
    s: &Slot,
    fd: RawFd,
    to: &[libc::iovec],
    flags: i32,
) -> Result<usize, Errno> {
    let mut cursor = Cursor::new(to);
    if cursor.left() == 0 {
        return nothing_wanted(id, s, fd, flags);
    }
    // What is thrown away is written nowhere.
    if flags & libc::MSG_TRUNC == 0 && !Cursor::plausible(to) {
        return Err(Errno(libc::EFAULT));
    }
    if flags & libc::MSG_PEEK != 0 {
        return peek(id, s, fd, to, flags);
    }
    let mut patience = wait::Patience::new(s, libc::SO_RCVTIMEO);
    let got = until_enough(Call { id, s, fd, flags }, &mut cursor, &mut patience);
    patience.over();
    got
}

/// Receives and waits in turns.
fn until_enough(
    mut call: Call<'_>,
    cursor: &mut Cursor<'_>,
    patience: &mut wait::Patience,
) -> Result<usize, Errno> {
    let s = call.s;
    let enough = s.low_water.load(Ordering::Relaxed) as usize;
    let all = call.flags & libc::MSG_WAITALL != 0;
    let mut new = true;
    loop {
        // Whether it is enough, this call decides: readiness goes by the low-water mark alone,
        // however little is asked for, or missing.
        let seen = if enough > 1 { ready::progress(s).received } else { 0 };
        match look(&call, cursor, patience, mem::take(&mut new)) {
            Ok(Got::Bytes(_)) if cursor.left() == 0 || !all && cursor.done() >= enough => {
                return Ok(cursor.done());
            }
            Ok(Got::Bytes(_)) => {}
            Ok(Got::End) if cursor.done() == 0 => return ended(s, patience),
            Ok(Got::End) => return Ok(cursor.done()),
            Ok(Got::Nothing) => {
                let waited = wait_for_more(&call, cursor, (enough > 1).then_some(seen), patience);
                call.fd = patience.descriptor(call.fd);
                let done = cursor.done();
                match waited {
                    // What came while it waited.
                    Ok(()) if cursor.left() == 0 || !all && done > 0 && done >= enough => {
                        return Ok(done);
                    }
                    Ok(()) => {}
                    Err(_) if done > 0 => return Ok(done),
                    // It does not sleep, and so has not heard what the kernel has to say.
                    Err(Errno::AGAIN)
                        if call.flags & libc::MSG_DONTWAIT == 0 && asking::is_kernel_due(s) =>
                    {
                        call.flags |= libc::MSG_DONTWAIT;
                    }
                    Err(e) => return Err(e),
                }
            }
            Err(e) if cursor.done() > 0 => {
                pending::note(s, e);
                return Ok(cursor.done());
            }
            Err(e) => return Err(patience.why(s, call.fd, e)),
        }
    }
}

/// The stream seems to have ended, and nothing was received before.
fn ended(s: &Slot, patience: &wait::Patience) -> Result<usize, Errno> {
    // What looks like a clean end may be another thread's reset, which it says before it shuts the
    // socket down.
    if s.has(flag::BROKEN) {
        return Err(Errno::CONNRESET);
    }
    if patience.gone(s) { Err(Errno::BADF) } else { Ok(0) }
}

/// One look, of a call that is `new` or has waited: past the window first, then an attempt.
#[inline(always)]
fn look(
    call: &Call<'_>,
    cursor: &mut Cursor<'_>,
    patience: &mut wait::Patience,
    new: bool,
) -> Result<Got, Errno> {
    match straight::first(call.s, cursor, call.flags, patience.born(), new) {
        Looked::Bytes(n) => Ok(Got::Bytes(n)),
        // Nor would an attempt find anything: it begins with the same look.
        Looked::Nothing if cursor.done() == 0 => Ok(Got::Nothing),
        _ => attempt(call, cursor, patience),
    }
}

/// Waits for anything, or for something that had not come when so much was `seen`. What comes past
/// the window meanwhile is taken.
#[inline(always)]
fn wait_for_more(
    call: &Call<'_>,
    cursor: &mut Cursor<'_>,
    seen: Option<u64>,
    patience: &mut wait::Patience,
) -> Result<(), Errno> {
    let s = call.s;
    patience.moved(cursor.done() > 0);
    if let Some(seen) = seen.filter(|_| ready::settled(s)) {
        return wait::more(call, seen, patience);
    }
    let born = patience.born();
    wait::readable(call, patience, |ends| straight::take(s, ends, cursor, call.flags, born))
}

/// One attempt, under the receive lock.
pub(super) fn attempt(
    call: &Call<'_>,
    to: &mut Cursor<'_>,
    patience: &mut wait::Patience,
) -> Result<Got, Errno> {
    let Call { id, s, fd, flags } = *call;
    patience.may_go_on(s)?;
    if s.has(flag::BROKEN) {
        return Err(Errno::CONNRESET);
    }
    if s.has(flag::PENDING | flag::UNREACHED) {
        return relay::not_connected(s, Errno(0)).map_or_else(end_if_zero, |()| Ok(Got::Nothing));
    }
    if !fork_safe::settle(id, s, fd, fork_safe::Use::Receive) {
        return Ok(Got::Nothing);
    }
    pairing::advance(id, s, fd);
    if s.receive_mode().is_kernel() {
        return on_tcp(call, to);
    }
    let Some(ends) = link::ends(s) else { return windowless(call, patience) };
    if s.has(flag::RELAYED) && !ready::data_waiting(s, &ends) {
        if straight::may_receive(s, flags) {
            relay::straight::give_way(s);
        } else {
            relay::look(s);
        }
    }
    let Some(mut guard) = RecvGuard::take(s, &ends) else {
        return patience.may_go_on(s).and(Err(Errno::AGAIN));
    };
    let before = s.receive_mode();
    let got = match before {
        _ if patience.cut_short() => Err(Errno::INTR),
        ReceiveMode::Asked | ReceiveMode::Acknowledged => switching(&mut guard, call, to),
        ReceiveMode::Device => after_the_cut(&mut guard, call, to),
        ReceiveMode::Kernel | ReceiveMode::Returned => by_kernel(s, fd, to, flags),
    };
    if flags & libc::MSG_WAITALL != 0 {
        patience.begin();
    }
    let moved = before != s.receive_mode();
    // Both change under the lock.
    if moved || s.wake_due.load(Ordering::Relaxed) != 0 {
        unlock_and_tell(guard, moved);
    }
    got
}

/// TCP has this direction, which takes no lock.
fn on_tcp(call: &Call<'_>, to: &mut Cursor<'_>) -> Result<Got, Errno> {
    let Call { s, fd, flags, .. } = *call;
    if !s.has(flag::STRICT) || link::has_window(s) {
        return by_kernel(s, fd, to, flags);
    }
    verdict::noticed(s, fd);
    match if sandbox::inside() { Ok(Got::Nothing) } else { by_kernel(s, fd, to, flags) } {
        // Nobody will ever send anything that this end may take, or has in the time that a sender
        // waits.
        Ok(Got::Nothing) => verdict::strict(s, fd).map(|()| Got::Nothing),
        got => got,
    }
}

/// A direction that is not TCP's has no window: one that may not use TCP waits for it, another one
/// was closed just now, or is broken.
fn windowless(call: &Call<'_>, patience: &wait::Patience) -> Result<Got, Errno> {
    let s = call.s;
    if s.has(flag::STRICT) && !link::has_window(s) {
        return Ok(Got::Nothing);
    }
    patience.may_go_on(s)?;
    detach::break_connection(s, call.fd, Reason::ResourceError);
    Err(Errno::CONNRESET)
}

/// The direction is about to leave TCP.
fn switching(
    guard: &mut RecvGuard<'_>,
    call: &Call<'_>,
    to: &mut Cursor<'_>,
) -> Result<Got, Errno> {
    // Asked before the words are looked at: what the relay brought before it broke is there then.
    let lost = call.s.has(flag::LOST);
    match up_to_the_cut(guard, call, to) {
        // Where TCP was left, or whether, nobody will say any more.
        Ok(Got::Nothing) if lost => Err(pending::take(call.s, Errno::CONNRESET)),
        got => got,
    }
}

/// After the lock was released, since ringing is a system call, but whatever a handler does that
/// came meanwhile. Most calls have nobody to tell.
#[inline(never)]
fn unlock_and_tell(guard: RecvGuard<'_>, moved: bool) {
    let (s, ends) = (guard.s, guard.ends);
    guard.unlock_then(|| {
        if moved {
            // Others of this side may have gone to sleep until TCP brings more, or the device,
            // which is the other's business now. A fence inside, after the new mode: pairs with the
            // one in ready::arm, whose caller sees that mode or is seen here.
            ends.wake_own_readers();
        }
        if s.wake_due.swap(0, Ordering::Relaxed) != 0 {
            relay::carry_back(s, ends);
        }
    });
}

/// No error is the end of the stream.
fn end_if_zero(e: Errno) -> Result<Got, Errno> {
    if e == Errno(0) { Ok(Got::End) } else { Err(e) }
}

#[cold]
pub(super) fn broken(s: &Slot, fd: RawFd, what: &str) -> Errno {
    // Unless it was broken for a reason of its own.
    if !s.has(flag::BROKEN) {
        crate::log_warn!("inconsistent: {}", what);
        detach::break_connection(s, fd, Reason::Inconsistent);
    }
    Errno::CONNRESET
}

/// Takes up to `limit` bytes from TCP without blocking.
pub(super) fn from_kernel(
    s: &Slot,
    fd: RawFd,
    to: &mut Cursor<'_>,
    limit: usize,
    flags: i32,
) -> Result<Got, Errno> {
    if s.has(flag::RSOCKET) {
        return only_the_end(s, fd);
    }
    let kept = libc::MSG_PEEK | libc::MSG_TRUNC;
    if to.done() > 0 && counters::at_mark(fd) == Ok(true) {
        // As TCP: what comes after an urgent byte is another call's.
        return Ok(Got::End);
    }
    match kernel::receive(fd, to.rest().list(), limit, flags & kept) {
        Ok(0) => Ok(Got::End),
        Ok(n) => {
            to.advance(n);
            tally::received_tcp(s, n);
            Ok(Got::Bytes(n))
        }
        Err(Errno::AGAIN) => Ok(Got::Nothing),
        Err(e) => Err(e),
    }
}

/// What TCP may say to an rsocket: that the stream has ended. Bytes are those of a program that is
/// none.
#[cold]
fn only_the_end(s: &Slot, fd: RawFd) -> Result<Got, Errno> {
    match kernel::ending(fd) {
        Ending::Open => Ok(Got::Nothing),
        Ending::Fin => Ok(Got::End),
        Ending::Failed(e) => Err(e),
        Ending::Bytes => {
            detach::break_connection(s, fd, Reason::NoOffer);
            Err(Errno::CONNRESET)
        }
    }
}

/// What most looks find out without more: bytes that came past the window, or nothing.
#[inline(always)]
fn at_a_glance(guard: &RecvGuard<'_>, call: &Call<'_>, to: &mut Cursor<'_>) -> Option<Got> {
    let (s, flags) = (guard.s, call.flags);
    // A call that may sleep need not ask the kernel: the sleep is on TCP's descriptor too. What was
    // heard there is asked for at once.
    let mut quiet_now = quiet(guard);
    if quiet_now && straight::may_receive(s, flags) {
        match straight::receive(guard, to) {
            0 => quiet_now = quiet(guard),
            n => return Some(Got::Bytes(n)),
        }
    }
    let at_once = flags & (libc::MSG_DONTWAIT | libc::MSG_PEEK) != 0;
    let asks = || asking::kernel_was_heard(s) || at_once && asking::is_kernel_due(s);
    (quiet_now && !asks()).then_some(Got::Nothing)
}

/// After the cut: the device has the bytes.
#[inline(always)]
pub(super) fn after_the_cut(
    guard: &mut RecvGuard<'_>,
    call: &Call<'_>,
    to: &mut Cursor<'_>,
) -> Result<Got, Errno> {
    match at_a_glance(guard, call, to) {
        Some(got) => Ok(got),
        None => from_device(guard, call, to),
    }
}

/// The same, where a glance has not told.
fn from_device(
    guard: &mut RecvGuard<'_>,
    call: &Call<'_>,
    to: &mut Cursor<'_>,
) -> Result<Got, Errno> {
    let (s, ends, Call { fd, flags, .. }) = (guard.s, guard.ends, *call);
    let mut taking = guard.receiver().take();
    let copying = copying(s, flags);
    let placer = placer(call, ends);
    let before = to.done();
    let mut intact = take_messages(&mut taking, to, copying, placer);
    if to.done() == before && intact && taking.state().ended == 0 {
        let failed = before > 0 && fails_later(s, fd);
        let look_again = failed.then_some(Silence::LookAgain);
        match look_again.map_or_else(|| after_silence(s, fd, ends, taking.state()), Ok)? {
            Silence::Nothing => {}
            Silence::LookAgain => {
                // What came before it, and after the look above.
                intact = take_messages(&mut taking, to, copying, placer);
                if to.done() == before && intact && taking.state().ended == 0 {
                    return if failed { Ok(Got::End) } else { the_end(s, fd) };
                }
            }
            Silence::Left => {
                follow(guard, fd);
                return by_kernel(s, fd, to, flags);
            }
        }
    }
    let n = to.done() - before;
    // What was written before the end is in place when the end is seen.
    if !is_in_place(placer.filter(|_| n == 0)) || !intact {
        return Err(broken(s, fd, "a message or a placement breaks the protocol"));
    }
    let ended = taking.state().ended != 0;
    let over = n > 0 && to.left() > 0 && is_over(taking.state(), ends);
    if flags & libc::MSG_PEEK == 0 {
        taking.commit();
        follow_up(guard, n);
    }
    match n {
        0 if ended => Ok(Got::End),
        0 => if_not_shut(s, fd),
        n if over => Ok(Got::Bytes(n + behind_the_end(s, fd, to, flags))),
        n => Ok(Got::Bytes(n)),
    }
}

/// Nothing yet, unless this side has shut down what it receives.
fn if_not_shut(s: &Slot, fd: RawFd) -> Result<Got, Errno> {
    if s.has(flag::READ_SHUT) { own_end(s, fd) } else { Ok(Got::Nothing) }
}

/// Takes in what the peer has written to our mappings; false when it broke a rule.
fn is_in_place(placer: Option<(Placer<'_>, &Ends)>) -> bool {
    placer.is_none_or(|(placer, ends)| placer.place(ends) != Placed::Broken)
}

/// The connection has failed, and the call has bytes to report: the kernel keeps the error for the
/// next call, which may be one that only the kernel does.
#[cold]
fn fails_later(s: &Slot, fd: RawFd) -> bool {
    !s.has(flag::RELAYED | flag::ENDED) && asking::is_kernel_due(s) && has_failed(fd)
}

/// Who takes in what the peer writes to our mappings, if there are any.
pub(super) fn placer<'a>(call: &Call<'a>, ends: &'a Ends) -> Option<(Placer<'a>, &'a Ends)> {
    Placer::of(call.id, call.s, call.fd).map(|placer| (placer, ends))
}

/// How what is taken is copied; `None` where it is thrown away.
pub(super) fn copying(s: &Slot, flags: i32) -> Option<CopyHint> {
    let hint = if s.has(flag::RELAYED) { CopyHint::Near } else { CopyHint::Ordinary };
    (flags & libc::MSG_TRUNC == 0).then_some(hint)
}

/// Copies messages out until the buffers are full or none is left. False when the peer broke a
/// rule.
pub(super) fn take_messages(
    taking: &mut Taking<'_>,
    to: &mut Cursor<'_>,
    copying: Option<CopyHint>,
    placer: Option<(Placer<'_>, &Ends)>,
) -> bool {
    while to.left() > 0 {
        let readable = taking.state().readable();
        if readable == 0 {
            if taking.state().ended != 0 {
                return true;
            }
            let Some(word) = taking.arrived() else { return true };
            // Only now: what was written to our mappings before this message is there, as the
            // message is.
            match placer.map_or(Placed::All, |(placer, ends)| placer.place(ends)) {
                Placed::All => {}
                Placed::NotNow => return true,
                Placed::Broken => return false,
            }
            if taking.accept(word).is_err() {
                return false;
            }
            continue;
        }
        let Some((at, room)) = to.stretch() else { return true };
        let n = readable.min(u32::try_from(room).unwrap_or(u32::MAX));
        match copying {
            None => taking.skip(n),
            Some(hint) => {
                // SAFETY: the cursor's stretch is writable for n bytes, as the program vouched, and
                // not the arena.
                let copied = unsafe { taking.copy_out(n, at, hint) };
                if copied.is_err() {
                    return false;
                }
            }
        }
        to.advance(n as usize);
    }
    true
}

enum Silence {
    Nothing,
    /// The connection has ended: what is in the window now is all there will be.
    LookAgain,
    /// The sender went back to TCP: the direction is to follow.
    Left,
}

/// The device has nothing. Has the connection ended, or the sender gone back to TCP?
fn after_silence(s: &Slot, fd: RawFd, ends: &Ends, at: &RecvState) -> Result<Silence, Errno> {
    // Acquire inside: pairs with the sender's release of its end mark, after its last message.
    if let Some(end) = marks::end(&ends.incoming)
        && ends.incoming.poll_data(at.data_position).is_none()
    {
        if end != at.total() {
            return Err(broken(s, fd, "the sender's end mark is not where its messages end"));
        }
        return Ok(Silence::Left);
    }
    if s.has(flag::LOST) {
        // Looked at before the lane: what the relay put in came before.
        let more = ends.incoming.poll_data(at.data_position).is_some();
        return if more { Ok(Silence::LookAgain) } else { Err(pending::take(s, Errno::CONNRESET)) };
    }
    if !s.has(flag::RELAYED) && s.has(flag::ENDED) || pending::is_kernels(s) {
        return Ok(Silence::LookAgain);
    }
    if !asking::kernel_due(s) {
        return Ok(Silence::Nothing);
    }
    match kernel::ending(fd) {
        // TCP's word may overtake the device's: the end of the stream is what the relay says, and
        // bytes beyond the cut are those of a sender whose way back is still to be heard of.
        Ending::Fin if s.has(flag::BESIDE) => {
            if !s.has(flag::FIN_FIRST) {
                s.set(flag::FIN_FIRST);
            }
            Ok(Silence::Nothing)
        }
        Ending::Bytes if s.has(flag::BESIDE) => Ok(Silence::Nothing),
        Ending::Open => Ok(Silence::Nothing),
        Ending::Fin => Ok(Silence::LookAgain),
        // Bytes beyond the cut: only right when the sender has gone back, which it says first.
        Ending::Bytes if marks::end(&ends.incoming).is_some() => Ok(Silence::Nothing),
        Ending::Bytes => Err(broken(s, fd, "TCP has bytes behind the switch")),
        Ending::Failed(e) if ends.incoming.poll_data(at.data_position).is_some() => {
            // What came before the reset is read first; the kernel says the error only once.
            pending::note(s, e);
            Ok(Silence::LookAgain)
        }
        Ending::Failed(e) => {
            if !s.has(flag::RELAYED) && counters::tcp_state(fd) == Ok(state::CLOSE) {
                s.set(flag::ENDED);
            }
            Err(pending::take(s, e))
        }
    }
}

/// What most looks of a receiver that spins find: nothing came, nothing is owed, nothing has
/// changed. The long way would find the same, and copy the state for it.
#[inline(always)]
pub(super) fn quiet(guard: &RecvGuard<'_>) -> bool {
    let (s, ends, state) = (guard.s, guard.ends, guard.view());
    state.ended == 0
        && state.owed == 0
        // Stored last by whoever changed the state: a holder that died before it may have owed
        // something.
        && s.unread_hint.load(Ordering::Relaxed) == state.hint()
        && state.readable() == 0
        && ends.incoming.poll_data(state.data_position).is_none()
        && marks::end(&ends.incoming).is_none()
        && !s.has(flag::LOST | flag::READ_SHUT | flag::MAPPED | flag::ENDED)
        && !pending::is_kernels(s)
}
