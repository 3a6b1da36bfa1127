//! The pcapng format, as far as the tap needs it. That is a section with one interface of raw IP
//! packets, and TCP segments as they would have been. Pure; numbers are in the order of the
//! machine, which the format allows, packets in the network's.
#![forbid(unsafe_code)]

use core::net::{IpAddr, SocketAddr};

/// The longest head of a segment: block, IPv6 and TCP with its options.
pub const HEAD_MAX: usize = 28 + 40 + 24;
/// Section, interface, and the option that says that times are in nanoseconds.
pub const OPENING: usize = 28 + 32;

/// Bits of a TCP header.
pub mod tcp {
    /// The sender has no more.
    pub const FIN: u8 = 1;
    /// The first segment.
    pub const SYN: u8 = 2;
    /// Hand this to the program.
    pub const PSH: u8 = 8;
    /// The acknowledgement number counts.
    pub const ACK: u8 = 16;
}

/// Bytes that are put together from the left.
pub struct Bytes<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Bytes<N> {
    const fn new() -> Self {
        Self { bytes: [0; N], len: 0 }
    }

    fn put(&mut self, more: &[u8]) {
        let room = self.bytes.get_mut(self.len..).unwrap_or(&mut []);
        for (to, from) in room.iter_mut().zip(more) {
            *to = *from;
        }
        self.len = (self.len + more.len()).min(N);
    }

    fn word(&mut self, n: u32) {
        self.put(&n.to_ne_bytes());
    }

    /// What there is.
    #[must_use]
    pub fn get(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}

/// What a section begins with. Blocks of several processes may follow each other in any order: each
/// has said the same.
#[must_use]
pub fn opening() -> Bytes<OPENING> {
    let mut b = Bytes::new();
    for word in [0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28] {
        b.word(word);
    }
    b.word(1);
    b.word(32);
    // Raw IP packets of any length; if_tsresol = 9, end of options.
    b.put(&101u16.to_ne_bytes());
    b.put(&[0; 2]);
    b.word(0);
    b.put(&9u16.to_ne_bytes());
    b.put(&1u16.to_ne_bytes());
    b.word(u32::from_ne_bytes([9, 0, 0, 0]));
    b.word(0);
    b.word(32);
    b
}

/// A TCP segment that never was.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// The address of its sender.
    pub from: SocketAddr,
    /// The address of its receiver.
    pub to: SocketAddr,
    /// Number of its first byte.
    pub sequence: u32,
    /// Number of the byte that its sender expects.
    pub acknowledged: u32,
    /// Bits of [`tcp`].
    pub flags: u8,
    /// Bytes of the stream in it; at most 65 000.
    pub len: usize,
    /// Nanoseconds since 1970.
    pub time: u64,
}

impl Segment {
    /// What stands before the bytes of the stream.
    #[must_use]
    pub fn head(&self) -> Bytes<HEAD_MAX> {
        let four = matches!(self.ends(), (IpAddr::V4(_), IpAddr::V4(_)));
        let options = if self.flags & tcp::SYN != 0 { 4 } else { 0 };
        let transport = 20 + options + self.len;
        let packet = transport + if four { 20 } else { 40 };
        let mut b = Bytes::new();
        b.word(6);
        b.word(self.total(packet) as u32);
        b.word(0);
        b.word((self.time >> 32) as u32);
        b.word(self.time as u32);
        b.word(packet as u32);
        b.word(packet as u32);
        self.ip(&mut b, transport);
        b.put(&self.from.port().to_be_bytes());
        b.put(&self.to.port().to_be_bytes());
        b.put(&self.sequence.to_be_bytes());
        b.put(&self.acknowledged.to_be_bytes());
        b.put(&[(((20 + options) / 4) << 4) as u8, self.flags]);
        // The largest channel; no checksum, as where a device computes it; no urgent pointer.
        b.put(&[0xff, 0xff, 0, 0, 0, 0]);
        if options > 0 {
            // The channel is in units of 2^14 bytes.
            b.put(&[3, 3, 14, 0]);
        }
        b
    }

    /// What stands behind them.
    #[must_use]
    pub fn tail(&self) -> Bytes<8> {
        let packet = self.packet_len();
        let mut b = Bytes::new();
        b.put([0; 3].get(..packet.next_multiple_of(4) - packet).unwrap_or(&[]));
        b.word(self.total(packet) as u32);
        b
    }

    fn ends(&self) -> (IpAddr, IpAddr) {
        (self.from.ip().to_canonical(), self.to.ip().to_canonical())
    }

    fn packet_len(&self) -> usize {
        let four = matches!(self.ends(), (IpAddr::V4(_), IpAddr::V4(_)));
        20 + self.len + if self.flags & tcp::SYN != 0 { 4 } else { 0 } + if four { 20 } else { 40 }
    }

    fn total(&self, packet: usize) -> usize {
        32 + packet.next_multiple_of(4)
    }

    fn ip(&self, b: &mut Bytes<HEAD_MAX>, transport: usize) {
        match self.ends() {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let [high, low] = ((transport + 20) as u16).to_be_bytes();
                let mut head = Bytes::<20>::new();
                // Version and length, no fragments, 64 hops, TCP.
                head.put(&[0x45, 0, high, low, 0, 0, 0x40, 0, 64, 6, 0, 0]);
                head.put(&from.octets());
                head.put(&to.octets());
                let sum = checksum(head.get()).to_be_bytes();
                for (to, from) in head.bytes.iter_mut().skip(10).zip(sum) {
                    *to = from;
                }
                b.put(head.get());
            }
            (from, to) => {
                let six = |a: IpAddr| match a {
                    IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
                    IpAddr::V6(a) => a.octets(),
                };
                let [high, low] = (transport as u16).to_be_bytes();
                b.put(&[0x60, 0, 0, 0, high, low, 6, 64]);
                b.put(&six(from));
                b.put(&six(to));
            }
        }
    }
}

/// The Internet checksum of a header whose own field is zero.
fn checksum(head: &[u8]) -> u16 {
    let pairs = head.as_chunks::<2>().0.iter().map(|p| u32::from(u16::from_be_bytes(*p)));
    let sum: u32 = pairs.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_agree_wherever_they_stand() {
        let four = ["10.0.0.1:80".parse().unwrap(), "10.0.0.2:9".parse().unwrap()];
        let mapped =
            ["[::ffff:10.0.0.1]:80".parse().unwrap(), "[::ffff:10.0.0.2]:9".parse().unwrap()];
        let six = ["[fd00::1]:80".parse().unwrap(), "[fd00::2]:9".parse().unwrap()];
        for ([from, to], ip) in [(four, 20), (mapped, 20), (six, 40)] {
            for flags in [tcp::SYN, tcp::ACK] {
                for len in [0, 1, 2, 3, 4, 65_000] {
                    let s = Segment { from, to, sequence: 1, acknowledged: 2, flags, len, time: 3 };
                    let (head, tail) = (s.head(), s.tail());
                    let whole = head.get().len() + len + tail.get().len();
                    let said = |at: usize, from: &[u8]| {
                        u32::from_ne_bytes(from[at..at + 4].try_into().unwrap())
                    };
                    assert_eq!(said(4, head.get()) as usize, whole);
                    assert_eq!(said(tail.get().len() - 4, tail.get()) as usize, whole);
                    assert_eq!(whole % 4, 0);
                    let packet = said(20, head.get()) as usize;
                    assert_eq!(packet, ip + 20 + len + if flags == tcp::SYN { 4 } else { 0 });
                    assert_eq!(head.get().len(), 28 + packet - len);
                }
            }
        }
    }

    #[test]
    fn the_checksum_is_the_internets() {
        // An example of RFC 1071: words that sum to ddf2.
        assert_eq!(checksum(&[0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    }

    #[test]
    fn the_opening_is_two_whole_blocks() {
        assert_eq!(opening().get().len(), OPENING);
    }
}
