//! How sockets meet that are not TCP first: names, listening, connecting, accepting. What comes
//! after is a socket like any other ([`crate::socket`], [`crate::readiness`]).
//!
//! There are two ways. Over RDMA the connection manager brings the two ends together. Where no RDMA
//! device leads to the peer, but the peer is on this host, a kernel TCP connection to the real
//! address does ([`kernel`]). Beside it the two ends attach shared memory; no byte of the program's
//! ever travels on the TCP connection.
//!
//! Must not know C, nor the table of descriptors. Every call takes the number of the socket
//! ([`SlotId`]) and its descriptor, which is a kernel TCP socket either way. Only [`connect`] and
//! [`accept`] block, as the descriptor's flags say.

pub mod info;
mod kernel;
pub mod rdma;
pub(crate) mod service;

use std::os::fd::RawFd;

use crate::address::SockAddr;
use crate::bridge::native_rdma;
use crate::config::sizes::Size;
use crate::conn::fork_group;
use crate::conn::kind::Kind;
use crate::conn::machine::Phase;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::failure::Failure;
use crate::{datagram, socket};

/// Whose calls they are that make, name and end a socket.
enum Way {
    /// [`crate::datagram`].
    Datagram,
    /// The connection manager's.
    Rdma,
    /// The kernel's.
    Kernel,
}

/// The one place where the way is chosen, asked first by every call below.
fn way(id: SlotId) -> Way {
    match fork_group::slot(id).map(Slot::kind_by_flags) {
        Some(Kind::Datagram) => Way::Datagram,
        _ if over_rdma(id) => Way::Rdma,
        _ => Way::Kernel,
    }
}

/// Whether the socket's connection is made, or to be made, over RDMA. The same for all sockets of
/// the process.
fn over_rdma(_id: SlotId) -> bool {
    native_rdma::wanted()
}

/// Gives the socket a name.
///
/// # Errors
/// As bind(2).
pub fn bind(id: SlotId, fd: RawFd, name: &SockAddr) -> Result<(), Failure> {
    match way(id) {
        Way::Datagram => datagram::names::bind(fd, name),
        Way::Rdma => rdma::bind(id, fd, &name.0),
        Way::Kernel => kernel::bind(fd, name),
    }
}

/// Makes it a listener, with a name of the kernel's choice if it has none.
///
/// # Errors
/// As listen(2).
pub fn listen(id: SlotId, fd: RawFd, backlog: i32) -> Result<(), Failure> {
    match way(id) {
        Way::Datagram => Err(Failure::Unsupported),
        Way::Rdma => rdma::listen(id, fd, backlog),
        Way::Kernel => {
            kernel::listen(fd, backlog)?;
            socket::listening(id, fd);
            Ok(())
        }
    }
}

/// Connects to a listener.
///
/// # Errors
/// As connect(2), `EINPROGRESS` for a socket that does not block above all; `ENODEV` where no
/// device leads to that address.
pub fn connect(id: SlotId, fd: RawFd, to: &SockAddr) -> Result<(), Failure> {
    match way(id) {
        Way::Datagram => datagram::names::connect(id, fd, to),
        Way::Rdma => rdma::connect(id, fd, &to.0),
        Way::Kernel => connect_by_kernel(id, fd, to),
    }
}

fn connect_by_kernel(id: SlotId, fd: RawFd, to: &SockAddr) -> Result<(), Failure> {
    take_notice(id);
    let result = kernel::connect(id, fd, to);
    if result == Err(Failure::UnderWay)
        && let Some(s) = fork_group::slot(id)
    {
        s.set(flag::CONNECT_NEWS);
        s.next_epoch();
    }
    result
}

/// Takes the next connection of a listener: its number, its descriptor and the peer's name. The
/// descriptor has `SOCK_CLOEXEC` and `SOCK_NONBLOCK` as `flags` say, whatever the listener has.
///
/// # Errors
/// As accept4(2).
pub fn accept(
    listener: SlotId,
    fd: RawFd,
    flags: i32,
) -> Result<(SlotId, RawFd, SockAddr), Failure> {
    if over_rdma(listener) {
        return rdma::accept(listener, fd, flags);
    }
    kernel::accept(listener, fd, flags)
}

/// The socket's own name.
///
/// # Errors
/// As getsockname(2).
pub fn local_name(id: SlotId, fd: RawFd) -> Result<SockAddr, Failure> {
    match way(id) {
        Way::Rdma => rdma::local_name(id, fd),
        Way::Datagram | Way::Kernel => kernel::local_name(fd),
    }
}

/// The peer's name.
///
/// # Errors
/// As getpeername(2).
pub fn peer_name(id: SlotId, fd: RawFd) -> Result<SockAddr, Failure> {
    match way(id) {
        Way::Rdma => rdma::peer_name(id),
        Way::Datagram | Way::Kernel => kernel::peer_name(fd),
    }
}

/// The pending error (`SO_ERROR`), which is cleared; 0 if there is none.
pub fn error(id: SlotId, fd: RawFd) -> Result<i32, Failure> {
    let known = match way(id) {
        Way::Datagram => Some(datagram::names::error(id, fd)),
        Way::Rdma => rdma::error(id, fd),
        Way::Kernel => None,
    };
    if let Some(e) = known {
        return Ok(e);
    }
    let asked = take_notice(id);
    let pending = crate::host::kernel::take_error(fd).map_or(0, Failure::code);
    if pending != 0 {
        crate::conn::listeners::error_taken(id);
    }
    if pending != 0 && asked {
        socket::connect_failed(id);
    }
    Ok(pending)
}

/// Before a call that sends or receives.
///
/// # Errors
/// `ENOTCONN` for a socket that was never connected, or whose attempt failed.
#[inline]
pub fn before_data(id: SlotId) -> Result<(), Failure> {
    let s = fork_group::slot(id).ok_or(Failure::BadDescriptor)?;
    if s.has(flag::CONNECT_NEWS) {
        take_notice(id);
    }
    if s.phase() == Phase::Unconnected { Err(Failure::NotConnected) } else { Ok(()) }
}

/// The program asks how its attempt to connect went. From here on only what can be sent makes it
/// writable.
fn take_notice(id: SlotId) -> bool {
    let Some(s) = fork_group::slot(id) else { return false };
    let was = s.clear(flag::CONNECT_NEWS);
    if was {
        s.next_epoch();
    }
    was
}

/// Ends one direction or both.
///
/// # Errors
/// As shutdown(2).
pub fn shutdown(id: SlotId, fd: RawFd, how: i32) -> Result<(), Failure> {
    if !matches!(how, libc::SHUT_RD | libc::SHUT_WR | libc::SHUT_RDWR) {
        return Err(Failure::Invalid);
    }
    if datagram::is(id) {
        return datagram::names::shutdown(id, fd, how);
    }
    before_data(id)?;
    socket::shutdown(id, fd, how);
    kernel::shutdown(fd, how)?;
    socket::has_shut(id);
    Ok(())
}

/// Whether the socket's connection is made, or to be made, over RDMA.
#[must_use]
pub fn by_rdma(id: SlotId) -> bool {
    over_rdma(id)
}

/// Whether the connection has begun: what it is made with is fixed.
#[must_use]
pub fn begun(id: SlotId) -> bool {
    fork_group::slot(id)
        .is_some_and(|s| s.phase() != Phase::Unconnected || s.has(flag::CONNECT_NEWS))
}

/// What a queue pair for the socket is, or is to be, made with.
#[must_use]
pub fn size(id: SlotId, which: Size) -> u32 {
    fork_group::slot(id).map_or(0, |s| s.sizes.get(which))
}

/// Sets it. The sizes of queues must be known before there is a connection; a listener's are those
/// of what it accepts from then on.
///
/// # Errors
/// `EINVAL` once the connection has begun.
pub fn set_size(id: SlotId, which: Size, value: u32) -> Result<(), Failure> {
    let s = fork_group::slot(id).ok_or(Failure::BadDescriptor)?;
    let begun = begun(id);
    match which {
        // As upstream: a buffer that exists stays as it is, and the caller is not told.
        Size::SendBuffer | Size::ReceiveBuffer if begun => Ok(()),
        _ if begun => Err(Failure::Invalid),
        _ => {
            s.sizes.set(which, value);
            rdma::resized(s);
            Ok(())
        }
    }
}
