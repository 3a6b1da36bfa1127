//! The keep-alive of a running connection: what [`super::watch`] says, carried out on its device,
//! by the rules that the program has set on its socket.
//!
//! Works on a borrowed [`Connection`], and so under the bridge's lock. Entry points:
//! [`Connection::heartbeat`], by the clock, and [`Connection::new_rules`], when the program may
//! have changed them.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;

use super::connection::{Connection, Stage};
use super::watch::Step;
use crate::attach::trust;
use crate::conn::fork_group;
use crate::conn::slot::{Slot, SlotId};
use crate::conn::timers::Rules;
use crate::device::QueuePair;
use crate::failure::Failure;
use crate::host::tuple::Tuple;
use crate::proto::control::Mode;
use crate::sys;

impl Connection {
    /// The program's socket, in whatever process of the fork group it was accepted.
    pub(super) fn holder(&mut self) -> Option<(SlotId, &'static Slot)> {
        if let Some(known) = self.program() {
            return Some(known);
        }
        let ((record, channel), bridge, me) = (self.claim, self.key as u32, sys::pid());
        let mut found = None;
        fork_group::each_used(|id, s| {
            // Acquire: pairs with the release in link::start(); a slot that was given back has no
            // arena.
            if s.arena.load(Ordering::Acquire) == record + 1
                && s.channel.load(Ordering::Relaxed) == channel
                && s.bridge.load(Ordering::Relaxed) == bridge.wrapping_add(1)
                && s.bridge_pid.load(Ordering::Relaxed) == me
            {
                found = Some((id, s));
            }
        });
        let (id, s) = found?;
        self.slot = Some((id, s.generation.load(Ordering::Acquire)));
        Some((id, s))
    }

    /// Whether the program has closed.
    fn orphaned(&self) -> bool {
        self.fin || self.reset || matches!(&self.stage, Stage::Running { pump } if pump.closed())
    }

    /// When [`Self::heartbeat`] is due, if the program has changed the rules since they were last
    /// asked for.
    pub fn new_rules(&mut self) -> Option<u64> {
        if !self.running() {
            return None;
        }
        let rules = match self.holder() {
            Some((_, s)) => s.timers.rules(),
            None if self.orphaned() => self.rules.orphaned(),
            // No process has accepted it yet.
            None => Rules::default(),
        };
        (core::mem::replace(&mut self.rules, rules) != rules).then(|| self.watch.next(&rules))
    }

    /// Asks a silent peer whether it is there, and ends a connection whose peer does not say so in
    /// time. When it is due again, on the clock of [`sys::now_ns`]; `None` for what does not run.
    pub fn heartbeat(&mut self, now: u64) -> Option<u64> {
        let _ = self.new_rules();
        let heard_at = self.heard_by_tcp(now);
        let Stage::Running { pump } = &mut self.stage else { return None };
        let iwarp = pump.pair().mode() == Mode::Message;
        let mut seen = pump.seen(!iwarp || heard_at.is_none());
        seen.heard_at = heard_at;
        match self.watch.look(now, &seen, &self.rules) {
            Step::Nothing => {}
            Step::Ask => {
                crate::log_debug!("asks a peer over RDMA whether it is there");
                pump.ask();
            }
            Step::GiveUp => {
                pump.give_up();
                pump.pair().peer_gone();
                crate::log_info!("a peer over RDMA has not been heard of for too long");
                self.say_timed_out();
            }
        }
        Some(self.watch.next(&self.rules))
    }

    /// Whether the peer was asked and has not answered.
    pub fn asks(&self) -> bool {
        self.watch.asked()
    }

    /// The program's next call says that the peer did not answer in time.
    pub(super) fn say_timed_out(&mut self) {
        if let Some((_, s)) = self.holder() {
            // Release: pairs with pending::take, behind the reset that the program's socket gets
            // next.
            s.pending_error.store(Failure::TimedOut.code(), Ordering::Release);
        }
    }

    /// When the peer's host was last heard of, where the device's own connection is TCP of this
    /// kernel (soft-iWARP). There the device reports a post when TCP has taken it, whether or not a
    /// process is at the other end.
    fn heard_by_tcp(&mut self, now: u64) -> Option<u64> {
        let Stage::Running { pump } = &mut self.stage else { return None };
        if pump.pair().mode() != Mode::Message {
            return None;
        }
        let tuple = Tuple::between(&self.id.local_address()?, &self.id.peer_address()?)?;
        trust::silence(&tuple).ok()?.map(|ns| now.saturating_sub(ns))
    }
}
