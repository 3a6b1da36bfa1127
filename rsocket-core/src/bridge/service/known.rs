//! What the service thread looks up: whose a channel is, and who listens where.
//!
//! Must not know what a bridge does. Entry points: [`belongs`], [`listener`], [`listens_for`] and
//! their opposites.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::net::SocketAddr;
use std::collections::BTreeMap;

use super::{Service, running};
use crate::conn::slot::SlotId;

/// What is looked up.
#[derive(Default)]
pub(crate) struct Known {
    /// Which bridge a channel belongs to.
    pub(crate) channels: BTreeMap<(u32, u32), u64>,
    /// Where peers on other hosts are listened for, and the port that it came to be.
    pub(crate) listeners: BTreeMap<SocketAddr, u16>,
    /// The bridges that listen beside a listening socket of the program's, by its slot, and where.
    pub(crate) programs: Vec<(SlotId, u64, SocketAddr)>,
}

/// The channel belongs to this bridge from now on.
pub fn belongs(channel: (u32, u32), key: u64) {
    if let Some(service) = running() {
        service.with(|known| known.channels.insert(channel, key));
    }
}

/// The channel belongs to no bridge any more.
pub fn forgotten(channel: (u32, u32)) {
    if let Some(service) = running() {
        service.with(|known| known.channels.remove(&channel));
    }
}

/// The port at which peers on other hosts are listened for at this address, if they are.
pub fn listener(at: &SocketAddr) -> Option<u16> {
    running()?.with(|known| known.listeners.get(at).copied()).flatten()
}

/// They are from now on.
pub fn listens(at: &SocketAddr, port: u16) {
    if let Some(service) = running() {
        service.with(|known| known.listeners.insert(*at, port));
    }
}

/// The bridge of this key listens there beside the program's socket.
pub fn listens_for(id: SlotId, key: u64, at: &SocketAddr) {
    listens(at, at.port());
    if let Some(service) = running() {
        service.with(|known| known.programs.push((id, key, *at)));
    }
}

impl Service {
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Known) -> R) -> Option<R> {
        self.known.with(f)
    }
}
