//! An address in shared memory.
//!
//! Must not know whose it is. Entry point: [`Name`].
#![forbid(unsafe_code)]

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use core::sync::atomic::{AtomicU64, Ordering};

/// An IPv4 or IPv6 address and port in shared memory. Written before the connection has an owner,
/// or under its set-up. Two words that do not belong together could only make a wrong answer to
/// `getpeername`.
#[repr(C)]
#[derive(Default)]
pub struct Name {
    /// Family (4 or 6; 0 is no name) in the low 16 bits, then the port, then the scope.
    head: AtomicU64,
    address: [AtomicU64; 2],
}

impl Name {
    /// The address, if there is one.
    pub fn get(&self) -> Option<SocketAddr> {
        // Acquire: pairs with set().
        let head = self.head.load(Ordering::Acquire);
        let (port, scope) = ((head >> 16) as u16, (head >> 32) as u32);
        let [high, low] = &self.address;
        let high = high.load(Ordering::Relaxed);
        let bits = u128::from(high) << 64 | u128::from(low.load(Ordering::Relaxed));
        match head as u16 {
            4 => Some(SocketAddr::new(Ipv4Addr::from_bits(bits as u32).into(), port)),
            6 => Some(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from_bits(bits), port, 0, scope))),
            _ => None,
        }
    }

    /// Changes it.
    pub fn set(&self, name: Option<SocketAddr>) {
        let (family, bits, scope) = match name {
            None => (0, 0, 0),
            Some(SocketAddr::V4(a)) => (4, u128::from(a.ip().to_bits()), 0),
            Some(SocketAddr::V6(a)) => (6, a.ip().to_bits(), a.scope_id()),
        };
        let [high, low] = &self.address;
        high.store((bits >> 64) as u64, Ordering::Relaxed);
        low.store(bits as u64, Ordering::Relaxed);
        let port = name.map_or(0, |n| n.port());
        // Release: pairs with get().
        self.head.store(u64::from(scope) << 32 | u64::from(port) << 16 | family, Ordering::Release);
    }
}
