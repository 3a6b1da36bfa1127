//! Whether this kernel gives each connection's timestamps an offset of its own: else they say
//! little of which one it is.
//!
//! Some kernels have one offset for all connections of two hosts. With `tcp_timestamps` at 2 or 0
//! there is none. Nothing says so, so two connections of an address with itself are compared, once
//! in a process. Must not know whose evidence it is. Entry point: [`are_each_ones_own`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::sync::atomic::{AtomicU8, Ordering};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::failure::Failure;
use crate::host::raw;
use crate::sys::{self, sockets};

/// An option of tcp(7) that libc has no name for.
pub(crate) const TCP_TIMESTAMP: i32 = 24;

const UNKNOWN: u8 = 0;
const NO: u8 = 1;
const YES: u8 = 2;
/// Relaxed everywhere: the byte stands for itself, and two first askers find the same.
static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Two timestamps that are so near, beside the milliseconds between the questions, have one offset.
/// The kernel does not say the lowest bit, and a millisecond may begin in between.
const NEAR: u64 = 3;

/// Whether they are. No, where that could not be found out; that is asked again. `fd` is a
/// connection of this process's. Some fifteen system calls the first time, twice as many where the
/// loopback interface is down; does not block.
#[must_use]
pub fn are_each_ones_own(fd: RawFd) -> bool {
    match KNOWN.load(Ordering::Relaxed) {
        UNKNOWN => {
            let Ok(own) = find_out(fd) else { return false };
            KNOWN.store(if own { YES } else { NO }, Ordering::Relaxed);
            own
        }
        known => known == YES,
    }
}

/// By the loopback interface's address; where that is down, by the connection's own, to which the
/// kernel brings nothing then.
fn find_out(fd: RawFd) -> Result<bool, Failure> {
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    compare(&loopback).or_else(|_| {
        let mut own = name_of(fd)?;
        own.set_port(0);
        compare(&own)
    })
}

/// The socket's own end; an IPv4 address as such, also of an IPv6 socket.
fn name_of(fd: RawFd) -> Result<SocketAddr, Failure> {
    let mut name = sockets::own_name(sys::borrow(fd))?;
    if let IpAddr::V4(ip) = name.ip().to_canonical() {
        name.set_ip(ip.into());
    }
    Ok(name)
}

/// Only an address of this network namespace's can be bound, so that nothing is sent elsewhere.
fn compare(at: &SocketAddr) -> Result<bool, Failure> {
    let listener = sockets::stream_for(at)?;
    let compared = sockets::listen_at(&listener, at, 2).and_then(|()| {
        let to = sockets::own_name(&listener)?;
        let first = dial(&to)?;
        let second = dial(&to);
        let compared = second.and_then(|second| {
            let differ = differ(&first, &second);
            sys::discard(second);
            differ
        });
        sys::discard(first);
        compared
    });
    sys::discard(listener);
    compared
}

fn differ(first: &OwnedFd, second: &OwnedFd) -> Result<bool, Failure> {
    let began = sys::now_ns();
    let [a, b] = [now_of(first)?, now_of(second)?];
    let between = sys::now_ns().saturating_sub(began) / 1_000_000;
    let apart = u64::from(a.wrapping_sub(b).min(b.wrapping_sub(a)));
    Ok(apart > between + NEAR)
}

fn now_of(fd: &OwnedFd) -> Result<u32, Failure> {
    Ok(raw::getsockopt::<i32>(fd.as_raw_fd(), libc::IPPROTO_TCP, TCP_TIMESTAMP)?.0.cast_unsigned())
}

/// The kernel chooses the offset before the first packet, so that no thread needs to accept the
/// connection, nor to hear of it.
fn dial(to: &SocketAddr) -> Result<OwnedFd, Failure> {
    let fd = sockets::stream_for(to)?;
    match sockets::connect(&fd, to) {
        Ok(()) | Err(Failure::UnderWay) => Ok(fd),
        Err(e) => {
            sys::discard(fd);
            Err(e)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_open() {
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = open();
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let found = compare(&loopback);
        // Other tests of this process open and close files meanwhile, but not a hundred times
        // three.
        for _ in 0..100 {
            assert_eq!(compare(&loopback).is_ok(), found.is_ok());
        }
        assert!(open() < before + 100);
        if let Ok(own) = found {
            assert_eq!(are_each_ones_own(-1), own);
        }
    }

    #[test]
    fn any_address_of_the_host_says_the_same() {
        let Ok(expected) = find_out(-1) else { return };
        for at in ["127.0.0.2:0", "[::1]:0", "[::ffff:127.0.0.3]:0"] {
            let Ok(listener) = std::net::TcpListener::bind(at) else { continue };
            let mut name = name_of(listener.as_raw_fd()).unwrap();
            assert_ne!(name.port(), 0);
            assert_eq!(name.is_ipv4(), at.contains('.'));
            name.set_port(0);
            assert_eq!(compare(&name).unwrap(), expected, "{at}");
        }
        // What no socket here can have is not dialled.
        assert!(compare(&SocketAddr::from(([192, 0, 2, 1], 0))).is_err());
    }
}
