//! Connections that a relay has established and that no program has accepted yet.
//!
//! The relay knocks at the program's listening socket from an address of this host; whoever accepts it, in
//! whatever process of the family, finds here which connection that is. Its window is kept for it as long as it is here,
//! whatever becomes of the relay. Must not know relays. Entry points: [`enter`], [`take`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::attach::link;
use crate::socket::family;
use crate::socket::slot::Name;
use crate::sync::living;
use crate::sys;

/// Connections that can wait at one time.
pub const GUESTS: usize = 1024;

const FREE: u32 = 0;
const BUSY: u32 = 1;
const READY: u32 = 2;

/// One place. All zeroes is a free one.
#[repr(C)]
pub struct Place {
    state: AtomicU32,
    record: AtomicU32,
    window: AtomicU32,
    relay: AtomicU32,
    pid: AtomicU32,
    _pad: AtomicU32,
    /// Where it knocks from.
    from: Name,
    names: [Name; 2],
}

/// A connection that waits to be accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest {
    /// Its window.
    pub record: u32,
    /// Its window.
    pub window: u32,
    /// The relay's number in its process.
    pub relay: u32,
    /// The relay's process.
    pub pid: u32,
    /// Our address and the peer's, as the device knows them.
    pub names: [Option<SocketAddr>; 2],
}

fn places() -> &'static [Place] {
    family::get_or_map().map_or(&[], |f| &f.guests)
}

impl Place {
    fn window(&self) -> (u32, u32) {
        (self.record.load(Ordering::Relaxed), self.window.load(Ordering::Relaxed))
    }

    /// Takes the place from the connection that waits there, which nobody will accept; false if another was faster. It is
    /// the caller's then.
    fn clear(&self) -> bool {
        // Acquire: pairs with enter(). Whoever gets it has it to itself.
        let cleared = self.state.compare_exchange(READY, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if cleared {
            link::nobody_comes(self.window());
        }
        cleared
    }
}

/// Enters a connection that will knock from `from`. False when there is no place.
#[must_use]
pub fn enter(from: &SocketAddr, guest: &Guest) -> bool {
    let free = |p: &&Place| {
        // Acquire: pairs with the release in take().
        p.state.compare_exchange(FREE, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok() || reclaimed(p)
    };
    let Some(place) = places().iter().find(free) else { return false };
    if !link::keep((guest.record, guest.window)) {
        place.state.store(FREE, Ordering::Release);
        return false;
    }
    place.record.store(guest.record, Ordering::Relaxed);
    place.window.store(guest.window, Ordering::Relaxed);
    place.relay.store(guest.relay, Ordering::Relaxed);
    place.pid.store(guest.pid, Ordering::Relaxed);
    place.from.set(Some(*from));
    for (to, name) in place.names.iter().zip(guest.names) {
        to.set(name);
    }
    // Release: pairs with the acquire in take().
    place.state.store(READY, Ordering::Release);
    true
}

/// A place whose relay's process has ended.
fn reclaimed(p: &Place) -> bool {
    p.state.load(Ordering::Acquire) == READY && !living::process(p.pid.load(Ordering::Relaxed)) && p.clear()
}

/// The connection that knocked from `from`, if there is one; it waits no more. Its window is kept until a connection of the
/// caller's has it ([`link::start`]), or the caller says that [nobody comes](link::nobody_comes).
#[must_use]
pub fn take(from: &SocketAddr) -> Option<Guest> {
    let plain = unmapped(from);
    places().iter().find_map(|p| {
        if p.state.load(Ordering::Acquire) != READY || p.from.get().map(|a| unmapped(&a)) != Some(plain) {
            return None;
        }
        // Acquire: pairs with enter(). Whoever gets it has it to itself.
        p.state.compare_exchange(READY, BUSY, Ordering::Acquire, Ordering::Relaxed).ok()?;
        let [ours, theirs] = &p.names;
        let guest = Guest {
            record: p.record.load(Ordering::Relaxed),
            window: p.window.load(Ordering::Relaxed),
            relay: p.relay.load(Ordering::Relaxed),
            pid: p.pid.load(Ordering::Relaxed),
            names: [ours.get(), theirs.get()],
        };
        p.state.store(FREE, Ordering::Release);
        Some(guest)
    })
}

/// The relay gives up before anybody accepted.
pub fn forget(record: u32, window: u32) {
    let me = sys::pid();
    for p in places() {
        if p.state.load(Ordering::Acquire) == READY
            && p.pid.load(Ordering::Relaxed) == me
            && p.window() == (record, window)
            && p.clear()
        {
            p.state.store(FREE, Ordering::Release);
        }
    }
}

/// An IPv4 address written as IPv6 is the same address.
fn unmapped(a: &SocketAddr) -> (core::net::IpAddr, u16) {
    (a.ip().to_canonical(), a.port())
}
