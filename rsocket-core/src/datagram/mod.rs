//! Datagram sockets (`SOCK_DGRAM` of rsocket(7), `wire-protocol §9`).
//!
//! A datagram rsocket is a kernel UDP socket, whose descriptor the program holds, with a slot of
//! the kind [`Kind::Datagram`]. Each destination is met by UDP, behind the exchange's header. Where
//! the two hosts have an InfiniBand or RoCE device between them, the exchange tells each the
//! other's queue pair. Datagrams go there from then on ([`fabric`]). Without a device, or with
//! `RSOCKET_TRANSPORT=shm`, the exchange brings memory to a receiver on the same host
//! ([`crate::device::shm::mailbox`]). The receiver invites, and the sender brings a ring that only
//! the two have. In all other cases (iWARP, which has no datagrams; another host without a device)
//! UDP carries them. What comes without a header is received as it is, and answered without one.
//!
//! A sender is not told when a peer's queue pair or memory has gone. So it asks every second, and
//! goes back to UDP when there is no answer ([`peers::Pulse`]).
//!
//! Layers: [`udp`] (system calls), [`letterbox`] (descriptors from strangers), [`peers`] (how each
//! peer is reached), [`endpoint`] (what one process has of a socket, and the packets). Then
//! [`send`], [`receive`], [`ready`] and [`names`], which the modules above call. [`service`] is a
//! thread that looks up paths, and that wakes pollers; it runs only where there is a device.
//!
//! Each process has an endpoint of its own for a socket that it shares by fork. The UDP socket is
//! the same one, so what comes by UDP goes to the process that is first. Memory and queue pairs are
//! those of the process that answered the sender.
//!
//! Must not know C nor the table of descriptors. Unlike streams, datagrams allocate when they meet
//! a peer, so these calls are not for signal handlers.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod endpoint;
mod fabric;
mod letterbox;
pub mod names;
mod peers;
pub mod ready;
pub mod receive;
pub mod send;
mod service;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
mod tests;
mod udp;
pub(crate) mod waiters;

use core::sync::atomic::{AtomicU32, Ordering};
use std::os::fd::RawFd;

use endpoint::State;
use fabric::Fabric;
use rustix::net::AddressFamily;

use crate::bridge::native_rdma;
use crate::conn::fork_group::{self, MAX_SLOTS};
use crate::conn::kind::Kind;
use crate::conn::slot::SlotId;
use crate::failure::Failure;
use crate::host::events::Events;
use crate::sync::mutex::Mutex;
use crate::sys::settle::Settle;
use crate::sys::{self, sockets};

/// The longest datagram to an IPv4 address: what fits behind the exchange's header into a slot of
/// upstream's.
pub const MOST_V4: usize = 2032;
/// The same for IPv6.
pub const MOST_V6: usize = 2020;

/// One for each slot, used again by the slot's next socket.
struct Endpoint {
    /// Bits of [`Events`] that the last look found, for a caller that cannot look.
    hint: AtomicU32,
    state: Mutex<Option<Box<State>>>,
}

static ENDPOINTS: [Endpoint; MAX_SLOTS] =
    [const { Endpoint { hint: AtomicU32::new(0), state: Mutex::new(None) } }; MAX_SLOTS];

/// One more than the highest slot that ever had an endpoint here.
static END: AtomicU32 = AtomicU32::new(0);

fn endpoint(id: SlotId) -> Result<&'static Endpoint, Failure> {
    ENDPOINTS.get(id.raw() as usize).ok_or(Failure::BadDescriptor)
}

/// Whether the slot is a datagram socket's.
#[inline]
#[must_use]
pub fn is(id: SlotId) -> bool {
    fork_group::slot(id).is_some_and(|s| s.kind_by_flags() == Kind::Datagram)
}

/// What this process has of the socket, made now if it has nothing yet: a child of a fork has not.
/// `fd` is a descriptor of the socket, -1 if none is known.
///
/// # Errors
/// `EAGAIN` in a signal handler that interrupted this thread here; `EBADF`, or no descriptors left.
fn with<R>(id: SlotId, fd: RawFd, f: impl FnOnce(&mut State) -> R) -> Result<R, Failure> {
    let endpoint = endpoint(id)?;
    let result =
        endpoint.state.with(|place| present(id, fd, place).map(|state| (f(state), news(state))));
    let (result, wakers) = result.ok_or(Failure::Blocked)??;
    if !wakers.is_empty() {
        waiters::wake(id, &wakers);
    }
    Ok(result)
}

/// The wakers of the sleepers, if there is something for them: this thread may have taken the
/// packet or event that was to wake them.
fn news(state: &mut State) -> Vec<u64> {
    if !state.waiters.is_empty() && state.has_news() {
        core::mem::take(&mut state.waiters)
    } else {
        Vec::new()
    }
}

/// The state of the socket that the slot has now.
fn present(id: SlotId, fd: RawFd, place: &mut Option<Box<State>>) -> Result<&mut State, Failure> {
    // A thread that was on its way in when another closed the socket finds nothing to be made.
    let s =
        fork_group::slot(id).filter(|_| fork_group::held_here(id)).ok_or(Failure::BadDescriptor)?;
    let generation = s.generation.load(Ordering::Acquire);
    if place.as_ref().is_some_and(|state| state.generation != generation) {
        // Its last descriptor was closed where the library did not see it.
        discard(place);
    }
    if place.is_none() {
        let fd = if fd >= 0 { fd } else { fork_group::descriptor(id) };
        let six = sockets::family(sys::borrow(fd))? == AddressFamily::INET6;
        let own = sys::private_copy(sys::borrow(fd))?;
        let fabric =
            if native_rdma::wanted() { Fabric::new(service::pair).map(Some) } else { Ok(None) };
        let fabric = fabric.inspect_err(|_| sys::close_private(own))?;
        *place = Some(Box::new(State::new(id, generation, own, six, fabric)));
        // Relaxed: read in a child of a fork, and at the end, by threads that come after.
        END.fetch_max(id.raw() + 1, Ordering::Relaxed);
    }
    let state = place.as_mut().ok_or(Failure::BadDescriptor)?;
    let [_, peer] = &s.names;
    state.connected = peer.get();
    Ok(state)
}

/// As [`with`], but only if there is anything already.
fn with_existing<R>(id: SlotId, f: impl FnOnce(&mut State) -> R) -> Option<R> {
    endpoint(id).ok()?.state.with(|place| place.as_mut().map(|state| f(state)))?
}

fn discard(place: &mut Option<Box<State>>) {
    if let Some(state) = place.take() {
        state.close();
    }
}

/// A new socket's endpoint.
///
/// # Errors
/// No descriptors are left.
pub fn created(id: SlotId, fd: RawFd) -> Result<(), Failure> {
    with(id, fd, |_| ())
}

/// This process has no descriptor of the socket any more.
pub fn closed(id: SlotId) {
    let Ok(endpoint) = endpoint(id) else { return };
    endpoint.state.with(discard);
}

/// At the end of the process: the device sends what it has, and writers of our memory are told.
pub fn leaving() {
    let end = END.load(Ordering::Relaxed);
    (1..end).filter_map(SlotId::from_raw).filter(|id| is(*id)).for_each(closed);
}

/// In the child of a fork: everything but the sockets is the parent's.
pub fn forked() {
    let end = END.load(Ordering::Relaxed) as usize;
    END.settle(0);
    for endpoint in ENDPOINTS.iter().take(end) {
        endpoint.state.forked();
        if let Some(state) = endpoint.state.with(Option::take).flatten() {
            state.close();
            // What it has of rings and queue pairs is not to be torn down here.
            core::mem::forget(state);
        }
    }
    service::forked();
}

/// What a look found, for a caller that may not look again now.
fn hint(id: SlotId, events: Option<Events>) -> Events {
    let Ok(endpoint) = endpoint(id) else { return Events::empty() };
    // Relaxed: a hint.
    match events {
        Some(events) => {
            endpoint.hint.store(events.bits(), Ordering::Relaxed);
            events
        }
        None => Events::from_bits_truncate(endpoint.hint.load(Ordering::Relaxed)),
    }
}
