//! The ready bitmaps of the arenas: which connections have news for a thread that looks for any.
//!
//! A peer that takes a waker out of a channel's words sets the channel's bit beside them. Must not
//! know what an epoll set is, but that it has a waker. Entry points: [`collect_ready`],
//! [`collect_far`], [`hear`].

use core::sync::atomic::{AtomicU64, Ordering};

use super::arenas::{self, mine, record};
use super::identity::{Id, process_id};
use super::link::ends;
use super::mapping;
use crate::conn::arena_record::ArenaRecord;
use crate::conn::fork_group;
use crate::conn::slot::{Slot, SlotId};
use crate::device::shm::layout;
use crate::device::shm::park::{self, MARK_READY, Sleepers};
use crate::host::events::Events;

/// Whether a ready bit is for the epoll set with this waker, which it has armed for these
/// directions.
pub type Meant<'a> = &'a dyn Fn(u64, Events) -> bool;

/// Whether an epoll set's waker is still in all the words that it was put into for these
/// directions: no thread has woken it since.
fn is_armed(s: &Slot, armed: Events, waker: u64) -> bool {
    let word = waker | MARK_READY;
    let stands = |sleepers: Sleepers<'_>| (0..layout::SLEEPERS).any(|i| sleepers.armed(i, word));
    ends(s).is_some_and(|ends| {
        stands(ends.incoming.data_waiters())
            && (!armed.contains(Events::OUT) || stands(ends.outgoing.room_waiters()))
    })
}

/// Tells of the ready bits that peers set for connections which this process holds, and whom each
/// is for.
pub fn collect_ready(f: &mut dyn FnMut(SlotId, Meant<'_>)) {
    let Some(group) = fork_group::get() else { return };
    for i in mapping::indices() {
        let Some(r) = record(group, i) else { continue };
        if r.live.load(Ordering::Relaxed) == 0 {
            continue;
        }
        let Some(arena) = arenas::arena(r, i) else { continue };
        let side = r.side.load(Ordering::Relaxed);
        let ready = arena.ready(side);
        park::hear(&ready.woken);
        let words = (arena.channels() as usize).div_ceil(64);
        for (n, word) in ready.bits.iter().enumerate().take(words) {
            take_bits(r, n, word, f);
        }
    }
}

/// So many arenas are looked through in a small part of the time that a round trip takes: some
/// thousand connections.
const FEW_ARENAS: usize = 8;

/// Whether there are so many arenas that [`collect_ready`] is not for every call.
#[must_use]
pub fn has_many_bits() -> bool {
    mapping::indices().len() > FEW_ARENAS
}

/// From here on peers have to wake this process's wakers again: for a thread that drained one and
/// does not collect at once.
pub fn hear() {
    let Some(group) = fork_group::get() else { return };
    for i in mapping::indices() {
        if let Some(r) = record(group, i)
            && let Some(arena) = arenas::arena(r, i)
        {
            park::hear(&arena.ready(r.side.load(Ordering::Relaxed)).woken);
        }
    }
}

/// Takes the ready bits of the far sides that are in this process too ([`super::link::hold`]):
/// record and channel of each.
pub(crate) fn collect_far(f: &mut dyn FnMut(u32, u32)) {
    let Some(group) = fork_group::get() else { return };
    let own = process_id().map_or([0; 2], |id| id.0);
    for i in mapping::indices() {
        let Some(r) = record(group, i) else { continue };
        if !mine(r, i, 0, Id(own)) {
            continue;
        }
        let Some(arena) = arenas::arena(r, i) else { continue };
        let ready = arena.ready(1);
        park::hear(&ready.woken);
        for (n, word) in ready.bits.iter().enumerate() {
            // Acquire: pairs with the release in Sleepers::wake.
            let mut bits = word.swap(0, Ordering::Acquire);
            while bits != 0 {
                f(i, n as u32 * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }
}

/// A bit says that wakers were taken out of the channel's words, not whose. It is for an epoll set
/// that does not find its waker there any more. It stays while siblings hold the connection too,
/// since their wakers may have been there beside ours.
fn take_bits(r: &ArenaRecord, n: usize, word: &AtomicU64, f: &mut dyn FnMut(SlotId, Meant<'_>)) {
    // Relaxed first look: the bit that a waker announced is visible after the waker was drained.
    let mut bits = word.load(Ordering::Relaxed);
    while bits != 0 {
        let bit = bits & bits.wrapping_neg();
        bits &= bits - 1;
        let channel = n * 64 + bit.trailing_zeros() as usize;
        let slot = r.slot_of.get(channel).map_or(0, |w| w.load(Ordering::Acquire));
        let Some(id) = SlotId::from_raw(slot) else { continue };
        // A sibling's connection keeps its bit: the sibling looks too. So does one that is still
        // to come.
        if fork_group::held_here(id) {
            f(id, &|waker, armed| {
                if fork_group::slot(id).is_some_and(|s| is_armed(s, armed, waker)) {
                    return false;
                }
                // Acquire: pairs with the release in Sleepers::wake.
                let keep = if fork_group::shared(id) { u64::MAX } else { !bit };
                let was_set = word.fetch_and(keep, Ordering::Acquire) & bit != 0;
                if was_set && let Some(s) = fork_group::slot(id) {
                    s.sets_hear();
                }
                was_set
            });
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_ready_bit_stays_until_it_is_taken() {
        let socket = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let id = fork_group::take(0, std::os::fd::AsRawFd::as_raw_fd(&socket)).unwrap();
        // A record that no arena of this process gets to.
        let r =
            record(fork_group::get().unwrap(), crate::conn::arena_record::MAX_ARENAS as u32 - 1)
                .unwrap();
        r.slot_of.get(70).unwrap().store(id.raw(), Ordering::Relaxed);
        let word = AtomicU64::new(1 << 6 | 1 << 7);
        let mut found = vec![];
        take_bits(r, 1, &word, &mut |id, _| found.push(id));
        assert_eq!(
            (found, word.load(Ordering::Relaxed)),
            (vec![id], 1 << 6 | 1 << 7),
            "a sibling's"
        );
        take_bits(r, 1, &word, &mut |_, meant| {
            assert!(meant(1, Events::IN) && !meant(1, Events::IN));
        });
        assert_eq!(word.load(Ordering::Relaxed), 1 << 7, "what we do not hold stays");
        r.slot_of.get(70).unwrap().store(0, Ordering::Relaxed);
    }
}
