//! What is beyond a channel when it is not a peer process: a bridge, which carries the bytes
//! between the channel and a queue pair.
//!
//! So the socket layer knows one thing only, the channel. Blocking, readiness, sharing by fork and
//! the end of a connection are the same over RDMA as over shared memory. A bridge runs in the
//! program's own threads whenever one of them is inside a call on the connection ([`pump`]). So no
//! thread stands between the program and the device. When none is inside a call, the bridge runs in
//! the service thread ([`service`]).
//!
//! Must not know hooks. Entry points: for the socket layer [`pump`], [`look`], [`probe`], [`arm`],
//! [`carry_out`], [`carry_back`], [`not_connected`]; for connection set-up [`crate::native`].

use core::sync::atomic::{Ordering, fence};

use crate::channel::link::Ends;
use crate::conn::pending;
use crate::conn::slot::{Slot, flag};
use crate::failure::Failure;
use crate::stats::{self, Counter};
use crate::sync::thread;
use crate::sys;

pub mod bypass;
pub mod channel_port;
pub mod connection;
pub mod cq_ownership;
pub mod deferred;
pub mod dial;
pub mod direct_placement;
pub mod ends;
pub mod guests;
mod heartbeat;
pub mod loopback;
pub mod mappings;
pub mod meeting;
pub mod migrate;
pub mod native_rdma;
pub mod news;
pub mod opening;
pub mod outgoing;
pub(crate) mod own_channel;
pub mod peer_control;
pub mod pump;
pub mod request;
pub mod service;
pub mod serving;
pub(crate) mod setup;
pub mod silent;
pub mod table;
pub mod tcp_anchored;
mod telling;
pub mod told;
mod under;
pub mod watch;
mod yield_predictor;

/// The connection's bridge, if it is in this process. Its place may be another connection's by now:
/// a thread that holds its lock can tell
/// ([`Connection::carries`](connection::Connection::carries)).
#[inline]
#[must_use]
pub fn of(s: &Slot) -> Option<&'static table::Bridge> {
    // Acquire: pairs with the release of the thread that gave the connection its bridge.
    s.bridge.load(Ordering::Acquire).checked_sub(1).and_then(table::find)
}

/// Lets the connection's bridge run, if it is in this process and no other thread runs it at the
/// moment; whether it ran. Waits for no other thread, except for one that is at bytes that have
/// stayed in the device's memory ([`deferred`]).
#[inline]
pub fn pump(s: &Slot) -> bool {
    let Some(bridge) = of(s) else {
        return false;
    };
    let ran = bridge.in_turn(|slot| {
        // The number may be another connection's by now, or another process's bridge.
        let c = slot.as_mut().filter(|c| c.carries(s) && c.running())?;
        Some(run(bridge, c))
    });
    match ran.flatten() {
        Some(true) => true,
        Some(false) => {
            service::nudge();
            true
        }
        None => false,
    }
}

/// Moves what can be moved, for a thread of the program that works on the bridge. False when the
/// connection is over, which is for the service thread to see to. What cannot be sent now is left
/// to the thread that hears of the device.
fn run(bridge: &table::Bridge, c: &mut connection::Connection) -> bool {
    let ran = c.run();
    deferred::none(bridge, c);
    note(bridge, ran.moved);
    if ran.alive && c.backlog() {
        cq_ownership::again(bridge, c);
        if bridge.armed.swap(1, Ordering::Relaxed) == 0 {
            c.arm();
            return c.run().alive;
        }
    }
    ran.alive
}

/// A call of the program's found nothing to do: the bridge may bring something. Where there is one
/// CPU, a program that finds nothing again and again gives it to the threads that could change
/// that. Those are its peer's and the device's own, which would have to wait for the scheduler's
/// tick otherwise. The caller may hold no lock.
pub fn look(s: &Slot) {
    pump(s);
    let Some(bridge) = of(s) else { return };
    // Relaxed: as in note().
    if bridge.vain.load(Ordering::Relaxed) >= FEW && thread::has_one_cpu() {
        stats::add(Counter::CpuYields, 1);
        thread::yield_now();
        pump(s);
    }
}

/// Looks in vain, one after the other, after which the CPU is given away if it is the only one. A
/// program that waits by epoll or in blocking calls seldom comes so far.
const FEW: u32 = 4;

/// Looks in vain, one after the other, that make a program one that polls by itself.
const MANY: u32 = 16;

/// Remembers a program that looks in vain: the service thread leaves the device's events to it.
fn note(bridge: &table::Bridge, moved: bool) {
    // Relaxed: only steers which thread looks next; a thread that sleeps says so with a fence
    // (arm).
    if moved {
        bridge.vain.store(0, Ordering::Relaxed);
    } else if bridge.vain.fetch_add(1, Ordering::Relaxed) >= MANY {
        bridge.polled_at.store(sys::ticks(), Ordering::Relaxed);
    }
}

/// A thread of the program spins on the connection from now on, or does so no more. While it spins
/// the service thread leaves it the device's events.
pub fn spinning(s: &Slot, on: bool) {
    if !s.has(flag::BRIDGED) {
        return;
    }
    if let Some(bridge) = of(s) {
        // Relaxed: as in note().
        if on {
            bridge.spinners.fetch_add(1, Ordering::Relaxed);
        } else {
            bridge.spinners.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Before each look at the channel by a thread that waits: the bridge, if there is one, brings what
/// the device has. False: nothing else has happened.
#[inline]
pub fn bring(s: &Slot) -> bool {
    if s.has(flag::BRIDGED) {
        pump(s);
    }
    false
}

/// Before a thread sleeps on the connection, and after its waker, if it has one, is in the channel.
/// The device says from now on when there is news, to the thread that hears ([`cq_ownership`]).
/// Whether the bridge has run after that; not where it was armed before.
pub fn arm(s: &Slot) -> bool {
    let Some(bridge) = of(s) else { return false };
    // No thread of the program's is at it any more, as far as this one knows.
    bridge.polled_at.store(0, Ordering::Relaxed);
    bridge.vain.store(0, Ordering::Relaxed);
    // Pairs with the fence of the thread that takes the mark away (Service::look,
    // CqOwnership::heard) and then reads the time and the wakers. Either this thread sees that the
    // mark is gone, or that thread sees that no thread polls and that our waker is there, and arms.
    // It pairs with the fence in deferred::may_stay() too.
    fence(Ordering::SeqCst);
    if bridge.armed.load(Ordering::Relaxed) != 0 && !bridge.keeps_any() {
        return false;
    }
    let ran = bridge.with(|slot| {
        let armed = bridge.armed.swap(1, Ordering::Relaxed) != 0;
        let c = slot.as_mut().filter(|_| !armed || bridge.keeps_any())?;
        if !armed {
            c.arm();
        }
        let ran = c.run();
        deferred::none(bridge, c);
        Some(ran.alive)
    });
    if ran.flatten() == Some(false) {
        service::nudge();
    }
    ran.flatten().is_some()
}

/// The program has put something in.
#[inline]
pub fn carry_out(s: &Slot, ends: &Ends) {
    if !(s.has(flag::BRIDGED) && pump(s)) {
        ends.wake_reader();
    }
}

/// The program has taken something out.
#[inline]
pub fn carry_back(s: &Slot, ends: &Ends) {
    if !(s.has(flag::BRIDGED) && pump(s)) {
        ends.wake_writer();
    }
}

/// What a data call finds on a connection whose bridge has not connected.
pub enum Unconnected {
    /// It may still connect.
    Pending,
    /// The peer was not reached, for this reason, which is said once.
    Failed(Failure),
    /// The reason was said before.
    Over,
}

/// What a data call finds on a connection whose bridge has not connected.
pub fn not_connected(s: &Slot) -> Unconnected {
    if s.has(flag::PENDING) {
        return Unconnected::Pending;
    }
    pending::check(s).map_or_else(Unconnected::Failed, |()| Unconnected::Over)
}

/// How long [`drain`] waits without anything happening, before the end and before exec, and in all;
/// in nanoseconds.
const LEAVING_IDLE_NS: u64 = 5_000_000_000;
const EXEC_IDLE_NS: u64 = 1_000_000_000;
const DRAIN_NS: u64 = 30_000_000_000;

/// Before the process ends, or its program is another's: what its connections have accepted is
/// sent, as long as the peers take it (`life-of-a-connection §5`). With `leaving` their farewells
/// too, and nothing is taken any more. Ends nothing and frees nothing, since a signal handler may
/// call `_exit`.
pub fn drain(leaving: bool) {
    if !service::started() {
        return;
    }
    let patience = if leaving { LEAVING_IDLE_NS } else { EXEC_IDLE_NS };
    let began = sys::now_ns();
    let mut moved_at = began;
    loop {
        let (mut moved, mut busy) = (false, false);
        for bridge in table::all() {
            let flushed = bridge.with(|slot| slot.as_mut().map(|c| c.flush(leaving)));
            if let Some(Some(ran)) = flushed {
                busy |= ran.alive;
                moved |= ran.moved;
            }
        }
        let now = sys::now_ns();
        if moved {
            moved_at = now;
        }
        let waited_enough =
            now.saturating_sub(moved_at) > patience || now.saturating_sub(began) > DRAIN_NS;
        if !busy || waited_enough {
            break;
        }
        if !moved {
            short_sleep();
        }
    }
    if !leaving {
        service::nudge();
    }
}

/// Before a close that resets: a peer of ours gets no farewell, and with `at_once` what is not sent
/// yet is not sent. The bridge of another process hears of it too late, and says farewell.
pub fn reset(s: &Slot, at_once: bool) {
    let Some(bridge) = of(s) else { return };
    let own = (s.arena.load(Ordering::Relaxed).wrapping_sub(1), s.channel.load(Ordering::Relaxed));
    bridge
        .with(|slot| slot.iter_mut().filter(|c| c.channel() == own).for_each(|c| c.reset(at_once)));
    service::nudge();
}

/// Before a close that lingers (`SO_LINGER`): waits until the peer's device has all that was sent
/// and the farewell, for `seconds` at most. The bridge of another process is not waited for.
pub fn linger(s: &Slot, seconds: u32) {
    let Some(bridge) = of(s) else { return };
    let own = (s.arena.load(Ordering::Relaxed).wrapping_sub(1), s.channel.load(Ordering::Relaxed));
    let until = sys::now_ns().saturating_add(u64::from(seconds) * 1_000_000_000);
    while sys::now_ns() < until {
        let flushed = bridge
            .with(|slot| slot.as_mut().filter(|c| c.channel() == own).map(|c| c.flush(true)))
            .flatten();
        match flushed {
            Some(ran) if !ran.alive => return,
            Some(ran) if ran.moved => {}
            Some(_) => short_sleep(),
            None => return,
        }
    }
}

fn short_sleep() {
    let limit = libc::timespec { tv_sec: 0, tv_nsec: 200_000 };
    let _ = sys::wait(&mut [], Some(&limit), core::ptr::null());
}

/// Siblings may wait for this process's connections from now on, and read them. The service thread
/// wakes them.
pub fn shared() {
    deferred::out();
    // Pairs with the one in CqOwnership::settle.
    fence(Ordering::SeqCst);
    if table::all().any(|bridge| bridge.heard.load(Ordering::Relaxed) == 0) {
        service::nudge();
    }
}

/// Before a fork, when the child is an owner of this process's connections.
pub fn fork_prepare() {
    deferred::out();
}

/// In the child of a fork: all bridges are the parent's.
pub fn forked() {
    ends::fork_child();
    serving::forked();
}

#[cfg(test)]
mod bypass_tests;
#[cfg(test)]
mod cq_ownership_tests;
#[cfg(test)]
mod deferred_tests;
#[cfg(test)]
mod direct_placement_tests;
#[cfg(test)]
mod faults_tests;
#[cfg(test)]
mod flood_tests;
#[cfg(test)]
mod guests_tests;
#[cfg(test)]
pub(crate) mod overtaken_tests;
#[cfg(test)]
pub(crate) mod pump_tests;
#[cfg(test)]
mod under_tests;
#[cfg(test)]
mod unheard_tests;
