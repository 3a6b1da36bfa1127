//! Whether a seccomp filter lets this process leave TCP: found out once, not trusted.
//!
//! A short-lived process makes each call that is needed ([`child`], [`calls`]). To make it is a
//! call, too, for which a filter may kill. So by default it is made only where something shows that
//! this process may make processes. Where nothing does, it is asked again later: servers make their
//! threads late.
//!
//! Must not know connections. Entry points: [`has_passed`], [`obstacle`], [`is_settled`],
//! [`has_forked`], [`has_spawned`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing))]

mod calls;
mod child;

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use self::calls::{CALLS, Way};
use self::child::{By, Outcome};
use super::status::{self, Status};
use crate::sys;
use crate::sys::settle::Settle;

/// What the administrator says of processes under a seccomp filter (`RSOCKET_SECCOMP`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Seccomp {
    /// Nothing: they are tried where that is safe.
    #[default]
    Careful = 0,
    /// They are tried.
    Probe = 1,
    /// They may make every call.
    Trust = 2,
    /// They stay on TCP.
    Refuse = 3,
}

impl Seccomp {
    /// What the variable's value means; `None` for one that means nothing.
    #[must_use]
    pub fn from_value(value: &[u8]) -> Option<Self> {
        match value {
            b"" => Some(Self::Careful),
            b"probe" => Some(Self::Probe),
            b"trust" => Some(Self::Trust),
            b"refuse" => Some(Self::Refuse),
            _ => None,
        }
    }

    /// As stored.
    #[must_use]
    pub const fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Probe,
            2 => Self::Trust,
            3 => Self::Refuse,
            _ => Self::Careful,
        }
    }
}

/// What is known: 0 nothing yet, else one of these with a number beside it. A forked child inherits
/// it with the filter. Relaxed throughout: the word stands for itself, and two threads would find
/// the same.
static VERDICT: AtomicU64 = AtomicU64::new(0);
/// Of so many filters.
const PASSED: u64 = 1 << 32;
/// [`obstacle`] plus one.
const FORBIDDEN: u64 = 2 << 32;
/// A filter has come that no hook saw: what showed that processes may be made is from before it.
const LATE: u64 = 3 << 32;
const KIND: u64 = 0xff << 32;

/// The ways ([`Way`]) that have a call which is deadly.
static DEADLY: AtomicU8 = AtomicU8::new(0);
/// This process, or an ancestor, has forked since the library was loaded.
static FORKS: AtomicBool = AtomicBool::new(false);
/// It has started a program by `posix_spawn`, for which libraries of C do what they do for threads.
static SPAWNS: AtomicBool = AtomicBool::new(false);

/// When it is to be looked again whether anything shows that processes may be made, in nanoseconds,
/// and how often it was. The first looks are free; then each distance is twice the last one, up to
/// the longest.
static NEXT_LOOK: AtomicU64 = AtomicU64::new(0);
static LOOKS: AtomicU32 = AtomicU32::new(0);
const FREE: u32 = 8;
const FIRST_NS: u64 = 1_000_000;
const LONGEST: u32 = 7;

/// The names of obstacles that are no calls of [`CALLS`], behind them by number.
const OTHERS: [&str; 3] = ["no_process", "untried", "late"];
const NO_PROCESS: usize = CALLS.len();
const UNTRIED: usize = CALLS.len() + 1;
const CAME_LATE: usize = CALLS.len() + 2;
/// How many obstacles there are.
pub const OBSTACLES: usize = CALLS.len() + OTHERS.len();

/// A fork has succeeded in this process, or has made it.
pub fn has_forked() {
    FORKS.settle(true);
    NEXT_LOOK.settle(0);
}

/// `posix_spawn` has succeeded.
pub fn has_spawned() {
    SPAWNS.store(true, Ordering::Relaxed);
    NEXT_LOOK.store(0, Ordering::Relaxed);
}

/// A filter was found where there had been none, or fewer, and no hook had seen it come.
pub(super) fn came_late() {
    VERDICT.store(LATE, Ordering::Relaxed);
}

/// Whether this process, which has a filter, may make every call that is needed. Finds out if that
/// is not known. `more`: another filter may have come since.
pub(super) fn has_passed(seccomp: Seccomp, more: bool) -> bool {
    let verdict = VERDICT.load(Ordering::Relaxed);
    match (seccomp, verdict & KIND) {
        (Seccomp::Trust, _) => true,
        (Seccomp::Refuse, _) | (_, FORBIDDEN) | (Seccomp::Careful, LATE) => false,
        (_, PASSED) if !more => true,
        (_, PASSED) => match status::own() {
            Ok(now) if now.filters <= verdict as u32 => true,
            Ok(_) => {
                came_late();
                seccomp == Seccomp::Probe && find_out(seccomp)
            }
            // It could be read before: no room for it now.
            Err(_) => false,
        },
        _ => find_out(seccomp),
    }
}

/// As [`has_passed`], without finding out.
pub(super) fn is_known_to_pass() -> bool {
    VERDICT.load(Ordering::Relaxed) & KIND == PASSED
}

/// Whether nothing will change that any more.
#[must_use]
pub fn is_settled(seccomp: Seccomp) -> bool {
    let verdict = VERDICT.load(Ordering::Relaxed) & KIND;
    seccomp == Seccomp::Refuse || !(verdict == 0 || verdict == LATE && seccomp == Seccomp::Probe)
}

/// What is in the way, where something is.
#[must_use]
pub fn obstacle(seccomp: Seccomp) -> Option<u8> {
    let verdict = VERDICT.load(Ordering::Relaxed);
    let number = match verdict & KIND {
        _ if seccomp == Seccomp::Refuse => None,
        FORBIDDEN => Some(verdict as u32 as usize),
        LATE => Some(CAME_LATE),
        0 => Some(UNTRIED),
        _ => None,
    };
    number.and_then(|n| u8::try_from(n).ok())
}

/// The name of an [`obstacle`].
#[must_use]
pub fn name(obstacle: u8) -> &'static str {
    let at = usize::from(obstacle);
    let other = || OTHERS.get(at.wrapping_sub(CALLS.len())).copied();
    CALLS.get(at).map(|call| call.name).or_else(other).unwrap_or("?")
}

/// Whether the filter kills for a netlink socket: then no code of the library asks for one.
#[must_use]
pub fn netlink_kills() -> bool {
    DEADLY.load(Ordering::Relaxed) & Way::Netlink as u8 != 0
}

/// Whether the filter kills for a call by which the ends would know each other otherwise.
#[must_use]
pub fn handshake_kills() -> bool {
    DEADLY.load(Ordering::Relaxed) & Way::Handshake as u8 != 0
}

/// Whether the filter kills for a call by which ends meet in a directory.
#[must_use]
pub fn directory_kills() -> bool {
    DEADLY.load(Ordering::Relaxed) & Way::Directory as u8 != 0
}

/// Whether the filter kills for a thread that goes to another CPU.
#[must_use]
pub fn migration_kills() -> bool {
    DEADLY.load(Ordering::Relaxed) & Way::Migration as u8 != 0
}

/// Whether it is known that a report at the end of the process could be deadly.
#[must_use]
pub fn forbids_reports() -> bool {
    let verdict = VERDICT.load(Ordering::Relaxed);
    let name = CALLS.get(verdict as u32 as usize).map_or("", |call| call.name);
    verdict & KIND == FORBIDDEN && matches!(name, "openat" | "write" | "close")
}

fn find_out(seccomp: Seccomp) -> bool {
    let now = sys::now_ns();
    if now < NEXT_LOOK.load(Ordering::Relaxed) {
        return false;
    }
    let Ok(status) = status::own() else { return false };
    let by = match may_make_processes(status) {
        Some(by) => by,
        None if seccomp == Seccomp::Probe => By::Fork,
        None => {
            look_later(now);
            return false;
        }
    };
    let verdict = match child::outcome(by, is_found_out) {
        Outcome::Passed(deadly) => {
            DEADLY.store(deadly, Ordering::Relaxed);
            crate::log_info!("the seccomp filter allows every call that attaching needs");
            PASSED | u64::from(status.filters)
        }
        Outcome::Forbidden(at) => forbidden(at),
        Outcome::NoProcess => forbidden(NO_PROCESS),
        Outcome::Unknown => {
            look_later(now);
            // Or another thread has found out meanwhile.
            return is_known_to_pass();
        }
    };
    VERDICT.store(verdict, Ordering::Relaxed);
    verdict & KIND == PASSED
}

fn look_later(now: u64) {
    let looks = LOOKS.fetch_add(1, Ordering::Relaxed);
    if let Some(doublings) = looks.checked_sub(FREE) {
        NEXT_LOOK.store(now.saturating_add(FIRST_NS << doublings.min(LONGEST)), Ordering::Relaxed);
    }
}

fn is_found_out() -> bool {
    matches!(VERDICT.load(Ordering::Relaxed) & KIND, PASSED | FORBIDDEN)
}

fn forbidden(at: usize) -> u64 {
    crate::log_info!("the seccomp filter forbids {}: nothing attaches", name(at as u8));
    FORBIDDEN | at as u64
}

/// How it has been seen that this process may make processes. It has forked or was forked, it has
/// threads, or its parent, which has made it, is under as many filters.
fn may_make_processes(status: Status) -> Option<By> {
    let parent_does =
        || status.parent != 0 && status::filters_of(status.parent) == Some(status.filters);
    if FORKS.load(Ordering::Relaxed) {
        Some(By::Fork)
    } else if status.threads > 1 || SPAWNS.load(Ordering::Relaxed) {
        Some(By::threads())
    } else {
        parent_does().then_some(By::Fork)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        assert_eq!(Seccomp::from_value(b""), Some(Seccomp::Careful));
        assert_eq!(Seccomp::from_value(b"Probe"), None);
        for (value, seccomp) in [
            (&b"probe"[..], Seccomp::Probe),
            (b"trust", Seccomp::Trust),
            (b"refuse", Seccomp::Refuse),
        ] {
            assert_eq!(Seccomp::from_value(value), Some(seccomp));
            assert_eq!(Seccomp::from_number(seccomp as u8), seccomp);
        }
    }

    #[test]
    fn names() {
        assert_eq!(name(0), "wait4");
        assert_eq!([NO_PROCESS, UNTRIED, CAME_LATE].map(|n| name(n as u8)), OTHERS);
        assert_eq!((name(OBSTACLES as u8), name(255)), ("?", "?"));
    }

    #[test]
    fn what_shows_that_it_may_make_processes() {
        let mut status = Status { filters: 1 << 30, threads: 1, ..Status::default() };
        status.parent = std::process::id();
        assert_eq!(may_make_processes(status), None, "the parent has fewer filters");
        assert_eq!(may_make_processes(Status { threads: 2, ..status }), Some(By::threads()));
        let filters = status::filters_of(status.parent).unwrap();
        assert_eq!(may_make_processes(Status { filters, ..status }), Some(By::Fork));
    }
}
