//! Sockets and their names: made, bound, connected, asked. What is done on a TCP socket beside its
//! connection is in [`crate::facts::kernel`].
//!
//! Nothing here waits but [`connect`] and [`accept_from`] on a socket that does. Must not know what
//! a socket is for. Entry points: [`stream_for`], [`own_name`], [`peer_name`], [`can_have`].
#![forbid(unsafe_code)]

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::addr::SocketAddrArg;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrAny, SocketAddrUnix, SocketFlags,
    SocketType, ipproto, sockopt,
};

use super::discard;
use crate::failure::Failure;

/// What a socket of the library's own is.
pub(crate) const OURS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

const fn family_of(address: &SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// A TCP socket that can have or reach such an address; it does not block.
///
/// # Errors
/// As socket(2).
pub fn stream_for(address: &SocketAddr) -> Result<OwnedFd, Failure> {
    Ok(rustix::net::socket_with(family_of(address), SocketType::STREAM, OURS, None)?)
}

/// A TCP socket of the same family as this one; it blocks.
///
/// # Errors
/// As socket(2).
pub fn stream_like(socket: impl AsFd) -> Result<OwnedFd, Failure> {
    let (family, flags) = (family(socket)?, SocketFlags::CLOEXEC);
    Ok(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?)
}

/// A UDP socket that is closed again at the end of `f`.
fn with_probe<R>(
    address: &SocketAddr,
    f: impl FnOnce(&OwnedFd) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let (family, flags) = (family_of(address), SocketFlags::CLOEXEC);
    let probe = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
    let result = f(&probe);
    discard(probe);
    result
}

/// Whether a socket of this network namespace can have the address, whatever its port.
///
/// # Errors
/// Why it cannot: `EADDRNOTAVAIL` where the address is another host's.
pub fn can_have(address: &SocketAddr) -> Result<(), Failure> {
    let mut address = *address;
    address.set_port(0);
    with_probe(&address, |probe| bind(probe, &address))
}

/// The address from which this host would send to that one. Sends nothing.
#[must_use]
pub fn source_towards(to: &SocketAddr) -> Option<IpAddr> {
    let name = with_probe(to, |probe| connect(probe, to).and_then(|()| own_name(probe)));
    Some(name.ok()?.ip().to_canonical())
}

/// The family of a socket.
///
/// # Errors
/// As getsockopt(2).
pub fn family(socket: impl AsFd) -> Result<AddressFamily, Failure> {
    Ok(sockopt::socket_domain(socket)?)
}

/// The address of no interface in particular, of a socket's family, without a port.
///
/// # Errors
/// As getsockopt(2).
pub fn wildcard(socket: impl AsFd) -> Result<SocketAddr, Failure> {
    let ip: IpAddr = match family(socket)? {
        AddressFamily::INET6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => Ipv4Addr::UNSPECIFIED.into(),
    };
    Ok(SocketAddr::new(ip, 0))
}

/// Whether it is a TCP socket and not something that looks like one (MPTCP, SCTP, SMC).
#[must_use]
pub fn is_tcp(socket: impl AsFd) -> bool {
    let socket = socket.as_fd();
    sockopt::socket_type(socket) == Ok(SocketType::STREAM)
        && sockopt::socket_protocol(socket) == Ok(Some(ipproto::TCP))
}

/// A number that no other socket of this boot has (`SO_COOKIE`).
///
/// # Errors
/// As getsockopt(2).
pub fn cookie(socket: impl AsFd) -> Result<u64, Failure> {
    Ok(sockopt::socket_cookie(socket)?)
}

/// Whether others may be bound to its address (`SO_REUSEADDR`).
#[must_use]
pub fn reuses_address(socket: impl AsFd) -> Option<bool> {
    sockopt::socket_reuseaddr(socket).ok()
}

/// Whether others may listen beside it (`SO_REUSEPORT`).
#[must_use]
pub fn reuses_port(socket: impl AsFd) -> Option<bool> {
    sockopt::socket_reuseport(socket).ok()
}

/// Whether it keeps away from IPv4 (`IPV6_V6ONLY`).
#[must_use]
pub fn is_ipv6_only(socket: impl AsFd) -> Option<bool> {
    sockopt::ipv6_v6only(socket).ok()
}

/// Asks for room for that many bytes on their way. The kernel cuts it down to what it allows.
///
/// # Errors
/// As setsockopt(2).
pub fn set_send_room(socket: impl AsFd, bytes: usize) -> Result<(), Failure> {
    Ok(sockopt::set_socket_send_buffer_size(socket, bytes)?)
}

/// Whether a close of the socket is a reset (`SO_LINGER` of no time), or ends as usual.
pub fn reset_at_close(socket: impl AsFd, so: bool) {
    let _ = sockopt::set_socket_linger(socket, so.then_some(Duration::ZERO));
}

/// Gives a socket a name.
///
/// # Errors
/// As bind(2).
pub fn bind(socket: impl AsFd, name: &impl SocketAddrArg) -> Result<(), Failure> {
    Ok(rustix::net::bind(socket, name)?)
}

/// Lets others connect to a socket.
///
/// # Errors
/// As listen(2).
pub fn listen(socket: impl AsFd, backlog: i32) -> Result<(), Failure> {
    Ok(rustix::net::listen(socket, backlog)?)
}

/// Binds a socket, and lets others connect to it.
///
/// # Errors
/// As bind(2) and listen(2).
pub fn listen_at(
    socket: impl AsFd,
    name: &impl SocketAddrArg,
    backlog: i32,
) -> Result<(), Failure> {
    let socket = socket.as_fd();
    bind(socket, name).and_then(|()| listen(socket, backlog))
}

/// Connects a socket.
///
/// # Errors
/// As connect(2); `EINPROGRESS` where it goes on.
pub fn connect(socket: impl AsFd, to: &impl SocketAddrArg) -> Result<(), Failure> {
    Ok(rustix::net::connect(socket, to)?)
}

/// A datagram socket has no peer any more.
///
/// # Errors
/// As connect(2).
pub fn forget_peer(socket: impl AsFd) -> Result<(), Failure> {
    Ok(rustix::net::connect_unspec(socket)?)
}

/// Ends a direction, or both.
///
/// # Errors
/// As shutdown(2).
pub fn shut(socket: impl AsFd, way: Shutdown) -> Result<(), Failure> {
    Ok(rustix::net::shutdown(socket, way)?)
}

/// The next connection, as a socket of the library's own that does not block.
///
/// # Errors
/// As accept4(2).
pub fn accept(listener: impl AsFd) -> Result<OwnedFd, Failure> {
    Ok(rustix::net::accept_with(listener, OURS)?)
}

/// The next connection for the program, with these flags, and who it comes from.
///
/// # Errors
/// As accept4(2).
pub fn accept_from(
    listener: impl AsFd,
    flags: SocketFlags,
) -> Result<(OwnedFd, SocketAddr), Failure> {
    let (new, peer) = rustix::net::acceptfrom_with(listener, flags)?;
    match peer.map_or(Err(Failure::NotConnected), internet) {
        Ok(peer) => Ok((new, peer)),
        Err(e) => {
            discard(new);
            Err(e)
        }
    }
}

fn internet(name: SocketAddrAny) -> Result<SocketAddr, Failure> {
    SocketAddr::try_from(name).map_err(|_| Failure::WrongFamily)
}

/// The socket's own name.
///
/// # Errors
/// As getsockname(2); `EAFNOSUPPORT` for one that is no Internet address.
pub fn own_name(socket: impl AsFd) -> Result<SocketAddr, Failure> {
    internet(rustix::net::getsockname(socket)?)
}

/// The name of what it is connected to.
///
/// # Errors
/// As getpeername(2); `EAFNOSUPPORT` for one that is no Internet address.
pub fn peer_name(socket: impl AsFd) -> Result<SocketAddr, Failure> {
    internet(rustix::net::getpeername(socket)?.ok_or(Failure::NotConnected)?)
}

/// Both names of a connected socket: its own, and its peer's.
#[must_use]
pub fn names(socket: impl AsFd) -> Option<[SocketAddr; 2]> {
    let socket = socket.as_fd();
    Some([own_name(socket).ok()?, peer_name(socket).ok()?])
}

/// Whether the socket has a peer.
#[must_use]
pub fn is_connected(socket: impl AsFd) -> bool {
    rustix::net::getpeername(socket).is_ok_and(|peer| peer.is_some())
}

/// The own name of a UNIX socket.
#[must_use]
pub fn own_unix_name(socket: impl AsFd) -> Option<SocketAddrUnix> {
    SocketAddrUnix::try_from(rustix::net::getsockname(socket).ok()?).ok()
}

/// The name of what a UNIX socket is connected to.
#[must_use]
pub fn peer_unix_name(socket: impl AsFd) -> Option<SocketAddrUnix> {
    SocketAddrUnix::try_from(rustix::net::getpeername(socket).ok()??).ok()
}

/// Sends one datagram, to where the socket is connected if no address is given. Does not wait, and
/// is no `SIGPIPE`.
///
/// # Errors
/// As sendto(2).
pub fn send_to(
    socket: impl AsFd,
    to: Option<&SocketAddr>,
    packet: &[u8],
) -> Result<usize, Failure> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(match to {
        None => rustix::net::send(socket, packet, flags),
        Some(to) => rustix::net::sendto(socket, packet, flags, to),
    }?)
}

/// Takes one datagram, and who sent it. Does not wait.
///
/// # Errors
/// As recvfrom(2).
pub fn receive_from(
    socket: impl AsFd,
    into: &mut [u8],
) -> Result<(usize, Option<SocketAddr>), Failure> {
    let (n, _, from) = rustix::net::recvfrom(socket, into, RecvFlags::DONTWAIT)?;
    Ok((n, from.and_then(|from| SocketAddr::try_from(from).ok())))
}
