//! Where a call comes in that those who wait make of a socket: whose it is.
//!
//! What the socket is ([`Kind`]) is asked here, once a call; what comes behind knows it. Must not
//! know what the call is for. Entry point: [`door`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use crate::conn::fork_group::slot;
use crate::conn::kind::Kind;
use crate::conn::slot::{Slot, SlotId};

/// Who answers.
#[derive(Clone, Copy)]
pub(super) enum Door {
    /// No socket has the number.
    Nobody,
    /// [`crate::datagram`].
    Datagram,
    /// [`super::ready`], as for every socket of a stream.
    Stream(&'static Slot),
}

/// Who answers for the socket of this number.
#[inline(always)]
pub(super) fn door(id: SlotId) -> Door {
    let Some(s) = slot(id) else { return Door::Nobody };
    match s.kind_by_flags() {
        Kind::Datagram => Door::Datagram,
        Kind::Tcp
        | Kind::SharedMemory
        | Kind::RdmaBesideTcp
        | Kind::NativeRdma
        | Kind::RdmaListener => Door::Stream(s),
    }
}
