//! What this process has done, in numbers: for `rsstat`, for tests, and for whoever asks why a
//! connection is on TCP. Plain relaxed adds into one block of memory of fixed layout.
//!
//! Must not know connections or policy. Entry points: [`add`], [`fell_back`], [`snapshot`],
//! [`report_at_exit`].
//!
//! An add is an atomic one, a handful of nanoseconds while only one core uses the line: right for
//! events, too dear for every small message. The data path counts in the connection's own state and
//! adds the sum when it sleeps, detaches or closes.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::ffi::CStr;
use core::fmt::Write;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::errno::Errno;
use crate::host::option_table;
use crate::host::trial;
use crate::log::open_append;
use crate::reason::Reason;
use crate::sys::sandbox;
use crate::sys::settle::Settle;
use crate::sys::text::Text;
use crate::sys::{self, discard};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident $text:literal,)+) => {
        /// What is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum Counter { $($(#[doc = $doc])+ $name,)+ }

        impl Counter {
            /// Every counter, in the order of its number.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// Its name in reports.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }
        }
    };
}

counters! {
    /// Connections that the library watches: TCP sockets that might attach.
    Connections "connections",
    /// Rendezvous names that were bound.
    Offers "attach.offers",
    /// Offers that ended without anybody there.
    OffersLapsed "attach.offers_lapsed",
    /// Times the accepting side looked for an offer.
    Knocks "attach.knocks",
    /// Knocks that found one.
    KnocksAnswered "attach.knocks_answered",
    /// Welcomes that were sent.
    WelcomesSent "attach.welcomes_sent",
    /// Welcomes that were received and believed.
    WelcomesTaken "attach.welcomes_taken",
    /// Arenas that were made.
    ArenasMade "attach.arenas_made",
    /// Arenas of peers that were mapped.
    ArenasMapped "attach.arenas_mapped",
    /// Windows that were used again.
    WindowsReused "attach.windows_reused",
    /// Directions that left TCP at this end, sending.
    SwitchedSending "attach.switched_sending",
    /// Directions that left TCP at this end, receiving.
    SwitchedReceiving "attach.switched_receiving",
    /// Connections that attached to shared memory.
    AttachedShm "attached.shm",
    /// Connections that attached to RDMA.
    AttachedRdma "attached.rdma",
    /// Peers that were told to come by RDMA (`RDMAV_FORK_SAFE`).
    ForkSafeGreeted "fork_safe.greeted",
    /// Connections that left TCP for RDMA as in upstream's fork mode.
    ForkSafeMigrated "fork_safe.migrated",
    /// Connections that went back to TCP.
    Detached "detached",
    /// Connections that were reset because something could not be right.
    Resets "resets",
    /// Bytes written to TCP by hooks.
    BytesSentTcp "bytes.sent.tcp",
    /// Bytes read from TCP by hooks.
    BytesReceivedTcp "bytes.received.tcp",
    /// Bytes written to shared memory.
    BytesSentShm "bytes.sent.shm",
    /// Bytes read from shared memory.
    BytesReceivedShm "bytes.received.shm",
    /// Bytes written to RDMA.
    BytesSentRdma "bytes.sent.rdma",
    /// Bytes read from RDMA.
    BytesReceivedRdma "bytes.received.rdma",
    /// Bytes that TCP took for a peer that had closed, to be told so: nobody reads them.
    BytesSentUnread "bytes.sent.unread",
    /// Write calls that TCP took.
    MessagesSentTcp "messages.sent.tcp",
    /// Read calls that TCP served.
    MessagesReceivedTcp "messages.received.tcp",
    /// Messages written to shared memory.
    MessagesSentShm "messages.sent.shm",
    /// Messages read from shared memory.
    MessagesReceivedShm "messages.received.shm",
    /// Messages written to RDMA.
    MessagesSentRdma "messages.sent.rdma",
    /// Messages read from RDMA.
    MessagesReceivedRdma "messages.received.rdma",
    /// Bells rung for sleepers of peers.
    BellsRung "wakeups.rung",
    /// Rings by an eventfd that a peer has handed over.
    EventsRung "wakeups.rung.eventfd",
    /// Sleeps that a bell ended.
    BellsHeard "wakeups.received",
    /// Sleeps in the kernel.
    Sleeps "sleeps",
    /// Those of them that were on a sleeper word alone.
    BriefSleeps "sleeps.brief",
    /// Spins that saw something come.
    SpinsPaid "spins.paid",
    /// Spins that ended in a sleep.
    SpinsFailed "spins.failed",
    /// Waits that found others on their CPU: late ones, and those that slept at once because of
    /// that.
    SpinsWanted "spins.cpu_wanted",
    /// Times that the only CPU was given away: after some looks in vain, or before a sleep.
    CpuYields "cpu.yields",
    /// Datagrams sent by UDP.
    DatagramsSentUdp "datagrams.sent.udp",
    /// Datagrams received by UDP.
    DatagramsReceivedUdp "datagrams.received.udp",
    /// Datagrams lost because the receiver's memory was full.
    DatagramsDropped "datagrams.dropped",
    /// Packets and frames of the exchange that made no sense.
    DatagramsIgnored "datagrams.ignored",
    /// Locks of dead holders that were broken.
    LocksBroken "locks_broken",
    /// Knocks of others than the user at the other end of the connection, who were sent away.
    Strangers "attach.strangers",
    /// Times that the kernel was asked who has the other end of a connection (a netlink socket
    /// each).
    LookUps "attach.look_ups",
    /// Slots of libraries loaded with `RTLD_DEEPBIND` that were pointed at our hooks.
    DeepbindRebound "deepbind.rebound",
    /// Such slots, or whole libraries, that could not be.
    DeepbindLeft "deepbind.left",
    /// Libraries opened in a namespace of their own, where no hook is.
    Namespaces "dlmopen.namespaces",
}

/// How bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Transport {
    /// The kernel's TCP.
    Tcp,
    /// Shared memory.
    Shm,
    /// RDMA.
    Rdma,
}

/// Room in the block, so that its layout survives new counters.
pub const ROOM: usize = 64;
const _: () = assert!(Counter::ALL.len() <= ROOM && Reason::COUNT <= ROOM);

/// The counters of one process, in the layout in which others may read them.
#[repr(C)]
pub struct Stats {
    counters: [AtomicU64; ROOM],
    on_tcp: [AtomicU64; ROOM],
}

/// The values at one moment (each for itself; nothing is stopped for it).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    counters: [u64; ROOM],
    on_tcp: [u64; ROOM],
}

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
pub(crate) fn count_in(place: &'static Stats) {
    // Release: pairs with elsewhere().
    ELSEWHERE.store(core::ptr::from_ref(place).cast_mut(), Ordering::Release);
    move_to(place);
}

/// What was counted so far goes to where it is counted from now on. A thread that was just adding
/// may leave a little behind, which [`snapshot`] knows of.
fn move_to(new: &Stats) {
    let (from, to) =
        (STATS.counters.iter().chain(&STATS.on_tcp), new.counters.iter().chain(&new.on_tcp));
    for (from, to) in from.zip(to) {
        to.fetch_add(from.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }
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

impl Default for Stats {
    fn default() -> Self {
        Self::new()
    }
}

impl Stats {
    /// All zero.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            counters: [const { AtomicU64::new(0) }; ROOM],
            on_tcp: [const { AtomicU64::new(0) }; ROOM],
        }
    }

    /// Adds to a counter. Relaxed here and below: numbers for people, which order nothing.
    #[inline]
    pub fn add(&self, counter: Counter, n: u64) {
        if let Some(c) = self.counters.get(counter as usize) {
            c.fetch_add(n, Ordering::Relaxed);
        }
    }

    /// Counts a reason.
    #[inline]
    pub fn fell_back(&self, reason: Reason) {
        if let Some(c) = self.on_tcp.get(reason as usize) {
            c.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sets everything to zero.
    pub fn reset(&self) {
        for c in self.counters.iter().chain(&self.on_tcp) {
            c.settle(0);
        }
    }

    /// The values now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let read = |from: &[AtomicU64; ROOM]| {
            let mut out = [0; ROOM];
            for (to, from) in out.iter_mut().zip(from) {
                *to = from.load(Ordering::Relaxed);
            }
            out
        };
        Snapshot { counters: read(&self.counters), on_tcp: read(&self.on_tcp) }
    }
}

impl Snapshot {
    /// One counter.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.counters.get(counter as usize).copied().unwrap_or(0)
    }

    /// The sum of two.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let sum = |a: [u64; ROOM], b: [u64; ROOM]| {
            let mut out = a;
            out.iter_mut().zip(b).for_each(|(to, n)| *to = to.wrapping_add(n));
            out
        };
        Self {
            counters: sum(self.counters, other.counters),
            on_tcp: sum(self.on_tcp, other.on_tcp),
        }
    }

    /// From words that [`Stats`] was read as: the counters, then the reasons.
    #[must_use]
    pub fn from_words(words: &[u64]) -> Self {
        let read = |from: &[u64]| {
            let mut out = [0; ROOM];
            out.iter_mut().zip(from).for_each(|(to, n)| *to = *n);
            out
        };
        Self { counters: read(words), on_tcp: read(words.get(ROOM..).unwrap_or(&[])) }
    }

    /// How many connections are, or were, on TCP for this reason.
    #[must_use]
    pub fn on_tcp(&self, reason: Reason) -> u64 {
        self.on_tcp.get(reason as usize).copied().unwrap_or(0)
    }

    /// Every counter and every reason as "name value", one on each line.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write_to(&self, out: &mut impl Write) -> core::fmt::Result {
        for c in Counter::ALL {
            writeln!(out, "{} {}", c.name(), self.get(*c))?;
        }
        for r in Reason::ALL {
            writeln!(out, "on_tcp.{} {}", r.name(), self.on_tcp(*r))?;
        }
        Ok(())
    }
}

/// Appends this process's report to a file: a line "pid" with the process's id, then one for each
/// counter. In the name `%p` stands for the process id. One write, so that the reports of several
/// processes in one file do not mix.
///
/// # Errors
/// Those of opening and writing.
pub fn write_report(file: &[u8]) -> Result<(), Errno> {
    let mut text = Text::<8192>::new();
    let _ = writeln!(text, "pid {}", rustix::process::getpid().as_raw_nonzero());
    let _ = snapshot().write_to(&mut text);
    let _ = write_details(&mut text);
    let file = open_append(file)?;
    let written = if sys::may_append(&file, text.as_bytes().len()) {
        rustix::io::write(&file, text.as_bytes()).map_err(Errno::from)
    } else {
        Err(Errno::FBIG)
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
    fn counting() {
        let stats = Stats::new();
        stats.add(Counter::BellsRung, 2);
        stats.add(Counter::BellsRung, 3);
        stats.fell_back(Reason::PeerElsewhere);
        let seen = stats.snapshot();
        assert_eq!((seen.get(Counter::BellsRung), seen.get(Counter::BellsHeard)), (5, 0));
        assert_eq!((seen.on_tcp(Reason::PeerElsewhere), seen.on_tcp(Reason::Urgent)), (1, 0));
        let mut text = String::new();
        seen.write_to(&mut text).unwrap();
        assert!(
            text.contains("\nwakeups.rung 5\n") && text.contains("\non_tcp.peer_elsewhere 1\n")
        );
        assert_eq!(text.lines().count(), Counter::ALL.len() + Reason::COUNT);
        stats.reset();
        assert_eq!(stats.snapshot(), Stats::new().snapshot());
    }

    #[test]
    fn the_longest_report_fits() {
        let most = Snapshot { counters: [u64::MAX; ROOM], on_tcp: [u64::MAX; ROOM] };
        let mut text = Text::<8192>::new();
        assert!(writeln!(text, "pid {}", u32::MAX).is_ok() && most.write_to(&mut text).is_ok());
        assert!(!text.cut);
    }

    #[test]
    fn names_are_unique() {
        for (i, c) in Counter::ALL.iter().enumerate() {
            assert_eq!(*c as usize, i);
            assert_eq!(Counter::ALL.iter().filter(|d| d.name() == c.name()).count(), 1);
        }
    }
}
