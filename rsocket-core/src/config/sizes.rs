//! What a queue pair is made with, as far as a program can say it.
//!
//! Numbers in memory that processes may share. Must not know connections. Entry points: [`Sizes`],
//! [`Size`].
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU32, Ordering};

use crate::config::Config;
use crate::device::shm::layout;
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
/// nothing; a thread that connects a socket knows of it from the thread that set them.
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
}
