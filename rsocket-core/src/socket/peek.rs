//! Receiving without taking: nothing at all, or with `MSG_PEEK`. There each attempt begins with the
//! first unread byte again. So waiting for more (`MSG_WAITALL`, `SO_RCVLOWAT`) is waiting for
//! something new, not for something to read.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use super::attempt::attempt;
use super::call::Call;
use super::taking::Got;
use super::unread::unread;
use super::{gather, hints, ready, wait};
use crate::bridge;
use crate::conn::pending;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::failure::Failure;
use crate::host::events::Events;
use crate::host::kernel::{self, Ending};
use crate::sys::vectors::{Cursor, Rest};
use crate::waiting::call_deadline::{self, CallDeadline};

/// Peeks as recv(2) would, into buffers of at least one byte.
///
/// # Errors
/// As recv(2).
pub(super) fn peek(
    id: SlotId,
    s: &Slot,
    fd: RawFd,
    to: &[libc::iovec],
    flags: i32,
) -> Result<usize, Failure> {
    let mut deadline = CallDeadline::new(s, libc::SO_RCVTIMEO);
    let got = until_enough(Call { id, s, fd, flags }, to, &mut deadline);
    deadline.over();
    got
}

fn until_enough(
    mut call: Call<'_>,
    to: &[libc::iovec],
    deadline: &mut CallDeadline,
) -> Result<usize, Failure> {
    let Call { s, flags, .. } = call;
    let mut had = 0;
    let mut last = false;
    loop {
        call.fd = deadline.descriptor(call.fd);
        let seen = hints::progress(s).received;
        let mut cursor = Cursor::new(to);
        let room = cursor.left();
        let target = match flags & libc::MSG_WAITALL {
            0 => room.min(s.low_water.load(Ordering::Relaxed) as usize),
            _ => room,
        };
        match attempt(&call, &mut cursor, deadline) {
            // Nothing was taken: what the last look found is still here, and the error is the next
            // call's.
            Err(e) if had > 0 => {
                pending::note(s, e);
                return Ok(had);
            }
            Err(e) => return Err(e),
            Ok(Got::End) => return Ok(cursor.done()),
            Ok(Got::Nothing) if s.is_settled() => wait::more(&call, seen, deadline)?,
            Ok(Got::Nothing) => wait::readable(&call, deadline, |_| bridge::bring(s))?,
            Ok(Got::Bytes(_)) => {
                gather::behind_the_channel(s, call.fd, to, &mut cursor, flags);
                let done = cursor.done();
                if done >= target || last || to.len() >= Rest::MOST {
                    return Ok(done);
                }
                had = done;
                deadline.moved(true);
                // What came before that may have come behind the look.
                last = gather::is_over(s, call.fd);
                if !last && wait::more(&call, seen, deadline).is_err() {
                    return Ok(done);
                }
            }
        }
    }
}

/// A receive of no bytes waits for some all the same, as TCP's does.
pub(super) fn nothing_wanted(
    id: SlotId,
    s: &Slot,
    fd: RawFd,
    flags: i32,
) -> Result<usize, Failure> {
    let mut deadline = CallDeadline::new(s, libc::SO_RCVTIMEO);
    let got = until_there(Call { id, s, fd, flags }, &mut deadline);
    deadline.over();
    got
}

fn until_there(mut call: Call<'_>, deadline: &mut CallDeadline) -> Result<usize, Failure> {
    loop {
        call.fd = deadline.descriptor(call.fd);
        let Call { id, s, fd, flags } = call;
        let look = ready::look(id, s, fd);
        pending::check(s)?;
        // Any byte will do, whatever SO_RCVLOWAT says of readiness.
        if look.ready.contains(Events::IN) || unread(id, s, fd).is_some_and(|n| n > 0) {
            return no_error(id, s, fd);
        }
        match kernel::ending(fd) {
            Ending::Fin | Ending::Bytes => return Ok(0),
            Ending::Failed(e) => return Err(e),
            Ending::Open => {}
        }
        match wait::readable(&call, deadline, |_| bridge::bring(s)) {
            // The kernel waits once, and has received nothing then, whatever has ended the wait.
            Err(Failure::Blocked | Failure::Interrupted) if may_wait(s, fd, flags) => return Ok(0),
            waited => waited?,
        }
    }
}

/// Whether the call sleeps at all (a negative `SO_RCVTIMEO` says that it does not).
fn may_wait(s: &Slot, fd: RawFd, flags: i32) -> bool {
    wait::blocks(s, fd, flags).is_ok()
        && s.unwaiting.load(Ordering::Relaxed) & call_deadline::unwaiting(libc::SO_RCVTIMEO) == 0
}

/// There are bytes, an end or an error to be had. Bytes come first, and an error before an end,
/// unless the error is for senders alone ([`super::boundary::own_end`]).
fn no_error(id: SlotId, s: &Slot, fd: RawFd) -> Result<usize, Failure> {
    if s.has(flag::BRIDGED | flag::ENDED) || unread(id, s, fd).is_some_and(|n| n > 0) {
        return Ok(0);
    }
    kernel::receivers_error(fd).map_or(Ok(0), Err)
}
