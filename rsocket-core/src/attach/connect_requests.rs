//! Which processes come to the place where the two ends of a connection meet, and whether such a
//! process has the other end.
//!
//! Any process of the network namespace may knock at an offer. A stranger gets nothing, and costs
//! the connection nothing: its channel is closed, and the offer stands. Must not know phases. Entry
//! points: [`admit`], then [`seen`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::os::fd::RawFd;

use super::meet::offers;
use super::rendezvous::Offer;
use super::{evidence, proof, proving};
use super::{trust, trust::Owner};
use crate::conn::slot::Slot;
use crate::host::tuple::Tuple;
use crate::reason::{Reason, not_asked, refused};
use crate::seqpacket::Channel;
use crate::stats::{self, Counter};

/// How many visitors one step looks at: a process that knocks again and again must not keep the
/// thread here.
const MOST: u32 = 16;

/// The first visitor that is, or may be, the user at the other end of the connection `fd`; and what
/// the kernel says of it.
pub(crate) fn admit(
    offer: &Offer,
    (s, fd): (&Slot, RawFd),
) -> Result<Option<(Channel, Seen)>, Reason> {
    for _ in 0..MOST {
        let Some(channel) = offer.pick_up().map_err(refused("accept"))? else { break };
        let tuple = Tuple::of(fd).ok_or(Reason::ShutDownEarly);
        match tuple.and_then(|tuple| seen(&tuple, &channel)) {
            Ok(seen) if is_let_in((s, fd), offer, &channel, &seen) => {
                return Ok(Some((channel, seen)));
            }
            Ok(_) => stats::add(Counter::Strangers, 1),
            Err(reason) => {
                channel.close();
                return Err(reason);
            }
        }
        channel.close();
    }
    Ok(None)
}

/// Whether a visitor is heard. Where the kernel does not say which user has the other end, the
/// visitor has to prove that it is the right one. So has a visitor of another user than the one
/// that made the other end's socket: the socket's process may have changed its user since. But such
/// a visitor has to begin with a proof, and visitors that fail are not heard for ever.
fn is_let_in((s, fd): (&Slot, RawFd), offer: &Offer, channel: &Channel, seen: &Seen) -> bool {
    match seen {
        Seen::User(_) => true,
        Seen::Nothing if offers::is_one(offer.fd) => {
            // Visitors look for other connections here, too. The hint reveals most of these.
            proving::can_afford()
                && proof::begins(channel).is_some_and(|hint| evidence::may_be(s, fd, hint))
        }
        Seen::Nobody(_) | Seen::Nothing => proving::can_afford(),
        Seen::Another(_) => {
            proving::can_afford()
                && evidence::hears_others(s)
                && proof::begins(channel).is_some()
                && evidence::is_known(s, fd)
        }
    }
}

/// What the kernel says of the user that has the other end of a connection.
pub(crate) enum Seen {
    /// It is the user behind the channel.
    User(Owner),
    /// It is not.
    Another(Owner),
    /// A user for which the kernel has no number here.
    Nobody(Owner),
    /// Nothing: the kernel cannot be asked, or the ends meet where it has nothing to say.
    Nothing,
}

impl Seen {
    /// Whether the user behind the channel is known to have the other end; else the visitor has to
    /// prove it.
    pub(crate) fn is_sure(&self) -> bool {
        matches!(self, Self::User(_))
    }

    /// The message is of the socket that the kernel says is the other end, as far as it says.
    pub(crate) fn identified(&self, said: (u32, u64)) -> Result<(), Reason> {
        match self {
            Self::User(owner) | Self::Another(owner) | Self::Nobody(owner) => {
                identified(owner, said)
            }
            Self::Nothing => Ok(()),
        }
    }
}

/// Whether the user behind the channel owns the socket at the other end of the connection.
pub(crate) fn seen(tuple: &Tuple, channel: &Channel) -> Result<Seen, Reason> {
    if evidence::is_in_directory(channel) {
        // Of another network namespace.
        return Ok(Seen::Nothing);
    }
    let found = match trust::find(&tuple.reversed()).map_err(not_asked) {
        Err(Reason::NoNetlink) => return Ok(Seen::Nothing),
        other => other?,
    };
    behind(found.ok_or(Reason::PeerElsewhere)?, channel)
}

/// The same of the owner that the kernel has just named. As long as this end of the connection
/// stands, no other socket has the other one.
pub(crate) fn behind(owner: Owner, channel: &Channel) -> Result<Seen, Reason> {
    if trust::is_nobody(owner.uid) {
        return Ok(Seen::Nobody(owner));
    }
    let uid = channel.peer_uid().map_err(refused("SO_PEERCRED"))?;
    if trust::cred_matches(uid, &owner) {
        return Ok(Seen::User(owner));
    }
    crate::log_info!(
        "user {} is where the two ends meet, the other end is user {}'s",
        uid,
        owner.uid
    );
    Ok(Seen::Another(owner))
}

/// The message is of the socket that the kernel says is the other end. A socket that no process
/// holds any more was closed since the message was sent.
fn identified(owner: &Owner, said: (u32, u64)) -> Result<(), Reason> {
    if owner.is(said.0, said.1) {
        return Ok(());
    }
    crate::log_info!(
        "the message is of socket {} (cookie {}), the other end is {} (cookie {}, state {})",
        said.0,
        said.1,
        owner.inode,
        owner.cookie,
        owner.state
    );
    Err(if owner.cookie == said.1 { Reason::ShutDownEarly } else { Reason::IdentityMismatch })
}
