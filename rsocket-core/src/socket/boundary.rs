//! Calls that receive across a boundary between TCP and the window: a program sees one stream, and gets from one call all
//! that is there.
//!
//! Must not know how a boundary came to be. Entry points: [`is_over`], [`behind_the_end`], for who holds the receive lock.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::RawFd;

use super::receive::{Got, from_kernel};
use super::slot::{RecvState, Slot};
use super::vectors::Cursor;
use crate::attach::link::Ends;
use crate::attach::{counters, marks};

/// Whether the sender has gone back to TCP, and the window has no more than `state` has taken.
pub(super) fn is_over(state: &RecvState, ends: &Ends) -> bool {
    marks::end(&ends.incoming) == Some(state.total())
        && ends.incoming.poll_data(state.data_position).is_none()
}

/// What TCP has behind the window's last byte belongs to the same call. An end or an error is the next one's.
pub(super) fn behind_the_end(s: &Slot, fd: RawFd, to: &mut Cursor<'_>, flags: i32) -> usize {
    if !counters::in_queue(fd).is_ok_and(|n| n > 0) {
        return 0;
    }
    match from_kernel(s, fd, to, usize::MAX, flags) {
        Ok(Got::Bytes(n)) => n,
        _ => 0,
    }
}
