//! What the dead leave behind: slots whose owners have all ended without closing them, and the
//! entries of those owners.
//!
//! Must not know when either is wanted. Entry points: [`sweep`], [`reap`].

use core::sync::atomic::Ordering;

use super::entries::{alive, mine, others_alive};
use super::{ENDED, ForkGroup, each_used, give_back, held_here};
use crate::conn::owners::{BEYOND, Entries};
use crate::conn::slot::{Slot, SlotId, flag};

/// Takes back the slots whose holders have all ended without closing.
pub(crate) fn sweep(group: &'static ForkGroup) {
    if let Some(_held) = group.sweeping.try_hold() {
        each_used(|id, s| take_back(group, id, s));
    }
}

/// Frees the entries of processes that have ended. Their slots come first: a slot without any bit
/// has no owner that could be asked about.
pub(super) fn reap(group: &ForkGroup) {
    let Some(_held) = group.sweeping.hold() else { return };
    let here = mine();
    let is_of_the_dead = |i: usize, entry| {
        here != Some(i) && !alive(entry) && entry.load(Ordering::Acquire) == ENDED
    };
    let mut dead = Entries::default();
    for (i, entry) in group.processes.iter().enumerate() {
        if is_of_the_dead(i, entry) {
            dead.add(i);
        }
    }
    each_used(|id, s| {
        take_back(group, id, s);
        s.owners.remove_all(&dead);
    });
    for (i, entry) in group.processes.iter().enumerate() {
        if dead.has(i) {
            // Release: pairs with free_one(), so that a process that takes it finds no bit of it.
            let _ = entry.compare_exchange(ENDED, 0, Ordering::Release, Ordering::Relaxed);
        }
    }
}

/// The slot, if the dead have left it. `sweeping` is held.
fn take_back(group: &ForkGroup, id: SlotId, s: &Slot) {
    if left_by_the_dead(group, id, s) {
        leave_channel(group, s);
        s.generation.fetch_add(1, Ordering::AcqRel);
        s.owners.clear();
        give_back(id);
    }
}

/// Takes the connection of the dead out of its arena's record, without touching the channel.
fn leave_channel(group: &ForkGroup, s: &Slot) {
    let Some(index) = s.arena.load(Ordering::Acquire).checked_sub(1) else { return };
    s.set(flag::CHANNEL_DONE);
    let channel = s.channel.load(Ordering::Relaxed);
    // Before the channel has one user less: a process that is killed in between leaves a user too
    // many.
    s.arena.store(0, Ordering::Release);
    if let Some(record) = group.arenas.get(index as usize) {
        record.leave(channel);
    }
}

/// Whether all owners of the slot have ended without closing it. Said once of each connection.
fn left_by_the_dead(group: &ForkGroup, id: SlotId, s: &Slot) -> bool {
    // Acquire: pairs with the bump in Slot::reset, which comes before the flags are those of the
    // next connection.
    let born = s.generation.load(Ordering::Acquire);
    let mine = mine();
    // Our own bit is no dead process's: a thread has just taken the slot, or is about to close its
    // last descriptor. The slot may have bits of dead processes beside ours.
    let is_ours = held_here(id) || mine.is_some_and(|mine| mine != BEYOND && s.owners.has(mine));
    let of_the_dead =
        || s.owners.see().entries().any(|entry| mine != Some(entry)) && !others_alive(group, s);
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
