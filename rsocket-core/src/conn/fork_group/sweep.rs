//! The slots whose owners have all ended without closing them, and how they are taken back.
//!
//! Must not know when that is due. Entry point: [`sweep`].

use core::sync::atomic::Ordering;

use super::entries::{me, others_alive};
use super::{ForkGroup, MAX_SLOTS, give_back, held_here, slot};
use crate::conn::owners::BEYOND;
use crate::conn::slot::{Slot, SlotId, flag};

/// Takes back the slots whose holders have all ended without closing.
pub(crate) fn sweep(group: &'static ForkGroup) {
    let Some(_held) = group.sweeping.try_hold() else { return };
    let used = group.used.load(Ordering::Acquire).min(MAX_SLOTS as u32 - 1);
    for id in (1..=used).filter_map(SlotId::from_raw) {
        let Some(s) = slot(id) else { continue };
        if left_by_the_dead(group, id, s) {
            leave_window(group, s);
            s.generation.fetch_add(1, Ordering::AcqRel);
            s.owners.clear();
            give_back(id);
        }
    }
}

/// Takes the connection of the dead out of its arena's record, without touching the window.
fn leave_window(group: &ForkGroup, s: &Slot) {
    let Some(index) = s.arena.load(Ordering::Acquire).checked_sub(1) else { return };
    s.set(flag::WINDOW_DONE);
    let window = s.window.load(Ordering::Relaxed);
    // Before the window has one user less: who is killed in between leaves a user too many.
    s.arena.store(0, Ordering::Release);
    if let Some(record) = group.arenas.get(index as usize) {
        record.leave(window);
    }
}

/// Whether all owners of the slot have ended without closing it. Said once of each connection.
fn left_by_the_dead(group: &ForkGroup, id: SlotId, s: &Slot) -> bool {
    // Acquire: pairs with the bump in Slot::reset, which comes before the flags are those of the
    // next connection.
    let born = s.generation.load(Ordering::Acquire);
    let mine = me(group);
    // Our own bit is no dead process's: a thread has just taken the slot, or is about to close its
    // last descriptor. He may have bits of the dead beside his.
    let is_ours = held_here(id) || mine != BEYOND && s.owners.has(mine);
    let of_the_dead =
        || s.owners.see().entries().any(|entry| entry != mine) && !others_alive(group, s);
    if is_ours || !of_the_dead() || !s.set_first(flag::OVER) {
        return false;
    }
    let same = s.generation.load(Ordering::Acquire) == born;
    if !same {
        // It was closed, and meanwhile the slot is another connection's.
        s.clear(flag::OVER);
    }
    same
}
