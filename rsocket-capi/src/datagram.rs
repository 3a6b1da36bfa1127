//! The calls that move bytes, for datagram sockets: one call is one datagram, with an address.

use core::ffi::c_int;

use libc::{iovec, msghdr, sockaddr, socklen_t};
use rsocket_edge::conn::slot::SlotId;
use rsocket_edge::datagram;
use rsocket_edge::datagram::receive::Received;
use rsocket_host::address::SockAddr;
use rsocket_host::failure::Failure;

use crate::table;

/// The datagram socket behind a descriptor, if it is one.
#[inline]
pub(crate) fn behind(fd: c_int) -> Option<SlotId> {
    table::rsocket(fd).ok().filter(|slot| datagram::is(*slot))
}

fn received(slot: SlotId, fd: c_int, to: &[iovec], flags: c_int) -> Result<Received, Failure> {
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Err(Failure::Blocked);
    }
    datagram::receive::receive(slot, fd, to, flags)
}

/// What the call returns: what was copied, or with `MSG_TRUNC` how long the datagram is.
const fn answer(got: &Received, flags: c_int) -> usize {
    if flags & libc::MSG_TRUNC != 0 { got.whole } else { got.copied }
}

pub(crate) fn receive(
    slot: SlotId,
    fd: c_int,
    to: &[iovec],
    flags: c_int,
) -> Result<usize, Failure> {
    received(slot, fd, to, flags).map(|got| answer(&got, flags))
}

/// # Safety
/// As `recvfrom`.
pub(crate) unsafe fn receive_from(
    slot: SlotId,
    fd: c_int,
    to: &[iovec],
    flags: c_int,
    (from, from_length): (*mut sockaddr, *mut socklen_t),
) -> Result<usize, Failure> {
    let got = received(slot, fd, to, flags)?;
    // SAFETY: the caller's promise.
    unsafe { say_sender(&got, from, from_length) };
    Ok(answer(&got, flags))
}

/// # Safety
/// `message` points to a valid header, whose scatter list is `to`.
pub(crate) unsafe fn receive_message(
    slot: SlotId,
    fd: c_int,
    to: &[iovec],
    message: *mut msghdr,
    flags: c_int,
) -> Result<usize, Failure> {
    let got = received(slot, fd, to, flags)?;
    // SAFETY: the caller's promise; the name is written within the length that stands there.
    unsafe {
        let message = &mut *message;
        say_sender(&got, message.msg_name.cast(), &raw mut message.msg_namelen);
        message.msg_controllen = 0;
        message.msg_flags = if got.copied < got.whole { libc::MSG_TRUNC } else { 0 };
    }
    Ok(answer(&got, flags))
}

/// # Safety
/// As `SockAddr::write`.
unsafe fn say_sender(got: &Received, from: *mut sockaddr, length: *mut socklen_t) {
    match got.from {
        // SAFETY: the caller's promise.
        Some(sender) => unsafe { sender.write(from, length) },
        // SAFETY: not null, the caller's promise.
        None if !length.is_null() => unsafe { length.write_unaligned(0) },
        None => {}
    }
}

/// Sends to where the socket is connected.
pub(crate) fn send(
    slot: SlotId,
    fd: c_int,
    from: &[iovec],
    flags: c_int,
) -> Result<usize, Failure> {
    send_named(slot, fd, from, flags, None)
}

fn send_named(
    slot: SlotId,
    fd: c_int,
    from: &[iovec],
    flags: c_int,
    to: Option<&SockAddr>,
) -> Result<usize, Failure> {
    // Datagrams are never out of band, and two calls never one datagram.
    if flags & (libc::MSG_OOB | libc::MSG_MORE) != 0 {
        return Err(Failure::Unsupported);
    }
    datagram::send::send(slot, fd, to, from, flags)
}

/// # Safety
/// As `sendto`.
pub(crate) unsafe fn send_to(
    slot: SlotId,
    fd: c_int,
    from: &[iovec],
    flags: c_int,
    (to, to_length): (*const sockaddr, socklen_t),
) -> Result<usize, Failure> {
    if to.is_null() || to_length == 0 {
        return send(slot, fd, from, flags);
    }
    // SAFETY: the caller's promise.
    let to = unsafe { SockAddr::read(to, to_length) }?;
    send_named(slot, fd, from, flags, Some(&to))
}

/// Connects; or, where the address has no family, ends being connected.
///
/// # Safety
/// As `connect`.
pub(crate) unsafe fn connect(
    slot: SlotId,
    fd: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let read = unsafe { SockAddr::read(to, length) };
    if read == Err(Failure::WrongFamily) {
        // SAFETY: whoever says that the family is wrong has read it.
        let family = unsafe { (&raw const (*to).sa_family).read_unaligned() };
        if i32::from(family) == libc::AF_UNSPEC {
            return datagram::names::disconnect(slot, fd);
        }
    }
    datagram::names::connect(slot, fd, &read?)
}
