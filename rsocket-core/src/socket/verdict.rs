//! Where TCP is excluded: how long a connection is waited for that has not attached, and what is said then.
//!
//! Must not know how a pairing goes ([`pairing`]) or how a thread waits ([`super::wait`]). Entry point: [`strict`].
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use super::slot::{Slot, flag};
use super::{kernel, policy};
use crate::attach::machine::Phase;
use crate::attach::{pairing, trust};
use crate::errno::Errno;
use crate::sys;

/// In [`Slot::waiting_since`]: it has been said that the wait was too long.
const OVERDUE: u64 = u64::MAX;

/// Whether it has been said already that a strict connection's wait was too long.
pub(crate) fn is_overdue(s: &Slot) -> bool {
    s.waiting_since.load(Ordering::Relaxed) == OVERDUE
}

/// A strict connection without a window: fine while it may still attach, an error once that took too long
/// and nobody came.
///
/// # Errors
/// `ETIMEDOUT` after [`policy::STRICT_PATIENCE_NS`], `ECONNREFUSED` when it can never attach.
pub(crate) fn strict(s: &Slot, fd: RawFd) -> Result<(), Errno> {
    match s.phase() {
        Phase::Refused if s.has(flag::RSOCKET) => Err(match kernel::ending(fd) {
            // That the peer has gone is why there was nobody to attach to.
            kernel::Ending::Fin => Errno::PIPE,
            kernel::Ending::Failed(e) => e,
            kernel::Ending::Open | kernel::Ending::Bytes => Errno(libc::ECONNREFUSED),
        }),
        Phase::Refused => Err(Errno(libc::ECONNREFUSED)),
        Phase::Paired | Phase::Unconnected => Ok(()),
        Phase::Young | Phase::Offered | Phase::Greeted | Phase::Knocked | Phase::Dialling => {
            let now = sys::now_ns();
            let since = s.waiting_since.load(Ordering::Relaxed);
            if since == 0 {
                s.waiting_since.store(now, Ordering::Relaxed);
                Ok(())
            } else if since != OVERDUE && now.saturating_sub(since) <= policy::STRICT_PATIENCE_NS {
                Ok(())
            } else if fd < 0 {
                // Nobody can be asked; whoever has the descriptor will.
                Ok(())
            } else if peer_expected(s, fd) {
                s.waiting_since.store(now, Ordering::Relaxed);
                Ok(())
            } else {
                if s.waiting_since.swap(OVERDUE, Ordering::Relaxed) != OVERDUE {
                    pairing::overdue(s);
                }
                Err(Errno::TIMEDOUT)
            }
        }
    }
}

/// Whether a peer that has not attached may still do: it has spoken to us, or has not accepted the connection
/// yet.
fn peer_expected(s: &Slot, fd: RawFd) -> bool {
    if matches!(s.phase(), Phase::Greeted | Phase::Knocked) {
        return true;
    }
    let accepted = || match trust::Tuple::of(fd).map(|t| trust::find(&t.reversed())) {
        // Not even connected: that is between the kernel and its own patience.
        None => false,
        Some(Ok(Some(owner))) => owner.is_alive(),
        Some(Ok(None) | Err(_)) => true,
    };
    s.has(flag::CONNECTING) && !accepted()
}
