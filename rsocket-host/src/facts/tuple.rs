//! The two ends of a TCP connection, as one of its sockets has them.
//!
//! Must not know what a connection is used for, nor who owns its other end. Entry point:
//! [`Tuple::of`].
#![forbid(unsafe_code)]

use core::net::SocketAddr;
use std::os::fd::RawFd;

use rustix::net::{SocketAddrAny, SocketAddrV4, SocketAddrV6};

use crate::fnv;
use crate::sys;

/// One end of a connection: an address (IPv4 in the first four bytes, the rest zero) and a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct End {
    /// The address, in network order.
    pub addr: [u8; 16],
    /// The port, as a number.
    pub port: u16,
}

/// The two ends of a TCP connection as one of its sockets sees them. IPv4 addresses that are
/// written as IPv6 ones (`::ffff:a.b.c.d`) are IPv4 here, because the other end may be an IPv4
/// socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Tuple {
    /// 4 or 6.
    pub family: u8,
    /// The interface that a link-local IPv6 address belongs to, else 0.
    pub scope: u32,
    /// This socket's end.
    pub local: End,
    /// The other socket's end.
    pub remote: End,
}

/// Length of [`Tuple::to_bytes`].
pub const TUPLE_BYTES: usize = 41;

impl Tuple {
    /// The addresses of a connected IPv4 or IPv6 socket; nothing for any other fd.
    #[must_use]
    pub fn of(fd: RawFd) -> Option<Self> {
        let fd = sys::borrow(fd);
        let local = rustix::net::getsockname(fd).ok()?;
        let remote = rustix::net::getpeername(fd).ok()??;
        let ((family, scope, local), (family_too, _, remote)) = (end(&local)?, end(&remote)?);
        (family == family_too).then_some(Self { family, scope, local, remote })
    }

    /// The connection between two addresses, as the socket at `local` sees it.
    #[must_use]
    pub fn between(local: &SocketAddr, remote: &SocketAddr) -> Option<Self> {
        let ((family, scope, local), (family_too, _, remote)) =
            (end(&SocketAddrAny::from(*local))?, end(&SocketAddrAny::from(*remote))?);
        (family == family_too).then_some(Self { family, scope, local, remote })
    }

    /// The same connection as the other socket sees it.
    #[must_use]
    pub const fn reversed(&self) -> Self {
        Self { family: self.family, scope: self.scope, local: self.remote, remote: self.local }
    }

    /// The tuple as bytes that are the same in every process, for names.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; TUPLE_BYTES] {
        let ports = [self.local.port.to_be_bytes(), self.remote.port.to_be_bytes()];
        let mut out = [0; TUPLE_BYTES];
        let all = [self.family]
            .into_iter()
            .chain(self.scope.to_be_bytes())
            .chain(self.local.addr)
            .chain(self.remote.addr)
            .chain(ports.into_iter().flatten());
        for (to, from) in out.iter_mut().zip(all) {
            *to = from;
        }
        out
    }

    /// A hash of the tuple for tables. FNV-1a: the input is short, and no party that a slow table
    /// would serve chooses it to collide.
    #[must_use]
    pub fn name_hash(&self) -> u64 {
        fnv::hash(fnv::EMPTY, self.to_bytes())
    }

    /// Whether the addresses alone make it likely that the peer is on this host: both the same, or
    /// both loopback. A hint about the order in which to try things; where it says no,
    /// `trust::find` decides.
    #[must_use]
    pub fn peer_may_be_local(&self) -> bool {
        let loopback = |e: &End| match self.family {
            4 => e.addr.first() == Some(&127),
            _ => e.addr == core::net::Ipv6Addr::LOCALHOST.octets(),
        };
        self.local.addr == self.remote.addr || (loopback(&self.local) && loopback(&self.remote))
    }

    /// True for a socket that was connected to itself (TCP allows it): it has no peer to attach to.
    #[must_use]
    pub fn is_self_connected(&self) -> bool {
        self.local == self.remote
    }
}

/// Family, scope and end of one address.
fn end(addr: &SocketAddrAny) -> Option<(u8, u32, End)> {
    let four = |ip: [u8; 4], port| {
        let mut addr = [0; 16];
        for (to, from) in addr.iter_mut().zip(ip) {
            *to = from;
        }
        (4, 0, End { addr, port })
    };
    if let Ok(v4) = SocketAddrV4::try_from(addr.clone()) {
        return Some(four(v4.ip().octets(), v4.port()));
    }
    let v6 = SocketAddrV6::try_from(addr.clone()).ok()?;
    Some(match v6.ip().to_ipv4_mapped() {
        Some(ip) => four(ip.octets(), v6.port()),
        None => (6, v6.scope_id(), End { addr: v6.ip().octets(), port: v6.port() }),
    })
}
