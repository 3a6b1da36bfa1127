//! Bytes out: `write`, `send` and their relatives.

use core::ffi::c_int;

use libc::{iovec, ssize_t};
use rsocket_edge::conn::slot::SlotId;
use rsocket_edge::message::{List, Message};
use rsocket_edge::messages::Messages;
use rsocket_edge::socket;
use rsocket_edge::socket::options::heeded;
use rsocket_edge::socket::{Route, urgent};
use rsocket_host::failure::Failure;
use rsocket_host::given::Bytes;
use rsocket_host::reason::Reason;
use rsocket_host::sys::vectors::Cursor;

use super::fastopen;
use super::messages::saw_each;
use super::passing::{before_passing, not_passed};
use crate::edge::{self, fail, keeping_errno, readable, sent};
use crate::shadow;

/// Flags that need the kernel: urgent data, a connect that no `connect` hook sees, buffers that are
/// read after the call. TCP looks at `MSG_DONTWAIT`, `MSG_NOSIGNAL`, `MSG_MORE` and `MSG_EOR`
/// beside them, and ignores the rest (send(2)).
const KERNELS: c_int = libc::MSG_OOB | libc::MSG_FASTOPEN | libc::MSG_ZEROCOPY;

/// How a call sends.
#[derive(Clone, Copy)]
pub(crate) struct How {
    /// `MSG_*`.
    pub(crate) flags: c_int,
    /// It asks for what only the kernel does.
    pub(crate) odd: bool,
}

impl How {
    /// In a way that a device knows, but for the flags.
    pub(crate) const fn by(flags: c_int) -> Self {
        Self { flags, odd: false }
    }
}

/// The route that this call takes, with [`socket::enter_send`] done if it is the kernel's. Calls
/// that the device cannot do take the connection back to TCP first.
fn enter(slot: SlotId, fd: c_int, how: How) -> Result<Route, Failure> {
    let How { flags, odd } = how;
    if flags & libc::MSG_OOB != 0 {
        if urgent::is_refused(slot) {
            return Err(urgent::refused(slot, fd));
        }
        socket::refuse_sending(slot, fd, Reason::Urgent);
    }
    if flags & libc::MSG_ZEROCOPY != 0 {
        // Buffers that the kernel reads after the call.
        socket::refuse_sending(slot, fd, Reason::OddUse);
    }
    match socket::enter_send(slot, fd) {
        Route::Device if odd || flags & KERNELS != 0 => {
            back_to_kernel(slot, fd, flags).map(|()| Route::Kernel)
        }
        route => Ok(route),
    }
}

/// [`socket::enter_send`] for a call that only the kernel can do.
pub(crate) fn enter_kernel(slot: SlotId, fd: c_int) -> Result<(), Failure> {
    match socket::enter_send(slot, fd) {
        Route::Kernel => Ok(()),
        Route::Device => back_to_kernel(slot, fd, 0),
    }
}

#[cold]
fn back_to_kernel(slot: SlotId, fd: c_int, flags: c_int) -> Result<(), Failure> {
    socket::refuse_sending(slot, fd, Reason::OddUse);
    // The peer may be on its way back, too, and want its unread bytes first. It may want them since
    // before, since our first look, or, when another thread has just sent them, no more. Each of
    // these happens once.
    for _ in 0..3 {
        if socket::enter_send(slot, fd) == Route::Kernel {
            return Ok(());
        }
        socket::send_residual(slot, fd, flags)?;
    }
    Err(urgent::refused(slot, fd))
}

/// Before a call that has an address, and may ask for TCP Fast Open: its flags, or its result. That
/// is what connect(2) has said instead of it, which `connect` passes on, or `EFAULT`. (A connected
/// stream ignores an address, but the kernel reads it first.)
#[inline]
pub(crate) fn connect_first(
    slot: SlotId,
    fd: c_int,
    flags: c_int,
    to: Bytes<'_>,
    connect: impl FnOnce(Bytes<'_>) -> c_int,
) -> Result<c_int, c_int> {
    if to.are_nowhere() {
        return Err(fail(Failure::BadAddress));
    }
    if !fastopen::asks(flags) {
        return Ok(flags);
    }
    match fastopen::by_connect(slot, fd, to, connect) {
        None => Ok(flags),
        Some(0) => Ok(flags & !libc::MSG_FASTOPEN),
        Some(r) => Err(r),
    }
}

/// One sending call: `real` is the pass-through.
#[inline]
pub(crate) fn transmit(
    slot: SlotId,
    fd: c_int,
    from: &[iovec],
    how: How,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let flags = heeded(fd, how.flags);
    if !how.odd
        && flags & KERNELS == 0
        && let Some(n) = socket::send_at_once(slot, from)
    {
        return n.cast_signed();
    }
    if fastopen::asks(flags) {
        return fastopen::transmit(slot, fd, from, flags, real);
    }
    match enter(slot, fd, How { flags, ..how }) {
        Ok(Route::Kernel) => {
            let r = real();
            socket::leave_send(slot, fd, r);
            if socket::watching()
                && let Ok(n @ 1..) = usize::try_from(r)
            {
                socket::fingerprint_bytes(slot, false, from, n);
            }
            r
        }
        Ok(Route::Device) => sent(socket::send_patiently(slot, fd, from, flags), flags),
        Err(e) => fail(e) as ssize_t,
    }
}

/// `sendmmsg` on the device, message by message. The call leaves two things to the next call: an
/// error after the first message, and what follows a message that has not gone whole.
fn messages_to_device(slot: SlotId, fd: c_int, list: Messages<'_>, flags: c_int) -> c_int {
    let mut done: c_int = 0;
    for i in 0..list.len() {
        let message = list.get(i).filter(|m| list.is_present(i) && m.has_name_or_none());
        let Some(message) = message else {
            return if done > 0 { done } else { fail(Failure::BadAddress) };
        };
        let from = message.pieces();
        let result = match from {
            Some(from) => socket::send(slot, fd, from, flags),
            None => Err(message.why_no_pieces()),
        };
        let Ok(n) = usize::try_from(sent(result, flags)) else {
            return if done > 0 { done } else { -1 };
        };
        list.set_moved(i, n);
        done += 1;
        if from.is_some_and(|from| Cursor::new(from).left() > n) {
            break;
        }
    }
    done
}

/// `write` to a descriptor of whatever kind.
#[inline]
pub(crate) fn write(fd: c_int, from: &[iovec], real: impl FnOnce() -> ssize_t) -> ssize_t {
    match shadow::connection(fd) {
        Some(slot) => transmit(slot, fd, from, How::by(0), real),
        None => real(),
    }
}

/// `writev`.
pub(crate) fn writev(
    slot: SlotId,
    fd: c_int,
    list: List<'_>,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    match list.taken() {
        // Of nothing the file layer itself says that it was written; the socket is not asked.
        Some(from) if edge::length(from) > 0 => transmit(slot, fd, from, How::by(0), real),
        _ => real(),
    }
}

/// `sendmsg`; `connect` passes on the call of that name.
pub(crate) fn sendmsg(
    fd: c_int,
    message: Message<'_>,
    flags: c_int,
    connect: impl FnOnce(Bytes<'_>) -> c_int,
    real: impl FnOnce(c_int) -> ssize_t,
) -> ssize_t {
    let (Some(slot), false) = (shadow::connection(fd), message.is_nowhere()) else {
        return send_elsewhere(message, || real(flags));
    };
    // The sign bit is the kernel's own, for programs of 32 bits: it refuses the call.
    let to = if flags < 0 || !message.is_present() { None } else { message.name() };
    let Some(to) = to else { return real(flags) };
    let flags = match connect_first(slot, fd, flags, to, connect) {
        Ok(flags) => flags,
        Err(r) => return r as ssize_t,
    };
    let odd = message.has_control();
    match message.pieces() {
        Some(from) => transmit(slot, fd, from, How { flags, odd }, || real(flags)),
        None => real(flags),
    }
}

/// A message to what is no connection of ours, with what it carries. Its header may be nowhere.
fn send_elsewhere(message: Message<'_>, real: impl FnOnce() -> ssize_t) -> ssize_t {
    if !readable(message.as_ptr(), size_of::<libc::msghdr>()) || !message.has_control() {
        return real();
    }
    keeping_errno(|| before_passing(message));
    let r = real();
    if r < 0 {
        keeping_errno(|| not_passed(message));
    }
    r
}

/// `sendmmsg`; `connect` passes on the call of that name.
pub(crate) fn sendmmsg(
    fd: c_int,
    list: Messages<'_>,
    flags: c_int,
    connect: impl FnOnce(Bytes<'_>) -> c_int,
    real: impl FnOnce(c_int) -> c_int,
) -> c_int {
    if list.is_nowhere() || flags < 0 {
        return real(flags);
    }
    // The kernel sends no more than this in one call.
    let list = list.first(1024);
    let Some(slot) = shadow::connection(fd) else {
        return send_all_elsewhere(list, || real(flags));
    };
    let first = if list.is_present(0) { list.get(0) } else { None };
    let Some(to) = first.and_then(Message::name) else { return real(flags) };
    match connect_first(slot, fd, flags, to, connect) {
        // A second one that asks would find a connection.
        Ok(less) if less != flags => messages_to_device(slot, fd, list.first(1), less),
        Ok(flags) => transmit_list(slot, fd, list, flags, || real(flags)),
        Err(r) => r,
    }
}

/// Messages to what is no connection of ours, with what they carry.
fn send_all_elsewhere(list: Messages<'_>, real: impl FnOnce() -> c_int) -> c_int {
    if !list.is_readable() || !list.any_control() {
        return real();
    }
    let each = |from: usize, f: fn(Message<'_>)| {
        let messages = (from..list.len()).filter_map(|i| list.get(i));
        keeping_errno(|| messages.for_each(f));
    };
    each(0, before_passing);
    let r = real();
    each(usize::try_from(r).unwrap_or(0), not_passed);
    r
}

/// A list of messages to a connection; `real` is the pass-through.
fn transmit_list(
    slot: SlotId,
    fd: c_int,
    list: Messages<'_>,
    flags: c_int,
    real: impl FnOnce() -> c_int,
) -> c_int {
    let heeded = heeded(fd, flags);
    if fastopen::asks(heeded) {
        return match fastopen::list(slot, fd, list, real) {
            // As above.
            Ok(0) => messages_to_device(slot, fd, list.first(1), flags & !libc::MSG_FASTOPEN),
            Ok(r) => r,
            Err(e) => fail(e),
        };
    }
    match enter(slot, fd, How { flags: heeded, odd: list.any_control() }) {
        Ok(Route::Kernel) => {
            let r = real();
            socket::leave_send(slot, fd, list.total(r));
            saw_each(slot, false, list, r, 0);
            r
        }
        Ok(Route::Device) => messages_to_device(slot, fd, list, flags),
        Err(e) => fail(e),
    }
}
