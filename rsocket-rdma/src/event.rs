//! What the connection manager has to say, copied out of librdmacm's own memory.
//!
//! Entry point: [`Event`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use super::identifier::CmId;
use super::private::{Parameters, Private};
use rsocket_host::failure::Failure;

/// An event, and the identifier it belongs to.
#[derive(Debug)]
pub struct Event {
    /// The key of the identifier; for a request that of the listening one.
    pub id: u64,
    /// What happened.
    pub kind: Kind,
}

/// What happened.
#[derive(Debug)]
pub enum Kind {
    /// The peer's address is resolved to a device and a path's end; next is the route.
    AddressResolved,
    /// The route is resolved; next are the pair and connecting.
    RouteResolved,
    /// A peer wants to connect to the listening identifier.
    Request {
        /// The new connection, the receiver's own. Its key is that of the listener until it is
        /// changed. Dropped without an answer, it refuses.
        id: CmId,
        /// What the peer sent.
        private: Private,
        /// What the peer asked for; [`CmId::accept`] grants it.
        parameters: Parameters,
    },
    /// The connection stands. At the connecting end with the peer's answer, else with nothing.
    Established {
        /// What the peer sent.
        private: Private,
    },
    /// The peer refused.
    Rejected {
        /// The transport's reason: for InfiniBand the number of the CM's REJ message, for iWARP an
        /// error number. 8 and `ECONNREFUSED` mean that no program listens there, 28 that the
        /// peer's program refused.
        status: i32,
        /// What the peer sent.
        private: Private,
    },
    /// Resolving or connecting failed.
    Failed {
        /// Why.
        why: Failure,
    },
    /// The connection is over: [`RdmaPair::peer_gone`](super::RdmaPair::peer_gone) is to be called.
    Disconnected,
    /// The device goes away; all of the identifier must be dropped.
    DeviceRemoved,
    /// Nothing of interest.
    Other,
}
