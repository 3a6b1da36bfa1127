//! What a socket is asked to be.
//!
//! Most options are the kernel's, since the descriptor is its socket; what is known here is which
//! of them leave a connection on a device as it is ([`harmless`]), and what an rsocket is to have
//! beside them ([`Sizes`]).
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU32, Ordering};
use std::os::fd::RawFd;

use super::family;
use super::slot::SlotId;
use crate::attach::cause;
use crate::config::Config;
use crate::device::shm::layout;
use crate::host::kernel;
use crate::host::option_table::{self, Kind};
use crate::reason::Reason;
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

/// One of each [`Size`], in memory that processes may share. Relaxed throughout: numbers that order
/// nothing; a thread that connects a socket knows of it from whoever set them.
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

    /// A queue pair is made, whose queues have at least so many entries: that is what is told from
    /// now on, as upstream does.
    pub fn queues_have(&self, least: u16) {
        for v in
            [Size::SendQueue, Size::ReceiveQueue].iter().filter_map(|q| self.0.get(*q as usize))
        {
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

/// Options that change neither which bytes arrive nor what a call returns beside them, as long as
/// no call asks for times of arrival.
#[must_use]
pub fn harmless(level: i32, name: i32) -> bool {
    option_table::kind(level, name) != Kind::Tcp
}

/// Options that are not [`harmless`], that a socket has from the one that listens, and that the
/// kernel tells of: level, name, and the value of a socket of which nothing was asked.
/// (`TCP_MD5SIG` it does not tell.)
const INHERITED: [(i32, i32, i32); 6] = [
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, 0),
    (libc::SOL_SOCKET, 65, 0), // SO_TIMESTAMPING_NEW
    (libc::SOL_SOCKET, libc::SO_TXTIME, 0),
    (libc::SOL_SOCKET, libc::SO_PEEK_OFF, -1),
    (libc::IPPROTO_TCP, libc::TCP_ULP, 0),
    (libc::IPPROTO_TCP, libc::TCP_REPAIR, 0),
];

/// The option that only TCP can honour, on a socket on which another program may have set some: its
/// level and number. Six system calls.
#[cold]
#[must_use]
pub fn odd_one(fd: RawFd) -> Option<(i32, i32)> {
    let set = INHERITED.iter().find(|(level, name, usual)| {
        let mut bytes = [0; 32];
        // One that the kernel does not know nobody has set; one that it has no value of is off.
        let Ok(n) = kernel::option(fd, *level, *name, &mut bytes) else { return false };
        let told = bytes.iter().take(n);
        match usual {
            0 => told.clone().any(|b| *b != 0),
            _ => told.ne(&usual.to_ne_bytes()),
        }
    });
    set.map(|(level, name, _)| (*level, *name))
}

/// Options that change how TCP sends: what is to be sent by TCP when the connection goes back goes
/// before they are set.
#[must_use]
pub fn changes_sending(level: i32, name: i32) -> bool {
    level == libc::IPPROTO_TCP
        && matches!(name, libc::TCP_REPAIR | libc::TCP_MD5SIG | TCP_MD5SIG_EXT)
}

/// linux/tcp.h has it.
const TCP_MD5SIG_EXT: i32 = 32;

/// Whether setting an option that [`changes_sending`] would change nothing: the kernel refuses the
/// value, of whatever socket, or it is there already. `value` is an address of the program's and a
/// length; `number` what stands there, of four bytes.
#[cold]
#[must_use]
pub fn would_change_nothing(
    fd: RawFd,
    level: i32,
    name: i32,
    value: (usize, u32),
    number: Option<i32>,
) -> bool {
    // -1 switches TCP_REPAIR off, too.
    let is_so = || number.is_some() && kernel::integer(fd, level, name) == number.map(|n| n.max(0));
    kernel::would_refuse(fd, level, name, value) || name == libc::TCP_REPAIR && is_so()
}

/// A call's flags without `MSG_ZEROCOPY`, where the kernel ignores that one: the program has not
/// set `SO_ZEROCOPY`.
#[inline]
#[must_use]
pub fn heeded(fd: RawFd, flags: i32) -> i32 {
    if flags & libc::MSG_ZEROCOPY != 0 && !may_borrow(fd) {
        flags & !libc::MSG_ZEROCOPY
    } else {
        flags
    }
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

/// An option is, or is about to be, set that only TCP can honour: as [`super::refuse`].
pub fn refuse_for(id: SlotId, fd: RawFd, level: i32, name: i32) {
    if let Some(s) = family::slot(id) {
        cause::of_option(s, level, name);
        super::refuse(id, fd, Reason::OddOption);
    }
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
            harmless(libc::SOL_SOCKET, libc::SO_RCVTIMEO)
                && harmless(libc::SOL_SOCKET, libc::SO_TIMESTAMP)
        );
        for name in [libc::TCP_ULP, libc::TCP_MD5SIG, libc::TCP_REPAIR] {
            assert!(!harmless(libc::IPPROTO_TCP, name), "{name}");
        }
        for name in [libc::SO_TIMESTAMPING, libc::SO_TXTIME] {
            assert!(!harmless(libc::SOL_SOCKET, name), "{name}");
        }
        // SOL_TLS
        assert!(!harmless(282, 1));
    }
}
