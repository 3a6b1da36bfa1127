//! Fork mode as state: what a bridge and the owners of a descriptor tell each other about a
//! connection that migrates.
//!
//! Must not know who takes the steps ([`crate::fork_safe`]), nor queue pairs. Entry points:
//! [`stands`], [`expected`], [`failed`].

use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::Ordering;

use super::fork_group;
use super::fork_mode::{Happening, State};
use super::slot::{Slot, SlotId, flag};
use crate::sys;

/// What the bridge offers to the owner of the descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Invitation {
    /// Where it waits for the descriptor.
    pub door: SocketAddr,
    /// Its channel.
    pub channel: (u32, u32),
    /// Its number in its process.
    pub bridge: u32,
}

/// Whether a connection that came to this address may still greet its peer, or has.
#[must_use]
pub fn any_accepted_at(at: &SocketAddr) -> bool {
    let mut found = false;
    fork_group::each_used(|id, s| {
        let [own, _] = &s.names;
        found |= s.has(flag::UNDECIDED)
            && !s.has(flag::CONNECTING)
            && own.get().is_some_and(|own| same(&own, at))
            && fork_group::is_held(id);
    });
    found
}

/// Goes on from `from`; whether that was possible.
pub(crate) fn move_on(s: &Slot, from: State, what: Happening) -> bool {
    match s.migration.shift(from, what) {
        Some(State::Over) => {
            over(s);
            true
        }
        Some(_) => true,
        None => false,
    }
}

/// It is decided.
pub(crate) fn over(s: &Slot) {
    if !s.has_bridge() {
        // The kernel knows the names of a TCP connection.
        s.names.iter().for_each(|name| name.set(None));
    }
    s.clear(flag::UNDECIDED);
}

pub(crate) fn same(a: &SocketAddr, b: &SocketAddr) -> bool {
    a.port() == b.port() && a.ip().to_canonical() == b.ip().to_canonical()
}

pub(crate) fn same_way(o: &Slot, [ours, theirs]: &[SocketAddr; 2]) -> bool {
    let [own, peer] = &o.names;
    own.get().is_some_and(|a| same(&a, ours))
        && peer.get().is_some_and(|p| p.ip().to_canonical() == theirs.ip().to_canonical())
}

/// Whether the bridge that stands is still wanted.
#[must_use]
pub fn is_wanted(s: &Slot) -> bool {
    matches!(s.migration.state(), State::Stands | State::Tying) || tied(s).is_some()
}

/// A request without a word of ours came from that host to that address: which connection was
/// greeted and waits for it. From now on it is that one's.
#[must_use]
pub fn expected(ours: &SocketAddr, theirs: &IpAddr) -> Option<SlotId> {
    let ends = [*ours, SocketAddr::new(*theirs, 0)];
    let mut newest: Option<(u64, SlotId, &'static Slot)> = None;
    fork_group::each_used(|id, s| {
        if s.migration.state() == State::Greeted && same_way(s, &ends) && fork_group::is_held(id) {
            let since = s.migration.since.load(Ordering::Relaxed);
            if newest.as_ref().is_none_or(|(other, ..)| since > *other) {
                newest = Some((since, id, s));
            }
        }
    });
    let (_, id, s) = newest?;
    s.migration.shift(State::Greeted, Happening::Asked).map(|_| id)
}

/// The connection over RDMA stands, and waits for the program's descriptor. False when no owner of
/// the descriptor wants it any more.
#[must_use]
pub fn stands(s: &Slot, invitation: &Invitation) -> bool {
    let m = &s.migration;
    let from = m.state();
    if from.after(Happening::Established).is_none() {
        return false;
    }
    let (record, channel) = invitation.channel;
    m.record.store(record, Ordering::Relaxed);
    m.channel.store(channel, Ordering::Relaxed);
    m.bridge.store(invitation.bridge + 1, Ordering::Relaxed);
    m.pid.store(sys::pid(), Ordering::Relaxed);
    m.tied.set(None);
    m.door.set(Some(invitation.door));
    m.since.store(sys::now_ns(), Ordering::Relaxed);
    // SeqCst: a thread that finds the new state finds the words above.
    m.shift(from, Happening::Established).is_some()
}

/// From where the program's descriptor came to the bridge's door, once it has.
#[must_use]
pub fn tied(s: &Slot) -> Option<SocketAddr> {
    s.migration.tied.get()
}

/// There will be no connection over RDMA, or it broke before the program had it: TCP goes on.
pub fn failed(s: &Slot) {
    let state = s.migration.state();
    if move_on(s, state, Happening::Failed) {
        crate::log_info!("fork mode: a connection stays on TCP");
    }
}
