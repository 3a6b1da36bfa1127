//! TCP Fast Open of a client (tcp(7)). `MSG_FASTOPEN` is a connect that no `connect` hook sees.
//! `TCP_FASTOPEN_CONNECT` puts the first packet off until something is sent.
//!
//! The kernel does both, and such a connection attaches later like any other. Where no byte may
//! travel by TCP it is connect(2), and a send after it. Entry points: [`transmit`], [`list`];
//! [`by_connect`].

use core::ffi::c_int;

use libc::{iovec, ssize_t};
use rsocket_edge::conn::slot::SlotId;
use rsocket_edge::messages::Messages;
use rsocket_edge::socket;
use rsocket_edge::socket::Route;
use rsocket_host::facts::kernel;
use rsocket_host::failure::Failure;
use rsocket_host::given::Bytes;

use super::first_packet::no_early_bytes;
use super::messages::saw_each;
use super::name;
use crate::edge::{fail, keeping_errno, sent};

/// Whether the call asks for it, and for nothing beside it that only the kernel can do.
pub(crate) const fn asks(flags: c_int) -> bool {
    flags & libc::MSG_FASTOPEN != 0 && flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY) == 0
}

/// Where a connection's first bytes may not go with TCP's first packet: what connect(2) says, which
/// was called instead, by `connect`. `None` where the call is to be done as it is.
pub(crate) fn by_connect(
    slot: SlotId,
    fd: c_int,
    to: Bytes<'_>,
    connect: impl FnOnce(Bytes<'_>) -> c_int,
) -> Option<c_int> {
    if !no_early_bytes() || to.as_ptr().is_null() || !socket::is_new(slot) {
        return None;
    }
    let on: c_int = 1;
    let value = ((&raw const on).addr(), size_of::<c_int>() as u32);
    let switched_off =
        || kernel::would_refuse(fd, libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, value);
    if name::dissolves(to) || keeping_errno(switched_off) {
        return Some(fail(Failure::Unsupported));
    }
    Some(name::connect(slot, fd, to, || connect(to)))
}

/// One call that [`asks`]; `real` does it.
pub(crate) fn transmit(
    slot: SlotId,
    fd: c_int,
    from: &[iovec],
    flags: c_int,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    if socket::enter_send(slot, fd) == Route::Device {
        let flags = flags & !libc::MSG_FASTOPEN;
        return match once_more(fd) {
            Ok(()) => sent(socket::send_patiently(slot, fd, from, flags), flags),
            Err(e) => fail(e) as ssize_t,
        };
    }
    let r = connecting(slot, fd, real, |r| r);
    if socket::watching()
        && let Ok(n @ 1..) = usize::try_from(r)
    {
        socket::fingerprint_bytes(slot, false, from, n);
    }
    r
}

/// The same of `sendmmsg`. On a device: whether the first message may be sent, by which the program
/// has been told that there is a connection.
pub(crate) fn list(
    slot: SlotId,
    fd: c_int,
    list: Messages<'_>,
    real: impl FnOnce() -> c_int,
) -> Result<c_int, Failure> {
    if socket::enter_send(slot, fd) == Route::Device {
        return once_more(fd).map(|()| 0);
    }
    let r = connecting(slot, fd, real, |r| list.total(r));
    saw_each(slot, false, list, r, 0);
    Ok(r)
}

/// The kernel's call, after [`socket::enter_send`], and what it means for the connection; `bytes`
/// is how many of them its result stands for.
fn connecting<R: Copy + Default + PartialOrd>(
    slot: SlotId,
    fd: c_int,
    real: impl FnOnce() -> R,
    bytes: impl FnOnce(R) -> isize,
) -> R {
    let new = socket::is_new(slot);
    if new {
        socket::connecting(slot, fd);
    }
    let r = real();
    let result = if r < R::default() { Err(Failure::last()) } else { Ok(()) };
    let refused = matches!(
        result,
        Err(Failure::Refused | Failure::TimedOut | Failure::Unreachable | Failure::NetUnreachable)
    );
    if new || refused {
        keeping_errno(|| socket::connected(slot, fd, result));
    }
    socket::leave_send(slot, fd, bytes(r));
    r
}

/// What the kernel says to a call that asks for a connection where there is one already. If that
/// one was made without waiting, the kernel says so only the second time, and sends the first. In a
/// sandbox it is not asked.
fn once_more(fd: c_int) -> Result<(), Failure> {
    kernel::send(fd, &[], libc::MSG_FASTOPEN).map(|_| ())
}
