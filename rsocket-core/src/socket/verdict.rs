//! Where TCP is excluded: how long a connection is waited for that has not attached, and what is
//! said then.
//!
//! A peer that is known, and at work on the pairing, is waited for without a limit. Any other has
//! the patience of [`policy::STRICT_PATIENCE_NS`], and twice that before it has accepted the
//! connection, unless only the waiting thread could accept it. What was said once stays, unless
//! the peer attaches all the same. Must not know how a pairing goes ([`pairing`]) or how a thread
//! waits ([`super::wait`]). Entry points: [`strict`], [`ready`].
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::RawFd;

use super::soon;
use crate::attach::trust;
use crate::config::policy;
use crate::conn::fork_group;
use crate::conn::machine::{Phase, SendMode};
use crate::conn::slot::{Slot, SlotId, flag};
use crate::conn::waited::{OVERDUE, Stage, Waited, is_overdue};
use crate::failure::Failure;
use crate::host::events::Events;
use crate::host::kernel;
use crate::host::tuple::Tuple;
use crate::{channel::link, pairing, sys};

/// How long each stage of a wait is, in milliseconds.
const PATIENCE_MS: u32 = (policy::STRICT_PATIENCE_NS / 1_000_000) as u32;

/// What a look says where every call fails.
const FAILED: Events =
    Events::IN.union(Events::OUT).union(Events::RDHUP).union(Events::ERR).union(Events::HUP);

/// Whether a call has failed because the connection cannot attach, or did not in time, and it never
/// did. What its peer sent, or was to get, is lost, which must not look like the end of a stream.
pub(crate) fn is_cut_short(s: &Slot) -> bool {
    is_overdue(s) && s.has(flag::STRICT) && !s.has(flag::RSOCKET) && never_attached(s)
}

fn never_attached(s: &Slot) -> bool {
    !link::has_channel(s) && !s.has(flag::CHANNEL_DONE)
}

/// A strict connection without a channel: fine while it may still attach, an error once that took
/// too long and no peer came.
///
/// # Errors
/// `ETIMEDOUT` when its patience is over, `ECONNREFUSED` when it can never attach.
pub(crate) fn strict(s: &Slot, fd: RawFd) -> Result<(), Failure> {
    match s.phase() {
        Phase::Refused => {
            let e = refusal(s, fd);
            s.waiting_since.store(OVERDUE, Ordering::Relaxed);
            Err(e)
        }
        Phase::Paired | Phase::Unconnected => Ok(()),
        Phase::Young | Phase::Offered | Phase::Greeted | Phase::HelloSent | Phase::Dialling => {
            in_time(s, fd)
        }
    }
}

fn refusal(s: &Slot, fd: RawFd) -> Failure {
    if !s.has(flag::RSOCKET) {
        return Failure::Refused;
    }
    match kernel::ending(fd) {
        // The peer has gone, so there was no peer to attach to.
        kernel::Ending::Fin => Failure::Ended,
        kernel::Ending::Failed(e) => e,
        kernel::Ending::Open | kernel::Ending::Bytes => Failure::Refused,
    }
}

fn in_time(s: &Slot, fd: RawFd) -> Result<(), Failure> {
    let now = (sys::now_ns() / 1_000_000) as u32;
    let raw = s.waiting_since.load(Ordering::Relaxed);
    if raw == OVERDUE {
        return Err(Failure::TimedOut);
    }
    let before = Waited::from_raw(raw);
    let mut waited = if raw == 0 { Waited { seen: now, ..before } } else { before.at(now) };
    // Without a descriptor this call cannot ask the kernel; a call that has one will.
    if waited.ms > PATIENCE_MS && fd >= 0 {
        let Some(stage) = next(s, fd, waited.stage) else {
            if s.waiting_since.swap(OVERDUE, Ordering::Relaxed) != OVERDUE {
                pairing::overdue(s);
                // News for sets that report each only once.
                s.next_epoch();
            }
            return Err(Failure::TimedOut);
        };
        waited = Waited { ms: 0, stage, ..waited };
    }
    // A thread that comes second has seen the same, or that the wait is over.
    let noted = s
        .waiting_since
        .compare_exchange(raw, waited.to_raw(), Ordering::Relaxed, Ordering::Relaxed)
        .is_ok();
    if noted && waited.is_long() && !before.is_long() && s.has(flag::CONNECT_NEWS) {
        // As above.
        s.next_epoch();
    }
    Ok(())
}

/// How far the peer's end of a connection has come.
enum Peer {
    /// Not even connected: that is between the kernel and its own patience.
    Unreached,
    /// It waits to be accepted.
    Queued(Tuple),
    /// A process has it, as far as is known.
    Accepted,
}

fn peer(fd: RawFd) -> Peer {
    let Some(tuple) = Tuple::of(fd) else { return Peer::Unreached };
    match trust::find(&tuple.reversed()) {
        Ok(Some(owner)) if !owner.is_alive() => Peer::Queued(tuple),
        Ok(_) | Err(_) => Peer::Accepted,
    }
}

/// What comes after a stage that is over; `None` when the whole wait is.
fn next(s: &Slot, fd: RawFd, stage: Stage) -> Option<Stage> {
    if matches!(s.phase(), Phase::Greeted | Phase::HelloSent) {
        return Some(stage);
    }
    if !s.has(flag::CONNECTING) {
        return None;
    }
    match peer(fd) {
        Peer::Unreached => Some(stage),
        // Upstream's connect itself waits for the other program to accept.
        Peer::Queued(_) if s.has(flag::RSOCKET) => Some(stage),
        Peer::Queued(tuple) if stage == Stage::First && !accepts_itself(&tuple) => {
            Some(Stage::Queued)
        }
        Peer::Accepted if stage == Stage::Queued => Some(Stage::Accepted),
        Peer::Queued(_) | Peer::Accepted => None,
    }
}

/// Whether only the calling thread could accept the connection.
fn accepts_itself(tuple: &Tuple) -> bool {
    let mut own = false;
    if !sys::has_threads() {
        fork_group::each_local(|id, _| {
            own = own
                || listens_at(fork_group::descriptor(id), tuple.remote.port)
                    && !fork_group::shared(id);
        });
    }
    own
}

fn listens_at(fd: RawFd, port: u16) -> bool {
    fd >= 0
        && kernel::integer(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Some(1)
        && kernel::local_port(fd) == Some(port)
}

/// The program has asked how its attempt to connect went, or uses the connection. Before that the
/// socket is writable when [`tells_connected`] says so, whether or not the peer has accepted it.
/// Only then may the program do what makes the peer accept. From here on the socket is writable
/// only if something can be sent.
pub(super) fn noticed(s: &Slot, fd: RawFd) {
    if s.has(flag::CONNECT_NEWS) && !s.has(flag::RSOCKET) && Tuple::of(fd).is_some() {
        s.clear(flag::CONNECT_NEWS);
        s.next_epoch();
    }
}

/// Whether a program that has not asked yet is told that TCP has connected. It is told at once, or
/// where TCP is excluded only if the peer has not attached for a while. A program that is told
/// before may not send yet, which TCP never says of a new connection.
pub(super) fn tells_connected(s: &Slot) -> bool {
    !s.has(flag::STRICT)
        || s.has(flag::RSOCKET)
        || Waited::from_raw(s.waiting_since.load(Ordering::Relaxed)).is_long()
}

/// What a connection without a channel is ready for: all that fails, once calls do.
pub(super) fn ready(s: &Slot, fd: RawFd) -> Events {
    let fails = s.phase() == Phase::Refused || strict(s, fd).is_err();
    match fails {
        false => Events::empty(),
        // What TCP has, the end above all, comes first.
        true if fd < 0 || s.has(flag::RSOCKET) || !is_quiet(fd) => Events::IN | Events::OUT,
        true => FAILED,
    }
}

fn is_quiet(fd: RawFd) -> bool {
    kernel::poll_now(fd, Events::IN | Events::RDHUP).is_empty()
}

/// `SO_ERROR` of a connection that has never attached, and will not, or not in time; `None` where
/// the kernel is to be asked.
#[must_use]
pub fn unattached(id: SlotId, fd: RawFd) -> Option<Failure> {
    let s = fork_group::slot(id)?;
    noticed(s, fd);
    let waits = s.has(flag::STRICT)
        && !s.has(flag::RSOCKET)
        && matches!(s.send_mode(), SendMode::Kernel | SendMode::Asked)
        && never_attached(s);
    let over = waits && (s.phase() == Phase::Refused || is_overdue(s)) && is_quiet(fd);
    if over { strict(s, fd).err() } else { None }
}

/// When [`help`] was last called, in nanoseconds.
static HELPED: AtomicU64 = AtomicU64::new(0);
/// How long it is not called again after that.
const HELP_EVERY_NS: u64 = 200_000;

/// A call that may not sleep has found nothing. Its thread may also have the other end, and asks
/// for nothing else before this call has succeeded.
#[cold]
pub(super) fn help(s: &Slot) {
    if !s.has(flag::STRICT) || !never_attached(s) {
        return;
    }
    let (now, before) = (sys::now_ns(), HELPED.load(Ordering::Relaxed));
    if now.saturating_sub(before) >= HELP_EVERY_NS {
        HELPED.store(now, Ordering::Relaxed);
        let _ = soon::attaching();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_all() {
        for stage in [Stage::First, Stage::Queued, Stage::Accepted] {
            let waited = Waited { ms: 4999, stage, seen: u32::MAX };
            assert_eq!(Waited::from_raw(waited.to_raw()), waited);
        }
        let most = Waited { ms: u32::MAX, stage: Stage::Accepted, seen: u32::MAX };
        assert_ne!(most.to_raw(), OVERDUE);
    }

    #[test]
    fn a_standstill_is_not_waiting() {
        let start = Waited { ms: 0, stage: Stage::First, seen: u32::MAX - 10 };
        assert_eq!(start.at(9).ms, 20);
        assert_eq!(start.at(60_000).ms, 1000);
        assert_eq!(start.at(u32::MAX - 20), start, "another thread has looked since");
    }
}
