//! An address between the form that C takes and ours.
//!
//! Must not know what is at it. Entry point: [`Raw`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::ffi::c_int;
use core::net::{IpAddr, Ipv6Addr, SocketAddrV6};

use super::SockAddr;

/// An address in the form that C takes.
pub(super) struct Raw {
    pub(super) storage: libc::sockaddr_storage,
}

impl Raw {
    pub(super) fn from(address: &SockAddr) -> Self {
        // SAFETY: all zeroes is a value of this structure of numbers.
        let mut storage: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
        match address {
            SockAddr::V4(v4) => {
                let raw = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                    sin_zero: [0; 8],
                };
                // SAFETY: a storage is large enough and aligned for every address.
                unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(raw) };
            }
            SockAddr::V6(v6) => {
                let raw = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
                // SAFETY: as above.
                unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(raw) };
            }
        }
        Self { storage }
    }

    pub(super) const fn pointer(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.storage).cast()
    }

    pub(super) fn get(&self) -> Option<SockAddr> {
        match c_int::from(self.storage.ss_family) {
            libc::AF_INET => {
                // SAFETY: of this family, and as large.
                let raw = unsafe { (&raw const self.storage).cast::<libc::sockaddr_in>().read() };
                let ip = IpAddr::from(raw.sin_addr.s_addr.to_ne_bytes());
                Some(SockAddr::new(ip, u16::from_be(raw.sin_port)))
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let raw = unsafe { (&raw const self.storage).cast::<libc::sockaddr_in6>().read() };
                let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
                let port = u16::from_be(raw.sin6_port);
                Some(SocketAddrV6::new(ip, port, raw.sin6_flowinfo, raw.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back() {
        let six = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 7471, 5, 3).into();
        for address in [SockAddr::from(([10, 99, 0, 1], 80)), six] {
            assert_eq!(Raw::from(&address).get(), Some(address));
        }
        assert_eq!(Raw::from(&SockAddr::from(([1, 2, 3, 4], 0x1234))).storage.ss_family, 2);
    }
}
