//! What every process must be able to say before it attaches a connection.
//!
//! Must not know how two ends meet. Entry point: [`permitted`].

use super::{io_uring, reach};
use crate::channel::link;
use crate::config::policy;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::conn::{cause, fork_group};
use crate::host::{memory, trial};
use crate::reason::Reason;
use crate::sys::{self, sandbox};

/// What every process must be able to say before it attaches anything.
pub(crate) fn permitted(s: &Slot) -> Result<(), Reason> {
    if !policy::shm_allowed() && !reach::possible() {
        return Err(Reason::PolicyTcp);
    }
    if link::distrusted() {
        return Err(Reason::Inconsistent);
    }
    if policy::sandboxed() {
        if let Some(call) = trial::obstacle(policy::seccomp()).filter(|_| !sandbox::entered()) {
            cause::of_filter(s, call);
        }
        return Err(Reason::Sandboxed);
    }
    if io_uring::open() {
        return Err(Reason::IoUring);
    }
    if !sys::fd_margin() {
        return Err(Reason::FdLimit);
    }
    if memory::memory_pressure() {
        return Err(Reason::MemoryLimit);
    }
    if s.has(flag::READ_SHUT | flag::WRITE_SHUT) && !s.has(flag::RSOCKET) {
        return Err(Reason::ShutDownEarly);
    }
    Ok(())
}

/// Whether a sibling that has entered a sandbox, where it makes no calls but the kernel's, holds
/// the connection. As long as that sibling lives the connection stays on TCP.
pub(crate) fn sibling_in_sandbox(id: SlotId, s: &Slot) -> bool {
    s.has(flag::SANDBOXED_OWNER) && (fork_group::shared(id) || !s.clear(flag::SANDBOXED_OWNER))
}
