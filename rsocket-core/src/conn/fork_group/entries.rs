//! The entries of the processes of a fork group: who has one, who of them lives, and who else holds
//! a slot.
//!
//! Must not know what becomes of slots that nobody holds any more ([`super::sweep`]). Entry points:
//! [`me`], [`take_entry`], [`others_alive`].

use core::sync::atomic::{AtomicU32, Ordering};

use super::{EXPECTED, ForkGroup, ME, held_here, id_of, on_the_way};
use crate::conn::owners::{BEYOND, ON_THE_WAY, Seen};
use crate::conn::slot::Slot;
use crate::sync::living;
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

pub(super) fn take_entry(group: &ForkGroup, value: u32) -> usize {
    for round in 0..2 {
        for (i, entry) in group.processes.iter().enumerate().take(ON_THE_WAY) {
            if entry.compare_exchange(0, value, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                forget_bit(group, i);
                return i;
            }
        }
        if round == 0 {
            reap(group);
        }
    }
    BEYOND
}

pub(super) fn free_entry(group: &ForkGroup, i: usize) {
    if let Some(e) = group.processes.get(i) {
        e.store(0, Ordering::Release);
    }
}

/// Clears what a former owner of the entry left behind.
pub(super) fn forget_bit(group: &ForkGroup, i: usize) {
    let used = group.used.load(Ordering::Acquire) as usize;
    for s in group.slots.iter().take(used + 1) {
        if s.owners.has(i) {
            s.owners.remove(i);
        }
    }
}

/// Frees the entries of processes that have ended.
fn reap(group: &ForkGroup) {
    for e in &group.processes {
        let pid = e.load(Ordering::Acquire);
        if pid != 0 && pid != EXPECTED && !living::process(pid) {
            let _ = e.compare_exchange(pid, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// Whether a process other than this one holds the slot, or a message on its way.
///
/// An owner that hands on to another one (a child, a process that receives the descriptor) sets the
/// other's bit before it clears its own; so whoever looks at one word after the other may see
/// neither. But then the words have changed since.
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

/// The same of one moment. Bits of the dead stay until their entry is used again ([`forget_bit`]):
/// whoever cleared one here might clear that of a process to which the entry has been given
/// meanwhile.
fn any_alive(group: &ForkGroup, s: &Slot, seen: Seen) -> bool {
    let mine = me(group);
    let here = mine == BEYOND && id_of(group, s).is_some_and(held_here);
    seen.beyond() > u32::from(here)
        || seen.entries().any(|entry| match entry {
            ON_THE_WAY => on_the_way(group, s),
            _ => entry != mine && group.processes.get(entry).is_some_and(alive),
        })
}

/// Whether the process of an entry lives, or is about to be born.
fn alive(entry: &AtomicU32) -> bool {
    let pid = entry.load(Ordering::Acquire);
    if pid == EXPECTED || (pid != 0 && living::process(pid)) {
        return true;
    }
    if pid != 0 {
        // So that nobody has to ask the kernel once more.
        let _ = entry.compare_exchange(pid, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
    false
}
