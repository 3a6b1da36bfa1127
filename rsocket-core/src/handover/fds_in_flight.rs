//! Descriptors on their way to a sibling in a message (`SCM_RIGHTS`).
//!
//! The sender of a descriptor cannot know which process receives it. It may be a sibling that has
//! this library, or a stranger that makes the kernel's calls alone. So while a copy is on its way,
//! and after a stranger took it, the connection must not leave TCP. A connection that had left it
//! goes back first ([`crate::handover::detach`]). A sibling that receives it finds it here by the
//! socket's cookie, and is an owner of the same slot from then on. The connection may attach when
//! all copies have come to siblings.
//!
//! Not every copy is announced: a stranger may pass one on, and then more come than are on their
//! way. So a slot remembers the cookie from the first time that it was sent. A sibling that
//! receives an unannounced copy finds the slot by that. A stranger may have another copy, so the
//! connection goes back to TCP. (A stranger that takes an announced copy and passes that on to a
//! sibling is not found out.)
//!
//! The table is in the fork group's memory, and short: what has waited longest makes room, and
//! stays on TCP for good. A slot with an fd in flight counts as held, though its sender may have
//! closed it ([`fork_group::others_alive`]).
//!
//! Must not know hooks. Entry points: [`send_off`], [`take_back`], [`receive`].

use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use super::back;
use crate::attach::phase;
use crate::channel::link;
use crate::conn::fds_in_flight::{FdInFlight, PLACES, Table};
use crate::conn::fork_group::{self, ForkGroup};
use crate::conn::kind::Kind;
use crate::conn::machine::Phase;
use crate::conn::pairing_lock::PairingGuard;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::pairing::heirs;
use crate::reason::Reason;
use crate::sys::{self, sockets};

fn cookie(fd: RawFd) -> Option<u64> {
    sockets::cookie(sys::borrow(fd)).ok()
}

fn table() -> Option<(&'static ForkGroup, &'static Table)> {
    fork_group::get().map(|f| (f, &f.fds_in_flight))
}

/// Before a message is sent that has the connection's descriptor in it. False if only the kernel
/// could go on with it: then it has to go back to TCP for good.
#[must_use]
pub fn send_off(id: SlotId, fd: RawFd) -> bool {
    let (Some(s), Some((_, table)), Some(cookie)) = (fork_group::slot(id), table(), cookie(fd))
    else {
        return false;
    };
    if s.has(flag::RSOCKET | flag::BROKEN | flag::SANDBOXED_OWNER) {
        return false;
    }
    // What stands beside TCP has to go back there.
    match s.kind() {
        Kind::RdmaBesideTcp => return false,
        Kind::NativeRdma if s.has(flag::PENDING) => return false,
        _ => {}
    }
    // What this process alone has of an unfinished pairing.
    heirs::before_exec(id, s, fd);
    if !hold_still(s) {
        return false;
    }
    // Release: pairs with the acquire in slot_of().
    s.cookie.store(cookie, Ordering::Release);
    // Relaxed: the process that receives it has it from a message that is sent later.
    table.used.store(1, Ordering::Relaxed);
    let displaced = table.locked(|t| put(t, cookie, id));
    fork_group::set_on_the_way(s);
    link::share(s);
    if let Some(Some(other)) = displaced
        && let Some(s) = fork_group::slot(other)
    {
        // Whichever process has it, no process of the fork group knows of it any more.
        phase::refuse(s, Reason::PassedAway);
    }
    displaced.is_some()
}

/// From here on no pairing begins. False if one is under way, or the connection is on a device that
/// it may leave. Blocks only for another thread's step in progress.
fn hold_still(s: &Slot) -> bool {
    let Some(s) = PairingGuard::take(s) else { return false };
    let still = match s.phase() {
        Phase::Young | Phase::Unconnected => !link::has_channel(&s),
        // Where TCP is excluded no stranger could do anything with it, nor where RDMA's manager has
        // connected it. It may have met its peer beside TCP since the caller looked.
        Phase::Paired => match s.kind() {
            Kind::RdmaBesideTcp => false,
            Kind::NativeRdma => true,
            Kind::Tcp | Kind::SharedMemory | Kind::RdmaListener | Kind::Datagram => {
                s.has(flag::STRICT)
            }
        },
        _ => false,
    };
    if still {
        s.set(flag::TRAVELS);
    }
    still
}

/// One more copy; which connection had to make room for it.
fn put(t: &Table, cookie: u64, id: SlotId) -> Option<SlotId> {
    if let Some(known) = t.of(id) {
        if known.cookie.swap(cookie, Ordering::Relaxed) == cookie {
            known.copies.fetch_add(1, Ordering::Release);
        } else {
            // The process that sent or received the slot's last connection was killed meanwhile.
            known.copies.store(1, Ordering::Release);
        }
        return None;
    }
    let free = || t.fds_in_flight.iter().find(|p| p.copies.load(Ordering::Relaxed) == 0);
    let oldest = || t.fds_in_flight.get(t.next.fetch_add(1, Ordering::Relaxed) as usize % PLACES);
    let p = free().or_else(oldest)?;
    let before =
        if p.copies.swap(0, Ordering::AcqRel) == 0 { 0 } else { p.slot.load(Ordering::Relaxed) };
    p.cookie.store(cookie, Ordering::Relaxed);
    p.slot.store(id.raw(), Ordering::Relaxed);
    p.copies.store(1, Ordering::Release);
    SlotId::from_raw(before)
}

/// The message was not sent after all.
pub fn take_back(id: SlotId) {
    let (Some(s), Some((_, table))) = (fork_group::slot(id), table()) else { return };
    table.locked(|t| t.of(id).map(|p| arrived(p, s)));
}

/// One copy less on its way.
fn arrived(p: &FdInFlight, s: &Slot) {
    if p.copies.load(Ordering::Relaxed) == 1 {
        // First, so that a process that finds no fd in flight may attach.
        s.clear(flag::TRAVELS);
    }
    p.copies.fetch_sub(1, Ordering::Release);
}

/// A message had the descriptor of a TCP connection in it: which connection that is, if a sibling
/// sent it. This process holds it from now on. `peeked`: the message is still there, and may be
/// received once more.
#[must_use]
pub fn receive(fd: RawFd, peeked: bool) -> Option<SlotId> {
    let (_, table) = table()?;
    if table.used.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let cookie = cookie(fd)?;
    let take = |t: &Table| {
        let on_its_way = |p: &&FdInFlight| {
            p.copies.load(Ordering::Relaxed) != 0 && p.cookie.load(Ordering::Relaxed) == cookie
        };
        let p = t.fds_in_flight.iter().find(on_its_way)?;
        let id = SlotId::from_raw(p.slot.load(Ordering::Relaxed))?;
        let s = fork_group::slot(id)?;
        // Held here before it is not on its way any more.
        fork_group::join(id, fd);
        if !peeked {
            arrived(p, s);
        }
        Some(id)
    };
    table.locked(take).flatten().or_else(|| {
        let id = slot_of(cookie)?;
        fork_group::join(id, fd);
        back::give_away(id, fd, Reason::PassedAway);
        Some(id)
    })
}

/// The connection with this cookie, if a sibling has sent it before and a process has it still.
fn slot_of(cookie: u64) -> Option<SlotId> {
    let mut found = None;
    fork_group::each_used(|id, s| {
        // Acquire: pairs with the release in send_off().
        if s.cookie.load(Ordering::Acquire) == cookie {
            found = Some(id);
        }
    });
    found.filter(|id| fork_group::is_held(*id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Box<Table> {
        // SAFETY: all zero is a free table, as in the fork group's fresh memory.
        Box::new(unsafe { core::mem::zeroed() })
    }

    fn slot(n: u32) -> SlotId {
        SlotId::from_raw(n).unwrap()
    }

    fn copies(t: &Table, id: SlotId) -> u32 {
        t.of(id).map_or(0, |p| p.copies.load(Ordering::Relaxed))
    }

    #[test]
    fn copies_of_one_connection_share_a_place() {
        let t = empty();
        assert!(!t.holds(slot(5)));
        for n in 1..=3 {
            assert_eq!(put(&t, 77, slot(5)), None);
            assert_eq!(copies(&t, slot(5)), n);
        }
        assert!(t.holds(slot(5)) && !t.holds(slot(6)));
    }

    #[test]
    fn what_has_waited_longest_makes_room() {
        let t = empty();
        for n in 1..=PLACES as u32 {
            assert_eq!(put(&t, u64::from(n), slot(n)), None);
        }
        for n in 1..=PLACES as u32 {
            let new = slot(1000 + n);
            assert_eq!(put(&t, 9, new), Some(slot(n)), "the oldest first");
            assert!(t.holds(new) && !t.holds(slot(n)));
        }
    }

    #[test]
    fn a_place_is_free_when_the_last_copy_has_come() {
        let t = empty();
        for n in 1..=PLACES as u32 {
            assert_eq!(put(&t, 1, slot(n)), None);
        }
        let p = t.of(slot(9)).unwrap();
        p.copies.fetch_sub(1, Ordering::Relaxed);
        assert!(!t.holds(slot(9)));
        assert_eq!(put(&t, 2, slot(500)), None, "nobody has to make room");
    }

    #[test]
    fn another_connection_in_the_same_slot_is_another_fd_in_flight() {
        let t = empty();
        assert_eq!(put(&t, 1, slot(5)), None);
        assert_eq!(put(&t, 2, slot(5)), None);
        assert_eq!(
            (copies(&t, slot(5)), t.of(slot(5)).unwrap().cookie.load(Ordering::Relaxed)),
            (1, 2)
        );
    }

    #[test]
    fn the_lock_is_free_afterwards() {
        let t = empty();
        assert_eq!(t.locked(|_| 1), Some(1));
        assert_eq!(t.locked(|_| 2), Some(2));
    }
}
