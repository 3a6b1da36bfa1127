//! How a bridged connection comes to stand: resolving, asking, answering, knocking.
//!
//! Does what the connection manager's events ask for, up to the moment when bytes may flow. Makes
//! the pump that moves them, and must not drive it. Works on a borrowed [`Connection`], and so
//! under the bridge's lock, or on one that no bridge has yet. Entry points: [`Connection::dial`],
//! [`Connection::court`], [`Connection::bound`], [`Connection::answer`],
//! [`Connection::answer_beside`], [`Connection::on_event`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use super::channel_port::ChannelPort;
use super::connection::{Connection, Courtship, Dialled, Door, Granted, Options, Shape, Stage, To};
use super::guests::{self, Guest};
use super::loopback::Near;
use super::own_channel::channel;
use super::pump::{self, Pump};
use super::watch::Watch;
use super::{ends, meeting, request, service, silent};
use crate::address::SockAddr;
use crate::attach::fingerprint::Proof;
use crate::attach::remote;
use crate::channel::arenas::Claim;
use crate::config::sizes::Size;
use crate::conn::pairing_lock::PairingGuard;
use crate::conn::slot::{Name, Slot, SlotId, flag};
use crate::conn::{fork_group, invitation};
use crate::device::rdma::{CmId, Event, Kind, PairParams, RdmaPair};
use crate::failure::Failure;
use crate::proto::control::Mode;
use crate::proto::stream::StreamParams;
use crate::reason::Reason;
use crate::stats::{self, Counter};
use crate::sys;
use crate::wire::private_data::PrivateData;

/// How long one attempt to resolve an address or a route may take, in milliseconds.
const RESOLVE_MS: i32 = 2000;

/// Attempts.
const RESOLVE_TRIES: u32 = 3;
/// The connection manager's reason for a refusal: no process listens there.
const NOBODY_LISTENS: i32 = 8;

/// What an end that connects begins with.
pub struct Caller {
    /// The bridge's key.
    pub key: u64,
    /// The connection manager's handle.
    pub id: CmId,
    /// Where it connects to.
    pub to: SocketAddr,
    /// Sizes of its queues and buffers.
    pub shape: Shape,
    /// The channel that the connection gets, and the bridge's side of it.
    pub channel: (Claim, ChannelPort),
}

impl Connection {
    /// Begins to connect; whatever becomes of it, the program hears in its slot, which has its side
    /// of the channel and is marked as pending.
    pub fn dial(caller: Caller, slot: (SlotId, &Slot), end: RawFd) -> Self {
        let to = caller.to;
        let mut new = Self::of_caller(caller, slot, 1);
        new.end = end;
        service::watch(&service::Watch::end(new.key, end));
        if let Err(e) = new.id.resolve_address(None, &to, RESOLVE_MS) {
            new.stage = new.unreached(Stage::Over, e.into());
        }
        new
    }

    /// Asks the other end of a TCP connection, on another host, for RDMA beside it.
    pub fn court(
        caller: Caller,
        (slot, s): (SlotId, &PairingGuard<'_>),
        courtship: Courtship,
    ) -> Self {
        let mut new = Self::of_caller(caller, (slot, s), 0);
        new.courtship = Some(courtship);
        new.beside = true;
        new
    }

    /// So often the address was asked for.
    fn of_caller(caller: Caller, (slot, s): (SlotId, &Slot), tries: u32) -> Self {
        let Caller { key, id, to, shape, channel: (claim, port) } = caller;
        let mut new = Self::new(key, id, Stage::Resolving { tries, to }, shape);
        new.slot = Some((slot, s.generation.load(Ordering::Acquire)));
        new.claim = (claim.record, claim.channel);
        new.port = Some(port);
        new
    }

    /// Begins to resolve the address of [`Self::court`]; apart from it, since it may fail and then
    /// tells the connection, whose lock [`Self::court`] was shown.
    pub fn begin(&mut self) {
        if let Stage::Resolving { tries: 0, to } = self.stage {
            self.stage = Stage::Resolving { tries: 1, to };
            self.resolve(to);
        }
    }

    fn resolve(&mut self, to: SocketAddr) {
        if let Err(e) = self.id.resolve_address(None, &to, RESOLVE_MS) {
            self.stage = self.unreached(Stage::Over, e.into());
        }
    }

    /// Has a name.
    ///
    /// # Errors
    /// What the connection manager says: `EADDRINUSE`, `EADDRNOTAVAIL`, …
    pub fn bound(
        key: u64,
        at: &SocketAddr,
        options: Options,
        shape: Shape,
    ) -> Result<Self, Failure> {
        let id = service::new_id(key)?;
        if options.reuse_address {
            id.set_reuse_address(true).map_err(Failure::from)?;
        }
        if at.is_ipv6() {
            id.ipv6_only(options.ipv6_only).map_err(Failure::from)?;
        }
        id.bind(at).map_err(Failure::from)?;
        Ok(Self::new(key, id, Stage::Bound, shape))
    }

    /// Takes the name for a connection to be dialled.
    ///
    /// # Errors
    /// It is something else already.
    pub fn into_id(self) -> Result<CmId, Failure> {
        match self.stage {
            Stage::Bound => Ok(self.id),
            _ => Err(Failure::Invalid),
        }
    }

    /// Listens for peers of the program's listening socket, which is at `door`.
    ///
    /// # Errors
    /// What the connection manager says.
    pub fn listen(&mut self, door: SocketAddr, backlog: i32) -> Result<(), Failure> {
        if !matches!(self.stage, Stage::Bound) {
            return Err(Failure::Invalid);
        }
        self.id.listen(backlog).map_err(Failure::from)?;
        self.stage = Stage::Listening { to: Door::Program(door) };
        Ok(())
    }

    /// Listens for peers on other hosts. They ask for RDMA beside their TCP connections, or, where
    /// the program listens at `door`, for connections of their own.
    ///
    /// # Errors
    /// What the connection manager says; `EOPNOTSUPP` on iWARP, which shares TCP's ports.
    pub fn listen_beside(&mut self, door: Option<SocketAddr>, backlog: i32) -> Result<(), Failure> {
        let device = self.id.device().map_err(Failure::from)?;
        if device.is_none_or(|d| d.mode() == Mode::Message) {
            return Err(Failure::Unsupported);
        }
        self.id.listen(backlog).map_err(Failure::from)?;
        self.stage = Stage::Listening { to: door.map_or(Door::Connections, Door::Both) };
        Ok(())
    }

    /// Answers a request that came to a listener. The request is rejected if that cannot be.
    ///
    /// # Errors
    /// Why it was.
    pub fn answer(
        key: u64,
        id: CmId,
        request: &[u8],
        door: SocketAddr,
        shape: Shape,
    ) -> Result<Self, Failure> {
        match Self::prepare_answer(&id, request, shape) {
            Ok(Granted { pump, own, claim }) => {
                let pump = Box::new(pump);
                if let Err(e) = id.set_key(key).and_then(|()| id.accept(&own.to_bytes())) {
                    Pump::close(*pump);
                    return Err(e.into());
                }
                let to = To::Program(door);
                let mut new = Self::new(key, id, Stage::Accepting { pump, to }, shape);
                new.claim = (claim.record, claim.channel);
                Ok(new)
            }
            Err(e) => {
                let _ = id.reject(&[]);
                Err(e)
            }
        }
    }

    /// Answers a request of one of ours for RDMA beside a TCP connection of this process.
    ///
    /// # Errors
    /// Why it was rejected.
    pub fn answer_beside(
        key: u64,
        id: CmId,
        request: &[u8],
        (slot, proof): (SlotId, Proof),
        shape: Shape,
    ) -> Result<Self, Failure> {
        let s = fork_group::slot(slot).ok_or(Failure::BadDescriptor)?;
        let generation = s.generation.load(Ordering::Acquire);
        match Self::prepare_answer(&id, request, shape) {
            Ok(Granted { pump, own, claim }) => {
                let pump = Box::new(pump.beside_tcp());
                let granted =
                    id.set_key(key).and_then(|()| id.accept(&request::answer(&own, &proof)));
                if let Err(e) = granted {
                    Pump::close(*pump);
                    return Err(e.into());
                }
                let to = To::Connection;
                let mut new = Self::new(key, id, Stage::Accepting { pump, to }, shape);
                new.claim = (claim.record, claim.channel);
                new.slot = Some((slot, generation));
                new.beside = true;
                Ok(new)
            }
            Err(e) => {
                let _ = id.reject(&[]);
                Err(e)
            }
        }
    }

    pub(super) fn prepare_answer(
        id: &CmId,
        request: &[u8],
        shape: Shape,
    ) -> Result<Granted, Failure> {
        // `wire-protocol §2.7`: a request that we cannot understand is rejected.
        let peer = PrivateData::parse(request).map_err(|_| Failure::Unsupported)?;
        let (pair, params) = make_pair(id, shape)?;
        let (claim, port) = channel()?;
        let own = params.private_data();
        let pump = Pump::new(port, pair, &params, &peer).map_err(|_| Failure::Unsupported)?;
        Ok(Granted { pump, own, claim })
    }

    /// Something happened to the connection manager's side.
    pub fn on_event(&mut self, event: &Event) {
        if self.over() {
            // What is said of a connection that has ended is no news to its program.
            return;
        }
        let stage = core::mem::replace(&mut self.stage, Stage::Over);
        self.stage = match (stage, &event.kind) {
            (Stage::Resolving { .. }, Kind::AddressResolved) => self.route(1),
            (Stage::Routing { .. }, Kind::RouteResolved) => self.connect(),
            (Stage::Connecting(dialled), Kind::Established { private }) => {
                self.established(*dialled, private.bytes())
            }
            (Stage::Connecting(dialled), Kind::Rejected { private, status }) => {
                self.refused(dialled, private.bytes(), *status)
            }
            (Stage::Accepting { pump, to }, Kind::Established { .. }) => self.accepted(pump, to),
            (Stage::Inviting { mut pump, door }, Kind::Disconnected) => {
                // What it has sent is here already, for the program to find.
                pump.pair().peer_gone();
                Stage::Inviting { pump, door }
            }
            (stage @ Stage::Inviting { .. }, _) => stage,
            (Stage::Running { mut pump }, Kind::Disconnected) => {
                // A sign of life, if the last.
                self.watch = Watch::new(sys::now_ns());
                pump.pair().peer_gone();
                Stage::Running { pump }
            }
            (stage @ Stage::Running { .. }, _) | (stage @ Stage::Listening { .. }, _) => stage,
            (Stage::Resolving { tries, to }, Kind::Failed { why }) => self.again(tries, to, *why),
            (Stage::Routing { tries }, Kind::Failed { why })
                if tries < RESOLVE_TRIES && *why == Failure::TimedOut =>
            {
                self.route(tries + 1)
            }
            (stage, kind) => match service::failure(kind) {
                Some(e) => self.unreached(stage, e),
                None => stage,
            },
        };
    }

    /// The peer knows of the answer.
    fn accepted(&mut self, mut pump: Box<Pump<RdmaPair>>, to: To) -> Stage {
        pump.begin(true);
        match to {
            To::Program(door) => self.knock(pump, &door),
            To::Connection => self.meet(pump),
            To::Migrant => self.invite(pump),
        }
    }

    /// The peer does not want this connection, or says where to ask instead.
    fn refused(&mut self, dialled: Box<Dialled>, private: &[u8], status: i32) -> Stage {
        if let Some(at) = self.may_ask_at(private) {
            return self.redirect(*dialled, at);
        }
        self.learn(status == NOBODY_LISTENS);
        self.unreached(Stage::Connecting(dialled), Failure::Refused)
    }

    fn again(&mut self, tries: u32, to: SocketAddr, errno: Failure) -> Stage {
        if tries < RESOLVE_TRIES && errno == Failure::TimedOut {
            return match self.id.resolve_address(None, &to, RESOLVE_MS) {
                Ok(()) => Stage::Resolving { tries: tries + 1, to },
                Err(e) => self.unreached(Stage::Over, e.into()),
            };
        }
        self.unreached(Stage::Over, errno)
    }

    fn route(&mut self, tries: u32) -> Stage {
        match self.id.resolve_route(RESOLVE_MS) {
            Ok(()) => Stage::Routing { tries },
            Err(e) => self.unreached(Stage::Over, e.into()),
        }
    }

    fn connect(&mut self) -> Stage {
        if (self.beside || self.migrant)
            && !matches!(self.id.device(), Ok(Some(d)) if d.mode() == Mode::Immediate)
        {
            // iWARP shares TCP's ports: the process that listens there would take this for a
            // stranger's connection.
            return self.unreached(Stage::Over, Failure::Unsupported);
        }
        let made = make_pair(&self.id, self.shape);
        let (pair, params) = match made {
            Ok(made) => made,
            Err(e) => return self.unreached(Stage::Over, e),
        };
        let Some(port) = self.port.take() else { return Stage::Over };
        let own = params.private_data();
        let asked = match &self.courtship {
            Some(courtship) => self.id.connect(&courtship.request.to_bytes(&own)),
            None => self.id.connect(&own.to_bytes()),
        };
        let stage = Stage::Connecting(Box::new(Dialled { pair, params, port }));
        match asked {
            Ok(()) => stage,
            Err(e) => self.unreached(stage, e.into()),
        }
    }

    fn established(&mut self, dialled: Dialled, private: &[u8]) -> Stage {
        let Dialled { pair, params, port } = dialled;
        if let Some(courtship) = &self.courtship
            && !request::is_answer(private, &courtship.expected)
        {
            // A stranger at that port, or upstream's library.
            port.close();
            let _ = self.id.disconnect();
            return self.unreached(Stage::Over, Failure::Refused);
        }
        let Ok(peer) = PrivateData::parse(private) else {
            // `wire-protocol §2.7`.
            port.close();
            let _ = self.id.disconnect();
            return self.unreached(Stage::Over, Failure::Unsupported);
        };
        match Pump::new(port, pair, &params, &peer) {
            Ok(mut pump) => {
                pump.begin(false);
                if self.beside {
                    return self.meet(Box::new(pump.beside_tcp()));
                }
                if self.migrant {
                    return self.invite(Box::new(pump));
                }
                self.tell_connected();
                self.started(Box::new(pump))
            }
            Err(_) => {
                let _ = self.id.disconnect();
                self.unreached(Stage::Over, Failure::Unsupported)
            }
        }
    }

    /// The program's socket becomes connected.
    fn tell_connected(&mut self) {
        let Some((id, s)) = self.program() else { return };
        let [ours, theirs] = &s.names;
        // The peer's is as the program wrote it, and says what family the socket has.
        let written = theirs.get();
        let called = |name: SocketAddr| written.map_or(name, |w| SockAddr(name).as_beside(&w).0);
        ours.set(self.id.local_address().map(called));
        if let Some(peer) = self.id.peer_address() {
            theirs.set(Some(called(peer)));
        }
        s.clear(flag::PENDING);
        stats::add(Counter::AttachedRdma, 1);
        crate::live_segment::enter(id, s, fork_group::descriptor(id));
        crate::log_info!("connected over RDMA");
        self.news = Some(id);
    }

    /// Both ends have met beside their TCP connection.
    fn meet(&mut self, pump: Box<Pump<RdmaPair>>) -> Stage {
        let met = |id, s| meeting::met(id, s, self.key as u32, self.claim.0, self.claim.1);
        let found = self.program().filter(|(id, s)| met(*id, s));
        self.learn(false);
        self.courtship = None;
        if let Some((id, _)) = found {
            self.news = Some(id);
            return self.started(pump);
        }
        Pump::close(*pump);
        let _ = self.id.disconnect();
        Stage::Over
    }

    /// Learns whether a process listens at the port of the TCP connection, for the next thread that
    /// would ask there.
    fn learn(&self, closed: bool) {
        let asked = self.courtship.as_ref().filter(|c| !c.redirected);
        let Some(at) = asked.and_then(|_| self.program()?.1.names.get(1)?.get()) else { return };
        if closed { silent::refused(&at) } else { silent::answered(&at) }
    }

    /// The port at which a refusal says that the connection's siblings can be asked, the first
    /// time.
    fn may_ask_at(&self, refusal: &[u8]) -> Option<u16> {
        self.courtship.as_ref().filter(|c| !c.redirected)?;
        request::ask_there(refusal)
    }

    /// Asks at another port of the same host: the connection is that of a sibling of the process
    /// that answered.
    fn redirect(&mut self, dialled: Dialled, at: u16) -> Stage {
        if let Some(courtship) = &mut self.courtship {
            courtship.redirected = true;
        }
        let Some(theirs) = self.program().and_then(|(_, s)| s.names.get(1).and_then(Name::get))
        else {
            dialled.port.close();
            return Stage::Over;
        };
        self.port = Some(dialled.port);
        drop(dialled.pair);
        let to = SocketAddr::new(theirs.ip(), at);
        let asked = service::new_id(self.key).and_then(|id| {
            self.id = id;
            self.id.resolve_address(None, &to, RESOLVE_MS).map_err(Failure::from)
        });
        match asked {
            Ok(()) => Stage::Resolving { tries: 1, to },
            Err(e) => self.unreached(Stage::Over, e),
        }
    }

    /// The peer knows that it is connected: the program may accept it.
    fn knock(&mut self, pump: Box<Pump<RdmaPair>>, door: &SocketAddr) -> Stage {
        let guest = Guest {
            record: self.claim.0,
            channel: self.claim.1,
            bridge: self.key as u32,
            pid: sys::pid(),
            names: [self.id.local_address(), self.id.peer_address()],
        };
        let knocked = Near::open(door).and_then(|near| {
            if !guests::enter(&near.address, door, &guest) {
                return Err(Failure::NoBuffers);
            }
            ends::made(|| near.knock(door))
        });
        match knocked {
            Ok(end) => {
                self.end = end;
                self.knocked = true;
                service::watch(&service::Watch::end(self.key, end));
                stats::add(Counter::AttachedRdma, 1);
                self.started(pump)
            }
            Err(e) => {
                crate::log_warn!(
                    "a connection over RDMA could not be handed to its listener: {}",
                    e
                );
                guests::forget(self.claim.0, self.claim.1);
                Pump::close(*pump);
                let _ = self.id.disconnect();
                Stage::Over
            }
        }
    }

    /// It could not be connected: the program hears why.
    pub(super) fn unreached(&mut self, stage: Stage, e: Failure) -> Stage {
        match stage {
            Stage::Connecting(dialled) => dialled.port.close(),
            Stage::Accepting { pump, .. } => {
                Pump::close(*pump);
            }
            Stage::Inviting { pump, door } => {
                door.close();
                // First: afterwards the channel may be another's.
                self.withdraw();
                Pump::close(*pump);
                let _ = self.id.disconnect();
            }
            _ => {}
        }
        if let Some(port) = self.port.take() {
            port.close();
        }
        if self.migrant {
            if let Some((id, s)) = self.program() {
                invitation::failed(s);
                self.news = Some(id);
            }
            return Stage::Over;
        }
        if self.beside {
            if let Some((id, s)) = self.program() {
                let refused = e == Failure::Refused;
                if !refused && let Some(theirs) = s.names.get(1).and_then(Name::get) {
                    silent::remember(&theirs.ip());
                }
                remote::failed(
                    id,
                    s,
                    if refused { Reason::PeerRefused } else { Reason::NoRoute },
                    refused,
                );
            }
            return Stage::Over;
        }
        if let Some((id, s)) = self.program() {
            s.pending_error.store(e.code(), Ordering::Release);
            s.turn(flag::PENDING, flag::UNREACHED);
            self.news = Some(id);
        }
        Stage::Over
    }
}

fn make_pair(id: &CmId, shape: Shape) -> Result<(RdmaPair, StreamParams), Failure> {
    let wanted = PairParams {
        // One for what the stream does not count (`opening`).
        send_queue: shape.send_queue.saturating_add(1),
        receive_queue: shape.receive_queue,
        // For words that cost no credit: a few of the protocol's, two of our notes
        // (`direct_placement`) each way, and one before the last word.
        spare_receives: 16,
        inline: shape.inline,
        staging: shape.send_buffer,
        ..PairParams::default()
    };
    let mut pair = id.create_pair(&wanted).map_err(Failure::from)?;
    // The device may have given less than was asked for.
    let (receives, sends) = (pair.receive_queue(), pair.send_queue().saturating_sub(1).max(1));
    let params = pump::prepare(&mut pair, receives, shape.receive_buffer, sends, shape.iomaps)
        .ok_or(Failure::NoMemory)?;
    Ok((pair, params))
}

pub(super) fn shape(s: &Slot) -> Shape {
    Shape {
        send_queue: 384,
        receive_queue: 384,
        inline: s.sizes.get(Size::Inline),
        send_buffer: s.sizes.get(Size::SendBuffer).max(BUFFER),
        receive_buffer: s.sizes.get(Size::ReceiveBuffer).max(BUFFER) & !1,
        iomaps: 0,
    }
}

/// Bytes of each buffer where no more was asked for: between two of ours there is no need to be
/// frugal.
pub(super) const BUFFER: u32 = 256 * 1024;
