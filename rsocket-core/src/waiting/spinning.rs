//! Spinning before a sleep, as long as experience says that it pays.
//!
//! Must not know what is waited for. Entry points: [`spin_on`] on one connection, [`spin_for`] on
//! several, [`spin_before_paired`] on one that attaches, [`spin_alone`] on a datagram socket.

use core::sync::atomic::{AtomicU32, Ordering};

use super::call_deadline::polling;
use super::migration;
use crate::channel::handover_state;
use crate::channel::link::{self, Ends};
use crate::conn::slot::{Slot, SlotId, flag};
use crate::live_segment::layout::record;
use crate::stats::{self, Counter};
use crate::sync::spin::{self, Adaptive, Spun};
use crate::sync::thread;
use crate::{bridge, live_segment, sys};

/// What a spin goes by.
pub(crate) struct Spin<'a> {
    /// What those before it have learnt.
    pub learnt: &'a AtomicU32,
    pub ends: &'a Ends,
    /// How long it may last, in nanoseconds.
    pub cap: u32,
}

/// What comes before a sleep: [`spin`], of which a bridge is told, since meanwhile the device's
/// events are this thread's. Or, where there is one CPU and so nothing changes while we look, that
/// is given to the device's threads and the peer. Not where the last sleeps were too long for it: a
/// thread that has looked in vain looks again when it has armed its waker.
pub(crate) fn spin_on(
    s: &Slot,
    by: &Spin<'_>,
    peer_cpu: impl Fn() -> u32,
    probe: impl FnMut() -> bool,
) -> bool {
    let Spin { learnt, ends, cap } = *by;
    // Relaxed: as in spin.
    let mut adaptive = Adaptive::from_raw(learnt.load(Ordering::Relaxed));
    if adaptive.rests() {
        learnt.store(adaptive.to_raw(), Ordering::Relaxed);
        say_wait(ends, Some(true));
        migration::before_sleep(s, ends);
        return false;
    }
    if !s.has(flag::BRIDGED) {
        return spin(Some(s), by, peer_cpu, probe);
    }
    let now = sys::ticks();
    if cap > 0 && thread::has_one_cpu_at(now) {
        // The waiter has just looked in vain, and on one CPU nothing has changed since.
        stats::add(Counter::CpuYields, 1);
        let paid = adaptive.give_way(now, cap, probe);
        learnt.store(adaptive.to_raw(), Ordering::Relaxed);
        count_spin(Some(s), if paid { Spun::Ready } else { Spun::TimeOut });
        return paid;
    }
    bridge::spinning(s, true);
    let spun = spin(Some(s), by, peer_cpu, probe);
    bridge::spinning(s, false);
    spun
}

/// Spins as long as experience on this connection says that it pays.
pub(crate) fn spin(
    s: Option<&Slot>,
    by: &Spin<'_>,
    peer_cpu: impl Fn() -> u32,
    mut probe: impl FnMut() -> bool,
) -> bool {
    let Spin { learnt, ends, cap } = *by;
    if probe() {
        return true;
    }
    if cap == 0 {
        return false;
    }
    // The peer must know where we are before it spins against us.
    say_wait(ends, s.map(|_| true));
    // Relaxed: what one thread learnt is a hint to the others.
    let mut adaptive = Adaptive::from_raw(learnt.load(Ordering::Relaxed));
    let looks =
        if s.is_some_and(|s| s.has(flag::BRIDGED)) { spin::DEAR_LOOKS } else { spin::CHEAP_LOOKS };
    let spun = adaptive.spin(cap, looks, peer_cpu, probe);
    learnt.store(adaptive.to_raw(), Ordering::Relaxed);
    count_spin(s, spun);
    if let Some(s) = s.filter(|_| !spun.found()) {
        migration::before_sleep(s, ends);
    }
    spun.found()
}

/// Spins for the other end's next step of a pairing, by what the process has learnt of such steps.
/// Each look asks the kernel.
pub(crate) fn spin_before_paired(cap: u32, probe: impl FnMut() -> bool) -> bool {
    static LEARNT: AtomicU32 = AtomicU32::new(0);
    spin_alone(&LEARNT, cap, spin::DEAR_LOOKS, probe)
}

/// Spins where nothing is known of where the other end runs. Without a cap there is no look: the
/// sleep that follows makes the same one.
pub(crate) fn spin_alone(
    learnt: &AtomicU32,
    cap: u32,
    looks: u32,
    probe: impl FnMut() -> bool,
) -> bool {
    if cap == 0 {
        return false;
    }
    // Relaxed: as in spin.
    let mut adaptive = Adaptive::from_raw(learnt.load(Ordering::Relaxed));
    let spun = adaptive.spin(cap, looks, || 0, probe);
    learnt.store(adaptive.to_raw(), Ordering::Relaxed);
    count_spin(None, spun);
    spun.found()
}

/// Counts how a spin ended.
fn count_spin(s: Option<&Slot>, spun: Spun) {
    let paid = spun == Spun::Ready;
    stats::add(
        match spun {
            Spun::Ready => Counter::SpinsPaid,
            Spun::TimeOut | Spun::SameCpu => Counter::SpinsFailed,
            Spun::Late | Spun::Wanted => Counter::SpinsWanted,
        },
        1,
    );
    if let Some(s) = s {
        live_segment::count(s, if paid { record::SPINS_PAID } else { record::SPINS_FAILED });
    }
}

/// Says on which CPU this side waits, so that the other does not spin against it.
pub(crate) fn say_cpu(ends: &Ends) {
    handover_state::say_cpu(&ends.incoming, &ends.outgoing, thread::cpu(), None);
}

/// The same, and whether it waits for this peer `alone`, if that is known.
fn say_wait(ends: &Ends, alone: Option<bool>) {
    handover_state::say_cpu(&ends.incoming, &ends.outgoing, thread::cpu(), alone);
}

/// Spins for a waiter on several connections: with what their process learnt, and not against the
/// peer of the first of them.
pub(crate) fn spin_for(probe: &mut dyn FnMut() -> bool, slots: &[SlotId]) -> bool {
    static LEARNT: AtomicU32 = AtomicU32::new(0);
    let slot = slots.first().and_then(|id| crate::conn::fork_group::slot(*id));
    let Some(first) = slot.and_then(link::ends) else {
        return probe();
    };
    // Shown with a connection only if it is the one that was waited for.
    let alone = slot.filter(|_| slots.len() == 1);
    let by = Spin { learnt: &LEARNT, ends: &first, cap: polling() };
    let found = spin(alone, &by, || handover_state::sender_cpu(&first.incoming), probe);
    if !found && slots.len() > 1 {
        migration::before_sleep_on_many(slots);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_polling_time_is_no_look() {
        let mut looks = 0;
        let mut look = || {
            looks += 1;
            true
        };
        let learnt = AtomicU32::new(0);
        assert!(!spin_before_paired(0, &mut look));
        assert!(!spin_alone(&learnt, 0, spin::CHEAP_LOOKS, &mut look));
        assert!(spin_before_paired(50_000, &mut look));
        assert!(spin_alone(&learnt, 50_000, spin::CHEAP_LOOKS, &mut look));
        assert_eq!(looks, 2);
    }
}
