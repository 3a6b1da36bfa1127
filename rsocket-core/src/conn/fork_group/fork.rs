//! What a fork, and an exec, make of the owners. The child is an owner before it is born. A program
//! that another takes the place of is no owner while that is tried.
//!
//! Must not know what else is to be done then ([`crate::process`], [`crate::socket::life`]). Entry
//! points: [`fork_prepare`], [`fork_child`], [`leave_all`].

use core::sync::atomic::{AtomicU64, Ordering};

use super::entries::{forget_bit, free_entry};
use super::own_entry::{me, take_entry};
use super::{CHILD, EXPECTED, MAX_SLOTS, ME, each_local, get};
use crate::conn::owners::BEYOND;
use crate::conn::slot::SlotId;
use crate::sys::pid;

/// Before fork: enters the child as an owner of everything that this process holds. So the child
/// can never find a slot freed under it.
pub fn fork_prepare() {
    let Some(group) = get() else { return };
    let child = take_entry(group, EXPECTED);
    CHILD.set(child as u32 + 1);
    each_local(|_, s| s.owners.add(child));
}

/// In the parent after fork: the child's entry is the child's. If fork failed, no process takes the
/// entry over, and [`fork_failed`] undoes it.
pub fn fork_parent() {}

/// After a fork that failed.
pub fn fork_failed() {
    let (Some(group), child) = (get(), CHILD.take()) else { return };
    let Some(entry) = (child as usize).checked_sub(1) else { return };
    if entry == BEYOND {
        each_local(|_, s| {
            s.owners.remove(BEYOND);
        });
    } else {
        forget_bit(group, entry);
        free_entry(group, entry);
    }
}

/// In the child after fork: takes over the entry that the parent made. Where it made none, since it
/// has no socket, the child takes one when it needs it.
pub fn fork_child() {
    let Some(group) = get() else { return };
    let child = CHILD.take();
    ME.store(child, Ordering::Relaxed);
    if let Some(e) = (child as usize).checked_sub(1).and_then(|i| group.processes.get(i)) {
        e.store(pid(), Ordering::Release);
    }
}

/// Before exec, in a process that is to become another program: it stops being an owner as far as
/// we can tell. The kernel keeps what is inherited open; the peer's FIN stays right.
///
/// What `kept` says yes to is passed on to that program, which goes on as an owner.
pub fn leave_all(kept: impl Fn(SlotId) -> bool) {
    let Some(group) = get() else { return };
    let mine = me(group);
    each_local(|id, s| {
        if !kept(id) && s.owners.remove(mine) {
            mark_left(id, true);
        }
    });
}

/// After an exec that failed.
pub fn rejoin_all() {
    let Some(group) = get() else { return };
    let mine = me(group);
    each_local(|id, s| {
        if mark_left(id, false) {
            s.owners.add(mine);
        }
    });
}

/// Slots that this process has left before an `exec`, a bit for each.
static LEFT: [AtomicU64; MAX_SLOTS / 64] = [const { AtomicU64::new(0) }; MAX_SLOTS / 64];

/// Whether it had left the slot before.
fn mark_left(id: SlotId, left: bool) -> bool {
    let bit = 1 << (id.raw() % 64);
    // Relaxed: only the thread that calls exec asks.
    LEFT.get(id.raw() as usize / 64).is_some_and(|w| {
        let before = if left {
            w.fetch_or(bit, Ordering::Relaxed)
        } else {
            w.fetch_and(!bit, Ordering::Relaxed)
        };
        before & bit != 0
    })
}
