//! The ways back to TCP as their callers ask for them, by number.
//!
//! Must not know who asks. Entry points: [`refuse`], [`refuse_sending`], [`give_away`].

use std::os::fd::RawFd;

use super::detach::{self, Scope};
use crate::conn::slot::SlotId;
use crate::conn::{flag, fork_group};
use crate::reason::Reason;
use crate::{fork_safe, sys};

/// Never attach; if attached, go back to TCP. What the channel has by then can still be received
/// here.
pub fn refuse(id: SlotId, fd: RawFd, reason: Reason) {
    go_back(id, fd, reason, Scope::Both);
}

/// Before the kernel itself sends something: as [`refuse`], of that direction alone. The other one
/// stays as it is.
pub fn refuse_sending(id: SlotId, fd: RawFd, reason: Reason) {
    go_back(id, fd, reason, Scope::Sending);
}

/// As [`refuse`], before a reader that has only the kernel receives: what the channel has is to
/// come by TCP. The peer sends it at its next call. When the peer has ended, what the channel has
/// stays where [`crate::socket::receive()`] finds it, or the connection ends with an error.
pub fn give_away(id: SlotId, fd: RawFd, reason: Reason) {
    go_back(id, fd, reason, Scope::Stranger);
}

fn go_back(id: SlotId, fd: RawFd, reason: Reason, scope: Scope) {
    if let Some(s) = fork_group::slot(id) {
        sys::keeping_errno(|| {
            if s.has(flag::UNDECIDED) {
                fork_safe::insist(id, s, fd);
            }
            detach::refuse(id, s, fd, reason, scope);
        });
    }
}
