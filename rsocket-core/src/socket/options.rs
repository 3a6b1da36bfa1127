//! What a socket is asked to be.
//!
//! Most options are the kernel's, since the descriptor is its socket; what is known here is which of them leave a
//! connection on a device as it is ([`harmless`]), and what an rsocket is to have beside them ([`Sizes`]).
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU32, Ordering};
use std::os::fd::RawFd;

use super::{kernel, stamps};
use crate::config::Config;
use crate::device::shm::layout;
use crate::sys;
use crate::wire::private_data::representable_iomap;

/// What a queue pair is made with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// Entries of the send queue (`RDMA_SQSIZE`).
    SendQueue,
    /// Entries of the receive queue (`RDMA_RQSIZE`).
    ReceiveQueue,
    /// Bytes that are sent inline (`RDMA_INLINE`).
    Inline,
    /// Mappings that a peer may announce (`RDMA_IOMAPSIZE`).
    Iomap,
    /// Bytes of the send buffer (`SO_SNDBUF`), doubled as Linux does.
    SendBuffer,
    /// Bytes of the receive buffer (`SO_RCVBUF`), doubled.
    ReceiveBuffer,
}

/// One of each [`Size`], in memory that processes may share. Relaxed throughout: numbers that order nothing; a
/// thread that connects a socket knows of it from whoever set them.
#[derive(Debug)]
#[repr(C)]
pub struct Sizes([AtomicU32; 6]);

impl Sizes {
    /// As configured.
    #[must_use]
    pub const fn new(config: &Config) -> Self {
        Self([
            AtomicU32::new(config.send_queue as u32),
            AtomicU32::new(config.recv_queue as u32),
            AtomicU32::new(config.inline as u32),
            AtomicU32::new(config.iomap as u32),
            AtomicU32::new(config.send_buffer),
            AtomicU32::new(config.recv_buffer),
        ])
    }

    /// The value that was set, or the default.
    #[must_use]
    pub fn get(&self, size: Size) -> u32 {
        self.0.get(size as usize).map_or(0, |v| v.load(Ordering::Relaxed))
    }

    /// Sets what the program asked for, as upstream rounds it (`wire-protocol §11.2`).
    pub fn set(&self, size: Size, asked: u32) {
        let value = match size {
            Size::SendQueue | Size::ReceiveQueue | Size::Inline => asked.min(65534),
            Size::Iomap => u32::from(representable_iomap(asked.min(layout::MAPS as u32) as u16)),
            Size::SendBuffer if asked < 2048 => 4096,
            Size::SendBuffer | Size::ReceiveBuffer => asked.saturating_mul(2).min(1 << 30),
        };
        if let Some(v) = self.0.get(size as usize) {
            v.store(value, Ordering::Relaxed);
        }
    }

    /// A queue pair is made, whose queues have at least so many entries: that is what is told from now on, as upstream does.
    pub fn queues_have(&self, least: u16) {
        for v in [Size::SendQueue, Size::ReceiveQueue].iter().filter_map(|q| self.0.get(*q as usize)) {
            v.fetch_max(u32::from(least), Ordering::Relaxed);
        }
    }

    /// Takes over all of another's.
    pub fn copy_from(&self, other: &Self) {
        for (to, from) in self.0.iter().zip(&other.0) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

/// Options that change neither which bytes arrive nor what a call returns beside them.
#[must_use]
pub fn harmless(level: i32, name: i32) -> bool {
    match level {
        libc::SOL_SOCKET => harmless_socket(name) || stamps::concerns(level, name),
        libc::IPPROTO_TCP => harmless_tcp(name),
        libc::IPPROTO_IP => matches!(
            name,
            libc::IP_TOS
                | libc::IP_TTL
                | libc::IP_MTU_DISCOVER
                | libc::IP_FREEBIND
                | libc::IP_TRANSPARENT
                | libc::IP_BIND_ADDRESS_NO_PORT
                | libc::IP_MINTTL
                | libc::IP_RECVERR
                // TCP delivers none of these with its bytes (ip(7)).
                | libc::IP_RECVOPTS
                | libc::IP_RETOPTS
                | libc::IP_PKTINFO
                | libc::IP_RECVTTL
                | libc::IP_RECVTOS
                | libc::IP_RECVORIGDSTADDR
                | libc::IP_PASSSEC
                | libc::IP_CHECKSUM
                | libc::IP_RECVFRAGSIZE
                | libc::IP_UNICAST_IF
                | 51 // IP_LOCAL_PORT_RANGE
        ),
        libc::IPPROTO_IPV6 => matches!(
            name,
            libc::IPV6_V6ONLY
                | libc::IPV6_TCLASS
                | libc::IPV6_UNICAST_HOPS
                | libc::IPV6_MTU_DISCOVER
                | libc::IPV6_MTU
                | libc::IPV6_FREEBIND
                | libc::IPV6_TRANSPARENT
                | libc::IPV6_RECVERR
                | libc::IPV6_ADDR_PREFERENCES
                | libc::IPV6_AUTOFLOWLABEL
                | libc::IPV6_MINHOPCOUNT
                | libc::IPV6_RECVPKTINFO
                | libc::IPV6_RECVHOPLIMIT
                | libc::IPV6_RECVTCLASS
                | libc::IPV6_RECVPATHMTU
                | libc::IPV6_RECVRTHDR
                | libc::IPV6_RECVHOPOPTS
                | libc::IPV6_RECVDSTOPTS
                | libc::IPV6_RECVORIGDSTADDR
                | libc::IPV6_RECVFRAGSIZE
        ),
        _ => false,
    }
}

/// Options that are not [`harmless`], that a socket has from the one that listens, and that the kernel
/// tells of: level, name, and the value of a socket of which nothing was asked. (`TCP_MD5SIG` it does
/// not tell.)
const INHERITED: [(i32, i32, i32); 12] = [
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, 0),
    (libc::SOL_SOCKET, 65, 0), // SO_TIMESTAMPING_NEW
    (libc::SOL_SOCKET, libc::SO_TXTIME, 0),
    (libc::SOL_SOCKET, libc::SO_WIFI_STATUS, 0),
    (libc::SOL_SOCKET, libc::SO_NOFCS, 0),
    (libc::SOL_SOCKET, libc::SO_PEEK_OFF, -1),
    (libc::SOL_SOCKET, libc::SO_SELECT_ERR_QUEUE, 0),
    (libc::SOL_SOCKET, libc::SO_PASSSEC, 0),
    (libc::SOL_SOCKET, 75, 0), // SO_RCVMARK
    (libc::IPPROTO_TCP, libc::TCP_ULP, 0),
    (libc::IPPROTO_TCP, libc::TCP_REPAIR, 0),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, 0),
];

/// Whether a socket on which another program may have set options has one that only TCP can honour.
/// A dozen system calls.
#[cold]
#[must_use]
pub fn is_odd(fd: RawFd) -> bool {
    INHERITED.iter().any(|(level, name, usual)| {
        let mut bytes = [0; 32];
        // One that the kernel does not know nobody has set; one that it has no value of is off.
        let Ok(n) = kernel::option(fd, *level, *name, &mut bytes) else { return false };
        let told = bytes.iter().take(n);
        match usual {
            0 => told.clone().any(|b| *b != 0),
            _ => told.ne(&usual.to_ne_bytes()),
        }
    })
}

/// Options that change how TCP sends: what is to be sent by TCP when the connection goes back goes before they are set.
#[must_use]
pub fn changes_sending(level: i32, name: i32) -> bool {
    const TCP_MD5SIG_EXT: i32 = 38;
    level == libc::IPPROTO_TCP && matches!(name, libc::TCP_REPAIR | libc::TCP_MD5SIG | TCP_MD5SIG_EXT)
}

/// A call's flags without `MSG_ZEROCOPY`, where the kernel ignores that one: the program has not set `SO_ZEROCOPY`.
#[inline]
#[must_use]
pub fn heeded(fd: RawFd, flags: i32) -> i32 {
    if flags & libc::MSG_ZEROCOPY != 0 && !may_borrow(fd) { flags & !libc::MSG_ZEROCOPY } else { flags }
}

/// Whether the kernel may send from the program's buffers. Preserves `errno`.
#[cold]
fn may_borrow(fd: RawFd) -> bool {
    let errno = sys::errno();
    let asked = kernel::integer(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY);
    sys::set_errno(errno);
    // Where it does not say, the kernel is left to the call itself.
    asked != Some(0)
}

/// An option that may not be [`harmless`], before the program's call sets it: what it is now.
pub struct Before {
    level: i32,
    name: i32,
    /// Its bytes, and how many they are; `None` where the kernel does not say.
    value: Option<([u8; 32], usize)>,
}

impl Before {
    /// Asks the kernel.
    #[cold]
    #[must_use]
    pub fn ask(fd: RawFd, level: i32, name: i32) -> Self {
        Self { level, name, value: value(fd, level, name) }
    }

    /// Whether the call that has just succeeded has changed something, as far as can be told.
    #[must_use]
    pub fn has_changed(&self, fd: RawFd) -> bool {
        self.value.is_none() || value(fd, self.level, self.name) != self.value
    }
}

/// Longer ones are not compared.
fn value(fd: RawFd, level: i32, name: i32) -> Option<([u8; 32], usize)> {
    let mut bytes = [0; 32];
    let n = kernel::option(fd, level, name, &mut bytes).ok()?;
    (n < bytes.len()).then_some((bytes, n))
}

fn harmless_socket(name: i32) -> bool {
    matches!(
        name,
        libc::SO_DEBUG
            | libc::SO_REUSEADDR
            | libc::SO_REUSEPORT
            | libc::SO_DONTROUTE
            | libc::SO_BROADCAST
            | libc::SO_SNDBUF
            | libc::SO_RCVBUF
            | libc::SO_SNDBUFFORCE
            | libc::SO_RCVBUFFORCE
            | libc::SO_KEEPALIVE
            | libc::SO_OOBINLINE
            | libc::SO_PRIORITY
            | libc::SO_LINGER
            | libc::SO_RCVLOWAT
            | libc::SO_RCVTIMEO
            | libc::SO_SNDTIMEO
            | 66 // SO_RCVTIMEO_NEW
            | 67 // SO_SNDTIMEO_NEW
            | libc::SO_BINDTODEVICE
            | libc::SO_BINDTOIFINDEX
            | libc::SO_MARK
            | libc::SO_BUSY_POLL
            | libc::SO_PREFER_BUSY_POLL
            | libc::SO_BUSY_POLL_BUDGET
            | libc::SO_INCOMING_CPU
            | libc::SO_MAX_PACING_RATE
            | libc::SO_ATTACH_FILTER
            | libc::SO_DETACH_FILTER
            | libc::SO_LOCK_FILTER
            | libc::SO_ATTACH_BPF
            | libc::SO_ATTACH_REUSEPORT_CBPF
            | libc::SO_ATTACH_REUSEPORT_EBPF
            | 68 // SO_DETACH_REUSEPORT_BPF
            | 72 // SO_BUF_LOCK
            | 73 // SO_RESERVE_MEM
            | 74 // SO_TXREHASH
            // A call that uses it says so (MSG_ZEROCOPY).
            | libc::SO_ZEROCOPY
            | libc::SO_SNDLOWAT
            | libc::SO_PASSCRED
            | libc::SO_RXQ_OVFL
    )
}

fn harmless_tcp(name: i32) -> bool {
    matches!(
        name,
        libc::TCP_NODELAY
            | libc::TCP_MAXSEG
            | libc::TCP_CORK
            | libc::TCP_KEEPIDLE
            | libc::TCP_KEEPINTVL
            | libc::TCP_KEEPCNT
            | libc::TCP_SYNCNT
            | libc::TCP_LINGER2
            | libc::TCP_DEFER_ACCEPT
            | libc::TCP_WINDOW_CLAMP
            | libc::TCP_QUICKACK
            | libc::TCP_CONGESTION
            | libc::TCP_THIN_LINEAR_TIMEOUTS
            | libc::TCP_THIN_DUPACK
            | libc::TCP_USER_TIMEOUT
            | libc::TCP_FASTOPEN
            | libc::TCP_FASTOPEN_KEY
            | libc::TCP_FASTOPEN_NO_COOKIE
            | libc::TCP_TIMESTAMP
            | libc::TCP_NOTSENT_LOWAT
            | libc::TCP_SAVE_SYN
            | libc::TCP_INQ
            | 37 // TCP_TX_DELAY
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_and_kept() {
        let sizes = Sizes::new(&Config::DEFAULT);
        assert_eq!((sizes.get(Size::SendQueue), sizes.get(Size::SendBuffer)), (384, 131_072));
        for (size, asked, kept) in [
            (Size::SendQueue, 100_000, 65534),
            (Size::ReceiveQueue, 32, 32),
            (Size::Inline, 0, 0),
            (Size::Iomap, 300, 256),
            (Size::Iomap, 40_000, 1024),
            (Size::SendBuffer, 1, 4096),
            (Size::ReceiveBuffer, 1 << 19, 1 << 20),
            (Size::ReceiveBuffer, u32::MAX, 1 << 30),
        ] {
            sizes.set(size, asked);
            assert_eq!(sizes.get(size), kept, "{size:?} {asked}");
        }
        sizes.set(Size::SendQueue, 3);
        assert_eq!(sizes.get(Size::SendQueue), 3);
        sizes.queues_have(16);
        assert_eq!((sizes.get(Size::SendQueue), sizes.get(Size::ReceiveQueue)), (16, 32));
        let other = Sizes::new(&Config::DEFAULT);
        other.copy_from(&sizes);
        assert_eq!(other.get(Size::Iomap), 1024);
    }

    #[test]
    fn what_changes_the_bytes_is_not_harmless() {
        assert!(harmless(libc::IPPROTO_TCP, libc::TCP_NODELAY));
        assert!(
            harmless(libc::SOL_SOCKET, libc::SO_RCVTIMEO) && harmless(libc::SOL_SOCKET, libc::SO_TIMESTAMP)
        );
        for name in [libc::TCP_ULP, libc::TCP_MD5SIG, libc::TCP_REPAIR, libc::TCP_FASTOPEN_CONNECT] {
            assert!(!harmless(libc::IPPROTO_TCP, name), "{name}");
        }
        for name in [libc::SO_TIMESTAMPING, libc::SO_TXTIME] {
            assert!(!harmless(libc::SOL_SOCKET, name), "{name}");
        }
        // SOL_TLS
        assert!(!harmless(282, 1));
    }
}
