//! What the service thread shares with its callers: what it hears of, and how it is woken.
//!
//! Must not know what a bridge does, nor what the thread does ([`super::serving`]). Entry points:
//! [`new_id`], [`watch`], [`nudge`].

use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::RawFd;

use crate::device::rdma::{CmId, EventChannel, Kind};
use crate::device::shm::waker::WakerRef;
use crate::failure::Failure;
use crate::sync::lock::OwnedLock;
use crate::sync::mutex::Mutex;
use crate::sync::published::Published;
use crate::sys::event_set::{self, EventFlags};

pub(super) mod known;

pub(super) use known::Known;
pub use known::{belongs, forgotten, listener, listens, listens_for};

/// Low bits of an epoll token; the rest is a bridge's key.
pub(super) const WHAT: u64 = 3 << 62;

pub(super) const COMPLETIONS: u64 = 1 << 62;

pub(super) const END: u64 = 2 << 62;

pub(super) const MANAGER: u64 = 3 << 62;

pub(super) const WAKER: u64 = (3 << 62) | 1;

pub(super) const NUDGE: u64 = (3 << 62) | 2;

/// What the thread and its callers share.
pub(super) struct Service {
    pub(super) channel: EventChannel,
    pub(super) epoll: RawFd,
    pub(super) nudge: RawFd,
    pub(super) waker: WakerRef,
    /// When the next round of heartbeats is due, on the clock of [`sys::now_ns`]; `u64::MAX` while
    /// nothing stands. Relaxed: the thread that sleeps by it is woken by whatever makes it earlier,
    /// or makes it so itself.
    pub(super) heartbeat: AtomicU64,
    /// What is looked up.
    pub(super) known: Mutex<Known>,
}

// SAFETY: the channel is read by the service thread alone, and making identifiers on it is
// thread-safe in librdmacm; the rest is plain numbers.
unsafe impl Sync for Service {}

// SAFETY: as above.
unsafe impl Send for Service {}

pub(super) static SERVICE: Published<Service> = Published::new();

pub(super) static STARTING: OwnedLock = OwnedLock::new();

pub(super) fn running() -> Option<&'static Service> {
    SERVICE.get()
}

/// Whether the thread was started in this process.
#[must_use]
pub fn started() -> bool {
    running().is_some()
}

/// Something that the thread is to hear of.
pub struct Watch {
    pub(super) fd: RawFd,
    pub(super) token: u64,
    pub(super) events: EventFlags,
}

impl Watch {
    /// The completions of a bridge's pair.
    pub fn completions(key: u64, fd: Option<RawFd>) -> Self {
        Self { fd: fd.unwrap_or(-1), token: COMPLETIONS | key & !WHAT, events: EventFlags::IN }
    }

    /// A connection comes to a bridge's door.
    pub fn door(key: u64, fd: RawFd) -> Self {
        Self { fd, token: COMPLETIONS | key & !WHAT, events: EventFlags::IN }
    }

    /// The kernel's news of the program's socket.
    pub fn end(key: u64, fd: RawFd) -> Self {
        // Bytes come there only from a program that has gone back to the kernel.
        let events = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        Self { fd, token: END | key & !WHAT, events }
    }
}

/// Adds something to hear of. It goes when its descriptor is closed.
pub fn watch(watch: &Watch) {
    if let Some(service) = running()
        && watch.fd >= 0
    {
        let _ = service.add(watch.fd, watch.token, watch.events);
    }
}

/// Whether the thread hears of that bridge's completions from now on. The caller has the bridge's
/// lock.
pub(super) fn hears(key: u64, fd: RawFd, so: bool) {
    if let Some(service) = running() {
        // Out of the set, not in it without events: the kernel's device code wakes each thread that
        // watches its descriptor, without saying of what. A thread is then woken to find that it
        // asked for nothing.
        if so {
            watch(&Watch::completions(key, Some(fd)));
        } else {
            let _ = event_set::remove(service.epoll, fd);
        }
    }
}

/// An identifier of the connection manager, whose events name `key`.
///
/// # Errors
/// What the connection manager says.
pub fn new_id(key: u64) -> Result<CmId, Failure> {
    let service = running().ok_or(Failure::NoDevice)?;
    CmId::new(&service.channel, key).map_err(Failure::from)
}

/// The thread looks after a connection that it has just begun to run, at that time or earlier.
pub(super) fn heartbeat_at(at: u64) {
    if let Some(service) = running() {
        service.heartbeat.fetch_min(at, Ordering::Relaxed);
    }
}

/// The thread looks at all bridges soon: one of them is over, or wants to be run.
pub fn nudge() {
    if let Some(service) = running() {
        event_set::raise(service.nudge);
    }
}

impl Service {
    pub(super) fn add(&self, fd: RawFd, token: u64, events: EventFlags) -> Result<(), Failure> {
        event_set::add(self.epoll, fd, token, events)
    }
}

/// What the program is told when an event means that there will be no connection.
pub fn failure(kind: &Kind) -> Option<Failure> {
    match kind {
        Kind::Rejected { .. } => Some(Failure::Refused),
        Kind::Failed { why } => Some(*why),
        Kind::Disconnected | Kind::DeviceRemoved => Some(Failure::Reset),
        _ => None,
    }
}
