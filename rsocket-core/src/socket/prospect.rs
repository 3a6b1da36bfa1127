//! How soon a connection may leave TCP, for a call that has much to send by it. Must not know what
//! brings it further. Entry point: [`prospect`].
#![forbid(unsafe_code)]

use crate::conn::machine::{Phase, SendMode};
use crate::conn::slot::SlotId;

/// How far a connection whose sends the kernel carries out is from leaving TCP. A call that has
/// much to send asks for it: the ends meet only between calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prospect {
    /// It stays on TCP.
    None,
    /// It may meet its peer some time.
    Some,
    /// It is about to.
    Soon,
}

/// See [`Prospect`].
#[must_use]
pub fn prospect(id: SlotId) -> Prospect {
    match super::slot(id).filter(|s| s.send_mode().is_kernel()) {
        None => Prospect::None,
        Some(s) => match s.phase() {
            Phase::Refused | Phase::Unconnected => Prospect::None,
            Phase::Young => Prospect::Some,
            _ if s.send_mode() == SendMode::Returned => Prospect::None,
            _ => Prospect::Soon,
        },
    }
}
