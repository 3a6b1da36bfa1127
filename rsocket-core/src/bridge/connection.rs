//! One bridged connection, and its life once it stands: running, and its end. How it comes to stand
//! is [`super::setup`].
//!
//! It is borrowed from its place under the lock ([`super::table::Bridge`]). Must not know threads
//! or who calls. Entry point: [`Connection::run`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use super::channel_port::ChannelPort;
use super::loopback::{self, DoorWay};
use super::pump::{PeerEnd, Pump};
use super::request::{Open, Request};
use super::watch::Watch;
use super::{ends, guests, service};
use crate::attach::fingerprint::Proof;
use crate::attach::remote;
use crate::channel::arenas::Claim;
use crate::conn::slot::{Slot, SlotId};
use crate::conn::timers::Rules;
use crate::conn::{fork_group, invitation, pending};
use crate::device::QueuePair;
use crate::device::rdma::{CmId, RdmaPair};
use crate::failure::Failure;
use crate::proto::stream::StreamParams;
use crate::sync::stack;
use crate::sys;
use crate::wire::private_data::PrivateData;

/// What the program asked of the queue pair (`SOL_RDMA`, configuration).
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Work requests of the send queue.
    pub send_queue: u16,
    /// Credits that the peer gets.
    pub receive_queue: u16,
    /// Bytes that travel inside the work request.
    pub inline: u32,
    /// Bytes that can be on their way.
    pub send_buffer: u32,
    /// Bytes that can wait to be read.
    pub receive_buffer: u32,
    /// Mappings that the peer may tell us of.
    pub iomaps: u16,
}

/// How far it is.
pub(super) enum Stage {
    /// Has a name, and no more.
    Bound,
    /// Waits for the address, then for the route; how often each was asked for.
    Resolving {
        tries: u32,
        to: SocketAddr,
    },
    Routing {
        tries: u32,
    },
    /// Asked; everything is ready.
    Connecting(Box<Dialled>),
    /// Answered; the peer has still to say that it knows. Where to knock then.
    Accepting {
        pump: Box<Pump<RdmaPair>>,
        to: To,
    },
    /// Established; the program's socket, which was TCP's, has still to come to the door.
    Inviting {
        pump: Box<Pump<RdmaPair>>,
        door: DoorWay,
    },
    Running {
        pump: Box<Pump<RdmaPair>>,
    },
    /// Listens for peers; hands each over there.
    Listening {
        to: Door,
    },
    /// Over: nothing is left but the place.
    Over,
}

/// The destination of what a listener's peers bring.
#[derive(Clone, Copy, Debug)]
pub enum Door {
    /// The program's listening socket, at this address of the host.
    Program(SocketAddr),
    /// The TCP connections that the peers ask for.
    Connections,
    /// The TCP connections that the peers ask for; for a peer that asks for none, the program's
    /// listening socket.
    Both(SocketAddr),
    /// Only peers that were told to come are taken (fork mode).
    Migrants,
}

/// The destination of one connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum To {
    Program(SocketAddr),
    Connection,
    Migrant,
}

/// What a bridge that asks a peer on another host must remember of it.
#[derive(Debug)]
pub struct Courtship {
    /// What it asks.
    pub request: Request,
    /// What only the other end of the TCP connection can answer.
    pub expected: Proof,
    /// It was sent to another port already.
    pub redirected: bool,
    /// When it has waited long enough, on the clock of [`sys::now_ns`].
    pub until: u64,
    /// Counts it among those that are asked.
    pub _open: Open,
}

/// What is ready before the peer has answered.
pub(super) struct Dialled {
    pub(super) pair: RdmaPair,
    pub(super) params: StreamParams,
    pub(super) port: ChannelPort,
}

/// What is ready before a request is granted.
pub(super) struct Granted {
    pub(super) pump: Pump<RdmaPair>,
    pub(super) own: PrivateData,
    pub(super) claim: Claim,
}

/// A bridged connection, or a listener.
pub struct Connection {
    pub(super) key: u64,
    pub(super) id: CmId,
    pub(super) stage: Stage,
    pub(super) shape: Shape,
    /// Our end of the loopback connection, private; -1 when there is none.
    pub(super) end: RawFd,
    pub(super) claim: (u32, u32),
    /// The port, until there is a pump that has it.
    pub(super) port: Option<ChannelPort>,
    /// The program's connection, where this process knows it.
    pub(super) slot: Option<(SlotId, u32)>,
    /// Stands beside a TCP connection, and asked for it.
    pub(super) courtship: Option<Courtship>,
    /// Stands beside a TCP connection.
    pub(super) beside: bool,
    /// Takes the place of a TCP connection (fork mode).
    pub(super) migrant: bool,
    /// When it has waited long enough to be running, on the clock of [`sys::now_ns`].
    pub(super) deadline: Option<u64>,
    /// The program is to be told that something changed, once no lock is held.
    pub(super) news: Option<SlotId>,
    /// It has knocked at the program's listening socket ([`guests`]), and may wait there still.
    pub(super) knocked: bool,
    /// The program's socket sent FIN; it was reset.
    pub(super) fin: bool,
    pub(super) reset: bool,
    /// FIN was passed on to the program.
    pub(super) fin_said: bool,
    /// Whether the peer is still there, and by which rules that is decided.
    pub(super) watch: Watch,
    pub(super) rules: Rules,
}

impl Connection {
    pub(super) fn new(key: u64, id: CmId, stage: Stage, shape: Shape) -> Self {
        Self {
            key,
            id,
            stage,
            shape,
            end: -1,
            claim: (0, 0),
            port: None,
            slot: None,
            courtship: None,
            beside: false,
            migrant: false,
            deadline: None,
            news: None,
            knocked: false,
            fin: false,
            reset: false,
            fin_said: false,
            watch: Watch::new(sys::now_ns()),
            rules: Rules::default(),
        }
    }

    /// For tests: one with this channel and no device, which has a name only, or is over.
    #[cfg(test)]
    pub(crate) fn lifeless(key: u64, claim: (u32, u32), over: bool) -> Self {
        let shape = Shape {
            send_queue: 16,
            receive_queue: 16,
            inline: 0,
            send_buffer: 0,
            receive_buffer: 0,
            iomaps: 0,
        };
        let stage = if over { Stage::Over } else { Stage::Bound };
        Self { claim, ..Self::new(key, CmId::of_a_parent(), stage, shape) }
    }

    /// Where it listens, or our end of the connection, as the connection manager knows it.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.id.local_address()
    }

    /// The program's socket listens no more. Whether a peer that was told to come here may still
    /// come: then the listener stays until that is known, and takes no other peer.
    pub fn outlives_its_socket(&mut self) -> bool {
        let Some(at) = self.local_address() else { return false };
        let stays =
            matches!(self.stage, Stage::Listening { .. }) && invitation::any_accepted_at(&at);
        if stays {
            self.stage = Stage::Listening { to: Door::Migrants };
        }
        stays
    }

    /// What a listener needs to answer a request: the destination, and how the pair is to be.
    pub fn listening(&self) -> Option<(Door, Shape)> {
        match &self.stage {
            Stage::Listening { to } => Some((*to, self.shape)),
            _ => None,
        }
    }

    /// The program's socket, while it is still the one that asked.
    pub(super) fn program(&self) -> Option<(SlotId, &'static Slot)> {
        let (id, generation) = self.slot?;
        let s = fork_group::slot(id)?;
        (s.generation.load(Ordering::Acquire) == generation).then_some((id, s))
    }

    pub(super) fn started(&mut self, mut pump: Box<Pump<RdmaPair>>) -> Stage {
        if !self.beside {
            pump.port().lies_over(self.end);
        }
        service::watch(&service::Watch::completions(self.key, pump.pair().event_fd()));
        service::belongs(self.claim, self.key);
        self.watch = Watch::new(sys::now_ns());
        service::heartbeat_at(self.watch.next(&self.rules));
        Stage::Running { pump }
    }

    /// What the kernel said of the program's end of the loopback connection.
    pub fn on_end(&mut self, fin: bool, reset: bool) {
        self.fin |= fin;
        self.reset |= reset;
        if (fin || reset) && !matches!(self.stage, Stage::Running { .. } | Stage::Over) {
            // No process waits for the connection any more.
            self.lapse(Failure::Aborted);
        }
    }

    #[cold]
    #[inline(never)]
    fn be_over(&mut self) {
        stack::on_own(|| self.stage = Stage::Over);
    }

    /// The attempt, whatever it has come to, has failed.
    #[cold]
    #[inline(never)]
    fn lapse(&mut self, why: Failure) {
        stack::on_own(|| {
            let stage = core::mem::replace(&mut self.stage, Stage::Over);
            self.stage = self.unreached(stage, why);
        });
    }

    /// Moves what can be moved.
    pub fn run(&mut self) -> Ran {
        if matches!(self.stage, Stage::Inviting { .. }) {
            stack::on_own(|| self.admit());
        }
        if matches!(self.stage, Stage::Listening { to: Door::Migrants })
            && !self.local_address().is_some_and(|at| invitation::any_accepted_at(&at))
        {
            self.be_over();
        }
        let until = self.courtship.as_ref().map(|c| c.until).or(self.deadline);
        if !self.running() && until.is_some_and(|until| sys::now_ns() >= until) {
            self.lapse(Failure::TimedOut);
        }
        let Stage::Running { pump } = &mut self.stage else {
            return Ran { alive: !matches!(self.stage, Stage::Over), moved: false };
        };
        let mut moved = pump.run();
        if self.reset && !pump.port().has_outgoing() {
            pump.abort();
            moved |= pump.run();
        } else if self.fin && !pump.port().has_outgoing() {
            // A program that shut its sending side says so in the channel; one that was killed does
            // not.
            pump.fin();
            moved |= pump.run();
        }
        let peer = pump.peer();
        // Before anything else that the program may be told by TCP. A reset that finds FIN there
        // says that the peer takes no more. A reset that finds none says that bytes are missing.
        if matches!(peer, PeerEnd::Shut | PeerEnd::Closed) && !self.fin_said && self.end >= 0 {
            self.fin_said = true;
            loopback::say_fin(self.end);
        }
        if pump.finished() {
            stack::on_own(|| self.finish(peer));
            return Ran { alive: false, moved: true };
        }
        Ran { alive: true, moved }
    }

    /// Ends it by a reset ([`Pump::abort`]): `at_once`, or when all that the program has sent is
    /// under way.
    pub fn reset(&mut self, at_once: bool) {
        if let (Stage::Running { pump }, true) = (&mut self.stage, at_once) {
            pump.abort();
        }
        self.on_end(true, true);
        self.run();
    }

    /// Which slot to tell, with no lock held, that something changed: see [`super::news`].
    pub fn take_news(&mut self) -> Option<SlotId> {
        self.news.take()
    }

    /// Whether it waits for the device to go on.
    #[must_use]
    pub fn backlog(&self) -> bool {
        matches!(&self.stage, Stage::Running { pump } if pump.unsent())
    }

    /// When it must be run again although nothing happens, on the clock of [`sys::now_ns`].
    #[must_use]
    pub fn due(&self) -> Option<u64> {
        match &self.stage {
            Stage::Running { pump } => {
                let looks = pump.waits_under().then(|| sys::now_ns().saturating_add(ROOM_LOOK_NS));
                pump.due().into_iter().chain(looks).min()
            }
            Stage::Over => None,
            Stage::Listening { to: Door::Migrants } => {
                Some(sys::now_ns().saturating_add(LINGER_LOOK_NS))
            }
            Stage::Inviting { .. } => Some(sys::now_ns().saturating_add(LOOK_NS)),
            _ => self.courtship.as_ref().map(|c| c.until).or(self.deadline),
        }
    }

    /// The largest packet of the path to the peer, in bytes of payload.
    #[must_use]
    pub fn segment(&mut self) -> Option<u32> {
        match &mut self.stage {
            Stage::Running { pump } => pump.pair().path_mtu(),
            _ => None,
        }
    }

    /// Whether it is this connection's, and not a later one's in the same place.
    #[must_use]
    pub fn carries(&self, s: &Slot) -> bool {
        let own =
            (s.arena.load(Ordering::Relaxed).wrapping_sub(1), s.channel.load(Ordering::Relaxed));
        self.channel() == own
    }

    /// What carries its bytes, while that runs.
    pub fn pump_mut(&mut self) -> Option<&mut Pump<RdmaPair>> {
        match &mut self.stage {
            Stage::Running { pump } => Some(pump),
            _ => None,
        }
    }

    /// What it is, or is to be, made with from now on.
    pub fn reshape(&mut self, shape: Shape) {
        self.shape = shape;
    }

    /// Which channel it has.
    #[must_use]
    pub fn channel(&self) -> (u32, u32) {
        self.claim
    }

    /// Nothing more is to be carried: the channel, the pair and the program's socket end.
    fn finish(&mut self, peer: PeerEnd) {
        let (mut pair, mut unheard) = (None, false);
        if let Stage::Running { pump } = core::mem::replace(&mut self.stage, Stage::Over) {
            service::forgotten(self.claim);
            unheard = pump.unheard();
            self.tell_end(&pump, peer);
            pair = Some(Pump::close(*pump));
        }
        // One whose peer has closed waits on: its bytes are in the channel.
        if peer == PeerEnd::Broken || self.fin || self.reset {
            self.waits_no_more();
        }
        if self.end >= 0 {
            // The channel is closed before FIN or RST says that it is worth a look.
            if peer == PeerEnd::Broken || unheard {
                ends::reset(self.end)
            } else {
                ends::close(self.end)
            }
            self.end = -1;
        }
        // Taking it down is long work for the kernel: the program has been told by now.
        drop(pair);
    }

    /// What the program is told before its channel ends.
    fn tell_end(&mut self, pump: &Pump<RdmaPair>, peer: PeerEnd) {
        if let Some(violation) = pump.violation() {
            crate::log_warn!(
                "a peer broke the protocol ({:?}): its connection is reset",
                violation
            );
        }
        let broken = peer == PeerEnd::Broken;
        if broken && self.watch.asked() {
            // The question was what failed, or would have next.
            self.say_timed_out();
        } else if broken && !self.beside {
            // Its next call may find the channel closed before the kernel says anything.
            self.holder().inspect(|(_, s)| pending::note_reset(s, Failure::Reset));
        }
        if self.beside
            && (broken || pump.unheard())
            && let Some((id, s)) = self.program()
        {
            if broken {
                remote::lost(s, pump.committed());
            } else {
                remote::unheard(s);
            }
            self.news = Some(id);
        }
    }

    /// If it was not accepted yet, it will not be.
    fn waits_no_more(&mut self) {
        if core::mem::take(&mut self.knocked) {
            guests::forget(self.claim.0, self.claim.1);
        }
    }

    /// The device's next event is awaited, by the thread that hears of it
    /// ([`super::cq_ownership`]).
    pub fn arm(&mut self) {
        if let Stage::Running { pump } = &mut self.stage {
            pump.pair().arm();
        }
    }

    /// Readable after [`Self::arm`], once there is news of the device.
    pub fn event_fd(&mut self) -> Option<RawFd> {
        match &mut self.stage {
            Stage::Running { pump } => pump.pair().event_fd(),
            _ => None,
        }
    }

    /// Makes the device's event unreadable again.
    pub fn take_event(&mut self) {
        if let Stage::Running { pump } = &mut self.stage {
            let _ = pump.pair().take_event();
        }
    }

    /// Puts the service thread's waker into the channel: it hears of what the program puts in or
    /// takes out.
    pub fn enlist(&mut self, waker: u64) {
        if let Stage::Running { pump } = &mut self.stage {
            let ends = pump.port().ends();
            let _ = ends.incoming.data_waiters().enlist(waker);
            let _ = ends.outgoing.room_waiters().enlist(waker);
        }
    }

    /// Moves what can be moved, and says whether anything is left to be sent; it ends nothing. With
    /// `leaving` what the program has put in is all there will be, and the farewell must go too.
    pub fn flush(&mut self, leaving: bool) -> Ran {
        let Stage::Running { pump } = &mut self.stage else {
            return Ran { alive: false, moved: false };
        };
        if leaving {
            pump.gone();
        }
        let moved = pump.run();
        Ran { alive: !pump.finished() && (leaving || pump.under_way()), moved }
    }

    /// Whether it carries bytes (a listener, and a connection that is not established, do not).
    #[must_use]
    pub fn running(&self) -> bool {
        matches!(self.stage, Stage::Running { .. })
    }

    /// Whether only its place is left.
    #[must_use]
    pub fn over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// Ends it whatever its stage.
    pub fn drop_all(mut self) {
        let stage = core::mem::replace(&mut self.stage, Stage::Over);
        match stage {
            Stage::Running { pump } => {
                service::forgotten(self.claim);
                Pump::close(*pump);
                self.waits_no_more();
            }
            // The program was told already, or never asked for anything.
            Stage::Over | Stage::Bound | Stage::Listening { .. } => {}
            other => {
                let _ = self.unreached(other, Failure::Aborted);
            }
        }
        if self.end >= 0 {
            ends::close(self.end);
        }
    }
}

/// How soon it looks again whether the loopback connection has room, in nanoseconds.
const ROOM_LOOK_NS: u64 = 2_000_000;

/// What came of running a bridge.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    /// It still has something to do.
    pub alive: bool,
    /// Something was moved.
    pub moved: bool,
}

/// Options of the program's listening socket that concern the address.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// `SO_REUSEADDR`.
    pub reuse_address: bool,
    /// `IPV6_V6ONLY`.
    pub ipv6_only: bool,
    /// `IP_TOS` or `IPV6_TCLASS`.
    pub type_of_service: u8,
}

/// How soon a bridge looks again whether a socket has come, in nanoseconds: the door says so
/// earlier, but not which socket it is.
pub(super) const LOOK_NS: u64 = 5_000_000;

/// How soon a listener that outlives its socket looks again whether a peer may still come, in
/// nanoseconds.
pub(super) const LINGER_LOOK_NS: u64 = 200_000_000;
