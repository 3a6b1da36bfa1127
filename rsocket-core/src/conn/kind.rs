//! What a connection is, whatever becomes of it: over what its bytes may travel, and what tells its
//! end.
//!
//! | Kind | Flags of its slot | Its channel leads to |
//! | --- | --- | --- |
//! | [`Kind::Tcp`] | none of these | there is none |
//! | [`Kind::SharedMemory`] | none of these | the peer |
//! | [`Kind::RdmaBesideTcp`] | `BRIDGED`, `TCP_ANCHORED` | a bridge |
//! | [`Kind::NativeRdma`] | `BRIDGED` | a bridge |
//! | [`Kind::RdmaListener`] | `BRIDGE_LISTENS` | there is none |
//! | [`Kind::Datagram`] | `DATAGRAM` | there is none |
//!
//! | Kind | Its bytes travel | Its end is told by | Back to TCP can go |
//! | --- | --- | --- | --- |
//! | `Tcp` | by TCP | TCP | what never left |
//! | `SharedMemory` | by TCP, then by the channel | TCP | both directions |
//! | `RdmaBesideTcp` | by TCP, then by RDMA | the bridge; FIN may overtake it | what it sends |
//! | `NativeRdma` | by RDMA | the bridge | none; loopback leads to its bridge |
//! | `RdmaListener` | it has none | | |
//! | `Datagram` | by UDP, memory or RDMA | nothing | |
//!
//! [`Kind::of`] alone computes it from the slot's state. [`Slot::kind`] asks for it, or
//! [`Slot::kind_by_flags`] where TCP and shared memory are the same. A connection begins as TCP, is
//! native RDMA from connect or accept on, or datagrams from birth. It becomes shared memory or RDMA
//! beside TCP when its two ends have met. If RDMA breaks before a byte has left TCP, the channel
//! stays. What is left is of the kind of shared memory, with both directions back on TCP.
//!
//! What is true for a moment is no kind. A switch or a fallback under way is such a moment
//! ([`crate::conn::machine`]). So is a bridge that still connects, has not, or broke (`PENDING`,
//! `UNREACHED`, `LOST`). Must not know its callers. Entry point: [`Kind`].
//!
//! [`Slot::kind`]: crate::conn::slot::Slot::kind
//! [`Slot::kind_by_flags`]: crate::conn::slot::Slot::kind_by_flags
#![forbid(unsafe_code)]

use crate::conn::flag::{BRIDGE_LISTENS, BRIDGED, DATAGRAM, TCP_ANCHORED};

/// What a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A kernel TCP socket alone: not connected, listening, or a connection without a channel.
    Tcp,
    /// A TCP connection that shares a channel with its peer.
    SharedMemory,
    /// A TCP connection beside which a bridge reaches the same peer.
    RdmaBesideTcp,
    /// A connection of the RDMA connection manager's, made or in the making.
    NativeRdma,
    /// A socket that takes connections from the RDMA connection manager.
    RdmaListener,
    /// A datagram socket.
    Datagram,
}

impl Kind {
    /// The kind of a slot with these bits of [`crate::conn::flag`], with or without a channel.
    #[inline(always)]
    #[must_use]
    pub const fn of(flags: u32, has_channel: bool) -> Self {
        // The order is that of the questions: a thread that waits asks for datagrams alone, and
        // often.
        if flags & DATAGRAM != 0 {
            Self::Datagram
        } else if flags & BRIDGED != 0 {
            if flags & TCP_ANCHORED != 0 { Self::RdmaBesideTcp } else { Self::NativeRdma }
        } else if flags & BRIDGE_LISTENS != 0 {
            Self::RdmaListener
        } else if has_channel {
            Self::SharedMemory
        } else {
            Self::Tcp
        }
    }

    /// Whether a bridge is beyond its channel, in place of the peer.
    #[inline(always)]
    #[must_use]
    pub const fn has_bridge(self) -> bool {
        match self {
            Self::RdmaBesideTcp | Self::NativeRdma => true,
            Self::Tcp | Self::SharedMemory | Self::RdmaListener | Self::Datagram => false,
        }
    }

    /// Whether FIN and reset of the kernel's socket are the connection's own, and not a bridge's to
    /// tell.
    #[inline(always)]
    #[must_use]
    pub const fn ends_with_tcp(self) -> bool {
        !self.has_bridge()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::conn::flag::tests::legal;

    /// One kind: the flags that it needs, and the flags that no slot of that kind has. Then whether
    /// it has a channel, where that tells it from another kind.
    type Row = (Kind, u32, u32, Option<bool>);

    const ROWS: [Row; 6] = [
        (Kind::Tcp, 0, BRIDGED | BRIDGE_LISTENS | DATAGRAM, Some(false)),
        (Kind::SharedMemory, 0, BRIDGED | BRIDGE_LISTENS | DATAGRAM, Some(true)),
        (Kind::RdmaBesideTcp, BRIDGED | TCP_ANCHORED, BRIDGE_LISTENS | DATAGRAM, None),
        (Kind::NativeRdma, BRIDGED, TCP_ANCHORED | BRIDGE_LISTENS | DATAGRAM, None),
        (Kind::RdmaListener, BRIDGE_LISTENS, BRIDGED | TCP_ANCHORED | DATAGRAM, None),
        (Kind::Datagram, DATAGRAM, BRIDGED | TCP_ANCHORED | BRIDGE_LISTENS, None),
    ];

    fn kinds(flags: u32, has_channel: bool) -> Vec<Kind> {
        let is = |(_, with, without, channel): &&Row| {
            flags & with == *with
                && flags & without == 0
                && channel.is_none_or(|channel| channel == has_channel)
        };
        ROWS.iter().filter(is).map(|(kind, ..)| *kind).collect()
    }

    #[test]
    fn every_legal_combination_of_flags_is_of_exactly_one_kind() {
        let mut seen = BTreeSet::new();
        for flags in legal() {
            for has_channel in [false, true] {
                let kind = Kind::of(flags, has_channel);
                assert_eq!(kinds(flags, has_channel), [kind], "{flags:#x}, channel: {has_channel}");
                seen.insert(kind);
            }
        }
        assert_eq!(seen.len(), ROWS.len(), "each kind is that of some combination");
    }

    #[test]
    fn a_bridge_is_beyond_the_channel_where_the_flag_says_so() {
        for flags in legal() {
            for has_channel in [false, true] {
                let kind = Kind::of(flags, has_channel);
                assert_eq!(kind.has_bridge(), flags & BRIDGED != 0, "{flags:#x}");
                assert_eq!(kind.ends_with_tcp(), flags & BRIDGED == 0, "{flags:#x}");
            }
        }
    }

    /// What is true for a moment is true of the kinds that have such moments alone.
    #[test]
    fn moments_belong_to_kinds() {
        use crate::conn::flag::{LOST, PENDING, UNREACHED};
        for flags in legal() {
            let kind = Kind::of(flags, true);
            if flags & (PENDING | UNREACHED) != 0 {
                assert_eq!(kind, Kind::NativeRdma, "{flags:#x}");
            }
            if flags & LOST != 0 {
                assert_eq!(kind, Kind::RdmaBesideTcp, "{flags:#x}");
            }
        }
    }
}
