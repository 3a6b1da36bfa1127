//! The entry of this process in its fork group, and that of a child which is about to be born.
//!
//! Must not know what an entry is good for. Entry points: [`me`], [`take_entry`].

use core::sync::atomic::Ordering;

use super::entries::{free_entry, free_one};
use super::{ForkGroup, ME, sweep};
use crate::conn::owners::BEYOND;
use crate::sys::pid;

/// This process's entry, taken on first use.
pub(super) fn me(group: &ForkGroup) -> usize {
    let known = ME.load(Ordering::Relaxed);
    if known != 0 {
        return known as usize - 1;
    }
    let mine = take_entry(group, pid());
    match ME.compare_exchange(0, mine as u32 + 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => mine,
        Err(other) => {
            free_entry(group, mine);
            other as usize - 1
        }
    }
}

/// A free entry for that process; [`BEYOND`] if there is none. No slot has a bit of it.
pub(super) fn take_entry(group: &ForkGroup, value: u32) -> usize {
    free_one(group, value)
        .or_else(|| {
            sweep::reap(group);
            free_one(group, value)
        })
        .unwrap_or(BEYOND)
}
