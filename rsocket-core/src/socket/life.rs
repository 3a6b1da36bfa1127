//! How a connection begins and ends, as far as this side can see it; the kernel's view is the
//! truth.

use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use super::{inq, stamps, verdict};
use crate::attach::{own_waits, phase, reach};
use crate::channel::guard::RecvGuard;
use crate::channel::{arenas, fd_stash, identity, link, residual, unread};
use crate::config::policy;
use crate::conn::fork_group::{self, Left};
use crate::conn::machine::{Phase, PhaseEvent, ReceiveMode};
use crate::conn::slot::{Slot, SlotId, flag};
use crate::conn::{cause, own_news};
use crate::device::shm::waker;
use crate::failure::Failure;
use crate::host::kernel;
use crate::live_segment::conn_counters;
use crate::pairing::{self, heirs};
use crate::reason::Reason;
use crate::sync::{living, stack, thread};
use crate::waiting::close_while_blocked;
use crate::{bridge, direct_placement, fork_safe, sys};

/// What a new socket of this library is.
pub(crate) fn kind() -> u32 {
    if policy::are_rsockets() { flag::RSOCKET } else { 0 }
}

/// socket(2) made a TCP socket.
#[must_use]
pub fn created(fd: RawFd) -> Option<SlotId> {
    fork_group::take(kind(), fd)
}

/// socket(2) made a UDP socket, for datagrams.
#[must_use]
pub fn created_datagram(fd: RawFd) -> Option<SlotId> {
    fork_group::take(flag::RSOCKET | flag::STRICT | flag::DATAGRAM, fd)
}

/// Before the real listen.
pub fn about_to_listen(id: SlotId, fd: RawFd) {
    if let Some(s) = fork_group::slot(id) {
        s.handshake.listens(fd);
    }
}

/// Before the program asks for an option of a connection or a listener. True where the kernel would
/// say 1, and the program has never set it and is to be told 0.
#[must_use]
pub fn option_asked(id: SlotId, fd: RawFd, level: i32, name: i32) -> bool {
    fork_group::slot(id).is_some_and(|s| s.handshake.asked(fd, level, name))
}

/// The program has set an option of a connection or a listener.
pub fn option_was_set(id: SlotId, fd: RawFd, level: i32, name: i32) {
    if let Some(s) = fork_group::slot(id) {
        s.handshake.was_set(fd, level, name);
    }
}

/// listen(2) succeeded.
pub fn listening(id: SlotId, _fd: RawFd) {
    reach::find_out();
    own_waits::listens(id);
}

fn established(id: SlotId, s: &Slot, flags: u32) {
    own_news::given();
    reach::find_out();
    let strict = policy::strict() || s.has(flag::RSOCKET);
    s.set(flags | if strict { flag::STRICT } else { 0 });
    if s.phase() == Phase::Unconnected && flags & flag::CONNECTING != 0 {
        fork_safe::connected(s);
    }
    if s.phase() == Phase::Unconnected {
        // What a poll heard about the socket before it was connected says nothing about the
        // connection.
        s.clear(flag::PEER_FIN | flag::PEER_GONE);
    }
    if let Some(phase) = s.phase().after(PhaseEvent::Established) {
        // Relaxed: the mark only times the first step; a strict connection takes it at once.
        s.next_step.store(policy::first_step(), Ordering::Relaxed);
        s.set_phase(phase);
    }
    if s.has(flag::STRICT | flag::UNDECIDED) {
        // The kernel's word does not do any more, for sets too that had the socket before it was
        // connected.
        s.next_epoch();
        crate::conn::listeners::mode_changed(id);
    }
}

/// Whether the socket has not been connected yet, as far as is known.
#[must_use]
pub fn is_new(id: SlotId) -> bool {
    fork_group::slot(id).is_some_and(|s| s.phase() == Phase::Unconnected)
}

/// Before the real connect.
pub fn connecting(id: SlotId, _fd: RawFd) {
    if let Some(s) = fork_group::slot(id) {
        s.set(flag::CONNECTING);
        // Else it says how an attempt goes that an earlier call has begun.
        if s.phase() == Phase::Unconnected {
            s.handshake.dials();
        }
    }
}

/// Whether the connection has no TCP that it could stay on or go back to.
#[must_use]
pub fn without_tcp(id: SlotId, fd: RawFd) -> bool {
    let Some(s) = fork_group::slot(id) else { return false };
    if s.has(flag::UNDECIDED) {
        fork_safe::insist(id, s, fd);
    }
    policy::strict() || s.has(flag::RSOCKET) || s.has(flag::BRIDGED) && !s.has(flag::TCP_ANCHORED)
}

/// After connect(2): a connection, now or as soon as the kernel says so.
pub fn connected(id: SlotId, fd: RawFd, result: Result<(), Failure>) {
    let Some(s) = fork_group::slot(id) else { return };
    match result {
        Ok(()) | Err(Failure::Connected) => verdict::noticed(s, fd),
        Err(Failure::UnderWay) if policy::strict() => s.set(flag::CONNECT_NEWS),
        Err(_) => {}
    }
    match result {
        Ok(()) | Err(Failure::UnderWay | Failure::Interrupted) => {
            s.handshake.has_dialled();
            established(id, s, flag::CONNECTING);
            if (s.has(flag::STRICT) || policy::eager()) && result.is_ok() {
                pairing::advance(id, s, fd);
            }
        }
        Err(Failure::AlreadyUnderWay | Failure::Connected) => {}
        // The attempt failed, now or since an earlier call began it (which says so by failing once
        // more).
        Err(_) => failed(id, s),
    }
}

/// The attempt that a non-blocking connect began has failed, and the program was told.
pub fn connect_failed(id: SlotId) {
    if let Some(s) = fork_group::slot(id) {
        failed(id, s);
    }
}

/// The socket is as good as new: what was found out about a connection that never was must not be
/// held against the next one.
fn failed(id: SlotId, s: &Slot) {
    let strict = s.has(flag::STRICT | flag::UNDECIDED);
    fork_safe::forget(s);
    if pairing::restart(s) && strict {
        s.next_epoch();
        crate::conn::listeners::mode_changed(id);
    }
}

/// accept(2) gave `fd`.
#[must_use]
pub fn accepted(fd: RawFd, listener: SlotId) -> Option<SlotId> {
    let id = fork_group::take(kind(), fd)?;
    let s = fork_group::slot(id)?;
    if let Some(l) = fork_group::slot(listener) {
        s.sizes.copy_from(&l.sizes);
        // The kernel's socket has the mark that the listener had when its peer connected.
        if l.low_water.load(Ordering::Relaxed) != 0 {
            super::low_water(id, fd);
        }
        // As the kernel's socket has its listener's time-outs.
        s.unwaiting.store(l.unwaiting.load(Ordering::Relaxed), Ordering::Relaxed);
        if l.handshake.is_wanted() {
            // For those that come after this one.
            l.handshake.listens(fork_group::descriptor(listener));
        }
        s.handshake.accepted(&l.handshake);
        inq::inherit(s, l);
        stamps::inherit(s, l);
    }
    established(id, s, 0);
    if let Some(l) = fork_group::slot(listener) {
        fork_safe::accepted(s, fd, l);
        // An option that only TCP can honour is the new socket's, too.
        if l.phase() == Phase::Refused
            && l.reason.load(Ordering::Relaxed) == Reason::OddOption as u32
        {
            cause::inherit(s, l);
            phase::refuse(s, Reason::OddOption);
        }
    }
    Some(id)
}

/// One more descriptor for the connection.
pub fn duplicated(id: SlotId) {
    fork_group::add_descriptor(id);
}

/// Before the real close of one descriptor.
pub fn closing(id: SlotId, fd: RawFd) {
    let Some(s) = fork_group::slot(id) else { return };
    if close_while_blocked::lend(id, fd, closing) {
        return;
    }
    own_news::given();
    let left = fork_group::drop_descriptor(id, fd);
    if left != Left::Here {
        direct_placement::closing(id, s);
        if s.has(flag::DATAGRAM) {
            crate::datagram::closed(id);
        }
    }
    match left {
        Left::Here => pairing::let_finish(s),
        Left::Elsewhere => {
            // What this process alone holds of an unfinished pairing goes with it.
            if phase::is_here(s) && s.phase() != Phase::Paired {
                heirs::hand_over(id, s, fd);
            } else {
                pairing::let_finish(s);
            }
        }
        Left::Nobody => {
            sys::keeping_errno(|| {
                stack::on_own(|| end(id, s, fd));
            });
        }
    }
}

/// The last owner closes.
fn end(id: SlotId, s: &Slot, fd: RawFd) {
    crate::log_debug!("connection closed by its last owner");
    pairing::ended(s);
    crate::tap::over(id, s);
    bridge::native_rdma::closing(id, s, fd);
    let channel = take_leave(id, s, fd);
    pairing::forget(s);
    fork_safe::forget(s);
    // Calls that go on find that it is not theirs.
    s.generation.fetch_add(1, Ordering::AcqRel);
    // Threads that are inside with the locks finish first; those that sleep are found by their
    // pins. Only then may the channel be another connection's, in which they would write otherwise.
    s.receive.wait_for_holder();
    s.send.wait_for_holder();
    if let Some(channel) = channel {
        channel.close();
    }
    conn_counters::flush(s);
    crate::live_segment::leave(s);
    let busy = s.pins.load(Ordering::Acquire) != 0
        || s.inside_receive.load(Ordering::Acquire) != 0
        || s.inside_send.load(Ordering::Acquire) != 0
        || s.inside_wait.load(Ordering::Acquire) != 0;
    if !busy {
        fork_group::give_back(id);
    }
}

/// The peer hears of the end, by TCP or by the channel, which this side then has no more.
fn take_leave(id: SlotId, s: &Slot, fd: RawFd) -> Option<link::Parted> {
    if link::has_channel(s) {
        residual::residual_or_reset(id, s, fd);
        if unread_at_close(s) {
            // The kernel resets a connection that is closed with unread bytes, and so do we. A
            // reset drops what was not sent.
            kernel::push(fd);
            kernel::reset_on_close(fd);
            bridge::reset(s, false);
        } else if s.has(flag::BRIDGED)
            && let Some(seconds) = kernel::linger(fd)
        {
            // In shared memory what was sent is the peer's already, and a reset is the kernel's.
            match seconds {
                0 => bridge::reset(s, true),
                _ => bridge::linger(s, seconds.unsigned_abs()),
            }
        }
        return link::part(s);
    }
    if s.has(flag::RSOCKET) && !s.has(flag::DATAGRAM) {
        // The peer must see the end of the connection before the end of the pairing.
        kernel::shut_sending(fd);
    } else if verdict::is_cut_short(s) {
        kernel::reset_on_close(fd);
    }
    None
}

fn unread_at_close(s: &Slot) -> bool {
    // Acknowledged: nothing was read yet, and there may be something behind a switch offset that no
    // call has looked at. (What is before the switch offset is unread in TCP, of which the kernel
    // knows.)
    if !matches!(s.receive_mode(), ReceiveMode::Device | ReceiveMode::Acknowledged) {
        return false;
    }
    let Some(ends) = link::ends(s) else { return false };
    bridge::deferred::out_of(s);
    RecvGuard::take(s, &ends).is_some_and(|guard| unread::in_channel(guard.view(), &ends) > 0)
}

/// pthread_atfork, before: the child is entered as an owner.
pub fn fork_prepare() {
    pairing::fork_prepare();
    heirs::fork_prepare();
    fd_stash::open();
    arenas::fork_prepare();
    fork_group::fork_prepare();
    bridge::fork_prepare();
}

/// pthread_atfork, in the parent.
pub fn fork_parent() {
    fork_group::fork_parent();
    pairing::fork_parent();
    bridge::shared();
}

/// pthread_atfork, in the child: what was the parent's alone is forgotten.
pub fn fork_child() {
    thread::forked();
    sys::forked();
    fork_group::fork_child();
    pairing::fork_child();
    identity::forked();
    arenas::fork_child();
    waker::forked();
    direct_placement::forked();
    crate::live_segment::forked();
    crate::stats::forked();
    crate::log::forked();
    crate::tap::forked();
    close_while_blocked::fork_child();
}

/// fork(2) failed.
pub fn fork_failed() {
    fork_group::fork_failed();
}

/// At exit: what peers asked for by TCP is sent while there is a process to send it.
pub fn leaving() {
    fork_group::each_local(|id, s| {
        if !fork_group::shared(id) {
            pairing::ended(s);
        }
        if link::has_channel(s) && !s.has(flag::RESIDUAL_SENT) {
            let fd = fork_group::descriptor(id);
            // Siblings go on with what is left.
            if fork_group::shared(id) {
                residual::finish_residual(id, s, fd);
            } else {
                residual::residual_or_reset(id, s, fd);
            }
        } else if verdict::is_cut_short(s) && !fork_group::shared(id) {
            kernel::reset_on_close(fork_group::descriptor(id));
        }
    });
}

/// Before this process ends: as [`give_up_pairings`], and its other threads begin none any more.
pub fn ending() {
    if policy::strict() {
        pairing::fork_prepare();
        give_up_pairings();
    }
}

/// Unfinished pairings of connections with which siblings go on, where there is no TCP to stay on.
/// The peer may have sent its hello-ack to this process, and would believe for good that this end
/// has read it.
fn give_up_pairings() {
    if !policy::strict() {
        return;
    }
    fork_group::each_local(|id, s| {
        if s.has(flag::STRICT)
            && phase::is_here(s)
            && matches!(s.phase(), Phase::Offered | Phase::Greeted | Phase::HelloSent)
            && fork_group::shared(id)
        {
            heirs::hand_over(id, s, fork_group::descriptor(id));
        }
    });
}

/// Before exec in a process of its own.
pub fn before_exec() {
    give_up_pairings();
    bridge::drain(false);
    crate::live_segment::ending(true);
    fork_group::leave_all(|_| false);
}

/// Before `exec` of a program with this library: whether it could go on with what `fd` stands for.
/// If so, a pairing that only this program could finish has begun again.
#[must_use]
pub fn heritable(id: SlotId, fd: RawFd) -> bool {
    let Some(s) = fork_group::slot(id) else { return false };
    if s.has(flag::RSOCKET | flag::BROKEN) {
        return false;
    }
    // A bridge ends with the program that owns it.
    let bridge = s.bridge.load(Ordering::Acquire) != 0
        || s.has(flag::BRIDGED | flag::BRIDGE_LISTENS | flag::PENDING);
    let pid = s.bridge_pid.load(Ordering::Relaxed);
    if bridge && (pid == sys::pid() || !living::process(pid)) || !link::outlasts_exec(s) {
        return false;
    }
    heirs::before_exec(id, s, fd);
    true
}

/// Before `exec`: what `kept` says yes to is passed on to the new program, the rest given up.
pub fn pass_on(kept: &dyn Fn(SlotId) -> bool) {
    give_up_pairings();
    bridge::drain(false);
    crate::live_segment::ending(true);
    fork_group::leave_all(kept);
}

/// exec failed.
pub fn exec_failed() {
    fork_group::rejoin_all();
    crate::live_segment::ending(false);
}
