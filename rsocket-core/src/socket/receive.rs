//! Receiving on a connection that is not plain TCP any more.
//!
//! The bytes of a direction come from TCP up to the cut and from the device after it
//! (`life-of-a-connection §4`). Each attempt ([`super::attempt`]) runs under the receive lock and
//! never sleeps; waiting is done by [`super::wait`] with no lock held.

use core::mem;
use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use super::attempt::attempt;
use super::peek::{nothing_wanted, peek};
use super::straight::Looked;
use super::taking::Got;
use super::{asking, hints};
use super::{straight, wait};
use crate::conn::pending;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::errno::Errno;
use crate::sys::vectors::Cursor;
use crate::waiting::patience::Patience;

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
    let mut patience = Patience::new(s, libc::SO_RCVTIMEO);
    let got = until_enough(id, s, fd, &mut cursor, flags, &mut patience);
    patience.over();
    got
}

/// Receives and waits in turns.
fn until_enough(
    id: SlotId,
    s: &Slot,
    mut fd: RawFd,
    cursor: &mut Cursor<'_>,
    mut flags: i32,
    patience: &mut Patience,
) -> Result<usize, Errno> {
    let enough = s.low_water.load(Ordering::Relaxed) as usize;
    let all = flags & libc::MSG_WAITALL != 0;
    let mut new = true;
    loop {
        // Whether it is enough, this call decides: readiness goes by the low-water mark alone,
        // however little is asked for, or missing.
        let seen = if enough > 1 { hints::progress(s).received } else { 0 };
        let got = match straight::first(s, cursor, flags, patience.born(), mem::take(&mut new)) {
            Looked::Bytes(n) => Ok(Got::Bytes(n)),
            // Nor would an attempt find anything: it begins with the same look.
            Looked::Nothing if cursor.done() == 0 => Ok(Got::Nothing),
            _ => attempt(id, s, fd, cursor, flags, patience),
        };
        match got {
            Ok(Got::Bytes(_)) if cursor.left() == 0 || !all && cursor.done() >= enough => {
                return Ok(cursor.done());
            }
            Ok(Got::Bytes(_)) => {}
            // What looks like a clean end may be another thread's reset, which it says before it
            // shuts the socket down.
            Ok(Got::End) if cursor.done() == 0 && s.has(flag::BROKEN) => {
                return Err(Errno::CONNRESET);
            }
            Ok(Got::End) if cursor.done() == 0 && patience.gone(s) => return Err(Errno::BADF),
            Ok(Got::End) => return Ok(cursor.done()),
            Ok(Got::Nothing) => {
                patience.moved(cursor.done() > 0);
                let waited = if enough > 1 && s.is_settled() {
                    wait::more(id, s, fd, flags, seen, patience)
                } else {
                    let born = patience.born();
                    wait::readable(id, s, fd, flags, patience, |ends| {
                        straight::take(s, ends, cursor, flags, born)
                    })
                };
                fd = patience.descriptor(fd);
                match waited {
                    // What came while it waited.
                    Ok(())
                        if cursor.left() == 0
                            || !all && cursor.done() > 0 && cursor.done() >= enough =>
                    {
                        return Ok(cursor.done());
                    }
                    Ok(()) => {}
                    Err(_) if cursor.done() > 0 => return Ok(cursor.done()),
                    // It does not sleep, and so has not heard what the kernel has to say.
                    Err(Errno::AGAIN)
                        if flags & libc::MSG_DONTWAIT == 0 && asking::is_kernel_due(s) =>
                    {
                        flags |= libc::MSG_DONTWAIT;
                    }
                    Err(e) => return Err(e),
                }
            }
            Err(e) if cursor.done() > 0 => {
                pending::note(s, e);
                return Ok(cursor.done());
            }
            Err(e) => return Err(patience.why(s, fd, e)),
        }
    }
}
