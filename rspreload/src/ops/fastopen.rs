//! TCP Fast Open of a client (tcp(7)). `MSG_FASTOPEN` is a connect that no `connect` hook sees.
//! `TCP_FASTOPEN_CONNECT` puts the first packet off until something is sent.
//!
//! The kernel does both, and such a connection attaches later like any other. Where no byte may
//! travel by TCP it is connect(2), and a send after it. Entry points: [`transmit`], [`list`];
//! [`by_connect`].

use core::ffi::c_int;

use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, ssize_t};
use rsocket_edge::conn::slot::SlotId;
use rsocket_edge::socket;
use rsocket_edge::socket::Route;
use rsocket_host::facts::kernel;
use rsocket_host::failure::Failure;

use super::first_packet::no_early_bytes;
use super::messages::{saw_each, total};
use super::name;
use crate::edge::{fail, keeping_errno, sent};
use crate::real;

/// Whether the call asks for it, and for nothing beside it that only the kernel can do.
pub(crate) const fn asks(flags: c_int) -> bool {
    flags & libc::MSG_FASTOPEN != 0 && flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY) == 0
}

/// Where a connection's first bytes may not go with TCP's first packet: what connect(2) says, which
/// was called instead. `None` where the call is to be done as it is.
///
/// # Safety
/// `to` is null or points to `length` bytes.
pub(crate) unsafe fn by_connect(
    slot: SlotId,
    fd: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> Option<c_int> {
    if !no_early_bytes() || to.is_null() || !socket::is_new(slot) {
        return None;
    }
    let on: c_int = 1;
    let value = ((&raw const on).addr(), size_of::<c_int>() as u32);
    let switched_off =
        || kernel::would_refuse(fd, libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, value);
    // SAFETY: the caller's promise.
    if unsafe { name::dissolves(to, length) } || keeping_errno(switched_off) {
        return Some(fail(Failure::Unsupported));
    }
    // SAFETY: as above; the contract of connect(2) is the caller's.
    Some(unsafe { name::connect(slot, fd, to, length) })
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
///
/// # Safety
/// The list has as many headers as `real` says that it has sent.
pub(crate) unsafe fn list(
    slot: SlotId,
    fd: c_int,
    list: *mut mmsghdr,
    real: impl FnOnce() -> c_int,
) -> Result<c_int, Failure> {
    if socket::enter_send(slot, fd) == Route::Device {
        return once_more(fd).map(|()| 0);
    }
    // SAFETY: the caller's promise.
    let r = connecting(slot, fd, real, |r| unsafe { total(r, list) });
    // SAFETY: as above.
    unsafe { saw_each(slot, false, list, r, 0) };
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
/// one was made without waiting, the kernel says so only the second time, and sends the first.
fn once_more(fd: c_int) -> Result<(), Failure> {
    // SAFETY: nothing is sent, and no address is read.
    let r = unsafe {
        // SAFETY: an all-zero header is a valid empty one.
        let nothing: msghdr = core::mem::zeroed();
        real::sendmsg(
            fd,
            &raw const nothing,
            libc::MSG_FASTOPEN | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
    if r < 0 { Err(Failure::last()) } else { Ok(()) }
}
