//! A datagram socket's queue pairs: one for each address of this host that it needs
//! (`wire-protocol §9.1`).
//!
//! Knows nothing of peers. Entry point: [`Fabric`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::net::IpAddr;
use std::os::fd::RawFd;

use crate::device::rdma::UdPair;
use crate::failure::Failure;
use crate::sys;
use crate::sys::event_set::{self, EventFlags};

/// Queue pairs of one socket; what needs a further one goes by UDP.
const MOST: usize = 4;

struct Side {
    ours: IpAddr,
    /// `None` for an address that has no device with datagrams (iWARP, loopback).
    pair: Option<UdPair>,
}

/// All of a socket's. Its descriptor is closed by hand ([`Fabric::close`]).
pub(super) struct Fabric {
    sides: Vec<Side>,
    /// Makes a pair of an address of ours.
    make: fn(IpAddr) -> Result<UdPair, Failure>,
    /// An epoll object over the pairs' events; private.
    events: RawFd,
    /// Whose turn it is to be read.
    turn: usize,
}

impl Fabric {
    /// `make` is called for the first datagram of an address.
    pub(super) fn new(make: fn(IpAddr) -> Result<UdPair, Failure>) -> Result<Self, Failure> {
        let events = event_set::new()?;
        Ok(Self { sides: Vec::new(), make, events, turn: 0 })
    }

    pub(super) fn close(&self) {
        sys::close_private(self.events);
    }

    /// Readable after [`Self::arm`], once something was sent or has come.
    pub(super) const fn events(&self) -> RawFd {
        self.events
    }

    /// The pair of an address of ours, made now if need be. `None` where there can be none.
    pub(super) fn pair(&mut self, ours: IpAddr) -> Option<&mut UdPair> {
        if !self.sides.iter().any(|side| side.ours == ours) {
            if self.sides.len() >= MOST * 2 || self.pairs().count() >= MOST {
                return None;
            }
            let pair = match (self.make)(ours).and_then(|pair| self.listen(pair)) {
                Ok(pair) => Some(pair),
                Err(e) => {
                    crate::log_info!("datagrams from {} go by UDP: no queue pair {}", ours, e);
                    None
                }
            };
            self.sides.push(Side { ours, pair });
        }
        self.sides.iter_mut().find(|side| side.ours == ours)?.pair.as_mut()
    }

    fn listen(&self, pair: UdPair) -> Result<UdPair, Failure> {
        event_set::add(self.events, pair.event_fd(), 0, EventFlags::IN)?;
        Ok(pair)
    }

    fn pairs(&mut self) -> impl Iterator<Item = &mut UdPair> {
        self.sides.iter_mut().filter_map(|side| side.pair.as_mut())
    }

    /// Looks for frames; how many have come.
    pub(super) fn gather(&mut self) -> u32 {
        self.pairs().map(UdPair::gather).sum()
    }

    /// Frames that have come.
    pub(super) fn waiting(&self) -> usize {
        self.sides.iter().filter_map(|side| side.pair.as_ref()).map(UdPair::waiting).sum()
    }

    /// The pair that has the next frame.
    pub(super) fn next(&mut self) -> Option<&mut UdPair> {
        let count = self.sides.len();
        let turn = self.turn;
        let has = |side: &Side| side.pair.as_ref().is_some_and(|pair| pair.waiting() > 0);
        let found =
            (0..count).map(|i| (turn + i) % count).find(|i| self.sides.get(*i).is_some_and(has))?;
        self.sides.get_mut(found)?.pair.as_mut()
    }

    /// The next frame is to be another pair's, if one has any.
    pub(super) fn pass(&mut self) {
        self.turn = (self.turn + 1) % self.sides.len().max(1);
    }

    /// Whether a frame can be sent from each.
    pub(super) fn has_room(&mut self) -> bool {
        self.pairs().all(UdPair::has_room)
    }

    /// Asks for events with the next completions. To be followed by a look at what is there
    /// already.
    pub(super) fn arm(&mut self) {
        for pair in self.pairs() {
            // In this order: an event that comes from now on is of a completion that no thread has
            // polled, or wakes without a cause. One that was taken after arming might have been the
            // last word of what is asked for.
            pair.take_events();
            pair.arm();
        }
    }
}
