//! The calls that move bytes, for datagram sockets: one call is one datagram, with an address.

use core::ffi::c_int;

use libc::iovec;
use rsocket_edge::conn::slot::SlotId;
use rsocket_edge::datagram;
use rsocket_edge::datagram::receive::Received;
use rsocket_edge::message::Message;
use rsocket_host::address::SockAddr;
use rsocket_host::failure::Failure;
use rsocket_host::given::{Answer, Bytes};

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

pub(crate) fn receive_from(
    slot: SlotId,
    fd: c_int,
    to: &[iovec],
    flags: c_int,
    from: Answer<'_>,
) -> Result<usize, Failure> {
    let got = received(slot, fd, to, flags)?;
    say_sender(&got, from);
    Ok(answer(&got, flags))
}

pub(crate) fn receive_message(
    slot: SlotId,
    fd: c_int,
    message: Message<'_>,
    flags: c_int,
) -> Result<usize, Failure> {
    let got = received(slot, fd, message.list()?, flags)?;
    if let Some(sender) = message.sender() {
        say_sender(&got, sender);
    }
    message.finish(if got.copied < got.whole { libc::MSG_TRUNC } else { 0 });
    Ok(answer(&got, flags))
}

fn say_sender(got: &Received, to: Answer<'_>) {
    match got.from {
        Some(sender) => to.name(&sender),
        None => to.no_name(),
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

pub(crate) fn send_to(
    slot: SlotId,
    fd: c_int,
    from: &[iovec],
    flags: c_int,
    to: Option<Bytes<'_>>,
) -> Result<usize, Failure> {
    let to = to.filter(|to| !to.as_ptr().is_null() && to.length() != 0);
    let to = to.map(Bytes::name).transpose()?;
    send_named(slot, fd, from, flags, to.as_ref())
}

/// Connects; or, where the address has no family, ends being connected.
pub(crate) fn connect(slot: SlotId, fd: c_int, to: Bytes<'_>) -> Result<(), Failure> {
    let read = to.name();
    if read == Err(Failure::WrongFamily) && to.family() == Some(libc::AF_UNSPEC) {
        return datagram::names::disconnect(slot, fd);
    }
    datagram::names::connect(slot, fd, &read?)
}
