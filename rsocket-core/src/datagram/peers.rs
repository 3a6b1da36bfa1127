//! The peers that a datagram socket has met, and how each of them is reached.
//!
//! Knows no system call. A destination is met by UDP (`wire-protocol §9.4`) and reached by
//! something better once it has answered. [`Pulse`] notices that the answer is out of date. Entry
//! point: [`Peers`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeMap;

use crate::device::rdma::AddressHandle;
use crate::device::shm::mailbox::Outgoing;
use crate::wire::datagram::Invitation;

/// Peers that are remembered. Then one is forgotten: of those to which nothing was ever sent, if
/// there are any, the one that was not used for longest. Any stranger can make this socket know it,
/// under as many addresses as it likes.
const MOST: usize = 4096;
/// How often a peer that is reached by a device is asked whether that is still right, in
/// nanoseconds.
const ASK_NS: u64 = 1_000_000_000;
/// Questions without an answer after which it is not.
const UNANSWERED: u8 = 3;
/// How soon after a failure the device is tried again, in nanoseconds.
const AGAIN_NS: u64 = 1_000_000_000;

/// How a peer is reached.
pub(super) enum Way {
    /// By UDP, each datagram behind a header that asks for an answer.
    Udp,
    /// By UDP, as it is: a peer that sends without headers gets none.
    Plain,
    /// By memory that was brought to where this invitation says. Until the peer has it, by UDP.
    Ring(Outgoing, Invitation),
    /// By the queue pair of this address of ours to theirs.
    Fabric(AddressHandle, IpAddr),
}

/// What a question is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beat {
    /// Nothing.
    Quiet,
    /// The peer is to be asked.
    Ask,
    /// It was asked and did not answer: it is not where it was.
    Lost,
}

/// Whether a peer still answers. A datagram that goes astray is not heard of otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pulse {
    /// When it was last asked, or heard; 0 for never.
    at: u64,
    unanswered: u8,
}

impl Pulse {
    /// A peer that has just been heard, and has a device from now on.
    pub(super) const fn begun(now: u64) -> Self {
        Self { at: now, unanswered: 0 }
    }

    /// Before a datagram goes out by the device, `now` in nanoseconds.
    pub(super) const fn beat(&mut self, now: u64) -> Beat {
        if now.saturating_sub(self.at) < ASK_NS {
            return Beat::Quiet;
        }
        self.at = now;
        if self.unanswered >= UNANSWERED {
            self.unanswered = 0;
            return Beat::Lost;
        }
        self.unanswered += 1;
        Beat::Ask
    }

    /// The peer has said something by UDP.
    pub(super) const fn heard(&mut self) {
        self.unanswered = 0;
    }

    /// Whether an answer is awaited.
    pub(super) const fn waits(&self) -> bool {
        self.unanswered > 0
    }
}

/// One of them.
pub(super) struct Peer {
    pub(super) way: Way,
    /// Its queue pair, as it said; 0 for none.
    pub(super) qpn: u32,
    /// The address of ours from which it is reached, once it was asked for.
    pub(super) ours: Option<IpAddr>,
    /// A path to it is being looked for.
    pub(super) resolving: bool,
    /// No better way is tried before, in nanoseconds.
    pub(super) not_before: u64,
    /// What it must show to bring memory.
    pub(super) token: Option<u128>,
    pub(super) pulse: Pulse,
    rank: Rank,
}

/// Which peer is forgotten first: whether anything was sent to it, and when it was last used.
type Rank = (bool, u64);

impl Peer {
    const fn new() -> Self {
        Self {
            way: Way::Udp,
            qpn: 0,
            ours: None,
            resolving: false,
            not_before: 0,
            token: None,
            pulse: Pulse { at: 0, unanswered: 0 },
            rank: (false, 0),
        }
    }

    /// It is reached by UDP again, and met anew.
    pub(super) fn lost(&mut self) {
        self.way = Way::Udp;
        self.qpn = 0;
        self.ours = None;
        self.pulse = Pulse::default();
    }

    /// It says that its queue pair is this: true if that is news.
    pub(super) fn says(&mut self, qpn: u32) -> bool {
        // 0 and 1 are no queue pairs of programs.
        if qpn <= 1 || qpn == self.qpn {
            return false;
        }
        self.qpn = qpn;
        if matches!(self.way, Way::Fabric(..) | Way::Plain) {
            self.way = Way::Udp;
        }
        true
    }

    /// A better way did not work: not again soon.
    pub(super) const fn failed(&mut self, now: u64) {
        self.resolving = false;
        self.not_before = now.saturating_add(AGAIN_NS);
    }
}

/// All of a socket's.
#[derive(Default)]
pub(super) struct Peers {
    map: BTreeMap<SocketAddr, Peer>,
    /// The same, by rank.
    ranks: BTreeMap<Rank, SocketAddr>,
    /// The time of the latest use; the first is 1.
    clock: u64,
}

impl Peers {
    pub(super) fn get(&mut self, addr: &SocketAddr) -> Option<&mut Peer> {
        self.map.get_mut(addr)
    }

    /// The peer of this address, remembered from now on.
    pub(super) fn meet(&mut self, addr: SocketAddr) -> &mut Peer {
        self.remember(addr, false)
    }

    /// As [`Self::meet`], for a caller that sends to it.
    pub(super) fn meet_to_send(&mut self, addr: SocketAddr) -> &mut Peer {
        self.remember(addr, true)
    }

    fn remember(&mut self, addr: SocketAddr, sends: bool) -> &mut Peer {
        if self.map.len() >= MOST
            && !self.map.contains_key(&addr)
            && let Some((_, forgotten)) = self.ranks.pop_first()
        {
            self.map.remove(&forgotten);
        }
        let peer = self.map.entry(addr).or_insert_with(Peer::new);
        let (sent, used) = peer.rank;
        // Most often the one that was used last is used again.
        if used == 0 || used != self.clock || sends && !sent {
            self.clock += 1;
            self.ranks.remove(&peer.rank);
            peer.rank = (sent || sends, self.clock);
            self.ranks.insert(peer.rank, addr);
        }
        peer
    }

    /// The peer that was given this token.
    pub(super) fn holder(&self, token: u128) -> Option<SocketAddr> {
        self.map.iter().find(|(_, peer)| peer.token == Some(token)).map(|(addr, _)| *addr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn who_does_not_answer_is_lost() {
        let mut pulse = Pulse::default();
        let mut now = 10 * SECOND;
        assert_eq!(pulse.beat(now), Beat::Ask);
        assert_eq!(pulse.beat(now + SECOND - 1), Beat::Quiet);
        pulse.heard();
        assert!(!pulse.waits());
        for _ in 0..UNANSWERED {
            now += SECOND;
            assert_eq!(pulse.beat(now), Beat::Ask);
            assert!(pulse.waits());
        }
        assert_eq!(pulse.beat(now + SECOND), Beat::Lost);
        assert_eq!(pulse.beat(now + 2 * SECOND), Beat::Ask);
    }

    #[test]
    fn the_oldest_is_forgotten() {
        let addr = |n: usize| SocketAddr::from(([10, 0, (n / 256) as u8, n as u8], 7));
        let mut peers = Peers::default();
        for n in 0..MOST {
            peers.meet(addr(n)).token = Some(n as u128);
        }
        peers.meet(addr(0));
        peers.meet(addr(MOST));
        assert!(peers.get(&addr(1)).is_none() && peers.get(&addr(0)).is_some());
        assert_eq!(peers.map.len(), MOST);
        assert_eq!((peers.holder(2), peers.holder(1)), (Some(addr(2)), None));
    }

    #[test]
    fn strangers_do_not_make_a_friend_forgotten() {
        let addr = |n: u16| SocketAddr::from(([10, 0, (n / 256) as u8, n as u8], 7));
        let friend = SocketAddr::from(([127, 0, 0, 1], 7));
        let mut peers = Peers::default();
        let (ring, _fd) = Outgoing::create().unwrap();
        peers.meet_to_send(friend).way = Way::Ring(ring, Invitation { name: 1, token: 2 });
        for n in 0..10_000 {
            peers.meet(addr(n)).token = Some(n.into());
        }
        assert!(matches!(peers.get(&friend).unwrap().way, Way::Ring(..)));
        assert_eq!(peers.map.len(), MOST);
        // Those are forgotten oldest first, and a peer that is sent to is no stranger any more.
        assert!(peers.get(&addr(9999)).is_some() && peers.get(&addr(0)).is_none());
        peers.meet_to_send(addr(9000));
        peers.meet(addr(9000));
        for n in 10_000..20_000 {
            peers.meet(addr(n));
        }
        assert!(peers.get(&friend).is_some() && peers.get(&addr(9000)).is_some());
        // Where all were sent to, the one that was not for longest goes.
        for n in 20_000..20_000 + MOST as u16 {
            peers.meet_to_send(addr(n));
        }
        assert!(peers.get(&friend).is_none());
        assert_eq!(peers.map.len(), MOST);
    }

    #[test]
    fn a_new_queue_pair_is_news() {
        let mut peer = Peer::new();
        assert!(!peer.says(0) && !peer.says(1));
        assert!(peer.says(17) && !peer.says(17) && peer.says(18));
        peer.way = Way::Plain;
        assert!(peer.says(19) && matches!(peer.way, Way::Udp));
        peer.failed(5);
        assert!(!peer.resolving && peer.not_before > 5);
        peer.lost();
        assert_eq!(peer.qpn, 0);
    }
}
