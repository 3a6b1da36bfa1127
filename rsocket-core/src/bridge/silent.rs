//! Peers that it is no use to ask over RDMA: hosts that did not answer, ports behind which no
//! process listens.
//!
//! Asking costs a queue pair and its memory. Of a silent host it costs them until the connection
//! manager gives up, which takes it more than a minute (`life-of-a-connection §2`). Must not know
//! which caller asks. Entry points: [`is_silent`] and [`remember`] for hosts, [`is_closed`],
//! [`refused`] and [`answered`] for ports.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::sys;

/// How long a host is left alone, in nanoseconds.
const SILENT_NS: u64 = 60_000_000_000;

/// One host: a hash of its address, and until when. Relaxed throughout: a thread that reads one of
/// the two words with another host's other one asks once too often, or once too late.
struct Host {
    name: AtomicU64,
    until: AtomicU64,
}

static HOSTS: [Host; 16] =
    [const { Host { name: AtomicU64::new(0), until: AtomicU64::new(0) } }; 16];

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
    HOSTS
        .iter()
        .any(|h| h.name.load(Ordering::Relaxed) == name && now < h.until.load(Ordering::Relaxed))
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

/// Refusals in a row after which a port is left alone for [`CLOSED_NS`], for twice as long with
/// each one more, at most [`SILENT_NS`]. Before them, the peer's program may only be about to
/// listen.
const FREE: u32 = 4;
const CLOSED_NS: u64 = 20_000_000;

/// One port: as [`Host`], and how often in a row no process listened there.
struct Port {
    name: AtomicU64,
    until: AtomicU64,
    refusals: AtomicU32,
}

const fn closed_nowhere() -> Port {
    Port { name: AtomicU64::new(0), until: AtomicU64::new(0), refusals: AtomicU32::new(0) }
}

static PORTS: [Port; 32] = [const { closed_nowhere() }; 32];

fn port(at: &SocketAddr) -> (u64, Option<&'static Port>) {
    let name = name(&at.ip()).rotate_left(32) ^ u64::from(at.port()) << 1;
    (name, PORTS.iter().find(|p| p.name.load(Ordering::Relaxed) == name))
}

/// Whether no process listened there when it was asked, and it is too early to ask again.
#[must_use]
pub fn is_closed(at: &SocketAddr) -> bool {
    port(at).1.is_some_and(|p| sys::now_ns() < p.until.load(Ordering::Relaxed))
}

/// No process listens there.
pub fn refused(at: &SocketAddr) {
    let (name, known) = port(at);
    let place = known.or_else(|| PORTS.iter().min_by_key(|p| p.until.load(Ordering::Relaxed)));
    let Some(port) = place else { return };
    if known.is_none() {
        port.refusals.store(0, Ordering::Relaxed);
        port.name.store(name, Ordering::Relaxed);
    }
    let more = port.refusals.fetch_add(1, Ordering::Relaxed).saturating_sub(FREE - 1);
    let ns = if more == 0 { 0 } else { SILENT_NS.min(CLOSED_NS << (more - 1).min(16)) };
    port.until.store(sys::now_ns().saturating_add(ns), Ordering::Relaxed);
}

/// A process listens there.
pub fn answered(at: &SocketAddr) {
    if let (_, Some(port)) = port(at) {
        port.refusals.store(0, Ordering::Relaxed);
        port.until.store(0, Ordering::Relaxed);
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

    #[test]
    fn a_closed_port_is_left_alone_for_longer_and_longer() {
        let at: SocketAddr = "192.0.2.77:80".parse().unwrap();
        let other: SocketAddr = "192.0.2.77:81".parse().unwrap();
        for _ in 0..FREE {
            assert!(!is_closed(&at));
            refused(&at);
        }
        let waits = |n: u32| {
            (0..n).for_each(|_| refused(&at));
            let until = port(&at).1.unwrap().until.load(Ordering::Relaxed);
            until.saturating_sub(sys::now_ns())
        };
        let first = waits(1);
        assert!(is_closed(&at) && !is_closed(&other));
        assert!(waits(2) > 2 * first);
        assert!((SILENT_NS / 2..=SILENT_NS).contains(&waits(100)), "it has an end");
        answered(&at);
        assert!(!is_closed(&at));
        refused(&at);
        assert!(!is_closed(&at));
    }
}
