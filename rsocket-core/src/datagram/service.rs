//! The thread of a process whose datagram sockets use a device. It looks up paths, which takes the
//! connection manager a while. It signals the wakers of pollers when something has come by a queue
//! pair. A thread that receives does not need it.
//!
//! Made with the first queue pair. Must not know the exchange. Entry points: [`pair`], [`look_up`],
//! [`watch`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeMap;
use std::os::fd::RawFd;

use super::peers::Way;
use super::{endpoint, waiters};
use crate::conn::slot::SlotId;
use crate::device::rdma::{CmError, CmId, EventChannel, Kind, Path, UdPair};
use crate::failure::Failure;
use crate::sync::lock::OwnedLock;
use crate::sync::mutex::Mutex;
use crate::sync::published::Published;
use crate::sys;
use crate::sys::event_set::{self, EventFlags};

/// How long resolving an address, and then a route, may take, in milliseconds
/// (`wire-protocol §9.5`).
const PATIENCE_MS: i32 = 2000;
/// Looked up at one time; more have to wait.
const MOST: usize = 256;

/// The connection manager's events; every other token is a slot's.
const MANAGER: u64 = 0;

/// A path that is being looked up.
struct Search {
    id: CmId,
    slot: SlotId,
    generation: u32,
    to: SocketAddr,
    ours: IpAddr,
}

#[derive(Default)]
struct Searches {
    under_way: BTreeMap<u64, Search>,
    last: u64,
}

struct Service {
    channel: EventChannel,
    epoll: RawFd,
    searches: Mutex<Searches>,
}

// SAFETY: `searches` has a lock of its own. The channel is read by the thread alone, and making
// identifiers on it is thread-safe. The rest is plain numbers.
unsafe impl Sync for Service {}
// SAFETY: as above.
unsafe impl Send for Service {}

static SERVICE: Published<Service> = Published::new();
static STARTING: OwnedLock = OwnedLock::new();

fn start() -> Result<&'static Service, Failure> {
    if let Some(service) = SERVICE.get() {
        return Ok(service);
    }
    let Some(_held) = STARTING.hold() else { return Err(Failure::Blocked) };
    SERVICE.get().map_or_else(|| open().and_then(launch), Ok)
}

fn open() -> Result<Service, Failure> {
    let channel = EventChannel::open()?;
    let epoll = event_set::new()?;
    event_set::add(epoll, channel.fd(), MANAGER, EventFlags::IN)?;
    Ok(Service { channel, epoll, searches: Mutex::default() })
}

fn launch(service: Service) -> Result<&'static Service, Failure> {
    let service: &'static Service = Box::leak(Box::new(service));
    SERVICE.publish(service);
    if sys::background::start("rsocket-dgram", serve) {
        return Ok(service);
    }
    SERVICE.withdraw();
    Err(Failure::Blocked)
}

/// In the child of a fork: thread and searches are the parent's.
pub(super) fn forked() {
    if let Some(service) = SERVICE.get() {
        sys::close_private(service.epoll);
    }
    SERVICE.withdraw();
    STARTING.reset();
}

/// A queue pair bound to an address of ours.
///
/// # Errors
/// `ENODEV` for an address without a device, `EOPNOTSUPP` for one that has no datagrams, what the
/// device says.
pub(super) fn pair(ours: IpAddr) -> Result<UdPair, Failure> {
    let service = start()?;
    let id = CmId::for_datagrams(&service.channel, 0)?;
    id.bind(&SocketAddr::new(ours, 0))?;
    Ok(UdPair::new(&id)?)
}

/// Begins to look up the path from an address of ours to a peer of the socket.
///
/// # Errors
/// What can be said at once.
pub(super) fn look_up(
    slot: SlotId,
    generation: u32,
    to: SocketAddr,
    ours: IpAddr,
) -> Result<(), Failure> {
    let service = start()?;
    let key = service.searches.with(|s| {
        s.last += 1;
        (s.under_way.len() < MOST).then_some(s.last)
    });
    let key = key.flatten().ok_or(Failure::Blocked)?;
    let id = CmId::for_datagrams(&service.channel, key)?;
    let theirs = SocketAddr::new(to.ip().to_canonical(), to.port());
    let theirs = if theirs.is_ipv4() { theirs } else { to };
    let found = service.searches.with(|s| {
        // Before it begins: the answer may be there at once.
        s.under_way.insert(key, Search { id, slot, generation, to, ours });
        s.under_way.get(&key).map(|search| {
            search.id.resolve_address(Some(&SocketAddr::new(ours, 0)), &theirs, PATIENCE_MS)
        })
    });
    match found.flatten() {
        Some(Ok(())) => Ok(()),
        other => {
            drop(service.searches.with(|s| s.under_way.remove(&key)));
            other.map_or(Err(Failure::Blocked), |result| result.map_err(Failure::from))
        }
    }
}

/// The thread is to look at the socket once something has come to this descriptor, a queue pair's.
pub(super) fn watch(fd: RawFd, id: SlotId) {
    let Some(service) = SERVICE.get() else { return };
    let (set, token) = (service.epoll, u64::from(id.raw()));
    let flags = EventFlags::IN | EventFlags::ONESHOT;
    if event_set::change(set, fd, token, flags).is_err() {
        let _ = event_set::add(set, fd, token, flags);
    }
}

fn serve() {
    let Some(service) = SERVICE.get() else { return };
    let mut events: Vec<event_set::Event> = Vec::with_capacity(32);
    loop {
        match event_set::wait(service.epoll, &mut events, None) {
            Ok(()) | Err(Failure::Interrupted) => {}
            // The descriptor is gone: the program closed what it could not see.
            Err(_) => return,
        }
        for event in events.iter().copied() {
            let token = event.data.u64();
            if token == MANAGER {
                service.on_manager();
            } else if let Some(id) = u32::try_from(token).ok().and_then(SlotId::from_raw) {
                on_frames(id);
            }
        }
    }
}

/// Something has come to a socket's queue pair, or has left it.
fn on_frames(id: SlotId) {
    let wakers = super::with_existing(id, |state| core::mem::take(&mut state.waiters));
    waiters::wake(id, &wakers.unwrap_or_default());
}

impl Service {
    fn on_manager(&self) {
        while let Ok(Some(event)) = self.channel.next() {
            match event.kind {
                Kind::AddressResolved => {
                    let asked = self.searches.with(|s| {
                        s.under_way
                            .get(&event.id)
                            .map(|search| search.id.resolve_route(PATIENCE_MS))
                    });
                    if let Some(Some(Err(_))) = asked {
                        self.found(event.id, false);
                    }
                }
                Kind::RouteResolved => self.found(event.id, true),
                Kind::Failed { .. } | Kind::Rejected { .. } | Kind::DeviceRemoved => {
                    self.found(event.id, false)
                }
                _ => {}
            }
        }
    }

    /// A search is over: the socket is told.
    fn found(&self, key: u64, resolved: bool) {
        let Some(Some(search)) = self.searches.with(|s| s.under_way.remove(&key)) else { return };
        let path = if resolved { Path::of(&search.id) } else { None };
        let _ = super::with_existing(search.slot, |state: &mut endpoint::State| {
            if state.generation != search.generation {
                return;
            }
            let nowhere = CmError::Os(Failure::Unreachable);
            let pair = state.fabric.as_mut().and_then(|fabric| fabric.pair(search.ours));
            let handle = match (pair, path) {
                (Some(pair), Some(path)) => pair.handle(&path),
                _ => Err(nowhere),
            };
            if let Err(e) = &handle {
                crate::log_info!("datagrams to {} go by UDP: no path ({})", search.to, e);
            }
            let Some(peer) = state.peers.get(&search.to) else { return };
            match handle {
                Ok(handle) if peer.qpn != 0 => {
                    peer.resolving = false;
                    peer.pulse = super::peers::Pulse::begun(sys::now_ns());
                    peer.way = Way::Fabric(handle, search.ours);
                }
                _ => peer.failed(sys::now_ns()),
            }
        });
    }
}
