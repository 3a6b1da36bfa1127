//! The service thread: runs bridges while no thread of the program does, and hears of connections.
//!
//! One thread for a process, made with the first use of RDMA (`life-of-a-connection §8`). It sleeps
//! in epoll on the connection manager's events, the device's completions (but see
//! [`super::cq_ownership`]), its waker, and our ends of the loopback connections. It never polls at
//! rest, but for a slow clock while connections stand. By that clock it finds out that a host has
//! gone. Must not know the protocol. Entry points: [`start`], [`with_news`], [`nudge`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::net::SocketAddr;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use std::collections::BTreeMap;

use super::connection::{Connection, Door};
use super::table::{self, Bridge};
use super::{cq_ownership, migrate, request};
use crate::attach::fingerprint::Proof;
use crate::attach::remote::{self, Recognised};
use crate::channel::ready_bitmap;
use crate::conn::slot::SlotId;
use crate::device::rdma::{CmError, CmId, Event, EventChannel, Kind};
use crate::device::shm::park::MARK_READY;
use crate::device::shm::waker;
use crate::failure::Failure;
use crate::sync::mutex::Mutex;
use crate::sys::event_set::{self, EventFlags};
use crate::sys::{self, background};

/// A bridge that a thread of the program polled so recently (in ticks, some hundred microseconds)
/// is left to it.
const HOT: u64 = 400_000;
/// How soon such a bridge is looked at again, in nanoseconds.
const LOOK_AGAIN_NS: u64 = 1_000_000;
/// How often a bridge that goes on having news is run before others have their turn.
const TURNS: u32 = 16;
/// The least time between two rounds of heartbeats, and how soon one is tried again that was busy,
/// in nanoseconds.
const ROUND_NS: u64 = 50_000_000;

mod renewal;
#[cfg(test)]
mod tests;

use super::news::with_news;
use super::request::Request;
use super::service::{
    END, MANAGER, NUDGE, SERVICE, STARTING, Service, WAKER, WHAT, nudge, running, started,
};
pub use renewal::outdated;

/// Bridges that are looked at although nothing happens, and when, on the clock of [`sys::now_ns`].
type Hot = BTreeMap<u64, u64>;

/// Starts the thread, if that was not done yet.
///
/// # Errors
/// There is no RDMA here, or no descriptor or thread to be had. Why was said to the log.
pub fn start() -> Result<(), Failure> {
    if started() {
        return Ok(());
    }
    let Some(_held) = STARTING.hold() else { return Err(Failure::Blocked) };
    if started() { Ok(()) } else { open().and_then(launch) }
}

fn open() -> Result<Service, Failure> {
    let channel = EventChannel::open().map_err(|e| {
        match e {
            CmError::Missing(missing) => crate::log_warn!("{}", missing),
            CmError::Os(e) => {
                crate::log_warn!("no RDMA: the connection manager says {}", e)
            }
        }
        Failure::from(e)
    })?;
    beside_channel(channel)
}

/// All that a service has beside its channel.
fn beside_channel(channel: EventChannel) -> Result<Service, Failure> {
    let epoll = event_set::new()?;
    let nudge = event_set::new_counter()?;
    let waker = waker::borrow_for_set().ok_or(Failure::NoDescriptors)?;
    let service = Service {
        channel,
        epoll,
        nudge,
        waker,
        heartbeat: AtomicU64::new(u64::MAX),
        known: Mutex::default(),
    };
    service.add(service.channel.fd(), MANAGER, EventFlags::IN)?;
    service.add(nudge, NUDGE, EventFlags::IN)?;
    service.add(waker.fd(), WAKER, EventFlags::IN)?;
    Ok(service)
}

fn launch(service: Service) -> Result<(), Failure> {
    let service: &'static Service = Box::leak(Box::new(service));
    SERVICE.publish(service);
    let spawned = spawn();
    if spawned.is_err() {
        SERVICE.withdraw();
    }
    spawned
}

/// A thread that takes no signal: the program's handlers run on the program's threads. Made by
/// libc, so that `setuid` and the like reach it (`life-of-a-connection §8`).
fn spawn() -> Result<(), Failure> {
    background::start_by_libc(|| {
        if let Some(service) = running() {
            service.serve();
        }
    })
}

/// The program's socket listens no more.
pub fn unlisten(id: SlotId) {
    let Some(service) = running() else { return };
    let mut gone = Vec::new();
    service.with(|known| {
        known.programs.retain(|(owner, key, at)| {
            if *owner == id {
                gone.push(*key);
                known.listeners.remove(at);
            }
            *owner != id
        });
    });
    for bridge in gone.into_iter().filter_map(Bridge::of_key) {
        if bridge.with(|c| c.as_mut().is_some_and(Connection::outlives_its_socket)) == Some(true) {
            nudge();
            continue;
        }
        let connection = bridge.with(Option::take).flatten();
        bridge.give_back();
        if let Some(connection) = connection {
            connection.drop_all();
        }
    }
}

/// In the child of a fork: thread, events and bridges are the parent's.
pub fn forked() {
    if let Some(service) = running() {
        for fd in [service.epoll, service.nudge] {
            sys::close_private(fd);
        }
    }
    SERVICE.withdraw();
    STARTING.reset();
    table::forked();
    request::forked();
}

impl Service {
    fn serve(&self) {
        let mut hot = Hot::new();
        let mut events: Vec<event_set::Event> = Vec::with_capacity(64);
        loop {
            if !running().is_some_and(|s| core::ptr::eq(s, self)) {
                // Another service has begun, or will. (The nudge's number stays: a thread may be
                // about to use it.)
                sys::close_private(self.epoll);
                return;
            }
            let limit = self.next_time(&hot).map(|due| due.saturating_sub(sys::now_ns()));
            match event_set::wait(self.epoll, &mut events, limit) {
                Ok(()) | Err(Failure::Interrupted) => {}
                // The descriptor is gone: the program closed what it could not see. Nothing is left
                // to do.
                Err(_) => return,
            }
            if !hot.is_empty() {
                let now = sys::now_ns();
                let due: Vec<u64> =
                    hot.iter().filter(|(_, due)| **due <= now).map(|(key, _)| *key).collect();
                for key in due {
                    hot.remove(&key);
                    self.look(key, &mut hot);
                }
            }
            for event in events.iter().copied() {
                self.on_event(event.data.u64(), event.flags, &mut hot);
            }
            let now = sys::now_ns();
            if now >= self.heartbeat.load(Ordering::Relaxed) {
                self.heartbeats(now, &mut hot);
            }
        }
    }

    /// When something is to be done although nothing happens.
    fn next_time(&self, hot: &Hot) -> Option<u64> {
        let heartbeat = Some(self.heartbeat.load(Ordering::Relaxed)).filter(|at| *at != u64::MAX);
        hot.values().copied().chain(heartbeat).min()
    }

    /// One round: each connection says when it wants the next.
    fn heartbeats(&self, now: u64, hot: &mut Hot) {
        self.heartbeat.store(u64::MAX, Ordering::Relaxed);
        for bridge in table::all() {
            let beat = bridge.try_with(|c| {
                let c = c.as_mut()?;
                // Signs of life may have come that no thread has heard of, or the connection's end.
                if c.running() && !c.run().alive {
                    return Some(0);
                }
                c.heartbeat(now)
            });
            // One that is being run is not at rest.
            let next = beat.unwrap_or(Some(0));
            if let Some(at) = next {
                self.heartbeat.fetch_min(at.max(now.saturating_add(ROUND_NS)), Ordering::Relaxed);
                self.look(bridge.key(), hot);
            }
        }
    }

    fn on_event(&self, token: u64, flags: EventFlags, hot: &mut Hot) {
        match token {
            MANAGER => self.on_manager(hot),
            WAKER => {
                self.waker.drain();
                let mut ready = Vec::new();
                ready_bitmap::collect_far(&mut |record, channel| ready.push((record, channel)));
                for channel in ready {
                    if let Some(Some(key)) =
                        self.with(|known| known.channels.get(&channel).copied())
                    {
                        self.look(key, hot);
                    }
                }
            }
            NUDGE => {
                event_set::lower(self.nudge);
                for bridge in table::all() {
                    with_news(bridge, |c| c.iter_mut().for_each(Connection::begin));
                    self.look(bridge.key(), hot);
                }
            }
            _ if token & WHAT == END => {
                if let Some(bridge) = Bridge::of_key(token & !WHAT) {
                    // HUP alone: both sides have said FIN, which is a clean end.
                    let reset = flags.contains(EventFlags::ERR);
                    let fin = reset || flags.intersects(EventFlags::RDHUP | EventFlags::HUP);
                    with_news(bridge, |c| c.iter_mut().for_each(|c| c.on_end(fin, reset)));
                    self.look(bridge.key(), hot);
                }
            }
            _ => self.look(token & !WHAT, hot),
        }
    }

    fn on_manager(&self, hot: &mut Hot) {
        loop {
            match self.channel.next() {
                Ok(Some(event)) => {
                    let key = event.id;
                    if let Kind::Request { .. } = &event.kind {
                        self.on_request(event);
                    } else if let Some(bridge) = Bridge::of_key(key) {
                        with_news(bridge, |c| c.iter_mut().for_each(|c| c.on_event(&event)));
                        self.look(key, hot);
                    }
                }
                Ok(None) => return,
                Err(e) if e.failure() == renewal::OUTDATED => {
                    self.outdated();
                    return;
                }
                Err(e) => {
                    // What is still there would wake us at once.
                    crate::log_warn!("no news of connections over RDMA: {}", e.failure());
                    let _ = event_set::remove(self.epoll, self.channel.fd());
                    return;
                }
            }
        }
    }

    fn on_request(&self, event: Event) {
        let listening = Bridge::of_key(event.id)
            .and_then(|r| r.with(|c| c.as_ref().and_then(Connection::listening)).flatten());
        let Kind::Request { id, private, .. } = event.kind else { return };
        let Some((door, shape)) = listening else { return refuse(&id, &[]) };
        if !matches!(door, Door::Program(_))
            && Request::parse(private.bytes()).is_none()
            && let Some(slot) = migrate::awaited(&id)
        {
            return migrate::answer(slot, id, private.bytes());
        }
        let asked = match door {
            Door::Migrants => return refuse(&id, &[]),
            Door::Program(_) => None,
            Door::Both(_) if Request::parse(private.bytes()).is_none() => None,
            Door::Connections | Door::Both(_) => match recognise_or_refuse(&id, private.bytes()) {
                None => return,
                found => found,
            },
        };
        let Some(bridge) = table::take() else { return refuse(&id, &[]) };
        let answered = match (door, asked) {
            (Door::Connections | Door::Both(_), Some(asked)) => {
                Connection::answer_beside(bridge.key(), id, private.bytes(), asked, shape)
            }
            (Door::Program(door) | Door::Both(door), _) => {
                Connection::answer(bridge.key(), id, private.bytes(), door, shape)
            }
            (Door::Connections, None) | (Door::Migrants, _) => Err(Failure::Invalid),
        };
        match answered {
            Ok(connection) => {
                bridge.with(|c| *c = Some(connection));
            }
            Err(e) => {
                crate::log_info!("a connection over RDMA was refused: {}", e);
                bridge.give_back();
            }
        }
    }

    /// Runs a bridge, and sees to it that it is looked at when there is news.
    fn look(&self, key: u64, hot: &mut Hot) {
        let Some(bridge) = Bridge::of_key(key) else { return };
        let over = with_news(bridge, |slot| {
            let Some(c) = slot else { return false };
            c.take_event();
            bridge.armed.store(0, Ordering::Relaxed);
            // Pairs with the fence in bridge::arm.
            fence(Ordering::SeqCst);
            let mut left = LeftAlone::now(bridge);
            let last = turns(|| self.turn(bridge, c, &mut left));
            let again = match last {
                Turn::Over => return true,
                Turn::Stands => c.due(),
                Turn::Quiet => left.until.into_iter().chain(c.due()).min(),
                Turn::News => Some(0),
            };
            again.map(|due| hot.insert(key, due));
            false
        });
        cq_ownership::taken(bridge);
        if over == Some(true)
            && let Some(connection) = bridge.clear(|c| c.over())
        {
            connection.drop_all();
        }
    }

    /// Runs a bridge, arms it unless it is left alone, and runs it once more.
    fn turn(&self, bridge: &Bridge, c: &mut Connection, left: &mut LeftAlone) -> Turn {
        let ran = c.run();
        if !ran.alive {
            return Turn::Over;
        }
        if !c.running() {
            return Turn::Stands;
        }
        if let Some(at) = c.new_rules() {
            self.heartbeat.fetch_min(at, Ordering::Relaxed);
        }
        c.enlist(self.waker.id() | MARK_READY);
        let needed = cq_ownership::as_needed(bridge, c);
        if !needed {
            left.until = None;
        } else if !left.to_the_program {
            c.arm();
            bridge.armed.store(1, Ordering::Relaxed);
        }
        // Once more after arming: what came before it wakes no thread (device rule 10, park).
        match c.run() {
            ran if !ran.alive => Turn::Over,
            ran if ran.moved => Turn::News,
            _ => Turn::Quiet,
        }
    }
}

/// A bridge that a thread of the program polls is left to it, and looked at without news.
struct LeftAlone {
    to_the_program: bool,
    /// When it is looked at again, in nanoseconds.
    until: Option<u64>,
}

impl LeftAlone {
    fn now(bridge: &Bridge) -> Self {
        let polled = sys::ticks().wrapping_sub(bridge.polled_at.load(Ordering::Relaxed)) < HOT;
        let to_the_program = polled || bridge.spinners.load(Ordering::Relaxed) > 0;
        let until = to_the_program.then(|| sys::now_ns().saturating_add(LOOK_AGAIN_NS));
        Self { to_the_program, until }
    }
}

/// How a bridge's turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// With the bridge.
    Over,
    /// It carries nothing yet.
    Stands,
    /// There is nothing to do before something happens.
    Quiet,
    /// Something has happened meanwhile.
    News,
}

/// Lets a bridge have its turns until it is quiet, or others must have theirs.
fn turns(mut turn: impl FnMut() -> Turn) -> Turn {
    for _ in 1..TURNS {
        let ended = turn();
        if ended != Turn::News {
            return ended;
        }
    }
    turn()
}

/// Refuses a request. The peer that asked may be gone by now.
fn refuse(id: &CmId, why: &[u8]) {
    let _ = id.reject(why);
}

/// The connection of this process that a peer of ours asks for. If it is not here, the peer is told
/// so.
fn recognise_or_refuse(id: &CmId, private: &[u8]) -> Option<(SlotId, Proof)> {
    match recognise(id, private) {
        Recognised::Here(slot, proof) => return Some((slot, proof)),
        Recognised::Elsewhere(port) => {
            crate::log_debug!(
                "asked over RDMA for a relative's connection, which listens at port {}",
                port
            );
            refuse(id, &request::elsewhere(port));
        }
        Recognised::Nobody => {
            crate::log_debug!(
                "asked over RDMA for a connection that is not here, or not to be attached"
            );
            refuse(id, &[]);
        }
    }
    None
}

/// Which TCP connection one of ours asks for.
fn recognise(id: &CmId, private: &[u8]) -> Recognised {
    let (Some(request), Some(ours), Some(theirs)) =
        (Request::parse(private), id.local_address(), id.peer_address())
    else {
        return Recognised::Nobody;
    };
    let [from, to] = request.ports;
    let (ours, theirs) = (SocketAddr::new(ours.ip(), to), SocketAddr::new(theirs.ip(), from));
    remote::recognise(&ours, &theirs, &request.proof)
}
