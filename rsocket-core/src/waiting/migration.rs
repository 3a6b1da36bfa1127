//! Migration: a thread that is about to sleep goes to its peer's CPU, where every CPU is busy.
//!
//! Two ends that take turns lose little by sharing a CPU that others want anyway. Whoever sleeps
//! hands it over, and its peer runs at once. On two such CPUs each wake-up waits until a busy
//! thread's turn is over: 0.1 to 3 ms, where all of a round trip takes 0.02. The scheduler does not
//! bring them together for long, since it balances load.
//!
//! Only an end that called `connect` goes, so that the two never change places. Neither may wait
//! for a second process: a server of many, or a client of many, would draw all of them to one CPU.
//! Where a CPU is idle a spin is better. Must not know what is waited for. Entry points:
//! [`before_sleep`] on one connection, [`before_sleep_on_many`].
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::channel::handover_state;
use crate::channel::link::{self, Ends};
use crate::conn::fork_group;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::host::{runnable, trial};
use crate::stats::{self, Counter};
use crate::sync::{backoff, migration, saturation, thread};
use crate::sys::{self, sandbox};

/// This thread waits for this connection alone, as it has said, and is about to sleep. It may come
/// back on another CPU, a slice of another thread's later.
#[inline]
pub(super) fn before_sleep(s: &Slot, ends: &Ends) {
    if is_wanted(thread::cpu()) {
        follow(peers_cpu(s, ends));
    }
}

/// The same, where it waits for several connections.
#[inline]
pub(super) fn before_sleep_on_many(slots: &[SlotId]) {
    if is_wanted(thread::cpu()) {
        follow_many(slots);
    }
}

/// Whether others want this CPU, or all.
#[inline]
fn is_wanted(here: u32) -> bool {
    backoff::of(here).holds(sys::ticks) || saturation::machine().holds(sys::ticks)
}

/// They may all lead to one process: that is said to it, since it is known only here.
#[cold]
fn follow_many(slots: &[SlotId]) {
    let ends = || slots.iter().filter_map(|id| fork_group::slot(*id)).map(|s| (s, link::ends(s)));
    // Relaxed: a hint. One arena is of one pair of processes.
    let mut arenas = ends().map(|(s, _)| s.arena.load(Ordering::Relaxed));
    let first = arenas.next();
    let alone = arenas.all(|arena| Some(arena) == first);
    let mut there = None;
    for (s, ends) in ends() {
        let Some(ends) = ends else { return };
        handover_state::say_cpu(&ends.incoming, &ends.outgoing, thread::cpu(), Some(alone));
        let cpu = peers_cpu(s, &ends);
        there = Some(if there.is_none_or(|there| there == cpu) { cpu } else { 0 });
    }
    if alone {
        follow(there.unwrap_or(0));
    }
}

/// Where the peer waits, if this end may go there; else 0.
fn peers_cpu(s: &Slot, ends: &Ends) -> u32 {
    let goes = s.has(flag::CONNECTING) && !s.has(flag::BRIDGED);
    if goes { handover_state::lone_receiver_cpu(&ends.outgoing) } else { 0 }
}

#[cold]
fn follow(there: u32) {
    if there == 0 || there == thread::cpu() || !migration::is_due(sys::ticks()) {
        return;
    }
    let may = !sandbox::entered() && !trial::migration_kills();
    if may && runnable::all_busy() == Some(true) && migration::go_to(there) {
        stats::add(Counter::Migrations, 1);
    }
}
