//! Connections that a bridge has established and that no program has accepted yet.
//!
//! The bridge knocks at the program's listening socket from an address of this host. The process
//! that accepts the connection, any one of the fork group, finds here which connection that is. Its
//! channel is kept for it as long as it is here, whatever becomes of the bridge, and longer. A
//! place says which process is at it until what was in it belongs elsewhere. So the next guest
//! gives up what a killed process leaves half done. Must not know bridges. Entry points: [`enter`],
//! [`take`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use crate::channel::link;
use crate::conn::fork_group::{self, ForkGroup};
use crate::conn::guest::Place;
use crate::sync::living;
use crate::sys::{self, sockets};

/// What a [`Place`] is. Anything else is the process that is at it.
const FREE: u32 = 0;
const READY: u32 = u32::MAX;

/// A connection that waits to be accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest {
    /// Its channel.
    pub record: u32,
    /// Its channel.
    pub channel: u32,
    /// The bridge's number in its process.
    pub bridge: u32,
    /// The bridge's process.
    pub pid: u32,
    /// Our address and the peer's, as the device knows them.
    pub names: [Option<SocketAddr>; 2],
}

/// Those that were ever used.
fn places() -> &'static [Place] {
    let used = |f: &'static ForkGroup| {
        // Acquire: pairs with the release in enter().
        f.guests.get(..f.guests_used.load(Ordering::Acquire) as usize)
    };
    fork_group::get().and_then(used).unwrap_or(&[])
}

impl Place {
    fn channel(&self) -> Option<(u32, u32)> {
        let record = self.record.load(Ordering::Relaxed).checked_sub(1)?;
        Some((record, self.channel.load(Ordering::Relaxed)))
    }

    /// Takes the place, if it is in that state; false if another was faster.
    fn seize(&self, from: u32) -> bool {
        // Acquire: pairs with enter() and release(). The caller that gets it has it to itself.
        self.state.compare_exchange(from, sys::pid(), Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// No process will accept the connection. The caller is at the place.
    fn give_up(&self) {
        if let Some(channel) = self.channel() {
            link::nobody_comes(channel);
        }
    }

    /// The caller is at the place, and leaves nothing there. It clears the channel first: a process
    /// that is killed in between must not be believed to keep what may be another's by then.
    fn release(&self) {
        self.record.store(0, Ordering::Relaxed);
        // Release: pairs with the acquire in seize().
        self.state.store(FREE, Ordering::Release);
    }

    /// The connection that waits there will not be accepted, unless another was faster.
    fn free(&self) {
        if self.seize(READY) {
            self.give_up();
            self.release();
        }
    }

    /// Undoes what a process has begun here that is no more.
    fn sweep(&self) {
        let who = self.state.load(Ordering::Relaxed);
        if !matches!(who, FREE | READY)
            && who != sys::pid()
            && !living::process(who)
            && self.seize(who)
        {
            self.give_up();
            self.release();
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
    let Some(group) = fork_group::get_or_map() else { return false };
    // A guest that knocked there from this address before is gone, or the kernel would not have
    // given the address away again.
    knocked(from).filter(|p| p.is_at(door)).for_each(Place::free);
    // All of them, before the guest's channel is kept: it may have been the channel of a guest
    // taken by a process now dead.
    places().iter().for_each(Place::sweep);
    let free = |p: &Place| p.seize(FREE) || reclaimed(p);
    let Some((index, place)) = group.guests.iter().enumerate().find(|(_, p)| free(p)) else {
        return false;
    };
    // Release: pairs with the acquire in places(); a place is looked at only when it is READY,
    // which it becomes later.
    group.guests_used.fetch_max(index as u32 + 1, Ordering::Release);
    // Before it is kept: see sweep().
    place.channel.store(guest.channel, Ordering::Relaxed);
    place.record.store(guest.record + 1, Ordering::Relaxed);
    if !link::keep((guest.record, guest.channel)) {
        place.release();
        return false;
    }
    place.bridge.store(guest.bridge, Ordering::Relaxed);
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

/// A place whose bridge's process has ended.
fn reclaimed(p: &Place) -> bool {
    let found = p.is_ready() && !living::process(p.pid.load(Ordering::Relaxed)) && p.seize(READY);
    if found {
        p.give_up();
    }
    found
}

/// The places of the guests that wait and knocked from there.
fn knocked(from: &SocketAddr) -> impl Iterator<Item = &'static Place> {
    let plain = unmapped(from);
    places()
        .iter()
        .filter(move |p| p.is_ready() && p.from.get().map(|a| unmapped(&a)) == Some(plain))
}

/// A guest that waits no more. Its place is kept until the caller says what has become of it.
#[must_use]
pub struct Taken {
    /// Which guest it is.
    pub guest: Guest,
    place: &'static Place,
}

impl Taken {
    /// A connection of the caller's has its channel ([`link::start`]).
    pub fn seated(self) {
        self.place.release();
    }

    /// There will be none.
    pub fn turned_away(self) {
        self.place.give_up();
        self.place.release();
    }
}

/// The connection that knocked from `from` at what `door` says, if there is one.
pub fn take(from: &SocketAddr, door: impl Fn() -> Option<SocketAddr>) -> Option<Taken> {
    let place =
        knocked(from).find(|p| door().is_some_and(|door| p.is_at(&door)) && p.seize(READY))?;
    let [ours, theirs] = &place.names;
    let (record, channel) = place.channel()?;
    let guest = Guest {
        record,
        channel,
        bridge: place.bridge.load(Ordering::Relaxed),
        pid: place.pid.load(Ordering::Relaxed),
        names: [ours.get(), theirs.get()],
    };
    Some(Taken { guest, place })
}

/// For tests: a process of that number is at the place of the guest that knocked from `from` last,
/// and goes no further.
#[cfg(test)]
pub fn seized_by(from: &SocketAddr, pid: u32) {
    for place in places().iter().filter(|p| p.from.get() == Some(*from)) {
        place.state.store(pid, Ordering::Release);
    }
}

/// For tests: whether a place is still that of a guest that knocked from `from`.
#[cfg(test)]
pub fn is_known(from: &SocketAddr) -> bool {
    places().iter().any(|p| p.from.get() == Some(*from) && p.state.load(Ordering::Acquire) != FREE)
}

/// The connection has broken, or no process holds its other end any more. Unless a process has
/// accepted it, none will.
pub fn forget(record: u32, channel: u32) {
    let me = sys::pid();
    let own = |p: &&Place| {
        p.is_ready()
            && p.pid.load(Ordering::Relaxed) == me
            && p.channel() == Some((record, channel))
    };
    places().iter().filter(own).for_each(Place::free);
}

/// The listening socket is about to be closed for good: the guests that wait there are not accepted
/// any more. Of several sockets that share an address (`SO_REUSEPORT`), this process does not know
/// which guest waits at which.
pub fn unlisten(fd: RawFd) {
    let fd = sys::borrow(fd);
    let own = sockets::own_name(fd).ok();
    let Some((ip, port)) = own.as_ref().map(unmapped) else { return };
    if sockets::reuses_port(fd).unwrap_or(true) {
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
