//! Bytes out: `write`, `send` and their relatives.

use core::ffi::{c_int, c_uint, c_void};

use libc::{iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use rsocket_edge::conn::slot::SlotId;
use rsocket_edge::socket;
use rsocket_edge::socket::options::heeded;
use rsocket_edge::socket::{Route, urgent};
use rsocket_host::failure::Failure;
use rsocket_host::probe::present;
use rsocket_host::reason::Reason;
use rsocket_host::sys::vectors::Cursor;

use super::fastopen;
use super::messages::{bad_list, saw_each, total};
use super::passing::{before_passing, not_passed};
use crate::edge::{self, fail, iovecs, keeping_errno, nowhere, one, readable, sent};
use crate::{real, shadow};

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

/// Before a call that may ask for TCP Fast Open: its flags, or what connect(2) has said instead of
/// it.
///
/// # Safety
/// The address is null or has as many bytes as is said beside it.
#[inline]
pub(crate) unsafe fn connect_first(
    slot: SlotId,
    fd: c_int,
    flags: c_int,
    to: (*const sockaddr, socklen_t),
) -> Result<c_int, c_int> {
    if !fastopen::asks(flags) {
        return Ok(flags);
    }
    // SAFETY: the caller's promise.
    match unsafe { fastopen::by_connect(slot, fd, to.0, to.1) } {
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

/// Whether a message carries control data that may pass a connection of ours away. The header may
/// be nowhere: the socket is none of ours.
#[inline]
fn may_pass(message: *const msghdr) -> bool {
    // SAFETY: the header can be read, which was asked just before; all of it is integers and
    // pointers.
    readable(message, size_of::<msghdr>()) && unsafe { (*message).msg_controllen } != 0
}

/// `sendmmsg` on the device, message by message. The call leaves two things to the next call: an
/// error after the first message, and what follows a message that has not gone whole.
///
/// # Safety
/// `list` points to `length` valid headers.
unsafe fn messages_to_device(
    slot: SlotId,
    fd: c_int,
    list: *mut mmsghdr,
    length: usize,
    flags: c_int,
) -> c_int {
    let mut done: c_int = 0;
    for i in 0..length {
        if !present(list.wrapping_add(i), 1) {
            return if done > 0 { done } else { fail(Failure::BadAddress) };
        }
        // SAFETY: below `length`; the scatter list in it is valid too.
        let (entry, from) = unsafe {
            let entry = list.add(i);
            (entry, iovecs((*entry).msg_hdr.msg_iov, (*entry).msg_hdr.msg_iovlen))
        };
        let result = match from {
            Some(from) => socket::send(slot, fd, from, flags),
            // SAFETY: as above.
            None => Err(bad_list(unsafe { &(*entry).msg_hdr })),
        };
        let n = sent(result, flags);
        let Ok(n) = u32::try_from(n) else { return if done > 0 { done } else { -1 } };
        // SAFETY: as above.
        unsafe { (*entry).msg_len = n };
        done += 1;
        if from.is_some_and(|from| Cursor::new(from).left() > n as usize) {
            break;
        }
    }
    done
}

/// Whether any of the headers carries control data.
///
/// # Safety
/// `list` points to `length` valid headers.
unsafe fn any_control(list: *const mmsghdr, length: usize) -> bool {
    // SAFETY: the caller's promise, and each was asked for before.
    (0..length)
        .take_while(|i| present(list.wrapping_add(*i), 1))
        .any(|i| unsafe { (*list.add(i)).msg_hdr.msg_controllen != 0 })
}

/// `write` to a descriptor of whatever kind.
///
/// # Safety
/// The contract of write(2).
pub(crate) unsafe fn write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t {
    // SAFETY: the caller's promise.
    let real = || unsafe { real::write(fd, buffer, length) };
    match shadow::connection(fd) {
        Some(slot) => transmit(slot, fd, &one(buffer, length), How::by(0), real),
        None => real(),
    }
}

/// `writev`.
///
/// # Safety
/// The contract of writev(2).
pub(crate) unsafe fn writev(slot: SlotId, fd: c_int, list: *const iovec, length: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    let real = || unsafe { real::writev(fd, list, length) };
    // SAFETY: as above.
    match usize::try_from(length).ok().and_then(|n| unsafe { iovecs(list, n) }) {
        // Of nothing the file layer itself says that it was written; the socket is not asked.
        Some(from) if edge::length(from) > 0 => transmit(slot, fd, from, How::by(0), real),
        _ => real(),
    }
}

/// `sendmsg`.
///
/// # Safety
/// The contract of sendmsg(2).
pub(crate) unsafe fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    let real = |flags| unsafe { real::sendmsg(fd, message, flags) };
    let (Some(slot), false) = (shadow::connection(fd), nowhere(message)) else {
        // SAFETY: as above.
        return unsafe { send_elsewhere(message, || real(flags)) };
    };
    // The sign bit is the kernel's own, for programs of 32 bits: it refuses the call.
    if flags < 0 || !present(message, 1) {
        return real(flags);
    }
    // SAFETY: the header is there, which was asked just before, and what it names is the caller's
    // promise.
    let (flags, odd, from) = unsafe {
        let to = ((*message).msg_name.cast_const().cast(), (*message).msg_namelen);
        let flags = match connect_first(slot, fd, flags, to) {
            Ok(flags) => flags,
            Err(r) => return r as ssize_t,
        };
        (flags, (*message).msg_controllen != 0, iovecs((*message).msg_iov, (*message).msg_iovlen))
    };
    match from {
        Some(from) => transmit(slot, fd, from, How { flags, odd }, || real(flags)),
        None => real(flags),
    }
}

/// A message to what is no connection of ours, with what it carries.
///
/// # Safety
/// As [`sendmsg`].
unsafe fn send_elsewhere(message: *const msghdr, real: impl FnOnce() -> ssize_t) -> ssize_t {
    if !may_pass(message) {
        return real();
    }
    // SAFETY: the caller's promise.
    keeping_errno(|| unsafe { before_passing(message) });
    let r = real();
    if r < 0 {
        // SAFETY: as above.
        keeping_errno(|| unsafe { not_passed(message) });
    }
    r
}

/// `sendmmsg`.
///
/// # Safety
/// The contract of sendmmsg(2).
pub(crate) unsafe fn sendmmsg(
    fd: c_int,
    list: *mut mmsghdr,
    length: c_uint,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let real = |flags| unsafe { real::sendmmsg(fd, list, length, flags) };
    if nowhere(list) || flags < 0 {
        return real(flags);
    }
    // The kernel sends no more than this in one call.
    let most = (length as usize).min(1024);
    let Some(slot) = shadow::connection(fd) else {
        // SAFETY: as above.
        return unsafe { send_all_elsewhere(list, most, || real(flags)) };
    };
    if !present(list, 1) {
        return real(flags);
    }
    // SAFETY: the first header is there, which was asked just before; the rest is the caller's
    // promise.
    unsafe {
        let to = &raw const (*list).msg_hdr;
        match connect_first(
            slot,
            fd,
            flags,
            ((*to).msg_name.cast_const().cast(), (*to).msg_namelen),
        ) {
            // A second one that asks would find a connection.
            Ok(less) if less != flags => messages_to_device(slot, fd, list, most.min(1), less),
            Ok(flags) => transmit_list(slot, fd, (list, most), flags, || real(flags)),
            Err(r) => r,
        }
    }
}

/// Messages to what is no connection of ours, with what they carry.
///
/// # Safety
/// As [`sendmmsg`].
unsafe fn send_all_elsewhere(
    list: *mut mmsghdr,
    most: usize,
    real: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the list can be read, which was asked just before.
    if !readable(list, most * size_of::<mmsghdr>()) || !unsafe { any_control(list, most) } {
        return real();
    }
    let each = |from: usize, f: unsafe fn(*const msghdr)| {
        // SAFETY: as above; what the headers name is the caller's promise.
        let one = |i| unsafe { f(&raw const (*list.add(i)).msg_hdr) };
        keeping_errno(|| (from..most).for_each(one));
    };
    each(0, before_passing);
    let r = real();
    each(usize::try_from(r).unwrap_or(0), not_passed);
    r
}

/// A list of messages to a connection; `real` is the pass-through.
///
/// # Safety
/// As [`sendmmsg`]; the list has `most` headers.
unsafe fn transmit_list(
    slot: SlotId,
    fd: c_int,
    (list, most): (*mut mmsghdr, usize),
    flags: c_int,
    real: impl FnOnce() -> c_int,
) -> c_int {
    let heeded = heeded(fd, flags);
    // SAFETY: the caller's promise, throughout.
    unsafe {
        if fastopen::asks(heeded) {
            return match fastopen::list(slot, fd, list, real) {
                // As above.
                Ok(0) => {
                    messages_to_device(slot, fd, list, most.min(1), flags & !libc::MSG_FASTOPEN)
                }
                Ok(r) => r,
                Err(e) => fail(e),
            };
        }
        match enter(slot, fd, How { flags: heeded, odd: any_control(list, most) }) {
            Ok(Route::Kernel) => {
                let r = real();
                socket::leave_send(slot, fd, total(r, list));
                saw_each(slot, false, list, r, 0);
                r
            }
            Ok(Route::Device) => messages_to_device(slot, fd, list, most, flags),
            Err(e) => fail(e),
        }
    }
}
