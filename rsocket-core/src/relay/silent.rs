//! Hosts that did not answer over RDMA: they are not asked again for a while.
//!
//! Asking costs a queue pair and its memory until the connection manager gives up, which takes it more than a
//! minute (`life-of-a-connection §2`). Must not know who asks. Entry points: [`is_silent`], [`remember`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::sys;

/// How long a host is left alone, in nanoseconds.
const SILENT_NS: u64 = 60_000_000_000;

/// One host: a hash of its address, and until when. Relaxed throughout: whoever reads one of the two words with
/// another's other one asks once too often, or once too late.
struct Host {
    name: AtomicU64,
    until: AtomicU64,
}

static HOSTS: [Host; 16] = [const { Host { name: AtomicU64::new(0), until: AtomicU64::new(0) } }; 16];

fn name(ip: &IpAddr) -> u64 {
    let bits = match ip.to_canonical() {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    ((bits as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (bits >> 64) as u64) | 1
}

/// Whether the host did not answer lately.
#[must_use]
pub fn is_silent(ip: &IpAddr) -> bool {
    let (name, now) = (name(ip), sys::now_ns());
    HOSTS.iter().any(|h| h.name.load(Ordering::Relaxed) == name && now < h.until.load(Ordering::Relaxed))
}

/// The host did not answer.
pub fn remember(ip: &IpAddr) {
    let (name, now) = (name(ip), sys::now_ns());
    let known = HOSTS.iter().find(|h| h.name.load(Ordering::Relaxed) == name);
    let place = known.or_else(|| HOSTS.iter().min_by_key(|h| h.until.load(Ordering::Relaxed)));
    if let Some(host) = place {
        host.until.store(now.saturating_add(SILENT_NS), Ordering::Relaxed);
        host.name.store(name, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_host_is_remembered_and_others_are_not() {
        let ip = |n: u8| IpAddr::from([192, 0, 2, n]);
        assert!(!is_silent(&ip(1)));
        for n in 1..=8 {
            remember(&ip(n));
        }
        assert!((1..=8).all(|n| is_silent(&ip(n))));
        assert!(is_silent(&"::ffff:192.0.2.1".parse().unwrap()), "the same host");
        assert!(!is_silent(&ip(9)));
    }
}
