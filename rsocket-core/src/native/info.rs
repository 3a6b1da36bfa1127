//! What `TCP_INFO` and `TCP_MAXSEG` say of a connection whose bytes do not travel by the kernel's
//! TCP.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use crate::bridge::table;
use crate::conn::fork_group;
use crate::conn::machine::Phase;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::failure::Failure;
use crate::host::{kernel, tcp_state as state};
use crate::live_segment::conn_counters;

/// As much of `struct tcp_info` as any program has asked for yet.
pub const TCP_INFO_BYTES: usize = 256;

/// It has asked to connect.
const SYN_SENT: u8 = 2;

// Where in the kernel's struct the fields are that we know something of.
const STATE: usize = 0;
const SEND_SEGMENT: usize = 16;
const RECEIVE_SEGMENT: usize = 20;
const PATH_MTU: usize = 60;
const BYTES_RECEIVED: usize = 128;
const BYTES_SENT: usize = 200;

/// The kernel's `struct tcp_info`, as many of its bytes as the kernel has. Of a connection, its
/// state and what it has sent and received are true, and over RDMA the largest packets. The rest
/// would be about the kernel's own TCP connection, and is 0. Of a socket that is no connection, a
/// listener above all, it is what the kernel says.
///
/// # Errors
/// As getsockopt(2).
pub fn tcp_info(id: SlotId, fd: RawFd) -> Result<([u8; TCP_INFO_BYTES], usize), Failure> {
    let mut info = [0; TCP_INFO_BYTES];
    let len = kernel::option(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info)?;
    let s = fork_group::slot(id).ok_or(Failure::BadDescriptor)?;
    if s.phase() == Phase::Unconnected && !s.has(flag::PENDING | flag::UNREACHED) {
        return Ok((info, len));
    }
    let [kernels, ..] = info;
    info = [0; TCP_INFO_BYTES];
    let state = match () {
        () if s.has(flag::PENDING) => SYN_SENT,
        () if s.has(flag::UNREACHED) => state::CLOSE,
        // The kernel hears of the end of the stream behind the program.
        () if kernels == state::ESTABLISHED && s.has(flag::ENDED) => state::CLOSE_WAIT,
        () => kernels,
    };
    put(&mut info, STATE, &[state]);
    if let Some(segment) = path(s) {
        for at in [SEND_SEGMENT, RECEIVE_SEGMENT, PATH_MTU] {
            put(&mut info, at, &segment.to_ne_bytes());
        }
    }
    let [sent, received] = conn_counters::beyond(s);
    put(&mut info, BYTES_SENT, &sent.to_ne_bytes());
    put(&mut info, BYTES_RECEIVED, &received.to_ne_bytes());
    Ok((info, len))
}

/// The largest packet of a connection over RDMA, in bytes of payload; `None` where the kernel is to
/// be asked.
#[must_use]
pub fn segment(id: SlotId) -> Option<u32> {
    path(fork_group::slot(id)?)
}

fn path(s: &Slot) -> Option<u32> {
    if !s.has_bridge() {
        return None;
    }
    let bridge = s.bridge.load(Ordering::Acquire).checked_sub(1).and_then(table::find)?;
    let own = (s.arena.load(Ordering::Relaxed).wrapping_sub(1), s.channel.load(Ordering::Relaxed));
    bridge.with(|c| c.as_mut().filter(|c| c.channel() == own)?.segment()).flatten()
}

fn put(info: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = info.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}
