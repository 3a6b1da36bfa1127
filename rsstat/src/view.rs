//! What the words of a file mean. Pure: any words at all give a process or none, and never more
//! than that.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rsocket_stats::counters::{Counter, Snapshot};
use rsocket_stats::layout::{
    Condition, HEAD_BYTES, MAGIC, RECORD_WORDS, VERSION, Via, head, record,
};
use rsocket_stats::reason::Reason;
use serde::Serialize;

/// A process that has, or had, rsockets.
#[derive(Debug, Serialize)]
pub struct Process {
    /// Its number, as it sees itself.
    pub pid: u32,
    /// Who owns its file.
    pub uid: u32,
    /// Its name.
    pub program: String,
    /// Nanoseconds since its first connection was entered.
    pub age_ns: u64,
    /// Counters that are not zero, by name.
    pub counters: BTreeMap<&'static str, u64>,
    /// How many connections are or were on TCP, by reason.
    pub on_tcp: BTreeMap<&'static str, u64>,
    /// Its connections.
    pub connections: Vec<Connection>,
    #[serde(skip)]
    /// It said that it ends.
    pub ended: bool,
    #[serde(skip)]
    /// When the file was made, in nanoseconds since the host was booted.
    pub made_since_boot: u64,
    #[serde(skip)]
    /// Where its number means something; 0 when unknown.
    pub pid_namespace: u64,
}

/// What became of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// A direction has left TCP, and the other one does with its next call.
    Attached,
    /// On its way between TCP and the device.
    Switching,
    /// On TCP, and stays there.
    Tcp,
    /// Back on TCP.
    Returned,
    /// Reset, because something could not be right or TCP was not wanted.
    Broken,
}

impl From<Condition> for State {
    fn from(condition: Condition) -> Self {
        match condition {
            Condition::Attached => Self::Attached,
            Condition::Switching => Self::Switching,
            Condition::Tcp => Self::Tcp,
            Condition::Returned => Self::Returned,
            Condition::Broken => Self::Broken,
        }
    }
}

impl State {
    /// As they are shown, in order.
    pub const NAMES: [&'static str; 5] = ["attached", "switching", "tcp", "returned", "broken"];

    /// As it is shown.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.get(self as usize).copied().unwrap_or("")
    }
}

/// Bytes and messages of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Moved {
    /// Bytes.
    pub bytes: u64,
    /// Calls of the program over TCP, messages of the protocol over a device.
    pub messages: u64,
}

/// One connection.
#[derive(Debug, Serialize)]
pub struct Connection {
    /// The descriptor that it had when it was entered; `None` if that was not known.
    pub fd: Option<u32>,
    /// Our end.
    pub local: Option<SocketAddr>,
    /// The other end.
    pub peer: Option<SocketAddr>,
    /// What became of it.
    pub state: State,
    /// `tcp`, `shm`, `rdma`.
    pub transport: &'static str,
    /// The RDMA device, if it is known.
    pub device: Option<String>,
    /// Why it is on TCP.
    pub reason: Option<&'static str>,
    /// The option, or the system call, that the reason is about.
    pub option: Option<String>,
    /// Whether the other end went back first.
    pub by_peer: bool,
    /// Sent over TCP.
    pub sent_tcp: Moved,
    /// Received over TCP.
    pub received_tcp: Moved,
    /// Sent over the device.
    pub sent: Moved,
    /// Received over the device.
    pub received: Moved,
    /// Messages that may be sent before the peer gives more credit, in the small and the large
    /// bank.
    pub credits: [u32; 2],
    /// Bytes that the next message may have; 0 means that the peer's buffer is full.
    pub room: u32,
    /// Bytes of the current message that the program has not read.
    pub unread: u64,
    /// Sleeps in the kernel for this connection alone.
    pub sleeps: u64,
    /// Those that the peer ended.
    pub wakeups: u64,
    /// Spins that saw something come.
    pub spins_paid: u64,
    /// Spins that did not.
    pub spins_failed: u64,
    /// Nanoseconds since it was entered.
    pub age_ns: u64,
    /// The other end, if it is shown to us as well.
    pub other_end: Option<OtherEnd>,
    #[serde(skip)]
    /// What both ends have in common; 0 where nothing is.
    pub common: u64,
}

/// The other end of a connection, as it sees itself.
#[derive(Clone, Debug, Serialize)]
pub struct OtherEnd {
    /// Its process.
    pub pid: u32,
    /// That one's name.
    pub program: String,
    /// Its own address.
    pub local: Option<SocketAddr>,
    /// Ours, as it is seen there.
    pub peer: Option<SocketAddr>,
}

/// Finds the other ends of connections among those of all processes. Where more than two say that
/// they belong together, none does.
pub fn join(processes: &mut [Process]) {
    let mut ends: BTreeMap<u64, Vec<(usize, usize)>> = BTreeMap::new();
    for (i, p) in processes.iter().enumerate() {
        for (k, c) in p.connections.iter().enumerate().filter(|(_, c)| c.common != 0) {
            ends.entry(c.common).or_default().push((i, k));
        }
    }
    for pair in ends.values() {
        let [one, other] = pair[..] else { continue };
        for ((i, k), (at, of)) in [(one, other), (other, one)] {
            let (p, c) = (&processes[at], &processes[at].connections[of]);
            let end =
                OtherEnd { pid: p.pid, program: p.program.clone(), local: c.local, peer: c.peer };
            processes[i].connections[k].other_end = Some(end);
        }
    }
}

/// Understands a file that belongs to `uid`, at `now` nanoseconds since the host was booted.
#[must_use]
pub fn understand(words: &[u64], uid: u32, now: u64) -> Option<Process> {
    let (top, records) = words.split_at_checked(HEAD_BYTES / 8)?;
    if top.get(head::MAGIC) != Some(&MAGIC) || top.get(head::VERSION) != Some(&VERSION) {
        return None;
    }
    let at = |number: usize| top.get(number).copied().unwrap_or(0);
    let snapshot = Snapshot::from_words(top.get(head::COUNTERS..)?);
    let counters =
        Counter::ALL.iter().map(|c| (c.name(), snapshot.get(*c))).filter(|(_, n)| *n > 0).collect();
    let on_tcp = Reason::ALL
        .iter()
        .map(|r| (r.name(), snapshot.on_tcp(*r)))
        .filter(|(_, n)| *n > 0)
        .collect();
    let made = at(head::MADE_SINCE_BOOT);
    let mut process = Process {
        pid: u32::try_from(at(head::PID)).ok()?,
        uid,
        program: text(&[at(head::PROGRAM), at(head::PROGRAM + 1)]),
        age_ns: now.saturating_sub(made),
        counters,
        on_tcp,
        connections: Vec::new(),
        ended: at(head::ENDED) != 0,
        made_since_boot: made,
        pid_namespace: at(head::PID_NAMESPACE),
    };
    let used = usize::try_from(at(head::USED)).unwrap_or(usize::MAX);
    let records = records.as_chunks::<RECORD_WORDS>().0.iter().take(used);
    process.connections =
        records.filter(|r| r[record::KEY] != 0).map(|r| connection(r, now)).collect();
    process.add_what_is_counted_with_connections();
    Some(process)
}

impl Process {
    /// What a connection has moved is added to its process's counters when it ends; until then it
    /// is counted here.
    fn add_what_is_counted_with_connections(&mut self) {
        let mut sums = Vec::new();
        for c in &self.connections {
            let (sent, received) = match c.transport {
                "rdma" => (Counter::BytesSentRdma, Counter::BytesReceivedRdma),
                _ => (Counter::BytesSentShm, Counter::BytesReceivedShm),
            };
            sums.push((sent, c.sent.bytes));
            sums.push((received, c.received.bytes));
            sums.push((Counter::BytesSentTcp, c.sent_tcp.bytes));
            sums.push((Counter::BytesReceivedTcp, c.received_tcp.bytes));
        }
        for (counter, n) in sums.into_iter().filter(|(_, n)| *n > 0) {
            let sum = self.counters.entry(counter.name()).or_default();
            *sum = sum.saturating_add(n);
        }
    }
}

/// A name that came from another process, fit for a terminal.
fn text(words: &[u64]) -> String {
    let bytes: Vec<u8> =
        words.iter().flat_map(|w| w.to_ne_bytes()).take_while(|b| *b != 0).collect();
    String::from_utf8_lossy(&bytes).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn connection(r: &[u64; RECORD_WORDS], now: u64) -> Connection {
    let moved = |number: usize| Moved { bytes: r[number], messages: r[number + 1] };
    let plus = |a: Moved, b: Moved| Moved {
        bytes: a.bytes.wrapping_add(b.bytes),
        messages: a.messages.wrapping_add(b.messages),
    };
    let state = State::from(Condition::from_raw(r[record::STATE] as u32));
    let via = Via::from_raw((r[record::FD] >> 32) as u32);
    let reason = Reason::from_u8((r[record::STATE] >> 32) as u8).filter(|r| *r != Reason::TooYoung);
    let detail = text(&r[record::DETAIL..record::DETAIL + record::DETAIL_WORDS]);
    let local = address(r, record::LOCAL, 0);
    Connection {
        fd: Some(r[record::FD] as u32).filter(|fd| *fd != u32::MAX),
        local,
        peer: address(r, record::PEER, 16),
        state,
        transport: match via {
            Via::Tcp => "tcp",
            Via::Shm => "shm",
            Via::Rdma => "rdma",
        },
        device: if via == Via::Rdma { local.and_then(|a| super::device::of(a.ip())) } else { None },
        reason: reason.map(Reason::name),
        option: reason.filter(|_| !detail.is_empty()).map(|_| detail),
        by_peer: reason.is_some() && r[record::STATE] & record::BY_PEER != 0,
        sent_tcp: plus(moved(record::TCP_OUT), moved(record::BEFORE + 2)),
        received_tcp: plus(moved(record::TCP_IN), moved(record::BEFORE)),
        sent: moved(record::DEVICE_OUT),
        received: moved(record::DEVICE_IN),
        credits: [(r[record::ROOM] >> 32) as u32 & 0xffff, (r[record::ROOM] >> 48) as u32],
        room: r[record::ROOM] as u32,
        unread: r[record::UNREAD],
        sleeps: r[record::SLEEPS],
        wakeups: r[record::WOKEN],
        spins_paid: r[record::SPINS_PAID],
        spins_failed: r[record::SPINS_FAILED],
        age_ns: now.saturating_sub(r[record::MADE_SINCE_BOOT]),
        other_end: None,
        common: r[record::COMMON],
    }
}

fn address(r: &[u64; RECORD_WORDS], first: usize, shift: u32) -> Option<SocketAddr> {
    let port = (r[record::PORTS] >> shift) as u16;
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&r[first].to_ne_bytes());
    bytes[8..].copy_from_slice(&r[first + 1].to_ne_bytes());
    let ip: IpAddr = match (r[record::PORTS] >> 32) as u32 {
        4 => Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into(),
        6 => Ipv6Addr::from(bytes).into(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A file with one attached connection.
    pub(crate) fn sample() -> Vec<u64> {
        let mut words = vec![0; HEAD_BYTES / 8 + 2 * RECORD_WORDS];
        words[head::MAGIC] = MAGIC;
        words[head::VERSION] = VERSION;
        words[head::PID] = 77;
        words[head::USED] = 2;
        words[head::PROGRAM] = u64::from_ne_bytes(*b"na\x1bme\0\0\0");
        words[head::MADE_SINCE_BOOT] = 1_000;
        words[head::COUNTERS + Counter::BytesSentShm as usize] = 5;
        words[head::ON_TCP + Reason::NoOffer as usize] = 3;
        let r = &mut words[HEAD_BYTES / 8 + RECORD_WORDS..];
        r[record::KEY] = 1 << 32 | 9;
        r[record::FD] = (Via::Shm as u64) << 32 | 4;
        r[record::PORTS] = 4 << 32 | 80 << 16 | 40000;
        r[record::LOCAL] = u64::from_ne_bytes([127, 0, 0, 1, 0, 0, 0, 0]);
        r[record::PEER] = u64::from_ne_bytes([127, 0, 0, 2, 0, 0, 0, 0]);
        r[record::STATE] = Condition::Attached as u64;
        r[record::BEFORE + 2] = 100;
        r[record::TCP_OUT] = 11;
        r[record::DEVICE_OUT] = 1_000_000;
        r[record::DEVICE_OUT + 1] = 7;
        r[record::ROOM] = 1400 << 48 | 640 << 32 | 4096;
        r[record::MADE_SINCE_BOOT] = 2_000;
        words
    }

    #[test]
    fn a_process_and_its_connection() {
        let p = understand(&sample(), 5, 3_000).unwrap();
        assert_eq!((p.pid, p.uid, p.program.as_str(), p.age_ns), (77, 5, "na?me", 2_000));
        assert_eq!(p.counters["bytes.sent.shm"], 1_000_005);
        assert_eq!(p.on_tcp["no_offer"], 3);
        let [c] = &p.connections[..] else { panic!("{:?}", p.connections) };
        assert_eq!(
            (c.local, c.peer),
            ("127.0.0.1:40000".parse().ok(), "127.0.0.2:80".parse().ok())
        );
        assert_eq!((c.state, c.transport, c.fd, c.reason), (State::Attached, "shm", Some(4), None));
        assert_eq!(
            (c.sent.bytes, c.sent.messages, c.sent_tcp.bytes, c.age_ns),
            (1_000_000, 7, 111, 1_000)
        );
        assert_eq!((c.credits, c.room), ([640, 1400], 4096));
    }

    #[test]
    fn why_it_is_on_tcp() {
        let mut words = sample();
        let r = &mut words[HEAD_BYTES / 8 + RECORD_WORDS..];
        r[record::STATE] =
            record::BY_PEER | (Reason::OddOption as u64) << 32 | Condition::Returned as u64;
        r[record::DETAIL] = u64::from_ne_bytes(*b"SO_PEEK_");
        r[record::DETAIL + 1] = u64::from_ne_bytes(*b"OFF\0\0\0\0\0");
        let p = understand(&words, 5, 3_000).unwrap();
        let c = &p.connections[0];
        assert_eq!((c.state, c.reason, c.by_peer), (State::Returned, Some("odd_option"), true));
        assert_eq!(c.option.as_deref(), Some("SO_PEEK_OFF"));
    }

    #[test]
    fn two_ends_of_one_connection() {
        let end = |pid: u64, common: u64| {
            let mut words = sample();
            words[head::PID] = pid;
            words[HEAD_BYTES / 8 + RECORD_WORDS + record::COMMON] = common;
            understand(&words, 0, 3_000).unwrap()
        };
        let found = |ends: &[(u64, u64)]| -> Vec<Option<u32>> {
            let mut all: Vec<_> = ends.iter().map(|(pid, common)| end(*pid, *common)).collect();
            join(&mut all);
            all.iter().map(|p| p.connections[0].other_end.as_ref().map(|e| e.pid)).collect()
        };
        assert_eq!(found(&[(1, 7), (2, 8), (3, 7)]), [Some(3), None, Some(1)]);
        assert_eq!(found(&[(1, 0), (2, 0)]), [None, None]);
        assert_eq!(found(&[(1, 7), (2, 7), (3, 7)]), [None, None, None]);
        assert_eq!(found(&[(4, 7), (4, 7)]), [Some(4), Some(4)], "a process with itself");
    }

    #[test]
    fn any_words_at_all() {
        assert!(understand(&[], 0, 0).is_none());
        let mut words = vec![u64::MAX; HEAD_BYTES / 8 + 3 * RECORD_WORDS + 1];
        assert!(understand(&words, 0, 0).is_none());
        words[head::MAGIC] = MAGIC;
        words[head::VERSION] = VERSION;
        assert!(understand(&words, 0, 0).is_none(), "no such pid");
        words[head::PID] = 1;
        let p = understand(&words, 0, 0).unwrap();
        assert_eq!(p.connections.len(), 3);
    }
}
