//! The entries of the processes of a fork group: which processes have one, which of those live, and
//! which other processes hold a slot.
//!
//! Must not know how slots are taken back that no process holds any more ([`super::sweep`]). Entry
//! points: [`mine`], [`free_one`], [`others_alive`].

use core::sync::atomic::{AtomicU32, Ordering};

use super::{ENDED, EXPECTED, ForkGroup, ME, held_here, id_of, on_the_way};
use crate::conn::owners::{BEYOND, ON_THE_WAY, Seen};
use crate::conn::slot::Slot;
use crate::sync::living;

/// This process's entry, if it has one.
pub(super) fn mine() -> Option<usize> {
    (ME.load(Ordering::Relaxed) as usize).checked_sub(1)
}

/// A free entry for that process. Begins behind the one that was taken last: those of children that
/// have ended stay taken until all are.
pub(super) fn free_one(group: &ForkGroup, value: u32) -> Option<usize> {
    // Relaxed, here and below: a place to begin at.
    let first = group.next_entry.load(Ordering::Relaxed) as usize % ON_THE_WAY;
    let found = (first..ON_THE_WAY).chain(0..first).find(|i| {
        group.processes.get(*i).is_some_and(|entry| {
            // AcqRel: pairs with the releases of threads that free an entry, and with alive()'s
            // loads.
            entry.load(Ordering::Relaxed) == 0
                && entry.compare_exchange(0, value, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    })?;
    group.next_entry.store(found as u32 + 1, Ordering::Relaxed);
    Some(found)
}

pub(super) fn free_entry(group: &ForkGroup, i: usize) {
    if let Some(e) = group.processes.get(i) {
        e.store(0, Ordering::Release);
    }
}

/// Clears the bits of an entry.
pub(super) fn forget_bit(group: &ForkGroup, i: usize) {
    let used = group.used.load(Ordering::Acquire) as usize;
    for s in group.slots.iter().take(used + 1) {
        if s.owners.has(i) {
            s.owners.remove(i);
        }
    }
}

/// Whether a process other than this one holds the slot, or a message on its way.
///
/// An owner that hands on to another one (a child, a process that receives the descriptor) sets the
/// other's bit before it clears its own. So a thread that looks at one word after the other may see
/// neither bit. But then the words have changed since.
pub(super) fn others_alive(group: &ForkGroup, s: &Slot) -> bool {
    let mut seen = s.owners.see();
    loop {
        if any_alive(group, s, seen) {
            return true;
        }
        let now = s.owners.see();
        if now == seen {
            return false;
        }
        seen = now;
    }
}

/// The same of one moment. Bits of dead processes stay until their entries are freed. A thread that
/// cleared one here might clear the bit of a process that has been given the entry meanwhile.
fn any_alive(group: &ForkGroup, s: &Slot, seen: Seen) -> bool {
    let mine = mine();
    let here = mine == Some(BEYOND) && id_of(group, s).is_some_and(held_here);
    seen.beyond() > u32::from(here)
        || seen.entries().any(|entry| match entry {
            ON_THE_WAY => on_the_way(group, s),
            _ => mine != Some(entry) && group.processes.get(entry).is_some_and(alive),
        })
}

/// Whether the process of an entry lives, or is about to be born. One that has ended is marked, so
/// that the kernel is not asked once more.
pub(super) fn alive(entry: &AtomicU32) -> bool {
    let pid = entry.load(Ordering::Acquire);
    match pid {
        0 | ENDED => false,
        EXPECTED => true,
        _ if living::process(pid) => true,
        _ => {
            let _ = entry.compare_exchange(pid, ENDED, Ordering::AcqRel, Ordering::Relaxed);
            false
        }
    }
}
