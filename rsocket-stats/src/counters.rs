//! What a process counts: the names of the counters, and one block of memory of fixed layout in
//! which they stand. Behind them the block has as many words for reasons.
//!
//! Must not know where the block is, nor who adds. Entry points: [`Counter`], [`Stats`],
//! [`Snapshot`].

use core::fmt::Write;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::reason::Reason;

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
    /// Channels that were used again.
    ChannelsReused "attach.channels_reused",
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
    /// Bytes that TCP took for a peer that had closed, to be told so: no process reads them.
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
    /// Wakers woken for sleepers of peers.
    WakeupsRung "wakeups.rung",
    /// Rings by an eventfd that a peer has handed over.
    EventsRung "wakeups.rung.eventfd",
    /// Sleeps that a waker ended.
    WakeupsReceived "wakeups.received",
    /// Sleeps in the kernel.
    Sleeps "sleeps",
    /// Those of them that were on a waiter slot alone.
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
    /// Times that a thread went to its peer's CPU before it slept, since every CPU was busy.
    Migrations "cpu.migrations",
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
    /// Times that the kernel was asked about the other end of a connection, by a netlink socket
    /// each. The question is for its owner, or when it last acknowledged something.
    LookUps "attach.look_ups",
    /// Names in the directory to meet in that were looked at.
    MeetNames "attach.names",
    /// Those of them that were called at.
    MeetCalls "attach.calls",
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

    /// What was counted here is counted there; what others add meanwhile may stay behind.
    pub fn move_to(&self, new: &Self) {
        let (from, to) =
            (self.counters.iter().chain(&self.on_tcp), new.counters.iter().chain(&new.on_tcp));
        for (from, to) in from.zip(to) {
            to.fetch_add(from.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Sets everything to zero.
    pub fn reset(&self) {
        for c in self.counters.iter().chain(&self.on_tcp) {
            c.store(0, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counting() {
        let stats = Stats::new();
        stats.add(Counter::WakeupsRung, 2);
        stats.add(Counter::WakeupsRung, 3);
        stats.fell_back(Reason::PeerElsewhere);
        let seen = stats.snapshot();
        assert_eq!((seen.get(Counter::WakeupsRung), seen.get(Counter::WakeupsReceived)), (5, 0));
        assert_eq!((seen.on_tcp(Reason::PeerElsewhere), seen.on_tcp(Reason::Urgent)), (1, 0));
        let mut text = String::new();
        seen.write_to(&mut text).unwrap();
        assert!(
            text.contains("\nwakeups.rung 5\n") && text.contains("\non_tcp.peer_elsewhere 1\n")
        );
        assert_eq!(text.lines().count(), Counter::ALL.len() + Reason::COUNT);
        let other = Stats::new();
        stats.move_to(&other);
        assert_eq!((stats.snapshot(), other.snapshot()), (Stats::new().snapshot(), seen));
        other.reset();
        assert_eq!(other.snapshot(), Stats::new().snapshot());
    }

    #[test]
    fn names_are_unique() {
        for (i, c) in Counter::ALL.iter().enumerate() {
            assert_eq!(*c as usize, i);
            assert_eq!(Counter::ALL.iter().filter(|d| d.name() == c.name()).count(), 1);
        }
    }
}
