//! Calls that receive across a boundary between TCP and the window: a program sees one stream, and
//! gets from one call all that is there.
//!
//! Must not know how a boundary came to be. Entry points, for who holds the receive lock:
//! [`up_to_the_cut`]; [`is_over`], [`behind_the_end`], [`by_kernel`]; and where the stream is over
//! [`the_end`], [`own_end`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::RawFd;

use super::call::Call;
use super::cut::bytes_ahead;
use super::guard::RecvGuard;
use super::receive::{Got, after_the_cut, broken, copying, from_kernel, placer, take_messages};
use super::room::follow_up;
use super::vectors::Cursor;
use super::{beside, pending};
use crate::attach::link::Ends;
use crate::attach::marks;
use crate::conn::machine::ReceiveEvent;
use crate::conn::slot::{Slot, flag};
use crate::device::shm::channel::RecvState;
use crate::errno::Errno;
use crate::host::counters;
use crate::host::kernel::{self, Ending};
use crate::host::tcp_state as state;
use crate::stats::{self, Counter};
use crate::sys;

/// No cut was seen. What TCP has is looked at first and the cut after it: on one host a cut is
/// published before any byte that follows it can come by TCP (from a sender that has gone back
/// already), and before FIN. Between hosts FIN may be here before the word of the cut ([`beside`]).
fn before_the_cut(
    guard: &mut RecvGuard<'_>,
    call: &Call<'_>,
    to: &mut Cursor<'_>,
) -> Result<Got, Errno> {
    let (s, ends, Call { fd, flags, .. }) = (guard.s, guard.ends, *call);
    let waiting = usize::try_from(counters::in_queue(fd)?).unwrap_or(usize::MAX);
    let ending = if waiting == 0 { kernel::ending(fd) } else { Ending::Bytes };
    // At an urgent byte nothing seems to wait. Its sender leaves TCP no more.
    let stays = waiting == 0 && counters::at_mark(fd)?;
    if marks::cut(&ends.incoming).is_some() {
        return up_to_the_cut(guard, call, to);
    }
    match ending {
        Ending::Bytes if stays => from_kernel(s, fd, to, usize::MAX, flags),
        Ending::Bytes if waiting > 0 => from_kernel(s, fd, to, waiting, flags),
        Ending::Bytes | Ending::Open => Ok(Got::Nothing),
        Ending::Fin if beside::fin_is_the_end(s, ends) => {
            if s.has(flag::BESIDE) && !s.has(flag::READ_SHUT) {
                s.set(flag::ENDED);
            }
            Ok(Got::End)
        }
        Ending::Fin => {
            s.set(flag::FIN_FIRST);
            Ok(Got::Nothing)
        }
        Ending::Failed(e) => Err(e),
    }
}

/// Before the cut is reached: TCP has the bytes.
pub(super) fn up_to_the_cut(
    guard: &mut RecvGuard<'_>,
    call: &Call<'_>,
    to: &mut Cursor<'_>,
) -> Result<Got, Errno> {
    let (s, ends, Call { fd, flags, .. }) = (guard.s, guard.ends, *call);
    // Acquire: pairs with the sender's release of the cut; all of its bytes before N are in TCP.
    let Some(n) = marks::cut(&ends.incoming) else { return before_the_cut(guard, call, to) };
    let before = to.done();
    if let Some(got) = tcps_share(guard, call, to, n)? {
        return Ok(got);
    }
    match s.receive_mode().after(ReceiveEvent::CutReached) {
        Some(mode) => s.set_receive_mode(mode),
        // Asked: the sender cut without our acknowledgement.
        None => return Err(broken(s, fd, "the sender has switched unasked")),
    }
    stats::add(Counter::SwitchedReceiving, 1);
    if to.done() == before {
        return after_the_cut(guard, call, to);
    }
    // A read that leaves room in its buffers has found all there was, for whoever waits for edges.
    let mut taking = guard.receiver().take();
    let from_tcp = to.done();
    if !take_messages(&mut taking, to, copying(s, flags), placer(call, ends)) {
        return Err(broken(s, fd, "a message breaks the protocol"));
    }
    // The sender may have gone back already: then TCP has more behind the window's last byte.
    let over = is_over(taking.commit(), ends);
    follow_up(guard, to.done() - from_tcp);
    let behind = if to.left() > 0 && over { behind_the_end(s, fd, to, flags) } else { 0 };
    Ok(Got::Bytes(to.done() - before + behind))
}

/// Takes what TCP has of the first `n` bytes of the direction; `None` once all of them were taken.
fn tcps_share(
    guard: &mut RecvGuard<'_>,
    call: &Call<'_>,
    to: &mut Cursor<'_>,
    n: u64,
) -> Result<Option<Got>, Errno> {
    let (s, ends, Call { fd, flags, .. }) = (guard.s, guard.ends, *call);
    let before = to.done();
    loop {
        let left = match bytes_ahead(fd, ends, n) {
            Ok(Some(0)) => return Ok(None),
            // The buffers are full: a receive of nothing would look like the end of the stream.
            Ok(Some(_)) if to.left() == 0 => return Ok(Some(Got::Bytes(to.done() - before))),
            Ok(Some(left)) => left,
            Ok(None) => {
                let what = "more was read from TCP than was sent before the switch";
                return Err(broken(s, fd, what));
            }
            _ if to.done() > before => return Ok(Some(Got::Bytes(to.done() - before))),
            Err(Errno::AGAIN) => return Ok(Some(Got::Nothing)),
            Err(e) => return Err(e),
        };
        match from_kernel(s, fd, to, left, flags) {
            // A reset, whose error somebody has taken: bytes may be missing.
            Ok(Got::End) if counters::tcp_state(fd) == Ok(state::CLOSE) => {
                return Err(Errno::CONNRESET);
            }
            // The stream ended before the cut that its sender fixed: bytes are missing.
            Ok(Got::End) => return Err(broken(s, fd, "TCP has ended before the switch")),
            Ok(Got::Bytes(k)) if k == left && flags & libc::MSG_PEEK == 0 => {}
            Ok(Got::Bytes(k)) if k == left => {
                return Ok(Some(Got::Bytes(k + peek_behind_the_cut(guard, to, flags))));
            }
            _ if to.done() > before => return Ok(Some(Got::Bytes(to.done() - before))),
            got => return got.map(Some),
        }
    }
}

/// Whether the sender has gone back to TCP, and the window has no more than `state` has taken.
pub(super) fn is_over(state: &RecvState, ends: &Ends) -> bool {
    marks::end(&ends.incoming) == Some(state.total())
        && ends.incoming.poll_data(state.data_position).is_none()
}

/// What TCP has behind the window's last byte belongs to the same call. An end or an error is the
/// next one's.
pub(super) fn behind_the_end(s: &Slot, fd: RawFd, to: &mut Cursor<'_>, flags: i32) -> usize {
    if !counters::in_queue(fd).is_ok_and(|n| n > 0) {
        return 0;
    }
    match from_kernel(s, fd, to, usize::MAX, flags) {
        Ok(Got::Bytes(n)) => n,
        _ => 0,
    }
}

/// TCP's last bytes before the cut were peeked at: what the window has follows them. Nothing of it
/// is taken.
fn peek_behind_the_cut(guard: &mut RecvGuard<'_>, to: &mut Cursor<'_>, flags: i32) -> usize {
    let before = to.done();
    let copying = copying(guard.s, flags);
    // Who breaks a rule is found out by the call that takes the bytes. What is placed belongs to
    // rsockets, which take no bytes from TCP.
    let _ = take_messages(&mut guard.receiver().take(), to, copying, None);
    to.done() - before
}

/// What TCP has, of a direction that is not on a device. A call that has moved bytes leaves an
/// error where it is: the next one may be the kernel's own.
pub(super) fn by_kernel(
    s: &Slot,
    fd: RawFd,
    to: &mut Cursor<'_>,
    flags: i32,
) -> Result<Got, Errno> {
    if to.done() > 0 && has_failed(fd) {
        return Ok(Got::End);
    }
    match from_kernel(s, fd, to, usize::MAX, flags)? {
        // The kernel has said how it ended to a call that had bytes to report.
        Got::End if to.done() == 0 => pending::check(s).map(|()| Got::End),
        got => Ok(got),
    }
}

/// Whether an error is all that the kernel has.
pub(super) fn has_failed(fd: RawFd) -> bool {
    let mut one = [libc::pollfd { fd, events: 0, revents: 0 }];
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let looked = sys::wait(&mut one, Some(&at_once), core::ptr::null()).is_ok();
    let [one] = one;
    looked && one.revents & libc::POLLERR != 0 && counters::in_queue(fd) == Ok(0)
}

/// The kernel says that nothing more will come. From here on each call says so, however soon after
/// the kernel was asked.
pub(super) fn the_end(s: &Slot, fd: RawFd) -> Result<Got, Errno> {
    if s.has(flag::READ_SHUT) && !s.has(flag::ENDED) {
        return own_end(s, fd);
    }
    if !s.has(flag::RELAYED) {
        s.set(flag::ENDED);
    }
    pending::check(s).map(|()| Got::End)
}

/// This side has shut down what it receives. A reset that comes behind that is said all the same,
/// once. (Behind a FIN the kernel has the error for senders alone.)
pub(super) fn own_end(s: &Slot, fd: RawFd) -> Result<Got, Errno> {
    pending::check(s)?;
    if s.has(flag::RELAYED | flag::ENDED) {
        return Ok(Got::End);
    }
    kernel::receivers_error(fd).map_or(Ok(Got::End), Err)
}
