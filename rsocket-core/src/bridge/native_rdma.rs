//! Whether connections of this process are native: over RDMA from the start.
//!
//! Must not know how they are made ([`crate::native`]). Entry point: [`wanted`].

use core::sync::atomic::{AtomicU8, Ordering};
use std::os::fd::RawFd;

use super::{guests, serving};
use crate::config::policy;
use crate::conn::fork_group;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::device::rdma;
use crate::{bridge, sys};

/// Whether connections are RDMA's from the start: where policy wants nothing else, and for rsockets
/// wherever there is a device.
#[must_use]
pub fn wanted() -> bool {
    policy::native_rdma() || policy::are_rsockets() && policy::rdma_allowed() && device_here()
}

/// Whether this host has RDMA that this process can use. Asked once.
fn device_here() -> bool {
    static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    // Relaxed: every thread would find the same.
    match KNOWN.load(Ordering::Relaxed) {
        UNKNOWN => {
            let yes = match rdma::probe() {
                Ok(_) => true,
                Err(missing) => {
                    crate::log_info!("{}", missing);
                    false
                }
            };
            KNOWN.store(if yes { YES } else { NO }, Ordering::Relaxed);
            yes
        }
        known => known == YES,
    }
}

/// Whether what the listener gives comes from bridges.
#[must_use]
pub fn listens(id: SlotId) -> bool {
    fork_group::slot(id).is_some_and(|s| s.has(flag::BRIDGE_LISTENS))
}

/// The last descriptor of a socket that has a name or listens here is about to be closed.
pub fn closing(id: SlotId, s: &Slot, fd: RawFd) {
    if s.has(flag::BRIDGE_LISTENS | flag::HEARD_TCP_ANCHORED) {
        guests::unlisten(fd);
    }
    serving::unlisten(id);
    let pid = s.bridge_pid.load(Ordering::Relaxed);
    if s.has(flag::BRIDGED) || pid == 0 || pid != sys::pid() {
        return;
    }
    if let Some(bridge) = bridge::of(s) {
        let gone = bridge.with(Option::take).flatten();
        bridge.give_back();
        if let Some(connection) = gone {
            connection.drop_all();
        }
    }
}
