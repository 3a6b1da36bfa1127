//! What a connection has moved, counted where it costs nothing and added to the process's counters when it
//! ends or when somebody asks.
//!
//! A count is a plain load and store under the lock that the data path holds anyway; two threads in TCP
//! calls at the same moment may lose a count, never a byte.

use core::sync::atomic::{AtomicU64, Ordering};

use super::family;
use super::slot::{Slot, flag};
use crate::stats::{self, Transport};

/// Bytes and messages of one direction over one transport.
#[repr(C)]
#[derive(Default)]
pub struct Tally {
    bytes: AtomicU64,
    messages: AtomicU64,
}

impl Tally {
    #[inline]
    fn add(&self, n: usize) {
        self.bytes.store(self.bytes.load(Ordering::Relaxed).wrapping_add(n as u64), Ordering::Relaxed);
        self.messages.store(self.messages.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    fn take(&self) -> (u64, u64) {
        (self.bytes.swap(0, Ordering::Relaxed), self.messages.swap(0, Ordering::Relaxed))
    }
}

/// What libc or we received from TCP.
#[inline]
pub fn received_tcp(s: &Slot, n: usize) {
    s.tcp_in.add(n);
}

/// What libc or we sent into TCP.
#[inline]
pub fn sent_tcp(s: &Slot, n: usize) {
    s.tcp_out.add(n);
}

/// What was read out of the window.
#[inline]
pub fn received_shm(s: &Slot, n: usize) {
    s.shm_in.add(n);
}

/// What was put into the window.
#[inline]
pub fn sent_shm(s: &Slot, n: usize) {
    s.shm_out.add(n);
}

/// Adds what a connection moved since the last time to the process's counters.
pub fn flush(s: &Slot) {
    let (bytes, messages) = s.tcp_in.take();
    stats::received(Transport::Tcp, bytes, messages);
    let (bytes, messages) = s.tcp_out.take();
    stats::sent(Transport::Tcp, bytes, messages);
    let beyond = if s.has(flag::RELAYED) { Transport::Rdma } else { Transport::Shm };
    let (bytes, messages) = s.shm_in.take();
    stats::received(beyond, bytes, messages);
    let (bytes, messages) = s.shm_out.take();
    stats::sent(beyond, bytes, messages);
}

/// Adds what all connections of this process moved.
pub fn flush_all() {
    family::each_local(|_, s| flush(s));
}
