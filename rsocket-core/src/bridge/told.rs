//! What was told and heard of the marks, where a TCP connection stands beside a bridge.
//!
//! Must not know how words travel ([`super::telling`]). Entry point: [`Beside`].

use std::collections::VecDeque;

use crate::wire::word::Word;

/// What was told and heard of the marks.
#[derive(Debug, Default)]
pub(super) struct Beside {
    /// Words that wait for a slot.
    pub(super) unsaid: VecDeque<Word>,
    pub(super) acknowledged: bool,
    pub(super) cut: bool,
    pub(super) ended: bool,
    /// The peer's direction ends behind so many bytes, and has not got there yet.
    pub(super) end: Option<u64>,
    /// The peer's direction ends, or has ended, so: its stream goes on by TCP.
    pub(super) returned: bool,
}
