//! What this process has done, in numbers: for `rsstat`, for tests, and for the user's question why
//! a connection is on TCP. Plain relaxed adds into one block of memory of fixed layout.
//!
//! Must not know connections or policy. Entry points: [`add`], [`fell_back`], [`snapshot`],
//! [`report_at_exit`].
//!
//! An add is an atomic one, a handful of nanoseconds while only one core uses the line. That is
//! right for events, and too dear for every small message. The data path counts in the connection's
//! own state and adds the sum when it sleeps, detaches or closes.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::ffi::CStr;
use core::fmt::Write;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::facts::{option_table, trial};
use crate::failure::Failure;
use crate::log::open_append;
use crate::reason::Reason;
use crate::sys::mapped::Words;
use crate::sys::settle::Settle;
use crate::sys::text::Text;
use crate::sys::{self, discard, sandbox};

pub use rsocket_stats::counters::{Counter, ROOM, Snapshot, Stats, Transport};

// SAFETY: two arrays of atomic integers.
unsafe impl Words for Stats {}

static STATS: Stats = Stats::new();

/// Where this process counts now: in the file that others may read, once there is one.
#[inline]
fn stats() -> &'static Stats {
    elsewhere().unwrap_or(&STATS)
}

/// Where it counts since [`count_in`]; null before.
static ELSEWHERE: AtomicPtr<Stats> = AtomicPtr::new(core::ptr::null_mut());

#[inline]
fn elsewhere() -> Option<&'static Stats> {
    // SAFETY: null, or from a reference that lives for ever, in count_in(). Acquire: pairs with the
    // release there.
    unsafe { ELSEWHERE.load(Ordering::Acquire).as_ref() }
}

/// From now on this process counts there, in memory that others may read.
pub fn count_in(place: &'static Stats) {
    // Release: pairs with elsewhere().
    ELSEWHERE.store(core::ptr::from_ref(place).cast_mut(), Ordering::Release);
    // A thread that was just adding may leave a little behind, which snapshot() knows of.
    STATS.move_to(place);
}

/// All that this process has counted.
#[must_use]
pub fn snapshot() -> Snapshot {
    let before = STATS.snapshot();
    elsewhere().map_or(before, |more| before.plus(&more.snapshot()))
}

/// Adds to a counter.
#[inline]
pub fn add(counter: Counter, n: u64) {
    stats().add(counter, n);
}

/// Counts a connection that is, or is again, on TCP for this reason.
#[inline]
pub fn fell_back(reason: Reason) {
    stats().fell_back(reason);
}

/// By [`option_table::number`]: connections that one option brought to TCP.
static ODD_OPTIONS: [AtomicU64; option_table::COUNT + 1] =
    [const { AtomicU64::new(0) }; option_table::COUNT + 1];

/// Counts, beside its reason, the option for which a connection is on TCP.
pub fn odd_option(number: u8) {
    if let Some(n) = ODD_OPTIONS.get(usize::from(number)) {
        n.fetch_add(1, Ordering::Relaxed);
    }
}

/// By [`trial::obstacle`]: connections that one system call kept on TCP, which a filter forbids.
static FORBIDDEN: [AtomicU64; trial::OBSTACLES] = [const { AtomicU64::new(0) }; trial::OBSTACLES];

/// Counts, beside its reason, what the filter forbids for which a connection is on TCP.
pub fn forbidden(obstacle: u8) {
    if let Some(n) = FORBIDDEN.get(usize::from(obstacle)) {
        n.fetch_add(1, Ordering::Relaxed);
    }
}

/// A line for each option that has brought a connection to TCP, and each system call that has kept
/// one there.
fn write_details(out: &mut impl Write) -> core::fmt::Result {
    for (number, n) in ODD_OPTIONS.iter().enumerate() {
        let n = n.load(Ordering::Relaxed);
        if n > 0 {
            writeln!(out, "on_tcp.odd_option.{} {n}", option_table::name(number as u8))?;
        }
    }
    for (number, n) in FORBIDDEN.iter().enumerate() {
        let n = n.load(Ordering::Relaxed);
        if n > 0 {
            writeln!(out, "on_tcp.sandboxed.{} {n}", trial::name(number as u8))?;
        }
    }
    Ok(())
}

/// Counts bytes and messages that were sent.
#[inline]
pub fn sent(transport: Transport, bytes: u64, messages: u64) {
    let (b, m) = match transport {
        Transport::Tcp => (Counter::BytesSentTcp, Counter::MessagesSentTcp),
        Transport::Shm => (Counter::BytesSentShm, Counter::MessagesSentShm),
        Transport::Rdma => (Counter::BytesSentRdma, Counter::MessagesSentRdma),
    };
    add(b, bytes);
    add(m, messages);
}

/// Counts bytes and messages that were received.
#[inline]
pub fn received(transport: Transport, bytes: u64, messages: u64) {
    let (b, m) = match transport {
        Transport::Tcp => (Counter::BytesReceivedTcp, Counter::MessagesReceivedTcp),
        Transport::Shm => (Counter::BytesReceivedShm, Counter::MessagesReceivedShm),
        Transport::Rdma => (Counter::BytesReceivedRdma, Counter::MessagesReceivedRdma),
    };
    add(b, bytes);
    add(m, messages);
}

/// In a forked child: what the parent did, the parent will report.
pub fn forked() {
    // Relaxed: a fork has made this thread the only one.
    ELSEWHERE.settle(core::ptr::null_mut());
    STATS.reset();
    ODD_OPTIONS.iter().chain(&FORBIDDEN).for_each(|n| n.settle(0));
}

/// Appends this process's report to a file: a line "pid" with the process's id, then one for each
/// counter. In the name `%p` stands for the process id. One write, so that the reports of several
/// processes in one file do not mix.
///
/// # Errors
/// Those of opening and writing.
pub fn write_report(file: &[u8]) -> Result<(), Failure> {
    let mut text = Text::<8192>::new();
    let _ = writeln!(text, "pid {}", rustix::process::getpid().as_raw_nonzero());
    let _ = snapshot().write_to(&mut text);
    let _ = write_details(&mut text);
    let file = open_append(file)?;
    let written = if sys::may_append(&file, text.as_bytes().len()) {
        rustix::io::write(&file, text.as_bytes()).map_err(Failure::from)
    } else {
        Err(Failure::FileTooLong)
    };
    discard(file);
    written?;
    Ok(())
}

/// Writes the report where `RSOCKET_STATS` says, if it does. To be called when the process ends. In
/// a sandbox, where opening a file could be deadly, there is none.
pub fn report_at_exit<'a>(env: impl Fn(&CStr) -> Option<&'a CStr>) {
    if let Some(file) = env(c"RSOCKET_STATS").filter(|f| !f.is_empty())
        && !sandbox::inside()
        && !trial::forbids_reports()
    {
        let _ = write_report(file.to_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_report_fits() {
        let most = Snapshot::from_words(&[u64::MAX; 2 * ROOM]);
        let mut text = Text::<8192>::new();
        assert!(writeln!(text, "pid {}", u32::MAX).is_ok() && most.write_to(&mut text).is_ok());
        assert!(!text.cut);
    }
}
