//! Receiving on a connection that is not plain TCP any more.
//!
//! The bytes of a direction come from TCP up to the switch offset and from the device after it
//! (`life-of-a-connection §4`). Each attempt ([`super::attempt`]) runs under the receive lock and
//! never sleeps; waiting is done by [`super::wait`] with no lock held.

use core::mem;
use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use super::attempt::attempt;
use super::bypass::Looked;
use super::call::Call;
use super::peek::{nothing_wanted, peek};
use super::taking::Got;
use super::{asking, bypass, hints, wait};
use crate::conn::pending;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::failure::Failure;
use crate::sys::vectors::Cursor;
use crate::waiting::call_deadline::CallDeadline;

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
) -> Result<usize, Failure> {
    let mut cursor = Cursor::new(to);
    if cursor.left() == 0 {
        return nothing_wanted(id, s, fd, flags);
    }
    // What is thrown away is written nowhere.
    if flags & libc::MSG_TRUNC == 0 && !Cursor::plausible(to) {
        return Err(Failure::BadAddress);
    }
    if flags & libc::MSG_PEEK != 0 {
        return peek(id, s, fd, to, flags);
    }
    let mut deadline = CallDeadline::new(s, libc::SO_RCVTIMEO);
    let got = until_enough(Call { id, s, fd, flags }, &mut cursor, &mut deadline);
    deadline.over();
    got
}

/// Receives and waits in turns.
fn until_enough(
    mut call: Call<'_>,
    cursor: &mut Cursor<'_>,
    deadline: &mut CallDeadline,
) -> Result<usize, Failure> {
    let s = call.s;
    let enough = s.low_water.load(Ordering::Relaxed) as usize;
    let all = call.flags & libc::MSG_WAITALL != 0;
    let mut new = true;
    loop {
        // Whether it is enough, this call decides: readiness goes by the low-water mark alone,
        // however little is asked for, or missing.
        let seen = if enough > 1 { hints::progress(s).received } else { 0 };
        match look(&call, cursor, deadline, mem::take(&mut new)) {
            Ok(Got::Bytes(_)) if cursor.left() == 0 || !all && cursor.done() >= enough => {
                return Ok(cursor.done());
            }
            Ok(Got::Bytes(_)) => {}
            Ok(Got::End) if cursor.done() == 0 => return ended(s, deadline),
            Ok(Got::End) => return Ok(cursor.done()),
            Ok(Got::Nothing) => {
                let waited = wait_for_more(&call, cursor, (enough > 1).then_some(seen), deadline);
                call.fd = deadline.descriptor(call.fd);
                let done = cursor.done();
                match waited {
                    // What came while it waited.
                    Ok(()) if cursor.left() == 0 || !all && done > 0 && done >= enough => {
                        return Ok(done);
                    }
                    Ok(()) => {}
                    Err(_) if done > 0 => return Ok(done),
                    // It does not sleep, and so has not heard what the kernel has to say.
                    Err(Failure::Blocked)
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
            Err(e) => return Err(deadline.why(s, call.fd, e)),
        }
    }
}

/// The stream seems to have ended, and nothing was received before.
fn ended(s: &Slot, deadline: &CallDeadline) -> Result<usize, Failure> {
    // An earlier call had bytes to report when it took the kernel's error. What a bridge has to say
    // comes behind an end that its peer has sent.
    if pending::is_kernels(s) {
        pending::check(s)?;
    }
    // What looks like a clean end may be another thread's reset, which it says before it shuts the
    // socket down.
    if s.has(flag::BROKEN) {
        return Err(Failure::Reset);
    }
    if deadline.gone(s) { Err(Failure::BadDescriptor) } else { Ok(0) }
}

/// One look, of a call that is `new` or has waited: past the channel first, then an attempt.
#[inline(always)]
fn look(
    call: &Call<'_>,
    cursor: &mut Cursor<'_>,
    deadline: &mut CallDeadline,
    new: bool,
) -> Result<Got, Failure> {
    match bypass::first(call.s, cursor, call.flags, deadline.born(), new) {
        Looked::Bytes(n) => Ok(Got::Bytes(n)),
        // Nor would an attempt find anything: it begins with the same look.
        Looked::Nothing if cursor.done() == 0 => Ok(Got::Nothing),
        _ => attempt(call, cursor, deadline),
    }
}

/// Waits for anything, or for something that had not come when so much was `seen`. What comes past
/// the channel meanwhile is taken.
#[inline(always)]
fn wait_for_more(
    call: &Call<'_>,
    cursor: &mut Cursor<'_>,
    seen: Option<u64>,
    deadline: &mut CallDeadline,
) -> Result<(), Failure> {
    let s = call.s;
    deadline.moved(cursor.done() > 0);
    if let Some(seen) = seen.filter(|_| s.is_settled()) {
        return wait::more(call, seen, deadline);
    }
    let born = deadline.born();
    wait::readable(call, deadline, |ends| bypass::take(s, ends, cursor, call.flags, born))
}
