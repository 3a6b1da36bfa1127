//! How long a peer that says nothing is believed to be there: `SO_KEEPALIVE` with its three
//! numbers, and `TCP_USER_TIMEOUT`.
//!
//! The options are the kernel socket's; over RDMA its TCP connection does not lead to the peer, so
//! that a bridge must know them. They are copied into the slot where the program sets them, and
//! where a socket gets them from its listener. Must not know what a bridge does with them. Entry
//! points: [`concerns`], [`Timers::learn`], [`Timers::rules`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::sync::atomic::{AtomicU32, Ordering};
use std::os::fd::RawFd;

use crate::host::kernel;

/// The options, in the order of the words in [`Timers`].
const OPTIONS: [(i32, i32); 5] = [
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
];

/// The options' values, in memory that processes may share. Relaxed throughout: a bridge that looks
/// in between two stores goes by a mixture for one look.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Timers([AtomicU32; OPTIONS.len()]);

/// What they mean, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rules {
    /// A silent peer is asked, and given up.
    pub keep_alive: Option<KeepAlive>,
    /// What was sent may be on its way for so long without any progress.
    pub user_timeout: Option<u64>,
}

/// How long what a program has left behind may wait for a peer that takes none of it, in
/// nanoseconds. That is about as long as with the kernel's TCP, which gives an orphan up when its
/// probes have come to be two minutes apart.
const ORPHAN_NS: u64 = 120_000_000_000;

impl Rules {
    /// From when the program has closed: no owner is left that could decide to wait longer.
    #[must_use]
    pub fn orphaned(self) -> Self {
        let limit = self.user_timeout.map_or(ORPHAN_NS, |limit| limit.min(ORPHAN_NS));
        Self { user_timeout: Some(limit), ..self }
    }
}

/// `TCP_KEEPIDLE`, `TCP_KEEPINTVL`, `TCP_KEEPCNT`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeepAlive {
    /// Silence before the first question, in nanoseconds.
    pub idle: u64,
    /// From one question to the next, in nanoseconds.
    pub interval: u64,
    /// Questions without an answer.
    pub count: u32,
}

impl Timers {
    /// Takes the kernel socket's values; those that it does not say stay.
    pub fn learn(&self, fd: RawFd) {
        for ((level, option), word) in OPTIONS.iter().zip(&self.0) {
            if let Some(value) = kernel::integer(fd, *level, *option) {
                word.store(value.unsigned_abs(), Ordering::Relaxed);
            }
        }
    }

    /// As nothing was ever set.
    pub fn reset(&self) {
        self.0.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// What they mean.
    #[must_use]
    pub fn rules(&self) -> Rules {
        const SECOND: u64 = 1_000_000_000;
        let [on, idle, interval, count, user] =
            self.0.each_ref().map(|word| word.load(Ordering::Relaxed));
        let seconds = |n: u32| u64::from(n.max(1)) * SECOND;
        Rules {
            keep_alive: (on != 0).then(|| KeepAlive {
                idle: seconds(idle),
                interval: seconds(interval),
                count: count.max(1),
            }),
            user_timeout: (user != 0).then(|| u64::from(user) * 1_000_000),
        }
    }
}

/// Whether an option is one of these.
#[must_use]
pub fn concerns(level: i32, name: i32) -> bool {
    OPTIONS.contains(&(level, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn the_kernels_values_are_taken() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let timers = Timers::default();
        assert_eq!(timers.rules(), Rules::default());
        rustix::net::sockopt::set_socket_keepalive(&socket, true).unwrap();
        rustix::net::sockopt::set_tcp_keepidle(&socket, core::time::Duration::from_secs(7))
            .unwrap();
        rustix::net::sockopt::set_tcp_keepintvl(&socket, core::time::Duration::from_secs(3))
            .unwrap();
        rustix::net::sockopt::set_tcp_keepcnt(&socket, 4).unwrap();
        rustix::net::sockopt::set_tcp_user_timeout(&socket, 1500).unwrap();
        timers.learn(socket.as_raw_fd());
        let keep_alive = KeepAlive { idle: 7_000_000_000, interval: 3_000_000_000, count: 4 };
        let rules = Rules { keep_alive: Some(keep_alive), user_timeout: Some(1_500_000_000) };
        assert_eq!(timers.rules(), rules);
        timers.learn(-1);
        assert_eq!(timers.rules(), rules, "what the kernel does not say stays");
        assert!(concerns(libc::IPPROTO_TCP, libc::TCP_KEEPCNT));
        assert!(!concerns(libc::SOL_SOCKET, libc::TCP_KEEPCNT));
    }
}
