//! Internet addresses as programs write them: `sockaddr_in` and `sockaddr_in6`, and a value of our
//! own for both.
//!
//! Must not know sockets. Entry points: [`SockAddr::read`] and [`SockAddr::write`] at the edge to
//! C.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{
    in_addr, in6_addr, sa_family_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage,
    socklen_t,
};

use crate::failure::Failure;

/// An IPv4 or IPv6 address with its port; of IPv6 also flow information and scope. An IPv4 address
/// that is written as an IPv6 one (`::ffff:a.b.c.d`) stays what it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SockAddr(pub SocketAddr);

impl SockAddr {
    /// The address of no interface in particular and no port, of a family (`AF_INET6`, else IPv4).
    #[must_use]
    pub const fn unspecified(family: i32) -> Self {
        let ip = match family {
            libc::AF_INET6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        Self(SocketAddr::new(ip, 0))
    }

    /// `AF_INET` or `AF_INET6`.
    #[must_use]
    pub const fn family(&self) -> i32 {
        match self.0 {
            SocketAddr::V4(_) => libc::AF_INET,
            SocketAddr::V6(_) => libc::AF_INET6,
        }
    }

    /// The port, as a number.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.0.port()
    }

    /// The same with another port.
    #[must_use]
    pub fn with_port(mut self, port: u16) -> Self {
        self.0.set_port(port);
        self
    }

    /// Whether this is the host's address to itself, in either spelling.
    #[must_use]
    pub const fn is_loopback(&self) -> bool {
        match self.0.ip().to_canonical() {
            IpAddr::V4(ip) => ip.is_loopback(),
            IpAddr::V6(ip) => ip.is_loopback(),
        }
    }

    /// The same address as a socket calls it that has `name`: one of IPv6 writes IPv4 addresses as
    /// its own.
    #[must_use]
    pub fn as_beside(self, name: &SocketAddr) -> Self {
        match (self.0.ip(), name) {
            (IpAddr::V4(ip), SocketAddr::V6(_)) => {
                Self(SocketAddr::new(ip.to_ipv6_mapped().into(), self.0.port()))
            }
            _ => self,
        }
    }

    /// Reads what a program gave.
    ///
    /// # Errors
    /// `EINVAL` where there is too little of it, `EAFNOSUPPORT` for any other family, `EFAULT` for
    /// null.
    ///
    /// # Safety
    /// `at` is null or points to `length` readable bytes.
    pub unsafe fn read(at: *const sockaddr, length: socklen_t) -> Result<Self, Failure> {
        let length = length as usize;
        if at.is_null() {
            return Err(Failure::BadAddress);
        }
        if length < size_of::<sa_family_t>() {
            return Err(Failure::Invalid);
        }
        // SAFETY: the family lies within the length, which was checked.
        let family = unsafe { at.cast::<sa_family_t>().read_unaligned() };
        match i32::from(family) {
            libc::AF_INET if length >= size_of::<sockaddr_in>() => {
                // SAFETY: readable for this many bytes, as was checked; any bytes are a value.
                Ok(Self::from(unsafe { at.cast::<sockaddr_in>().read_unaligned() }))
            }
            // Without the scope it is the old structure, which Linux takes as well.
            libc::AF_INET6 if length >= size_of::<sockaddr_in6>() - 4 => {
                // SAFETY: zeroes are a value of this structure.
                let mut whole: sockaddr_in6 = unsafe { core::mem::zeroed() };
                let n = length.min(size_of::<sockaddr_in6>());
                // SAFETY: at most as many bytes as either side has.
                unsafe {
                    core::ptr::copy_nonoverlapping(
                        at.cast::<u8>(),
                        (&raw mut whole).cast::<u8>(),
                        n,
                    );
                }
                Ok(Self::from(whole))
            }
            libc::AF_INET | libc::AF_INET6 => Err(Failure::Invalid),
            _ => Err(Failure::WrongFamily),
        }
    }

    /// Writes it where a program wants it, as `getsockname` does: no more than there is room for,
    /// and into `length` what it would have needed. Does nothing where either pointer is null.
    ///
    /// # Safety
    /// `length` is null or points to the caller's `socklen_t`; `at` is null or writable for as many
    /// bytes as that says.
    pub unsafe fn write(&self, at: *mut sockaddr, length: *mut socklen_t) {
        if at.is_null() || length.is_null() {
            return;
        }
        let (whole, size) = self.to_storage();
        // SAFETY: the caller's promise; no more is written than the smaller of the two sizes.
        unsafe {
            let room = length.read_unaligned() as usize;
            let n = room.min(size as usize);
            core::ptr::copy_nonoverlapping((&raw const whole).cast::<u8>(), at.cast::<u8>(), n);
            length.write_unaligned(size);
        }
    }

    /// As the C functions take it, and how long it is.
    #[must_use]
    pub fn to_storage(&self) -> (sockaddr_storage, socklen_t) {
        // SAFETY: zeroes are a value of this structure.
        let mut storage: sockaddr_storage = unsafe { core::mem::zeroed() };
        let at = &raw mut storage;
        // SAFETY: sockaddr_storage is large enough and aligned for both.
        let size = unsafe {
            match self.0 {
                SocketAddr::V4(v4) => {
                    at.cast::<sockaddr_in>().write(raw_v4(&v4));
                    size_of::<sockaddr_in>()
                }
                SocketAddr::V6(v6) => {
                    at.cast::<sockaddr_in6>().write(raw_v6(&v6));
                    size_of::<sockaddr_in6>()
                }
            }
        };
        (storage, size as socklen_t)
    }
}

fn raw_v4(addr: &SocketAddrV4) -> sockaddr_in {
    sockaddr_in {
        sin_family: libc::AF_INET as sa_family_t,
        sin_port: addr.port().to_be(),
        sin_addr: in_addr { s_addr: u32::from_ne_bytes(addr.ip().octets()) },
        sin_zero: [0; 8],
    }
}

fn raw_v6(addr: &SocketAddrV6) -> sockaddr_in6 {
    sockaddr_in6 {
        sin6_family: libc::AF_INET6 as sa_family_t,
        sin6_port: addr.port().to_be(),
        sin6_flowinfo: addr.flowinfo(),
        sin6_addr: in6_addr { s6_addr: addr.ip().octets() },
        sin6_scope_id: addr.scope_id(),
    }
}

impl From<sockaddr_in> for SockAddr {
    fn from(raw: sockaddr_in) -> Self {
        let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
        Self(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(raw.sin_port))))
    }
}

impl From<sockaddr_in6> for SockAddr {
    fn from(raw: sockaddr_in6) -> Self {
        let (ip, port) = (Ipv6Addr::from(raw.sin6_addr.s6_addr), u16::from_be(raw.sin6_port));
        Self(SocketAddr::V6(SocketAddrV6::new(ip, port, raw.sin6_flowinfo, raw.sin6_scope_id)))
    }
}

impl From<SocketAddr> for SockAddr {
    fn from(addr: SocketAddr) -> Self {
        Self(addr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through_c(text: &str) -> SockAddr {
        let addr = SockAddr(text.parse().unwrap());
        let (raw, len) = addr.to_storage();
        // SAFETY: a local of that length.
        let back = unsafe { SockAddr::read((&raw const raw).cast(), len) }.unwrap();
        assert_eq!(addr, back);
        back
    }

    #[test]
    fn there_and_back() {
        assert_eq!(through_c("10.1.2.3:7471").port(), 7471);
        assert_eq!(through_c("[fe80::1%7]:80").family(), libc::AF_INET6);
        assert!(through_c("127.8.0.1:1").is_loopback() && through_c("[::1]:1").is_loopback());
        assert!(through_c("[::ffff:127.0.0.1]:1").is_loopback());
        assert!(!through_c("[2001:db8::1]:1").is_loopback());
        assert_eq!(SockAddr::unspecified(libc::AF_INET).with_port(9).0.to_string(), "0.0.0.0:9");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let (mut raw, len) = SockAddr::unspecified(libc::AF_INET6).to_storage();
        let at: *const sockaddr = (&raw const raw).cast();
        // SAFETY: a local, and never more than its length.
        unsafe {
            assert_eq!(SockAddr::read(core::ptr::null(), len), Err(Failure::BadAddress));
            assert_eq!(SockAddr::read(at, 1), Err(Failure::Invalid));
            assert_eq!(SockAddr::read(at, 16), Err(Failure::Invalid));
            assert!(SockAddr::read(at, 24).is_ok());
            raw.ss_family = libc::AF_UNIX as sa_family_t;
            assert_eq!(SockAddr::read((&raw const raw).cast(), len), Err(Failure::WrongFamily));
        }
    }

    #[test]
    fn a_socket_of_ipv6_calls_everybody_by_its_own_family() {
        let four: SocketAddr = "10.0.0.1:80".parse().unwrap();
        let six: SocketAddr = "[fd00::1]:80".parse().unwrap();
        let mapped: SocketAddr = "[::ffff:10.0.0.1]:80".parse().unwrap();
        assert_eq!(SockAddr(four).as_beside(&six).0, mapped);
        assert_eq!(SockAddr(four).as_beside(&four).0, four);
        assert_eq!(SockAddr(six).as_beside(&six).0, six);
    }

    #[test]
    fn no_more_is_written_than_there_is_room_for() {
        let addr = SockAddr("1.2.3.4:5".parse().unwrap());
        let mut room = [0xAA_u8; 16];
        let mut length: socklen_t = 8;
        // SAFETY: 8 bytes are announced and 16 are there.
        unsafe { addr.write(room.as_mut_ptr().cast(), &raw mut length) };
        assert_eq!((length, room[7], room[8]), (16, 4, 0xAA));
    }
}
