//! The options of a TCP socket, by the names that the kernel's headers give them, and what each
//! does to a connection on a device. `docs/options.md` is the same for people; a test holds the two
//! together. Pure. Must not know what is done about it. Entry points: [`kind`], [`name`],
//! [`number`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use Kind::{Stamps, Stays, Tcp};

/// What an option that is set does to a connection on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Nothing: it changes neither which bytes arrive nor what a call returns beside them.
    Stays,
    /// Nothing, until a call asks for the time of arrival.
    Stamps,
    /// Only TCP can honour it.
    Tcp,
}

/// Number, name, and what it does.
type Row = (i32, &'static str, Kind);

/// socket(7).
const SOCKET: &[Row] = &[
    (1, "SO_DEBUG", Stays),
    (2, "SO_REUSEADDR", Stays),
    (5, "SO_DONTROUTE", Stays),
    (6, "SO_BROADCAST", Stays),
    (7, "SO_SNDBUF", Stays),
    (8, "SO_RCVBUF", Stays),
    (9, "SO_KEEPALIVE", Stays),
    (10, "SO_OOBINLINE", Stays),
    (11, "SO_NO_CHECK", Stays),
    (12, "SO_PRIORITY", Stays),
    (13, "SO_LINGER", Stays),
    (14, "SO_BSDCOMPAT", Stays),
    (15, "SO_REUSEPORT", Stays),
    (16, "SO_PASSCRED", Stays),
    (18, "SO_RCVLOWAT", Stays),
    (19, "SO_SNDLOWAT", Stays),
    (20, "SO_RCVTIMEO", Stays),
    (21, "SO_SNDTIMEO", Stays),
    (25, "SO_BINDTODEVICE", Stays),
    (26, "SO_ATTACH_FILTER", Stays),
    (27, "SO_DETACH_FILTER", Stays),
    (29, "SO_TIMESTAMP", Stamps),
    (32, "SO_SNDBUFFORCE", Stays),
    (33, "SO_RCVBUFFORCE", Stays),
    (34, "SO_PASSSEC", Stays),
    (35, "SO_TIMESTAMPNS", Stamps),
    (36, "SO_MARK", Stays),
    (37, "SO_TIMESTAMPING", Tcp),
    (40, "SO_RXQ_OVFL", Stays),
    (41, "SO_WIFI_STATUS", Stays),
    (42, "SO_PEEK_OFF", Tcp),
    (43, "SO_NOFCS", Stays),
    (44, "SO_LOCK_FILTER", Stays),
    (45, "SO_SELECT_ERR_QUEUE", Stays),
    (46, "SO_BUSY_POLL", Stays),
    (47, "SO_MAX_PACING_RATE", Stays),
    (49, "SO_INCOMING_CPU", Stays),
    (50, "SO_ATTACH_BPF", Stays),
    (51, "SO_ATTACH_REUSEPORT_CBPF", Stays),
    (52, "SO_ATTACH_REUSEPORT_EBPF", Stays),
    (53, "SO_CNX_ADVICE", Stays),
    (60, "SO_ZEROCOPY", Stays),
    (61, "SO_TXTIME", Tcp),
    (62, "SO_BINDTOIFINDEX", Stays),
    (63, "SO_TIMESTAMP_NEW", Stamps),
    (64, "SO_TIMESTAMPNS_NEW", Stamps),
    (65, "SO_TIMESTAMPING_NEW", Tcp),
    (66, "SO_RCVTIMEO_NEW", Stays),
    (67, "SO_SNDTIMEO_NEW", Stays),
    (68, "SO_DETACH_REUSEPORT_BPF", Stays),
    (69, "SO_PREFER_BUSY_POLL", Stays),
    (70, "SO_BUSY_POLL_BUDGET", Stays),
    (72, "SO_BUF_LOCK", Stays),
    (73, "SO_RESERVE_MEM", Stays),
    (74, "SO_TXREHASH", Stays),
    (75, "SO_RCVMARK", Stays),
    (76, "SO_PASSPIDFD", Stays),
    (80, "SO_DEVMEM_DONTNEED", Stays),
    (82, "SO_RCVPRIORITY", Stays),
    (83, "SO_PASSRIGHTS", Stays),
];

/// tcp(7).
const TCP: &[Row] = &[
    (1, "TCP_NODELAY", Stays),
    (2, "TCP_MAXSEG", Stays),
    (3, "TCP_CORK", Stays),
    (4, "TCP_KEEPIDLE", Stays),
    (5, "TCP_KEEPINTVL", Stays),
    (6, "TCP_KEEPCNT", Stays),
    (7, "TCP_SYNCNT", Stays),
    (8, "TCP_LINGER2", Stays),
    (9, "TCP_DEFER_ACCEPT", Stays),
    (10, "TCP_WINDOW_CLAMP", Stays),
    (12, "TCP_QUICKACK", Stays),
    (13, "TCP_CONGESTION", Stays),
    (14, "TCP_MD5SIG", Tcp),
    (16, "TCP_THIN_LINEAR_TIMEOUTS", Stays),
    (17, "TCP_THIN_DUPACK", Stays),
    (18, "TCP_USER_TIMEOUT", Stays),
    (19, "TCP_REPAIR", Tcp),
    (20, "TCP_REPAIR_QUEUE", Tcp),
    (21, "TCP_QUEUE_SEQ", Tcp),
    (22, "TCP_REPAIR_OPTIONS", Tcp),
    (23, "TCP_FASTOPEN", Stays),
    (24, "TCP_TIMESTAMP", Stays),
    (25, "TCP_NOTSENT_LOWAT", Stays),
    (27, "TCP_SAVE_SYN", Stays),
    (29, "TCP_REPAIR_WINDOW", Tcp),
    (30, "TCP_FASTOPEN_CONNECT", Stays),
    (31, "TCP_ULP", Tcp),
    (32, "TCP_MD5SIG_EXT", Tcp),
    (33, "TCP_FASTOPEN_KEY", Stays),
    (34, "TCP_FASTOPEN_NO_COOKIE", Stays),
    (35, "TCP_ZEROCOPY_RECEIVE", Tcp),
    (36, "TCP_INQ", Stays),
    (37, "TCP_TX_DELAY", Stays),
    (38, "TCP_AO_ADD_KEY", Tcp),
    (39, "TCP_AO_DEL_KEY", Tcp),
    (40, "TCP_AO_INFO", Tcp),
    (42, "TCP_AO_REPAIR", Tcp),
    (44, "TCP_RTO_MAX_MS", Stays),
    (45, "TCP_RTO_MIN_US", Stays),
    (46, "TCP_DELACK_MAX_US", Stays),
];

/// ip(7). TCP delivers nothing of packets with its bytes.
const IP: &[Row] = &[
    (1, "IP_TOS", Stays),
    (2, "IP_TTL", Stays),
    (4, "IP_OPTIONS", Stays),
    (6, "IP_RECVOPTS", Stays),
    (7, "IP_RETOPTS", Stays),
    (8, "IP_PKTINFO", Stays),
    (10, "IP_MTU_DISCOVER", Stays),
    (11, "IP_RECVERR", Stays),
    (12, "IP_RECVTTL", Stays),
    (13, "IP_RECVTOS", Stays),
    (15, "IP_FREEBIND", Stays),
    (16, "IP_IPSEC_POLICY", Tcp),
    (17, "IP_XFRM_POLICY", Tcp),
    (18, "IP_PASSSEC", Stays),
    (19, "IP_TRANSPARENT", Stays),
    (20, "IP_RECVORIGDSTADDR", Stays),
    (21, "IP_MINTTL", Stays),
    (22, "IP_NODEFRAG", Stays),
    (23, "IP_CHECKSUM", Stays),
    (24, "IP_BIND_ADDRESS_NO_PORT", Stays),
    (25, "IP_RECVFRAGSIZE", Stays),
    (26, "IP_RECVERR_RFC4884", Stays),
    (32, "IP_MULTICAST_IF", Stays),
    (33, "IP_MULTICAST_TTL", Stays),
    (34, "IP_MULTICAST_LOOP", Stays),
    (49, "IP_MULTICAST_ALL", Stays),
    (50, "IP_UNICAST_IF", Stays),
    (51, "IP_LOCAL_PORT_RANGE", Stays),
];

/// ipv6(7).
const IPV6: &[Row] = &[
    (1, "IPV6_ADDRFORM", Tcp),
    (2, "IPV6_2292PKTINFO", Stays),
    (3, "IPV6_2292HOPOPTS", Stays),
    (4, "IPV6_2292DSTOPTS", Stays),
    (5, "IPV6_2292RTHDR", Stays),
    (6, "IPV6_2292PKTOPTIONS", Stays),
    (8, "IPV6_2292HOPLIMIT", Stays),
    (11, "IPV6_FLOWINFO", Stays),
    (16, "IPV6_UNICAST_HOPS", Stays),
    (17, "IPV6_MULTICAST_IF", Stays),
    (18, "IPV6_MULTICAST_HOPS", Stays),
    (19, "IPV6_MULTICAST_LOOP", Stays),
    (23, "IPV6_MTU_DISCOVER", Stays),
    (24, "IPV6_MTU", Stays),
    (25, "IPV6_RECVERR", Stays),
    (26, "IPV6_V6ONLY", Stays),
    (29, "IPV6_MULTICAST_ALL", Stays),
    (30, "IPV6_ROUTER_ALERT_ISOLATE", Stays),
    (31, "IPV6_RECVERR_RFC4884", Stays),
    (32, "IPV6_FLOWLABEL_MGR", Stays),
    (33, "IPV6_FLOWINFO_SEND", Stays),
    (34, "IPV6_IPSEC_POLICY", Tcp),
    (35, "IPV6_XFRM_POLICY", Tcp),
    (49, "IPV6_RECVPKTINFO", Stays),
    (50, "IPV6_PKTINFO", Stays),
    (51, "IPV6_RECVHOPLIMIT", Stays),
    (53, "IPV6_RECVHOPOPTS", Stays),
    (54, "IPV6_HOPOPTS", Stays),
    (55, "IPV6_RTHDRDSTOPTS", Stays),
    (56, "IPV6_RECVRTHDR", Stays),
    (57, "IPV6_RTHDR", Stays),
    (58, "IPV6_RECVDSTOPTS", Stays),
    (59, "IPV6_DSTOPTS", Stays),
    (60, "IPV6_RECVPATHMTU", Stays),
    (62, "IPV6_DONTFRAG", Stays),
    (63, "IPV6_USE_MIN_MTU", Stays),
    (66, "IPV6_RECVTCLASS", Stays),
    (67, "IPV6_TCLASS", Stays),
    (70, "IPV6_AUTOFLOWLABEL", Stays),
    (72, "IPV6_ADDR_PREFERENCES", Stays),
    (73, "IPV6_MINHOPCOUNT", Stays),
    (74, "IPV6_RECVORIGDSTADDR", Stays),
    (75, "IPV6_TRANSPARENT", Stays),
    (76, "IPV6_UNICAST_IF", Stays),
    (77, "IPV6_RECVFRAGSIZE", Stays),
    (78, "IPV6_FREEBIND", Stays),
];

/// The levels, in the order in which [`number`] counts their rows.
const LEVELS: [(i32, &[Row]); 4] = [
    (libc::SOL_SOCKET, SOCKET),
    (libc::IPPROTO_TCP, TCP),
    (libc::IPPROTO_IP, IP),
    (libc::IPPROTO_IPV6, IPV6),
];

/// How many options stand here.
pub const COUNT: usize = SOCKET.len() + TCP.len() + IP.len() + IPV6.len();

/// What every other option is called.
const OTHER: &str = "other";

fn rows() -> impl Iterator<Item = (i32, &'static Row)> {
    LEVELS.into_iter().flat_map(|(level, rows)| rows.iter().map(move |row| (level, row)))
}

/// What an option does. One that does not stand here only TCP can honour.
#[must_use]
pub fn kind(level: i32, name: i32) -> Kind {
    rows().find(|(at, row)| *at == level && row.0 == name).map_or(Tcp, |(_, row)| row.2)
}

/// The option's place here, from 1; 0 for one that does not stand here.
#[must_use]
pub fn number(level: i32, name: i32) -> u8 {
    let place = rows().position(|(at, row)| at == level && row.0 == name);
    place.and_then(|n| u8::try_from(n + 1).ok()).unwrap_or(0)
}

/// The name of the option with this [`number`].
#[must_use]
pub fn name(number: u8) -> &'static str {
    let place = usize::from(number).checked_sub(1);
    place.and_then(|n| rows().nth(n)).map_or(OTHER, |(_, row)| row.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_names() {
        const { assert!(COUNT < 255) };
        let all: Vec<_> = rows().map(|(level, row)| (level, row.0, row.1)).collect();
        assert_eq!(all.len(), COUNT);
        for (level, option, text) in &all {
            assert_eq!(name(number(*level, *option)), *text);
            assert_eq!(all.iter().filter(|o| (o.0, o.1) == (*level, *option)).count(), 1, "{text}");
        }
        assert_eq!((number(282, 1), name(0), name(255)), (0, OTHER, OTHER));
        assert_eq!(kind(282, 1), Tcp);
        assert_eq!(kind(libc::IPPROTO_TCP, libc::TCP_MD5SIG_EXT), Tcp);
        assert_eq!(kind(libc::IPPROTO_TCP, libc::TCP_NODELAY), Stays);
        assert_eq!(kind(libc::SOL_SOCKET, libc::SO_TIMESTAMP), Stamps);
    }

    #[test]
    fn the_page_names_each() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/options.md");
        let page = std::fs::read_to_string(path).unwrap();
        for (_, row) in rows() {
            let there = |l: &&str| l.contains(&format!("`{}`", row.1));
            let line = page.lines().find(there).unwrap_or_else(|| panic!("no line for {}", row.1));
            assert_eq!(line.contains("TCP (`odd_option`)"), row.2 != Stays, "{}", row.1);
        }
    }
}
