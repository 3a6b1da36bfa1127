//! A place for a connection that a bridge has established and no program has accepted yet, in the
//! memory of the fork group.
//!
//! Must not know who is at it ([`crate::bridge::guests`]). Entry point: [`Place`].
#![forbid(unsafe_code)]

use core::sync::atomic::AtomicU32;

use super::name::Name;

/// Connections that can wait at one time.
pub const GUESTS: usize = 1024;

/// One place. All zeroes is a free one.
#[repr(C)]
pub struct Place {
    pub(crate) state: AtomicU32,
    /// One more than the number of the channel's record; 0: no channel is kept.
    pub(crate) record: AtomicU32,
    pub(crate) channel: AtomicU32,
    pub(crate) bridge: AtomicU32,
    pub(crate) pid: AtomicU32,
    _pad: AtomicU32,
    /// Where it knocks from, and at which address.
    pub(crate) from: Name,
    pub(crate) door: Name,
    pub(crate) names: [Name; 2],
}
