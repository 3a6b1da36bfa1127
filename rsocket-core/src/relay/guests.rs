//! Connections that a relay has established and that no program has accepted yet.
//!
//! The relay knocks at the program's listening socket from an address of this host; whoever accepts it, in
//! whatever process of the family, finds here which connection that is. Its window is kept for it as long as it is here,
//! whatever becomes of the relay. Must not know relays. Entry points: [`enter`], [`take`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, Ordering};
use std::os::fd::RawFd;

use rustix::net::sockopt;

use crate::attach::link;
use crate::socket::family::{self, Family};
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
    /// Where it knocks from, and at which address.
    from: Name,
    door: Name,
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

/// Those that were ever used.
fn places() -> &'static [Place] {
    let used = |f: &'static Family| {
        // Acquire: pairs with the release in enter().
        f.guests.get(..f.guests_used.load(Ordering::Acquire) as usize)
    };
    family::get().and_then(used).unwrap_or(&[])
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

    /// The same; it is free then.
    fn free(&self) {
        if self.clear() {
            // Release: pairs with the acquire in enter().
            self.state.store(FREE, Ordering::Release);
        }
    }

    fn is_ready(&self) -> bool {
        self.state.load(Ordering::Acquire) == READY
    }

    fn is_at(&self, door: &SocketAddr) -> bool {
        self.door.get().map(|a| unmapped(&a)) == Some(unmapped(door))
    }
}

/// Enters a connection that will knock from `from` at `door`. False when there is no place.
#[must_use]
pub fn enter(from: &SocketAddr, door: &SocketAddr, guest: &Guest) -> bool {
    let Some(family) = family::get_or_map() else { return false };
    // Whoever knocked there from this address before is gone, or the kernel would not have given it away again.
    knocked(from).filter(|p| p.is_at(door)).for_each(Place::free);
    let free = |p: &Place| {
        // Acquire: pairs with the release in take().
        p.state.compare_exchange(FREE, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok() || reclaimed(p)
    };
    let Some((index, place)) = family.guests.iter().enumerate().find(|(_, p)| free(p)) else { return false };
    // Release: pairs with the acquire in places(); a place is looked at only when it is READY, which it becomes later.
    family.guests_used.fetch_max(index as u32 + 1, Ordering::Release);
    if !link::keep((guest.record, guest.window)) {
        place.state.store(FREE, Ordering::Release);
        return false;
    }
    place.record.store(guest.record, Ordering::Relaxed);
    place.window.store(guest.window, Ordering::Relaxed);
    place.relay.store(guest.relay, Ordering::Relaxed);
    place.pid.store(guest.pid, Ordering::Relaxed);
    place.from.set(Some(*from));
    place.door.set(Some(*door));
    for (to, name) in place.names.iter().zip(guest.names) {
        to.set(name);
    }
    // Release: pairs with the acquire in take().
    place.state.store(READY, Ordering::Release);
    true
}

/// A place whose relay's process has ended.
fn reclaimed(p: &Place) -> bool {
    p.is_ready() && !living::process(p.pid.load(Ordering::Relaxed)) && p.clear()
}

/// Whoever waits that knocked from there.
fn knocked(from: &SocketAddr) -> impl Iterator<Item = &'static Place> {
    let plain = unmapped(from);
    places().iter().filter(move |p| p.is_ready() && p.from.get().map(|a| unmapped(&a)) == Some(plain))
}

/// The connection that knocked from `from` at what `door` says, if there is one; it waits no more. Its window is kept until a connection of the
/// caller's has it ([`link::start`]), or the caller says that [nobody comes](link::nobody_comes).
#[must_use]
pub fn take(from: &SocketAddr, door: impl Fn() -> Option<SocketAddr>) -> Option<Guest> {
    knocked(from).filter(|p| door().is_some_and(|door| p.is_at(&door))).find_map(|p| {
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

/// The connection has broken, or nobody holds its other end any more: unless it was accepted, nobody will.
pub fn forget(record: u32, window: u32) {
    let me = sys::pid();
    let own =
        |p: &&Place| p.is_ready() && p.pid.load(Ordering::Relaxed) == me && p.window() == (record, window);
    places().iter().filter(own).for_each(Place::free);
}

/// The listening socket is about to be closed for good: whoever waits there is not accepted any more. Of several that
/// share an address (`SO_REUSEPORT`) nobody knows who waits where.
pub fn unlisten(fd: RawFd) {
    let fd = sys::borrow(fd);
    let own = rustix::net::getsockname(fd).ok().and_then(|a| SocketAddr::try_from(a).ok());
    let Some((ip, port)) = own.as_ref().map(unmapped) else { return };
    if sockopt::socket_reuseport(fd).unwrap_or(true) {
        return;
    }
    let there = |p: &&Place| {
        p.is_ready()
            && p.door
                .get()
                .map(|a| unmapped(&a))
                .is_some_and(|(at, of)| of == port && (at == ip || ip.is_unspecified()))
    };
    places().iter().filter(there).for_each(Place::free);
}

/// An IPv4 address written as IPv6 is the same address.
fn unmapped(a: &SocketAddr) -> (core::net::IpAddr, u16) {
    (a.ip().to_canonical(), a.port())
}
