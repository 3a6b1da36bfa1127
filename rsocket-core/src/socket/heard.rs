//! What a program has heard of a connection's end by a call that the kernel answers. Such calls are
//! `TCP_INFO`, `SO_ERROR`, a name or a shutdown of what is connected no more.
//!
//! The kernel may know of an end that no look of the library's has seen yet. Once a program has
//! heard of it, no later call may know less. Must not know hooks. Entry points: [`state`],
//! [`error`], [`closed`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::RawFd;

use super::{asking, reader};
use crate::channel::link;
use crate::conn::fork_group;
use crate::conn::listeners::error_taken;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::host::{counters, tcp_state as tcp};

/// The connection, if the kernel's word about its end counts for it. Between hosts FIN overtakes
/// what is on its way.
fn attached(id: SlotId) -> Option<&'static Slot> {
    fork_group::slot(id).filter(|s| link::has_channel(s) && !s.has(flag::BRIDGED | flag::DATAGRAM))
}

/// The program was told the state of the TCP connection (`tcpi_state`).
pub fn state(id: SlotId, state: u8) {
    match state {
        tcp::CLOSE => closed(id),
        tcp::CLOSE_WAIT | tcp::LAST_ACK | tcp::CLOSING | tcp::TIME_WAIT => {
            if let Some(s) = attached(id) {
                reader::heard_fin(s);
                asking::ask_kernel_next(s);
            }
        }
        _ => {}
    }
}

/// The program was told an error of the connection's. Not each is its end: an unreachable network
/// may be reachable again.
pub fn error(id: SlotId, fd: RawFd) {
    error_taken(id);
    if attached(id).is_some() && counters::tcp_state(fd) == Ok(tcp::CLOSE) {
        closed(id);
    }
}

/// The program was told that the TCP connection is no more.
pub fn closed(id: SlotId) {
    if let Some(s) = attached(id) {
        reader::heard_fin(s);
        // A thread that sends from here on asks the kernel why it cannot.
        s.set(flag::PEER_GONE);
        asking::ask_kernel_next(s);
    }
}
