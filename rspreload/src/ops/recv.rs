//! Bytes in: `read`, `recv` and their relatives.

use core::ffi::c_int;

use libc::{iovec, ssize_t, timespec};
use rsocket_edge::conn::slot::SlotId;
use rsocket_edge::message::{List, Message};
use rsocket_edge::messages::Messages;
use rsocket_edge::socket;
use rsocket_edge::socket::{Route, inq, stamps};
use rsocket_host::failure::Failure;
use rsocket_host::given::{Answer, Place};
use rsocket_host::probe::present;
use rsocket_host::reason::Reason;
use rsocket_host::sys;

use super::messages::saw_each;
use super::passing::came;
use crate::edge::{self, count, fail, keeping_errno, small};
use crate::shadow;

/// Flags that are no receive of the stream: reports, and the urgent byte. TCP looks at five others
/// (`MSG_PEEK`, `MSG_WAITALL`, `MSG_DONTWAIT`, `MSG_TRUNC`, `MSG_CMSG_CLOEXEC`), and ignores the
/// rest (recv(2)).
const OTHER_QUEUES: c_int = libc::MSG_ERRQUEUE | libc::MSG_OOB;

/// [`socket::enter_receive`] for a call that only the kernel can do.
pub(crate) fn enter_kernel(slot: SlotId, fd: c_int) -> Route {
    match socket::enter_receive(slot, fd) {
        Route::Device => back_to_kernel(slot, fd),
        route => route,
    }
}

#[cold]
fn back_to_kernel(slot: SlotId, fd: c_int) -> Route {
    socket::refuse(slot, fd, Reason::OddUse);
    socket::enter_receive(slot, fd)
}

/// What libc has just received may be the beginning by which an end on another host knows us.
#[inline]
fn saw(slot: SlotId, to: &[iovec], flags: c_int, r: ssize_t) {
    if socket::watching()
        && flags & (libc::MSG_PEEK | libc::MSG_TRUNC) == 0
        && let Ok(n @ 1..) = usize::try_from(r)
    {
        socket::fingerprint_bytes(slot, true, to, n);
    }
}

/// One receiving call: `real` is the pass-through.
#[inline]
pub(crate) fn receive(
    slot: SlotId,
    fd: c_int,
    to: &[iovec],
    flags: c_int,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    if flags & OTHER_QUEUES == 0
        && let Some(n) = socket::receive_at_once(slot, to, flags)
    {
        return n.cast_signed();
    }
    if flags & OTHER_QUEUES != 0 {
        // Reads reports, or the urgent byte, which is the kernel's business: a peer that sends one
        // has gone back to TCP before. Not bytes of the stream, and never sleeps.
        return real();
    }
    match socket::enter_receive(slot, fd) {
        Route::Kernel => {
            let r = real();
            socket::leave_receive(slot, fd, r);
            saw(slot, to, flags, r);
            r
        }
        Route::Device => count(socket::receive_patiently(slot, fd, to, flags)),
    }
}

/// `read` is `recv` without flags (or with the one that does not wait), but for nothing: a read of
/// no bytes never sleeps.
#[inline]
pub(crate) fn read_like(
    slot: SlotId,
    fd: c_int,
    to: &[iovec],
    flags: c_int,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    if edge::length(to) == 0 {
        return real();
    }
    receive(slot, fd, to, flags, real)
}

/// After a stream has given bytes, `recvfrom` says that there was no address to give. It says so as
/// the kernel does, and with the kernel's errors, when the bytes are taken.
pub(crate) fn no_address(r: ssize_t, from: Answer<'_>) -> ssize_t {
    let (address, length) = from.as_ptrs();
    if r < 0 || address.is_null() {
        return r;
    }
    if !present(length, 1) {
        return fail(Failure::BadAddress) as ssize_t;
    }
    let room = from.length().get().unwrap_or(0);
    from.no_name();
    if room.cast_signed() < 0 { fail(Failure::Invalid) as ssize_t } else { r }
}

/// What the kernel has to say beside the bytes is asked for, in the first message at least.
fn has_room(slot: SlotId, fd: c_int, message: Message<'_>) {
    if message.has_control() {
        keeping_errno(|| stamps::wanted(slot, fd));
    }
}

/// `recvmsg` on the device: a stream gives no address, no control data and no flags. `to` is the
/// message's own list.
fn message_from_device(
    slot: SlotId,
    fd: c_int,
    message: Message<'_>,
    to: &[iovec],
    flags: c_int,
) -> Result<usize, Failure> {
    let n = socket::receive(slot, fd, to, flags)?;
    // The kernel gives this one back as it came (recvmsg(2)).
    let room = message.finish_nameless(flags & libc::MSG_CMSG_CLOEXEC);
    if inq::is_told(slot) {
        message.tell_unread(room, inq::hint(slot, fd));
    }
    Ok(n)
}

/// `TCP_INQ` of a message that the kernel gave: what the channel has behind TCP's bytes can be
/// read, too.
fn tell_of_both(slot: SlotId, fd: c_int, message: Message<'_>) {
    if let Some(unread) = inq::beside_tcp(slot, fd) {
        message.correct_unread(unread);
    }
}

/// `recvmmsg` on the device, message by message as the kernel does it. The call looks at the time
/// after each message only, and leaves an error after the first message to the next call.
fn messages_from_device(
    slot: SlotId,
    fd: c_int,
    list: Messages<'_>,
    flags: c_int,
    timeout: Place<'_, timespec>,
) -> Result<usize, Failure> {
    let time = edge::span(timeout.to_read())?;
    let end =
        time.map(|t| sys::now_ns().saturating_add(u64::try_from(t.as_nanos()).unwrap_or(u64::MAX)));
    let after_one = if flags & libc::MSG_WAITFORONE != 0 { libc::MSG_DONTWAIT } else { 0 };
    let first = flags & !libc::MSG_WAITFORONE;
    // Before the first message, bytes or not.
    socket::pending_error(slot, fd)?;
    let mut done = 0;
    while done < list.len() {
        let flags = if done > 0 { first | after_one } else { first };
        match entry_from_device(slot, fd, (list, done), flags) {
            Ok(()) => done += 1,
            Err(e) if done == 0 => return Err(e.of_call()),
            Err(Unreceived::Header(_)) => return Ok(done),
            Err(Unreceived::Stream(e)) => {
                socket::leave_error(slot, e);
                return Ok(done);
            }
        }
        if end.is_some_and(|end| is_over(end, timeout)) {
            break;
        }
    }
    Ok(done)
}

/// Why a message of a list was not received: for what the caller gave, or for the connection.
#[derive(Clone, Copy)]
enum Unreceived {
    Header(Failure),
    Stream(Failure),
}

impl Unreceived {
    const fn of_call(self) -> Failure {
        match self {
            Self::Header(e) | Self::Stream(e) => e,
        }
    }
}

/// One message of a list: the one of this number.
fn entry_from_device(
    slot: SlotId,
    fd: c_int,
    (list, i): (Messages<'_>, usize),
    flags: c_int,
) -> Result<(), Unreceived> {
    let message = list.get(i).filter(|_| list.is_present(i));
    let Some(message) = message else { return Err(Unreceived::Header(Failure::BadAddress)) };
    let Some(to) = message.pieces() else {
        return Err(Unreceived::Header(message.why_no_pieces()));
    };
    let n = message_from_device(slot, fd, message, to, flags).map_err(Unreceived::Stream)?;
    list.set_moved(i, n);
    Ok(())
}

/// Writes how much time is left, as the kernel does, and says whether there is none.
fn is_over(end: u64, timeout: Place<'_, timespec>) -> bool {
    let left = end.saturating_sub(sys::now_ns());
    timeout.set(timespec {
        tv_sec: i64::try_from(left / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: (left % 1_000_000_000) as i64,
    });
    left == 0
}

/// `read` of a descriptor of whatever kind.
#[inline]
pub(crate) fn read(fd: c_int, to: &[iovec], real: impl FnOnce() -> ssize_t) -> ssize_t {
    match shadow::connection(fd) {
        Some(slot) => read_like(slot, fd, to, 0, real),
        None => real(),
    }
}

/// `readv`.
pub(crate) fn readv(
    slot: SlotId,
    fd: c_int,
    list: List<'_>,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    match list.taken() {
        Some(to) => read_like(slot, fd, to, 0, real),
        None => real(),
    }
}

/// `recvmsg` into a header that is somewhere.
pub(crate) fn recvmsg(
    fd: c_int,
    message: Message<'_>,
    flags: c_int,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    // Of a socket that is none of ours nothing is read before the kernel has found that it is
    // there.
    let Some(slot) = shadow::connection(fd) else {
        let r = real();
        if r >= 0 && message.has_control() {
            keeping_errno(|| came(message, flags));
        }
        return r;
    };
    // The sign bit is the kernel's own, for programs of 32 bits: it refuses the call.
    if flags & OTHER_QUEUES != 0 || flags < 0 || !message.is_present() {
        return real();
    }
    let Some(to) = message.pieces() else { return real() };
    has_room(slot, fd, message);
    match socket::enter_receive(slot, fd) {
        Route::Kernel => {
            let r = real();
            socket::leave_receive(slot, fd, r);
            saw(slot, to, flags, r);
            if r >= 0 && inq::is_told(slot) {
                keeping_errno(|| tell_of_both(slot, fd, message));
            }
            r
        }
        Route::Device => count(message_from_device(slot, fd, message, to, flags)),
    }
}

/// `recvmmsg` into a list that is somewhere.
pub(crate) fn recvmmsg(
    fd: c_int,
    list: Messages<'_>,
    flags: c_int,
    timeout: Place<'_, timespec>,
    real: impl FnOnce() -> c_int,
) -> c_int {
    let Some(slot) = shadow::connection(fd) else {
        let r = real();
        let brought = (0..usize::try_from(r).unwrap_or(0)).filter_map(|i| list.get(i));
        keeping_errno(|| brought.for_each(|message| came(message, flags)));
        return r;
    };
    let absent = !list.is_empty() && !list.is_present(0);
    if flags & OTHER_QUEUES != 0 || flags < 0 || absent {
        return real();
    }
    if let Some(first) = list.get(0) {
        has_room(slot, fd, first);
    }
    if socket::enter_receive(slot, fd) == Route::Device {
        return small(messages_from_device(slot, fd, list, flags, timeout));
    }
    let r = real();
    socket::leave_receive(slot, fd, list.total(r));
    saw_each(slot, true, list, r, flags);
    // What the program goes by is the last one.
    if inq::is_told(slot)
        && let Some(last) = usize::try_from(r).ok().and_then(|n| list.get(n.checked_sub(1)?))
    {
        keeping_errno(|| tell_of_both(slot, fd, last));
    }
    r
}
