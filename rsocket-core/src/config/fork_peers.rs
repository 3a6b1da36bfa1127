//! Which peers speak upstream's fork mode (`RSOCKET_FORK_PEERS`). Pure but for the words that
//! [`remember`] stores. Entry points: [`Peers::parse`], [`remember`], [`kind`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::net::IpAddr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Networks that can be named.
pub const MOST: usize = 16;

/// What is known of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing was said: what it does shows what it is.
    Unknown,
    /// It speaks fork mode.
    Named,
    /// It does not.
    Stranger,
}

/// A network: its addresses agree in so many of the first bits. IPv4 stands behind `::ffff:0:0/96`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct Network {
    address: u128,
    bits: u32,
}

impl Network {
    /// `10.0.0.0/8`, `fd00::/8`, or one address.
    fn parse(word: &[u8]) -> Option<Self> {
        let text = core::str::from_utf8(word).ok()?;
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u32>().ok()?)),
            None => (text, None),
        };
        let ip: IpAddr = address.parse().ok()?;
        let most = if ip.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        (bits <= most).then(|| Self { address: wide(&ip), bits: bits + 128 - most })
    }

    fn has(&self, ip: &IpAddr) -> bool {
        let differ = self.address ^ wide(ip);
        // A shift by all bits is none at all.
        self.bits == 0 || differ >> (128 - self.bits.min(128)) == 0
    }
}

fn wide(ip: &IpAddr) -> u128 {
    match ip.to_canonical() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// The setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Peers {
    /// Something was said.
    said: bool,
    networks: [Network; MOST],
    count: usize,
}

impl Peers {
    /// Reads `none`, `all`, or addresses and networks between commas; false when a word means
    /// nothing, or there are too many. An empty text says nothing.
    #[must_use]
    pub fn parse(text: &[u8]) -> (Self, bool) {
        let mut peers = Self::default();
        let mut clean = true;
        for word in text.split(|b| *b == b',').map(<[u8]>::trim_ascii).filter(|w| !w.is_empty()) {
            peers.said = true;
            let network = match word {
                b"none" => continue,
                b"all" => Some(Network::default()),
                other => Network::parse(other),
            };
            match (network, peers.networks.get_mut(peers.count)) {
                (Some(network), Some(place)) => {
                    *place = network;
                    peers.count += 1;
                }
                _ => clean = false,
            }
        }
        (peers, clean)
    }

    /// What this says of a peer.
    #[must_use]
    pub fn kind(&self, ip: &IpAddr) -> Kind {
        kind_of(self.said, self.networks.iter().take(self.count).any(|n| n.has(ip)))
    }
}

/// What is known of a peer that is, or is not, in one of the networks that the setting names, if
/// there is one.
fn kind_of(said: bool, named: bool) -> Kind {
    match (said, named) {
        (false, _) => Kind::Unknown,
        (true, true) => Kind::Named,
        (true, false) => Kind::Stranger,
    }
}

/// The setting as words: threads that find it at the same time store the same.
static COUNT: AtomicU32 = AtomicU32::new(0);
static SAID: AtomicU32 = AtomicU32::new(0);
static WORDS: [[AtomicU64; 3]; MOST] = [const { [const { AtomicU64::new(0) }; 3] }; MOST];

/// Makes this the setting of the process.
pub fn remember(peers: &Peers) {
    for (words, network) in WORDS.iter().zip(peers.networks) {
        let [high, low, bits] = words;
        high.store((network.address >> 64) as u64, Ordering::Relaxed);
        low.store(network.address as u64, Ordering::Relaxed);
        bits.store(network.bits.into(), Ordering::Relaxed);
    }
    COUNT.store(peers.count as u32, Ordering::Relaxed);
    // Release: pairs with kind().
    SAID.store(peers.said.into(), Ordering::Release);
}

/// What the setting of the process says of a peer.
#[must_use]
pub fn kind(ip: &IpAddr) -> Kind {
    // Acquire: pairs with remember().
    let said = SAID.load(Ordering::Acquire) != 0;
    // One after the other: all of them together would be half a kilobyte of the caller's stack.
    let named = WORDS.iter().take(COUNT.load(Ordering::Relaxed) as usize).any(|words| {
        let [high, low, bits] = words.each_ref().map(|w| w.load(Ordering::Relaxed));
        Network { address: u128::from(high) << 64 | u128::from(low), bits: bits as u32 }.has(ip)
    });
    kind_of(said, named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kind_in(text: &str, ip: &str) -> Kind {
        let (peers, clean) = Peers::parse(text.as_bytes());
        assert!(clean, "{text}");
        peers.kind(&ip.parse().unwrap())
    }

    #[test]
    fn networks_have_their_addresses() {
        assert_eq!(kind_in("", "10.0.0.1"), Kind::Unknown);
        assert_eq!(kind_in("none", "10.0.0.1"), Kind::Stranger);
        assert_eq!(kind_in("all", "10.0.0.1"), Kind::Named);
        assert_eq!(kind_in("all", "fd00::1"), Kind::Named);
        assert_eq!(kind_in("10.0.0.0/8", "10.9.8.7"), Kind::Named);
        assert_eq!(kind_in("10.0.0.0/8", "11.9.8.7"), Kind::Stranger);
        assert_eq!(
            kind_in("10.0.0.0/8", "::ffff:10.1.1.1"),
            Kind::Named,
            "IPv4 through an IPv6 socket"
        );
        assert_eq!(kind_in("0.0.0.0/0", "1.2.3.4"), Kind::Named);
        assert_eq!(kind_in("0.0.0.0/0", "fd00::1"), Kind::Stranger);
        assert_eq!(kind_in("10.0.0.1, fd00::/16", "fd00:1::2"), Kind::Named);
        assert_eq!(kind_in("10.0.0.1, fd00::/16", "10.0.0.2"), Kind::Stranger);
    }

    #[test]
    fn nonsense_is_said_and_names_nobody() {
        for text in ["10.0.0.0/33", "fd00::/129", "host", "10.0.0.1/", "/8", "10.0.0.1/-1"] {
            let (peers, clean) = Peers::parse(text.as_bytes());
            assert!(!clean, "{text}");
            assert_eq!(peers.kind(&"10.0.0.1".parse().unwrap()), Kind::Stranger, "{text}");
        }
        let many = ["10.0.0.1"; MOST + 1].join(",");
        assert!(!Peers::parse(many.as_bytes()).1);
    }

    #[test]
    fn the_process_remembers() {
        remember(&Peers::parse(b"10.0.0.0/8,fd00::1").0);
        assert_eq!(kind(&"10.2.3.4".parse().unwrap()), Kind::Named);
        assert_eq!(kind(&"fd00::1".parse().unwrap()), Kind::Named);
        assert_eq!(kind(&"fd00::2".parse().unwrap()), Kind::Stranger);
    }

    proptest! {
        #[test]
        fn no_text_panics(text: Vec<u8>, ip: u128) {
            let (peers, _) = Peers::parse(&text);
            let _ = peers.kind(&core::net::Ipv6Addr::from_bits(ip).into());
        }
    }
}
