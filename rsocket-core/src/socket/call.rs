//! One call on a connection: what each of its steps has to know of it.
//!
//! Must not know what is moved, nor how long the call may wait ([`super::call_deadline`]). Entry
//! point: [`Call`].
#![forbid(unsafe_code)]

use std::os::fd::RawFd;

use crate::conn::slot::{Slot, SlotId};

/// A call of the program's.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// The connection.
    pub id: SlotId,
    /// Its state.
    pub s: &'a Slot,
    /// The descriptor by which the call goes on: another one after a sleep during which the program
    /// has closed its own.
    pub fd: RawFd,
    /// `MSG_*`.
    pub flags: i32,
}
