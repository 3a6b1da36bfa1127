//! What becomes of the service when its process changes its credentials.
//!
//! The kernel takes commands to RDMA's manager only from a caller whose credentials are the ones
//! with which the channel was opened. They must be the very same object, which every `setuid`,
//! `setgroups` or `seteuid` replaces, even by its like. After one of these nothing can be said on
//! the channel any more, and what comes cannot be heard. A server that accepts, reads which user it
//! serves, and becomes that user does so (sshd). Must not know why a process listens. Entry point:
//! [`outdated`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{AtomicU32, Ordering};

use crate::attach::remote;
use crate::bridge::connection::Connection;
use crate::bridge::service::{SERVICE, STARTING, Service, running};
use crate::bridge::table::{self, Bridge};
use crate::device::rdma::{self, CmId};
use crate::failure::Failure;
use crate::sys::files::{self, For};
use crate::sys::{self, event_set};

/// What the manager says to a process that has changed its credentials.
pub(super) const OUTDATED: Failure = Failure::Denied;

/// How often a process may begin anew: each time costs two descriptors.
const MOST: u32 = 32;
static RENEWALS: AtomicU32 = AtomicU32::new(0);

/// An errno of the manager's may mean that this process has changed its credentials. It may also
/// mean that the process may not have the port that it asks for. Says whether it is worth while to
/// start once more, and to try again.
#[must_use]
pub fn outdated(e: Failure) -> bool {
    e == OUTDATED && running().is_some_and(|service| service.is_refused() && service.outdated())
}

impl Service {
    /// Whether the manager takes no commands from this process any more.
    fn is_refused(&self) -> bool {
        CmId::new(&self.channel, 0).is_err_and(|e| e.failure() == OUTDATED)
    }

    /// Ends all of it while nothing but listeners is at stake, so that the next caller that needs
    /// it begins anew. Connections go on without the manager's news for as long as their devices
    /// let them; false if it goes on so.
    pub(super) fn outdated(&self) -> bool {
        let Some(held) = STARTING.hold() else { return false };
        let current = running().is_some_and(|s| core::ptr::eq(s, self));
        let waits =
            |bridge: &Bridge| bridge.with(|c| c.as_ref().is_none_or(|c| c.listening().is_some()));
        let over = current
            && RENEWALS.load(Ordering::Relaxed) < MOST
            && table::all().all(|bridge| waits(bridge) == Some(true));
        if over {
            crate::log_info!("begins anew over RDMA: this process has changed its credentials");
            // From here on no thread comes to this service.
            RENEWALS.fetch_add(1, Ordering::Relaxed);
            SERVICE.withdraw();
            self.close_channel();
            rdma::open_anew();
            for bridge in table::all() {
                let gone = bridge.with(Option::take).flatten();
                bridge.give_back();
                gone.into_iter().for_each(Connection::drop_all);
            }
            // The thread ends.
            event_set::raise(self.nudge);
        } else if current {
            crate::log_warn!(
                "no news of connections over RDMA: this process has changed its credentials"
            );
            let _ = event_set::remove(self.epoll, self.channel.fd());
        }
        drop(held);
        if over {
            remote::ask_anew();
        }
        over
    }

    /// Closes what is behind the channel's number, and with it everything that the kernel keeps for
    /// it. The number stays taken, by something that nothing can be written to: a thread may be
    /// about to use it.
    fn close_channel(&self) {
        if let Ok(nothing) = files::open("/", For::Place) {
            let _ = sys::put_at(nothing, self.channel.fd(), true);
        }
    }
}
