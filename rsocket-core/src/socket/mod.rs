//! What a socket is, once the preload library has seen it. It is a TCP socket of the kernel's. A
//! device may be put beside it, and bytes may travel from it either way.
//!
//! This module is the door: everything above (hooks, readiness) calls the functions here, with the
//! number of a connection ([`SlotId`]) and the program's own descriptor. Nothing here has heard of
//! hooks or of the table that leads from one to the other.
//!
//! The pattern of a data call is to ask for the [`Route`] first. For `Kernel` let libc do it and
//! report when it has returned. For `Device` call [`receive()`] or [`send()`].

use core::sync::atomic::{Ordering, fence};
use std::os::fd::RawFd;

use crate::attach::reach;
use crate::bridge::{self, meeting};
use crate::channel::{handover_state, link};
use crate::config::policy;
use crate::conn::listeners::{error_taken, found_unread, starved};
use crate::conn::machine::{Phase, ReceiveMode, SendMode};
use crate::conn::slot::Slot;
use crate::conn::{flag, fork_group, option_cache, own_news, pending};
use crate::failure::Failure;
use crate::handover::fds_in_flight;
use crate::host::{counters, kernel, tcp_state};
use crate::live_segment::conn_counters;
use crate::reason::Reason;
use crate::waiting::call_deadline;
use crate::{fork_safe, pairing, sys, tap};

pub mod adopted;
pub mod asking;
pub mod attempt;
mod boundary;
pub(crate) mod brief;
mod bypass;
pub mod call;
#[cfg(test)]
mod closing_tests;
mod door;
mod evidence;
pub mod file;
#[cfg(test)]
mod fork_group_tests;
mod gather;
pub mod heard;
pub mod hints;
pub mod inq;
pub mod life;
mod looking;
pub mod options;
mod peek;
pub mod prospect;
pub(crate) mod reader;
pub mod ready;
pub mod receive;
#[cfg(test)]
mod residual_tests;
mod rest;
mod returned;
pub mod send;
pub mod sendfile;
pub mod settings;
mod short;
pub mod soon;
pub mod splice;
pub mod stamps;
mod switch_offset;
mod switching;
pub mod taking;
mod tcp_anchored;
pub mod timing;
pub mod unread;
#[cfg(test)]
mod unsaid_tests;
pub mod urgent;
pub(crate) mod verdict;
pub mod wait;
mod waits;
mod watch;

pub use crate::channel::ready_bitmap::Meant;
pub use crate::conn::listeners::{Listeners, set_listeners};
pub use crate::conn::slot::SlotId;
pub use crate::conn::watchers::{tapped, watching};
pub use crate::handover::back::{give_away, refuse, refuse_sending};
pub use crate::host::events::Events;
pub(crate) use crate::waiting::close_while_blocked::{give_back_waker_of_wait, waker_of_wait};
pub use life::{
    about_to_listen, accepted, before_exec, closing, connect_failed, connected, connecting,
    created, created_datagram, duplicated, ending, exec_failed, fork_child, fork_failed,
    fork_parent, fork_prepare, heritable, is_new, leaving, listening, option_asked, option_was_set,
    pass_on, without_tcp,
};
pub use verdict::unattached;
pub use waits::{
    arm, arm_edge, arrived, astray, bits_serve, collect_ready, disarm, foresee, hear, heard,
    is_over, look, may_be_taken, mode_epoch, progress, recheck_after, sets_may_be_deaf, settled,
    spin,
};
pub use watch::{fingerprint_bytes, fingerprints, forget_fingerprint};

pub use crate::conn::look::Look;
pub use soon::attaching;

/// What carries out a data call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// libc, between an enter and a leave call.
    Kernel,
    /// [`receive()`] or [`send()`].
    Device,
}

#[inline]
pub(crate) fn slot(id: SlotId) -> Option<&'static Slot> {
    fork_group::slot(id)
}

/// Whether any direction is not plain TCP any more, or the connection may not use TCP at all.
#[inline]
#[must_use]
pub fn on_device(id: SlotId) -> bool {
    slot(id).is_some_and(|s| {
        s.receive_mode() != ReceiveMode::Kernel
            || s.send_mode() != SendMode::Kernel
            || s.has(flag::STRICT | flag::UNDECIDED)
    })
}

/// Whether it has a channel in memory that it shares with the peer itself.
#[must_use]
pub fn on_shared_memory(id: SlotId) -> bool {
    slot(id).is_some_and(|s| link::has_channel(s) && !s.has(flag::BRIDGED | flag::BROKEN))
}

/// Before a call that receives. `Kernel`: let libc do it and call [`leave_receive`] after it.
#[inline]
#[must_use]
pub fn enter_receive(id: SlotId, fd: RawFd) -> Route {
    let Some(s) = slot(id) else { return Route::Kernel };
    if s.receive_mode().is_kernel() && !s.has(flag::STRICT | flag::UNDECIDED) {
        pairing::advance(id, s, fd);
        // SeqCst: pairs with channel::switch, which sets Asked and then reads the counter.
        s.inside_receive.fetch_add(1, Ordering::SeqCst);
        if s.receive_mode_fenced().is_kernel() {
            return Route::Kernel;
        }
        s.inside_receive.fetch_sub(1, Ordering::SeqCst);
    }
    Route::Device
}

/// After a receiving call that libc did. Preserves `errno`.
#[inline]
pub fn leave_receive(id: SlotId, _fd: RawFd, result: isize) {
    let Some(s) = slot(id) else { return };
    s.inside_receive.fetch_sub(1, Ordering::SeqCst);
    if let Ok(n @ 1..) = usize::try_from(result) {
        conn_counters::received_tcp(s, n);
        evidence::count(s, n, !s.has(flag::CONNECTING));
        if !s.has(flag::WAITED) {
            looking::found(s);
        }
    } else if result < 0 {
        looking::in_vain(s);
    }
}

/// Before a call that sends; as [`enter_receive`].
#[inline]
#[must_use]
pub fn enter_send(id: SlotId, fd: RawFd) -> Route {
    let Some(s) = slot(id) else { return Route::Kernel };
    if s.send_mode().is_kernel() && !s.has(flag::STRICT | flag::UNDECIDED) {
        if s.send_mode() == SendMode::Returned && send::residual_is_due(s) || pending::is_kernels(s)
        {
            return Route::Device;
        }
        pairing::advance(id, s, fd);
        // SeqCst: pairs with cut(), which reads the counter after the mode was set to Asked.
        s.inside_send.fetch_add(1, Ordering::SeqCst);
        let mode = s.send_mode_fenced();
        // The direction may have been to the device and back since the first look.
        if mode.is_kernel() && !(mode == SendMode::Returned && send::residual_is_due(s)) {
            return Route::Kernel;
        }
        s.inside_send.fetch_sub(1, Ordering::SeqCst);
    }
    Route::Device
}

/// Sends what the peer had not read when it went back to TCP; see [`send::residual`].
///
/// # Errors
/// As send(2).
pub fn send_residual(id: SlotId, fd: RawFd, flags: i32) -> Result<(), Failure> {
    slot(id).map_or(Ok(()), |s| send::residual(id, s, fd, flags))
}

/// After a sending call that libc did. Preserves `errno`.
#[inline]
pub fn leave_send(id: SlotId, _fd: RawFd, result: isize) {
    let Some(s) = slot(id) else { return };
    s.inside_send.fetch_sub(1, Ordering::SeqCst);
    if let Ok(n @ 1..) = usize::try_from(result) {
        conn_counters::sent_tcp(s, n);
        own_news::given();
        evidence::count(s, n, s.has(flag::CONNECTING));
    }
}

/// Before the program waits on a listening socket, however it does.
#[inline]
pub fn waits_on_listener(id: SlotId, fd: RawFd) {
    if reach::possible() {
        sys::keeping_errno(|| {
            bridge::tcp_anchored::wait_for_peers(id, fd);
        });
    }
}

/// Before a wait for readiness in the kernel. False: the connection is not plain TCP any more, take
/// the other way.
#[must_use]
pub fn enter_wait(id: SlotId) -> bool {
    let Some(s) = slot(id) else { return true };
    s.waits_seen();
    pairing::advance(id, s, -1);
    s.inside_wait.fetch_add(1, Ordering::SeqCst);
    if s.receive_mode_fenced() == ReceiveMode::Kernel && s.send_mode_fenced() == SendMode::Kernel {
        return true;
    }
    s.inside_wait.fetch_sub(1, Ordering::SeqCst);
    false
}

/// A call of the library's waits for the socket, or looks whether it is ready.
#[inline]
pub fn waited(id: SlotId) {
    if let Some(s) = slot(id) {
        s.waits_seen();
    }
}

/// After a wait that [`enter_wait`] allowed.
pub fn leave_wait(id: SlotId) {
    if let Some(s) = slot(id) {
        s.inside_wait.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What [`receive()`] does where it is quick, without the question which [`Route`] the call takes:
/// `None` if nothing has happened.
#[inline(never)]
pub fn receive_at_once(id: SlotId, to: &[libc::iovec], flags: i32) -> Option<usize> {
    if tapped() { None } else { short::receive(id, slot(id)?, to, flags) }
}

/// What [`send()`] does where it is quick, without the question which [`Route`] the call takes:
/// `None` if nothing has happened.
#[inline(never)]
pub fn send_at_once(id: SlotId, from: &[libc::iovec]) -> Option<usize> {
    if tapped() {
        return None;
    }
    let s = slot(id)?;
    short::send(s, from).or_else(|| bypass::send_at_once(s, from))
}

/// Receives as recv(2) would. Blocks as the descriptor's flags say.
///
/// # Errors
/// As recv(2).
#[inline]
pub fn receive(id: SlotId, fd: RawFd, to: &[libc::iovec], flags: i32) -> Result<usize, Failure> {
    match receive_at_once(id, to, flags) {
        Some(n) => Ok(n),
        None => receive_patiently(id, fd, to, flags),
    }
}

/// As [`receive()`], after [`receive_at_once`] has given nothing.
///
/// # Errors
/// As recv(2).
pub fn receive_patiently(
    id: SlotId,
    fd: RawFd,
    to: &[libc::iovec],
    flags: i32,
) -> Result<usize, Failure> {
    let s = slot(id).ok_or(Failure::BadDescriptor)?;
    let got = receive::receive(id, s, fd, to, flags);
    if tapped()
        && flags & libc::MSG_PEEK == 0
        && let Ok(n) = got
    {
        tap::moved(id, s, true, to, n);
    }
    match got {
        // More than it had room for may be there, and an end stays.
        Ok(_) => found_unread(id, s),
        Err(e) if pending::ends_connection(e) => error_taken(id),
        _ => {}
    }
    got
}

/// Sends as send(2) would, without raising SIGPIPE: on `EPIPE` the caller does.
///
/// # Errors
/// As send(2).
#[inline]
pub fn send(id: SlotId, fd: RawFd, from: &[libc::iovec], flags: i32) -> Result<usize, Failure> {
    match send_at_once(id, from) {
        Some(n) => Ok(n),
        None => send_patiently(id, fd, from, flags),
    }
}

/// As [`send()`], after [`send_at_once`] has sent nothing.
///
/// # Errors
/// As send(2).
pub fn send_patiently(
    id: SlotId,
    fd: RawFd,
    from: &[libc::iovec],
    flags: i32,
) -> Result<usize, Failure> {
    let s = slot(id).ok_or(Failure::BadDescriptor)?;
    s.poll_backoff.sent();
    let sent = send::send(id, s, fd, from, flags);
    if tapped()
        && let Ok(n) = sent
    {
        tap::moved(id, s, false, from, n);
    }
    after_send(id, from, sent)
}

/// Sends the part of a file that is in memory, as far as that can be done without a copy of it; see
/// [`file::send`].
///
/// # Errors
/// As sendfile(2), of a call that has to wait.
pub fn send_file(
    id: SlotId,
    fd: RawFd,
    from: RawFd,
    at: u64,
    length: usize,
) -> Result<file::Sent, Failure> {
    let Some(s) = slot(id).filter(|_| !tapped()) else { return Ok(file::Sent::Next(0)) };
    s.poll_backoff.sent();
    let sent = file::send(id, s, fd, file::Part { file: from, at, length });
    if matches!(sent, Err(Failure::Blocked)) || matches!(sent, Ok(file::Sent::All(n)) if n < length)
    {
        starved(id);
    }
    sent
}

/// Tells the waiters for edges of a send that found no room.
pub(crate) fn after_send(
    id: SlotId,
    from: &[libc::iovec],
    sent: Result<usize, Failure>,
) -> Result<usize, Failure> {
    let wanted = || from.iter().fold(0usize, |n, v| n.saturating_add(v.iov_len));
    if sent == Err(Failure::Blocked) || sent.is_ok_and(|n| n < wanted()) {
        starved(id);
    }
    if sent.is_err_and(pending::ends_connection) {
        error_taken(id);
    }
    sent
}

/// The error that the socket has to say before anything else (recvmmsg(2)): ours, or the kernel's.
///
/// # Errors
/// That error, which is taken.
pub fn pending_error(id: SlotId, fd: RawFd) -> Result<(), Failure> {
    let Some(s) = slot(id) else { return Ok(()) };
    pending::check(s)?;
    kernel::take_error(fd).map_or(Ok(()), |e| {
        error_taken(id);
        Err(e)
    })
}

/// A call that has done a part met this error: the next one says it, if it is how the connection
/// ended.
pub fn leave_error(id: SlotId, e: Failure) {
    if let Some(s) = slot(id) {
        pending::note(s, e);
    }
}

/// SO_RCVLOWAT was set: what the kernel made of it counts.
pub fn low_water(id: SlotId, fd: RawFd) {
    if let Some(s) = slot(id)
        && let Some(bytes) = kernel::integer(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT)
    {
        s.low_water.store(bytes.unsigned_abs(), Ordering::Relaxed);
    }
}

/// `SO_RCVTIMEO` or `SO_SNDTIMEO` was set to so many seconds: fewer than none say that calls do not
/// wait (socket(7)). The kernel heeds that, and then gives back 0, which is what it gives back
/// where calls wait for ever.
pub fn timeout_set(id: SlotId, option: i32, seconds: i64) {
    let Some(s) = slot(id) else { return };
    let bit = call_deadline::unwaiting(option);
    // Relaxed: a call that runs meanwhile may go by either, as with the kernel.
    if seconds < 0 {
        s.unwaiting.fetch_or(bit, Ordering::Relaxed);
    } else {
        s.unwaiting.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// `TCP_DEFER_ACCEPT` was set: accept(2) is to wait for data that come by TCP. Where policy lets
/// none come that way it would wait for ever, and so the option, which is a hint (tcp(7)), is taken
/// back.
pub fn accept_deferred(fd: RawFd) {
    if policy::strict() {
        kernel::accept_at_once(fd);
    }
}

/// Before the real shutdown.
pub fn shutdown(id: SlotId, fd: RawFd, how: i32) {
    let Some(s) = slot(id) else { return };
    if s.has(flag::UNDECIDED) {
        fork_safe::insist(id, s, fd);
    }
    // First, so that a bridge that is told of the other direction knows.
    if how == libc::SHUT_RD || how == libc::SHUT_RDWR {
        // Behind FIN an error is news for senders alone ([`boundary::own_end`]).
        if link::has_channel(s) && !s.has(flag::BRIDGED) && counters::fin_received(fd) == Ok(true) {
            s.set(flag::ENDED);
        }
        s.set(flag::READ_SHUT);
        asking::ask_kernel_next(s);
        // A thread that waits for a bridge's word does not listen to TCP, nor does one that sleeps
        // briefly.
        if (s.has(flag::TCP_ANCHORED) || s.option_cache.held(option_cache::Fact::SleepsBriefly))
            && let Some(ends) = link::ends(s)
        {
            ends.wake_own_readers();
        }
    }
    if (how == libc::SHUT_WR || how == libc::SHUT_RDWR) && !was_reset(s, fd) {
        if link::has_channel(s) && !s.has(flag::TCP_ANCHORED) {
            meeting::say_shutdown(id, s, fd);
        }
        s.set(flag::WRITE_SHUT);
        // Between hosts it is said after the flag is set, so that no thread leaves TCP behind the
        // word. Pairs with the fence in meeting::met: either it finds the flag, or we find the
        // bridge.
        fence(Ordering::SeqCst);
        if s.has(flag::TCP_ANCHORED) {
            meeting::say_shutdown(id, s, fd);
        }
    }
}

/// Whether the kernel will refuse a shutdown, since the TCP connection was reset: then the peer is
/// told of no end.
fn was_reset(s: &Slot, fd: RawFd) -> bool {
    !s.has(flag::BRIDGED) && link::has_channel(s) && counters::tcp_state(fd) == Ok(tcp_state::CLOSE)
}

/// After the real shutdown. Once both directions are shut, no thread takes what still comes, and
/// the peer that sends it must not wait for room. The kernel answers what the peer sends by TCP
/// instead, with a reset, and not before.
pub fn has_shut(id: SlotId) {
    own_news::given();
    let Some(s) = slot(id).filter(|s| s.takes_nothing()) else { return };
    // Pairs with the one in channel::switch: either it finds both flags, or we find the channel.
    fence(Ordering::SeqCst);
    if let Some(ends) = link::ends(s) {
        handover_state::stop_reading(&ends.incoming);
        bridge::carry_back(s, &ends);
    }
}

/// Bytes that could be received now (FIONREAD), or `None` when the kernel knows.
#[must_use]
pub fn unread(id: SlotId, fd: RawFd) -> Option<usize> {
    let s = slot(id)?;
    if !fork_safe::settle(id, s, fd, fork_safe::Use::Receive) {
        return Some(0);
    }
    let bytes = unread::unread(id, s, fd);
    if bytes.is_some_and(|n| n > 0) {
        found_unread(id, s);
    }
    bytes
}

/// Bytes on their way (SIOCOUTQ), or `None` when the kernel knows.
#[must_use]
pub fn unsent(id: SlotId, fd: RawFd) -> Option<usize> {
    send::unsent(slot(id)?, fd)
}

/// A message is about to carry the connection's descriptor away, over whatever socket. Unless a
/// sibling could go on with it as it is, it goes back to TCP first: the receiver may know nothing
/// of us.
pub fn passing(id: SlotId, fd: RawFd) {
    if fds_in_flight::send_off(id, fd) {
        bridge::shared();
    } else {
        give_away(id, fd, Reason::PassedAway);
    }
}

/// As [`passing`], of a socket that listens. From one that waits for peers by RDMA's manager,
/// siblings that know which it is can accept; from any other, every process can.
pub fn passing_listener(id: SlotId, fd: RawFd) {
    if bridge::native_rdma::listens(id) {
        let _ = fds_in_flight::send_off(id, fd);
    }
}

/// The message was not sent.
pub fn not_passed(id: SlotId) {
    fds_in_flight::take_back(id);
}

/// Back to TCP, since this process will not be able to do anything more about the connection. A
/// sandbox is ahead in which our system calls might be fatal, or the process's numbers will mean
/// different things to different threads. True when nothing is left of the connection that the
/// kernel does not know: then it is best forgotten.
#[must_use]
pub fn refuse_for_good(id: SlotId, fd: RawFd, reason: Reason) -> bool {
    let Some(s) = slot(id) else { return true };
    if s.phase() == Phase::Young && !s.has(flag::STRICT) && fork_group::shared(id) {
        // Siblings go on, and may attach it once this process has ended.
        s.set(flag::SANDBOXED_OWNER);
        if s.phase() == Phase::Young
            && s.receive_mode() == ReceiveMode::Kernel
            && s.send_mode() == SendMode::Kernel
        {
            return true;
        }
    }
    give_away(id, fd, reason);
    let kernels = s.receive_mode().is_kernel() && s.send_mode().is_kernel();
    let owed = link::has_channel(s) && send::residual_is_due(s);
    // One that never attached and may not use TCP goes on to say so.
    let never = s.has(flag::STRICT) && !link::has_channel(s) && s.phase() != Phase::Unconnected;
    kernels && !owed && !never && !s.has(flag::BROKEN)
}
