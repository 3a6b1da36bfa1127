//! What an unfinished pairing holds open, and for which process; its way from phase to phase, and
//! its end.
//!
//! Must not know which step comes next. Entry points: [`hold`], [`enter`], [`lapse`], [`refuse`].

use core::sync::atomic::{AtomicU32, Ordering};
use std::os::fd::RawFd;

use super::meet::offers;
use super::retry::later;
use super::{held, proving};
use crate::config::policy;
use crate::conn::cause;
use crate::conn::machine::{Phase, PhaseEvent};
use crate::conn::pairing_lock::PairingGuard;
use crate::conn::slot::{Slot, flag};
use crate::reason::Reason;
use crate::sync::living;
use crate::sys;

/// Offers that this process has open.
pub(crate) static OPEN_OFFERS: AtomicU32 = AtomicU32::new(0);

/// Where TCP is not good enough: the connection is so old that its peer will not come any more.
pub(crate) fn required_by_now(s: &Slot) -> bool {
    policy::required() && s.position.load(Ordering::Relaxed) >= policy::REQUIRED_BY
}

/// The phase holds this open, for this process.
pub(crate) fn hold(s: &PairingGuard<'_>, fd: RawFd) {
    held::hold(fd);
    s.keep(fd, sys::pid());
}

/// Closes what the phase holds open, when it is this process's.
pub(crate) fn close_pairing_fd(s: &PairingGuard<'_>) {
    let fd = s.take_fd();
    proving::forget(fd);
    // Most have none, and asking the kernel who we are is dear.
    if fd >= 0 && s.pairing.pid() == sys::pid() {
        offers::withdraw(fd);
        if held::let_go(fd) && s.phase() == Phase::Offered {
            OPEN_OFFERS.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Whether the phase's descriptor is this program's.
pub fn is_here(s: &Slot) -> bool {
    s.pairing.pid() == sys::pid() && held::is_held(s.pairing.fd())
}

/// Whether it belongs to another process of the fork group, or to another program. Then the pairing
/// is theirs to go on with, or, if they have gone, ours to begin again.
pub(crate) fn elsewhere(s: &Slot) -> bool {
    !is_here(s)
}

pub(crate) fn enter(s: &PairingGuard<'_>, event: PhaseEvent) -> Result<(), Reason> {
    let next = s.phase().after(event).ok_or(Reason::Inconsistent)?;
    // What was in the way is not, or not any more.
    s.reason.store(0, Ordering::Relaxed);
    s.next_try.store(0, Ordering::Relaxed);
    s.set_phase(next);
    Ok(())
}

/// Never again, for this reason.
pub(crate) fn give_up(s: &PairingGuard<'_>, reason: Reason) {
    close_pairing_fd(s);
    s.reason.store(reason as u32, Ordering::Relaxed);
    s.set_phase(Phase::Refused);
    cause::count(s, reason);
    if s.has(flag::STRICT) {
        crate::log_warn!("refused, since TCP is excluded: {}", reason.text());
    } else {
        crate::log_debug!("not attached: {}", reason.text());
    }
}

/// Tries again from the start, later.
pub(crate) fn lapse(s: &PairingGuard<'_>) -> Result<(), Reason> {
    close_pairing_fd(s);
    enter(s, PhaseEvent::Lapsed)
}

pub(crate) fn lapse_if_orphaned(s: &PairingGuard<'_>) -> Result<(), Reason> {
    // Of this process it is the last program that had it.
    let pid = s.pairing.pid();
    if pid != sys::pid() && living::process(pid) {
        later(s);
        return Ok(());
    }
    lapse(s)
}

/// Never attach; what is paired already is [`crate::handover::detach`]'s business. Blocks only for
/// another thread's step in progress.
pub fn refuse(s: &Slot, reason: Reason) {
    let Some(s) = PairingGuard::take(s) else { return };
    match s.phase() {
        Phase::Paired | Phase::Refused => {}
        _ => give_up(&s, reason),
    }
}
