//! Whether this kernel gives each connection's timestamps an offset of its own: else they say
//! little of which one it is.
//!
//! Some kernels have one offset for all connections of two hosts. With `tcp_timestamps` at 2 or 0
//! there is none. Nothing says so, so two connections over the loopback interface are compared,
//! once in a process. Must not know whose evidence it is. Entry point: [`are_each_ones_own`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::net::{Ipv4Addr, SocketAddr};
use core::sync::atomic::{AtomicU8, Ordering};
use std::os::fd::{AsRawFd, OwnedFd};

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

/// Two timestamps that are so near, beside the milliseconds between the questions, have one offset:
/// the lowest bit is not said, and a millisecond may begin in between.
const NEAR: u64 = 3;

/// Whether they are. No, where that could not be found out; that is asked again. Some fifteen
/// system calls the first time; does not block.
#[must_use]
pub fn are_each_ones_own() -> bool {
    match KNOWN.load(Ordering::Relaxed) {
        UNKNOWN => {
            let Ok(own) = compare() else { return false };
            KNOWN.store(if own { YES } else { NO }, Ordering::Relaxed);
            own
        }
        known => known == YES,
    }
}

fn compare() -> Result<bool, Failure> {
    let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = sockets::stream_for(&nobody)?;
    let compared = sockets::listen_at(&listener, &nobody, 2).and_then(|()| {
        let first = dial(&listener)?;
        let second = dial(&listener);
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

/// The offset is chosen before the first packet, so that nobody needs to accept.
fn dial(listener: &OwnedFd) -> Result<OwnedFd, Failure> {
    let to = sockets::own_name(listener)?;
    let fd = sockets::stream_for(&to)?;
    match sockets::connect(&fd, &to) {
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
        let found = compare();
        // Other tests of this process open and close files meanwhile, but not a hundred times
        // three.
        for _ in 0..100 {
            assert_eq!(compare().is_ok(), found.is_ok());
        }
        assert!(open() < before + 100);
        if let Ok(own) = found {
            assert_eq!(are_each_ones_own(), own);
        }
    }
}
