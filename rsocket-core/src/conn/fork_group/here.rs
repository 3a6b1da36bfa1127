//! What this very process has of the slots of its fork group: how many descriptors, and the number
//! of one of them.
//!
//! Must not know which other processes hold a slot ([`crate::conn::owners`]). Entry points:
//! [`descriptor`], [`add_descriptor`], [`held_here`].

use core::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::os::fd::RawFd;

use super::MAX_SLOTS;
use crate::conn::listeners;
use crate::conn::slot::SlotId;

/// Of one slot. Side by side: the child of a server writes both.
pub(super) struct Held {
    /// How many descriptors.
    pub(super) count: AtomicU16,
    /// The number of one of them, plus one; 0 when none is known. For steps of the
    /// connection's life that no call of the program is about: those of a pairing above all.
    pub(super) descriptor: AtomicU32,
}

/// For each slot.
static HELD: [Held; MAX_SLOTS] =
    [const { Held { count: AtomicU16::new(0), descriptor: AtomicU32::new(0) } }; MAX_SLOTS];

#[inline(always)]
pub(super) fn held(id: SlotId) -> Option<&'static Held> {
    HELD.get(id.raw() as usize)
}

/// A descriptor of this process for the slot, if one is known; else -1.
#[must_use]
pub fn descriptor(id: SlotId) -> i32 {
    // Relaxed: a number, which carries no data with it.
    match held(id).map_or(0, |held| held.descriptor.load(Ordering::Relaxed)) {
        0 if held_here(id) => another(id),
        known => known as i32 - 1,
    }
}

/// The descriptor that was known is closed, and the connection has others.
#[cold]
fn another(id: SlotId) -> i32 {
    let found = listeners::number_of(id, -1);
    found.inspect(|fd| moved_to(id, *fd)).unwrap_or(-1)
}

/// Another descriptor of this process for the slot than `closing`, which still counts as one.
pub(crate) fn another_name(id: SlotId, closing: RawFd) -> Option<RawFd> {
    if descriptors(id) > 1 { listeners::number_of(id, closing) } else { None }
}

/// One more descriptor of this process for the slot. True if it is the first.
pub fn add_descriptor(id: SlotId) -> bool {
    held(id).is_some_and(|held| held.count.fetch_add(1, Ordering::SeqCst) == 0)
}

/// Whether this process has a descriptor for the slot.
#[must_use]
pub fn held_here(id: SlotId) -> bool {
    held(id).is_some_and(|held| held.count.load(Ordering::SeqCst) > 0)
}

/// How many descriptors this process has for the slot.
pub(crate) fn descriptors(id: SlotId) -> u16 {
    held(id).map_or(0, |held| held.count.load(Ordering::Relaxed))
}

/// The process's descriptor for the slot is this one from now on.
pub(crate) fn moved_to(id: SlotId, fd: RawFd) {
    if let Some(held) = held(id) {
        held.descriptor.store((fd + 1) as u32, Ordering::Relaxed);
    }
}
