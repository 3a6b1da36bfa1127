//! Begins a connection over RDMA that is to take the place of a TCP connection
//! ([`super::migrate`]).
//!
//! Must not know what decides that it migrates. Entry point: [`dial`].

use core::net::SocketAddr;

use super::{
    connection::{Connection, Stage},
    own_channel, setup,
};
use super::{service, serving, table};
use crate::conn::pairing_lock::PairingGuard;
use crate::conn::slot::{Name, SlotId};
use crate::failure::Failure;
use crate::sync::stack;

pub(super) fn unmapped(a: SocketAddr) -> SocketAddr {
    SocketAddr::new(a.ip().to_canonical(), a.port())
}

/// Begins to connect to the peer of a TCP connection, at the same address and port. What becomes of
/// it the slot is told.
///
/// # Errors
/// There is no RDMA here after all, no memory, or no place.
pub fn dial(id: SlotId, s: &PairingGuard<'_>) -> Result<(), Failure> {
    stack::on_own(|| dial_now(id, s))
}

fn dial_now(id: SlotId, s: &PairingGuard<'_>) -> Result<(), Failure> {
    let theirs = s.names.get(1).and_then(Name::get).ok_or(Failure::NotConnected)?;
    serving::start()?;
    let bridge = table::take().ok_or(Failure::NoBuffers)?;
    let made =
        own_channel::channel().and_then(|(claim, port)| match service::new_id(bridge.key()) {
            Ok(cm) => Ok((cm, claim, port)),
            Err(e) => {
                port.close();
                Err(e)
            }
        });
    let (cm, claim, port) = match made {
        Ok(made) => made,
        Err(e) => {
            bridge.give_back();
            return Err(e);
        }
    };
    let stage = Stage::Resolving { tries: 0, to: unmapped(theirs) };
    let mut new = Connection::new(bridge.key(), cm, stage, setup::shape(s));
    new.take_the_place_of(id, s);
    new.claim = (claim.record, claim.channel);
    new.port = Some(port);
    bridge.with(|place| *place = Some(new));
    // The service thread begins: should it fail at once, it tells the connection, whose lock
    // `s` has.
    service::nudge();
    Ok(())
}
