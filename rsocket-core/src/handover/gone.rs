//! Whether the peer of a connection has gone for good, where FIN was seen.
//!
//! Must not know who sends or waits. Entry point: [`peer_gone`].

use std::os::fd::RawFd;

use crate::attach::trust;
use crate::channel::{handover_state, link, unread};
use crate::conn::kind::Kind;
use crate::conn::machine::ReceiveMode;
use crate::conn::progress::Progress;
use crate::conn::slot::{Slot, flag};
use crate::host::tuple;

/// The peer's FIN was seen. Did it close for good, or only half? A closed socket that the kernel
/// still keeps is an orphan: no inode.
pub(crate) fn peer_gone(s: &Slot, fd: RawFd, revents: i16) -> bool {
    if s.kind_by_flags() == Kind::RdmaBesideTcp && !s.has(flag::LOST) {
        // Its bridge says so in the channel, behind all that is still on its way.
        return link::ends(s).is_some_and(|e| handover_state::receiver_closed(&e.outgoing));
    }
    if revents & (libc::POLLHUP | libc::POLLERR) != 0 {
        return true;
    }
    if link::ends(s).is_some_and(|e| handover_state::receiver_closed(&e.outgoing)) {
        return true;
    }
    if link::is_far(s) {
        return left_silently(s, revents) || !link::peer_lives(s);
    }
    let Some(tuple) = tuple::Tuple::of(fd) else { return true };
    match trust::peer_of(fd, &tuple) {
        Ok(Some(owner)) => !owner.is_alive(),
        Ok(None) => true,
        // The kernel does not say it here (`setns`). Then a peer whose process lives is believed to
        // read on.
        Err(trust::ELSEWHERE) => left_silently(s, revents) || !link::peer_lives(s),
        // Nor does it ever (no AF_NETLINK): a sibling of the process that attached may read on
        // when that has ended.
        Err(_) => left_silently(s, revents),
    }
}

/// Whether no process has the other end, as far as the channel shows. A peer that ends its sending
/// by a call says so there before FIN goes. So a FIN without that word is of a peer whose last
/// process has ended. A peer that has said it, or has sent by TCP, may read on.
fn left_silently(s: &Slot, revents: i16) -> bool {
    let fin = revents & libc::POLLRDHUP != 0 || s.has(flag::PEER_FIN);
    let sent = link::ends(s).map_or(0, |ends| unread::received(s, &ends));
    let sent = Progress { received: sent, room: 0 };
    let silent = s.receive_mode() == ReceiveMode::Device && !sent.is_over() && !sent.is_behind();
    fin && silent
}
