//! Bridges of fork mode: a connection over RDMA that takes the place of a TCP connection
//! ([`crate::fork_safe`]).
//!
//! The connection is made by RDMA's own manager, as upstream makes it. Then it stands until an
//! owner of the TCP connection brings the program's socket to its door. From then on it is a bridge
//! like any other. The owner may be another process of the fork group than this one, which is the
//! one that listens. Must not know what decides that a connection migrates. Entry points:
//! [`awaited`], [`answer`], [`Connection::invite`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;

use super::loopback::DoorWay;
use super::pump::Pump;
use super::{
    connection::{Connection, Granted, Stage, To},
    setup,
};
use super::{ends, news, service, table};
use crate::channel::link;
use crate::conn::fork_group;
use crate::conn::invitation::{self, Invitation};
use crate::conn::slot::{Name, Slot, SlotId};
use crate::device::rdma::{CmId, RdmaPair};
use crate::failure::Failure;
use crate::stats::{self, Counter};
use crate::sys;

/// How long it may take to be established, and then to be wanted, in nanoseconds.
const PATIENCE_NS: u64 = 10_000_000_000;

/// The connection of this fork group that has greeted the peer that asks here, if there is one. It
/// is this request's now.
pub(super) fn awaited(request: &CmId) -> Option<SlotId> {
    let (ours, theirs) = (request.local_address()?, request.peer_address()?);
    invitation::expected(&ours, &theirs.ip())
}

/// Grants the request of a peer that was greeted. If that cannot be, it is rejected, and the
/// connection is told.
pub(super) fn answer(slot: SlotId, id: CmId, request: &[u8]) {
    let Some(s) = fork_group::slot(slot) else { return };
    let granted = table::take().ok_or(Failure::NoBuffers).and_then(|bridge| {
        grant(bridge.key(), id, request, (slot, s))
            .map(|connection| {
                bridge.with(|place| *place = Some(connection));
            })
            .inspect_err(|_| bridge.give_back())
    });
    if let Err(e) = granted {
        crate::log_info!("fork mode: a peer that was greeted could not be granted RDMA: {}", e);
        invitation::failed(s);
        news::news(slot);
    }
}

fn grant(
    key: u64,
    id: CmId,
    request: &[u8],
    (slot, s): (SlotId, &Slot),
) -> Result<Connection, Failure> {
    let shape = setup::shape(s);
    let Granted { pump, own, claim } = Connection::prepare_answer(&id, request, shape)
        .inspect_err(|_| {
            let _ = id.reject(&[]);
        })?;
    let pump = Box::new(pump);
    if let Err(e) = id.set_key(key).and_then(|()| id.accept(&own.to_bytes())) {
        Pump::close(*pump);
        return Err(e.into());
    }
    let mut new = Connection::new(key, id, Stage::Accepting { pump, to: To::Migrant }, shape);
    new.take_the_place_of(slot, s);
    new.claim = (claim.record, claim.channel);
    Ok(new)
}

impl Connection {
    pub(super) fn take_the_place_of(&mut self, id: SlotId, s: &Slot) {
        self.slot = Some((id, s.generation.load(Ordering::Acquire)));
        self.migrant = true;
        self.deadline = Some(sys::now_ns().saturating_add(PATIENCE_NS));
    }

    /// Established: an owner of the TCP connection is to bring the program's socket.
    pub(super) fn invite(&mut self, pump: Box<Pump<RdmaPair>>) -> Stage {
        let six = |s: &Slot| s.names.first().and_then(Name::get).is_some_and(|a| a.is_ipv6());
        let opened = self.program().and_then(|(_, s)| DoorWay::open(six(s)).ok());
        let Some(door) = opened else {
            return self.unreached(Stage::Accepting { pump, to: To::Migrant }, Failure::Reset);
        };
        let invitation = Invitation { door: door.at, channel: self.claim, bridge: self.key as u32 };
        service::watch(&service::Watch::door(self.key, door.fd()));
        self.deadline = Some(sys::now_ns().saturating_add(PATIENCE_NS));
        let kept = link::keep(self.claim);
        let wanted = self.program().filter(|(_, s)| kept && invitation::stands(s, &invitation));
        let stage = Stage::Inviting { pump, door };
        match wanted {
            Some((id, _)) => {
                self.news = Some(id);
                stage
            }
            None => self.unreached(stage, Failure::Reset),
        }
    }

    /// The program's socket is not waited for any more. A holder that is tying it already takes the
    /// channel as it is.
    pub(super) fn withdraw(&self) {
        let program = self.program().map(|(_, s)| s);
        program.iter().for_each(|s| invitation::failed(s));
        if !program.is_some_and(invitation::is_wanted) {
            link::nobody_comes(self.claim);
        }
    }

    /// Lets in the owner that has come to the door with the program's socket.
    pub(super) fn admit(&mut self) {
        if !matches!(self.stage, Stage::Inviting { .. }) {
            return;
        }
        let Some((_, s)) = self.program().filter(|(_, s)| invitation::is_wanted(s)) else {
            let stage = core::mem::replace(&mut self.stage, Stage::Over);
            self.stage = self.unreached(stage, Failure::Reset);
            return;
        };
        let Stage::Inviting { door, .. } = &mut self.stage else { return };
        let Some(end) =
            door.let_in(invitation::tied(s)).and_then(|end| ends::made(|| Ok(end)).ok())
        else {
            return;
        };
        if let Stage::Inviting { pump, door } = core::mem::replace(&mut self.stage, Stage::Over) {
            door.close();
            self.end = end;
            self.migrant = false;
            service::watch(&service::Watch::end(self.key, end));
            stats::add(Counter::AttachedRdma, 1);
            self.stage = self.started(pump);
        }
    }
}
