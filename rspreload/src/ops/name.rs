//! Who a socket is, and how it meets its peer: `bind`, `listen`, `accept`, `connect`, and the names
//! of both.
//!
//! Where policy wants connections over RDMA from the start, RDMA's connection manager does all of
//! it ([`native::rdma`]); else the kernel.

use core::ffi::c_int;

use rsocket_edge::bridge::native_rdma;
use rsocket_edge::config::policy;
use rsocket_edge::conn::slot::SlotId;
use rsocket_edge::{native, socket};
use rsocket_host::address::SockAddr;
use rsocket_host::failure::Failure;
use rsocket_host::given::{Answer, Bytes, Kept};
use rsocket_host::probe::present;
use rsocket_host::reason::Reason;
use rsocket_host::sys;
use rsocket_host::sys::sandbox;

use super::first_packet;
use crate::adopted;
use crate::edge::{fail, keeping_errno};
use crate::room::{self, with_room};
use crate::shadow::{self, Entry};

/// Begins to track what a listener has given. Where a peer came by RDMA, its own address is said.
fn accepted(listener: c_int, fd: c_int, name: Option<Kept<'_>>) -> c_int {
    if fd >= 0 {
        shadow::fresh(fd);
        room::made(fd);
        if shadow::entry(listener) == Entry::Foreign {
            adopted::has_given(listener, name);
        }
        // A descriptor that is another name of the listener's may still stand as a connection.
        if let Entry::Listener(slot) | Entry::Connection(slot) = shadow::entry(listener)
            && !sandbox::inside()
            && shadow::mine()
        {
            let guest = if socket::fingerprints() { native::rdma::accepted(fd) } else { None };
            if let Some((new, peer)) = guest {
                shadow::put(fd, Entry::Connection(new));
                if let (Some(name), Some(peer)) = (name, peer) {
                    name.name(&SockAddr(peer));
                }
                return fd;
            }
            keeping_errno(|| {
                if let Some(new) = socket::accepted(fd, slot) {
                    shadow::put(fd, Entry::Connection(new));
                }
            });
        }
    }
    fd
}

/// The program is about to wait for connections.
#[inline]
pub(crate) fn about_to_wait(fd: c_int) {
    if socket::fingerprints()
        && let Entry::Listener(slot) = shadow::entry(fd)
        && !sandbox::inside()
        && shadow::mine()
    {
        socket::waits_on_listener(slot, fd);
    }
}

/// An answer of ours as C wants it.
fn answer(result: Result<(), Failure>) -> c_int {
    result.map_or_else(fail, |()| 0)
}

/// What a listener whose connections come by RDMA has given: the connection behind the bridge that
/// knocked. A stranger is sent away, and the caller accepts again.
fn guest(fd: c_int, name: Option<Kept<'_>>) -> bool {
    shadow::fresh(fd);
    let Some((slot, peer)) = native::rdma::accepted(fd) else {
        sys::close(fd);
        return false;
    };
    shadow::put(fd, Entry::Connection(slot));
    if let (Some(name), Some(peer)) = (name, peer) {
        name.name(&SockAddr(peer));
    }
    true
}

/// The listener's slot, if what it gives comes by RDMA.
fn by_bridge(fd: c_int) -> Option<SlotId> {
    match shadow::entry(fd) {
        Entry::Listener(slot) if native_rdma::listens(slot) => Some(slot),
        _ => None,
    }
}

/// Takes note of a peer without a name: the program knows then that its connection is no more.
/// Passes the result on.
fn no_more(fd: c_int, r: c_int) -> c_int {
    if r < 0
        && sys::errno() == libc::ENOTCONN
        && let Some(slot) = shadow::connection(fd)
    {
        socket::heard::closed(slot);
    }
    r
}

/// The names of a socket, where the kernel does not know them.
fn named(fd: c_int) -> Option<[Option<core::net::SocketAddr>; 2]> {
    match shadow::entry(fd) {
        Entry::Connection(slot) | Entry::Listener(slot) => {
            Some(native::rdma::names(slot)).filter(|names| names.iter().any(Option::is_some))
        }
        _ => None,
    }
}

/// Whether a `connect` to this address dissolves the connection that there is.
pub(crate) fn dissolves(address: Bytes<'_>) -> bool {
    address.family() == Some(libc::AF_UNSPEC)
}

/// `bind`.
pub(crate) fn bind(
    slot: SlotId,
    fd: c_int,
    address: Bytes<'_>,
    real: impl FnOnce() -> c_int,
) -> c_int {
    if policy::native_rdma() {
        return answer(address.name().and_then(|name| native::rdma::bind(slot, fd, &name.0)));
    }
    real()
}

/// `getsockname`.
pub(crate) fn getsockname(fd: c_int, to: Answer<'_>, real: impl FnOnce() -> c_int) -> c_int {
    match named(fd).and_then(|[own, _]| own) {
        Some(name) if !to.is_null() => {
            to.name(&SockAddr(name));
            0
        }
        _ => real(),
    }
}

/// `getpeername`.
pub(crate) fn getpeername(fd: c_int, to: Answer<'_>, real: impl FnOnce() -> c_int) -> c_int {
    match named(fd) {
        Some([_, Some(name)]) if !to.is_null() => {
            to.name(&SockAddr(name));
            0
        }
        Some([Some(_), None]) => fail(Failure::NotConnected),
        _ => no_more(fd, real()),
    }
}

/// `listen`.
pub(crate) fn listen(fd: c_int, backlog: c_int, real: impl FnOnce() -> c_int) -> c_int {
    if policy::native_rdma()
        && let Entry::Connection(slot) | Entry::Listener(slot) = shadow::entry(fd)
        && shadow::mine()
    {
        let r = answer(native::rdma::listen(slot, fd, backlog));
        if r == 0 {
            shadow::put(fd, Entry::Listener(slot));
        }
        return r;
    }
    if let Some(slot) = shadow::connection(fd)
        && shadow::mine()
    {
        keeping_errno(|| socket::about_to_listen(slot, fd));
    }
    let r = real();
    if r == 0 {
        listens(fd);
    }
    r
}

/// The kernel listens on it.
fn listens(fd: c_int) {
    if shadow::entry(fd) == Entry::Foreign {
        adopted::listens(fd);
    }
    if let Some(slot) = shadow::connection(fd)
        && shadow::mine()
    {
        keeping_errno(|| {
            shadow::put(fd, Entry::Listener(slot));
            socket::listening(slot, fd);
        });
    }
}

/// `accept` and `accept4`; `real` is the pass-through.
pub(crate) fn accept(fd: c_int, name: Answer<'_>, real: impl Fn() -> c_int) -> c_int {
    if by_bridge(fd).is_some() {
        return accept_guest(kept(name), real);
    }
    // What is said of the peer is looked at, or said by us.
    let looks = socket::fingerprints() || shadow::entry(fd) == Entry::Foreign;
    let name = if looks { kept(name) } else { None };
    about_to_wait(fd);
    accepted(fd, with_room(real), name)
}

/// Where the peer's name goes, if it is asked for. A bad pointer is for the kernel to refuse.
fn kept(name: Answer<'_>) -> Option<Kept<'_>> {
    let (at, length) = name.as_ptrs();
    (!at.is_null() && !length.is_null() && present(length, 1)).then(|| name.kept())
}

/// The next connection that comes by RDMA: strangers among the knocks are sent away.
fn accept_guest(name: Option<Kept<'_>>, real: impl Fn() -> c_int) -> c_int {
    loop {
        let new = real();
        if new < 0 || guest(new, name) {
            return new;
        }
        if let Some(name) = name {
            name.again();
        }
    }
}

/// `connect`.
pub(crate) fn connect(
    slot: SlotId,
    fd: c_int,
    to: Bytes<'_>,
    real: impl FnOnce() -> c_int,
) -> c_int {
    if to.are_nowhere() {
        return real();
    }
    if dissolves(to) {
        // The socket may become another connection, or a listener.
        socket::give_away(slot, fd, Reason::OddUse);
        return real();
    }
    if policy::native_rdma() {
        return answer(to.name().and_then(|to| native::rdma::connect(slot, fd, &to.0)));
    }
    first_packet::connect_first(fd);
    socket::connecting(slot, fd);
    let r = real();
    let result = if r == 0 { Ok(()) } else { Err(Failure::last()) };
    keeping_errno(|| socket::connected(slot, fd, result));
    if result == Err(Failure::Refused)
        && let Ok(to) = to.name()
        && keeping_errno(|| native::rdma::connect_instead(slot, fd, &to.0)).is_ok()
    {
        return 0;
    }
    r
}
