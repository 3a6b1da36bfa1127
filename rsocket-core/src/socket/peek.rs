//! Receiving without taking: nothing at all, or with `MSG_PEEK`. There each attempt begins with the first unread byte again, so that waiting for
//! more (`MSG_WAITALL`, `SO_RCVLOWAT`) is waiting for something new, not for something to read.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use super::kernel::{self, Ending};
use super::receive::{Got, attempt, in_window, no_more_fits, unread};
use super::slot::{Slot, SlotId, flag};
use super::vectors::Cursor;
use super::{Events, guard, patience, pending, ready, wait};
use crate::attach::link;
use crate::attach::machine::ReceiveMode;
use crate::attach::{counters, marks};
use crate::errno::Errno;
use crate::relay;
use crate::sync::thread::tid;
use crate::sys;

/// Peeks as recv(2) would, into buffers of at least one byte.
///
/// # Errors
/// As recv(2).
pub(super) fn peek(id: SlotId, s: &Slot, fd: RawFd, to: &[libc::iovec], flags: i32) -> Result<usize, Errno> {
    let mut patience = wait::Patience::new(s, libc::SO_RCVTIMEO);
    let got = until_enough(id, s, fd, to, flags, &mut patience);
    patience.over();
    got
}

fn until_enough(
    id: SlotId,
    s: &Slot,
    mut fd: RawFd,
    to: &[libc::iovec],
    flags: i32,
    patience: &mut wait::Patience,
) -> Result<usize, Errno> {
    loop {
        fd = patience.descriptor(fd);
        let seen = ready::progress(s).received;
        let mut cursor = Cursor::new(to);
        let room = cursor.left();
        let target = match flags & libc::MSG_WAITALL {
            0 => room.min(s.low_water.load(Ordering::Relaxed) as usize),
            _ => room,
        };
        match attempt(id, s, fd, &mut cursor, flags, patience)? {
            Got::End => return Ok(cursor.done()),
            Got::Nothing if ready::settled(s) => wait::more(id, s, fd, flags, seen, patience)?,
            Got::Nothing => wait::readable(id, s, fd, flags, patience, |_| relay::bring(s))?,
            // What TCP still has of a connection that is leaving it cannot be waited for together with the rest.
            Got::Bytes(_)
                if cursor.done() >= target || s.receive_mode() != ReceiveMode::Device || over(s, fd) =>
            {
                return Ok(cursor.done());
            }
            Got::Bytes(_) if has_end(s) => {
                if wait::blocks(s, fd, flags).is_err() || !comes_by_tcp(s, fd, target) {
                    return Ok(cursor.done());
                }
            }
            Got::Bytes(_) => {
                if wait::more(id, s, fd, flags, seen, patience).is_err() {
                    return Ok(cursor.done());
                }
            }
        }
    }
}

/// Whether the sender has gone back to TCP: what follows the window's bytes comes from there.
fn has_end(s: &Slot) -> bool {
    link::ends(s).is_some_and(|ends| marks::end(&ends.incoming).is_some())
}

/// Waits until TCP has what the window's unread bytes leave of the first `target`. False when it will not be there.
fn comes_by_tcp(s: &Slot, fd: RawFd, target: usize) -> bool {
    let Some(ends) = link::ends(s) else { return false };
    if !guard::take_receive(s, &ends) {
        return false;
    }
    // SAFETY: the lock was taken above.
    let here = in_window(&unsafe { s.receive.load() }, &ends);
    s.receive.lock.unlock(tid());
    let missing = target.saturating_sub(here);
    // No call reads past an urgent byte that bytes stand before.
    let stops = here > 0 && counters::at_mark(fd) == Ok(true);
    !stops && kernel::peek_all(fd, missing).is_ok_and(|n| n >= missing)
}

/// Whether nothing more will come before what is there is taken.
fn over(s: &Slot, fd: RawFd) -> bool {
    let Some(ends) = link::ends(s) else { return true };
    if s.has(flag::LOST | flag::ENDED) || !guard::take_receive(s, &ends) {
        return true;
    }
    // SAFETY: the lock was taken above.
    let state = unsafe { s.receive.load() };
    let all = no_more_fits(&state, &ends);
    s.receive.lock.unlock(tid());
    // Beside TCP its FIN says nothing of what the device still brings.
    all || !s.has(flag::BESIDE) && hung_up(fd)
}

fn hung_up(fd: RawFd) -> bool {
    let mut one = [libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 }];
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(sys::wait(&mut one, Some(&at_once), core::ptr::null()), Ok(1..))
}

/// A receive of no bytes waits for some all the same, as TCP's does.
pub(super) fn nothing_wanted(id: SlotId, s: &Slot, fd: RawFd, flags: i32) -> Result<usize, Errno> {
    let mut patience = wait::Patience::new(s, libc::SO_RCVTIMEO);
    let got = until_there(id, s, fd, flags, &mut patience);
    patience.over();
    got
}

fn until_there(
    id: SlotId,
    s: &Slot,
    mut fd: RawFd,
    flags: i32,
    patience: &mut wait::Patience,
) -> Result<usize, Errno> {
    loop {
        fd = patience.descriptor(fd);
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
        match wait::readable(id, s, fd, flags, patience, |_| relay::bring(s)) {
            // The kernel waits once, and has received nothing then, whatever has ended the wait.
            Err(Errno::AGAIN | Errno::INTR) if may_wait(s, fd, flags) => return Ok(0),
            waited => waited?,
        }
    }
}

/// Whether the call sleeps at all (a negative `SO_RCVTIMEO` says that it does not).
fn may_wait(s: &Slot, fd: RawFd, flags: i32) -> bool {
    wait::blocks(s, fd, flags).is_ok()
        && s.unwaiting.load(Ordering::Relaxed) & patience::unwaiting(libc::SO_RCVTIMEO) == 0
}

/// There are bytes, an end or an error to be had: bytes first, and an error before an end, unless it is for senders alone
/// ([`super::boundary::own_end`]).
fn no_error(id: SlotId, s: &Slot, fd: RawFd) -> Result<usize, Errno> {
    if s.has(flag::RELAYED | flag::ENDED) || unread(id, s, fd).is_some_and(|n| n > 0) {
        return Ok(0);
    }
    kernel::receivers_error(fd).map_or(Ok(0), Err)
}
