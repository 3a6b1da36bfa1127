//! The headers of datagram sockets (`wire-protocol §9.2`, `§9.3`).
//!
//! Knows nothing of queue pairs or destinations. Entry points: [`UdHeader`] for frames on the queue
//! pair, [`UdpHeader`] for those on the UDP socket, and [`Invitation`]. Each header has `to_bytes`
//! and `parse`. An [`Invitation`] stands behind the header of a packet that only this library
//! knows.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The tag that tells our packets on the UDP socket from others.
const TAG: u32 = 0x5555_5555;
/// Only the low bits of a queue pair number mean anything.
const QPN_MASK: u32 = 0x00ff_ffff;

/// Why a frame or packet is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadFrame {
    /// Fewer bytes than its header has.
    Short,
    /// Version and header length are no pair that we know.
    Version(u8, u8),
    /// Not one of ours.
    Tag(u32),
    /// For a purpose that neither this library nor upstream has.
    Op(u8),
}

/// A header of one of the two lengths that an address family gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderBytes {
    bytes: [u8; 28],
    len: u8,
}

impl HeaderBytes {
    /// The bytes to put before the user's.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// Copies a header that is no longer than `bytes`, as all of this module are.
    fn of(header: &[u8]) -> Self {
        let mut bytes = [0; 28];
        let mut len = 0;
        for (to, from) in bytes.iter_mut().zip(header) {
            *to = *from;
            len += 1;
        }
        Self { bytes, len }
    }
}

/// Who sent a datagram, in front of every frame on the queue pair.
#[doc(alias = "ds_header")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdHeader {
    /// From an IPv4 address.
    V4 {
        /// The sender's UDP port.
        port: u16,
        /// Its address, in network order.
        addr: [u8; 4],
    },
    /// From an IPv6 address.
    V6 {
        /// The sender's UDP port.
        port: u16,
        /// Flow information, in network order.
        flowinfo: [u8; 4],
        /// Its address, in network order.
        addr: [u8; 16],
    },
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct RawUd<const N: usize> {
    version: u8,
    length: u8,
    port: U16,
    word: [u8; 4],
    addr: [u8; N],
}

impl UdHeader {
    /// Bytes of an IPv4 header.
    pub const V4_SIZE: usize = 8;
    /// Bytes of an IPv6 header.
    pub const V6_SIZE: usize = 24;

    /// As it is sent.
    #[must_use]
    pub fn to_bytes(&self) -> HeaderBytes {
        match *self {
            Self::V4 { port, addr } => {
                let raw =
                    RawUd::<0> { version: 4, length: 8, port: port.into(), word: addr, addr: [] };
                HeaderBytes::of(raw.as_bytes())
            }
            Self::V6 { port, flowinfo, addr } => {
                let raw =
                    RawUd::<16> { version: 6, length: 24, port: port.into(), word: flowinfo, addr };
                HeaderBytes::of(raw.as_bytes())
            }
        }
    }

    /// Reads the header of a frame (the global routing header taken off) and gives the user data
    /// behind it.
    ///
    /// # Errors
    /// The frame is to be dropped.
    pub fn parse(frame: &[u8]) -> Result<(Self, &[u8]), BadFrame> {
        let (short, rest) = RawUd::<0>::read_from_prefix(frame).map_err(|_| BadFrame::Short)?;
        match (short.version, short.length) {
            (4, 8) => Ok((Self::V4 { port: short.port.into(), addr: short.word }, rest)),
            (6, 24) => {
                let (raw, rest) =
                    RawUd::<16>::read_from_prefix(frame).map_err(|_| BadFrame::Short)?;
                Ok((Self::V6 { port: raw.port.into(), flowinfo: raw.word, addr: raw.addr }, rest))
            }
            (version, length) => Err(BadFrame::Version(version, length)),
        }
    }
}

/// What a packet on the UDP socket is for. Upstream sends the first two, and takes every number but
/// 0 for the second (`wire-protocol §14`). The others are between two of ours, and do no harm
/// elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum UdpOp {
    /// User data follows, and an answer is wanted.
    Data = 0,
    /// Only the address counts.
    Address = 7,
    /// An answer is wanted, and there are no data: is the peer still what it was?
    Ask = 8,
    /// The answer of a socket without a queue pair: an [`Invitation`] to share memory follows.
    Invite = 9,
    /// Something was put into memory that the two share.
    Nudge = 10,
}

impl UdpOp {
    const fn parse(number: u8) -> Result<Self, BadFrame> {
        match number {
            0 => Ok(Self::Data),
            7 => Ok(Self::Address),
            8 => Ok(Self::Ask),
            9 => Ok(Self::Invite),
            10 => Ok(Self::Nudge),
            other => Err(BadFrame::Op(other)),
        }
    }
}

/// Where to bring memory, and what to show there: a process that shows it has seen packets that
/// went to the invited address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// The name of the socket that takes it.
    pub name: u64,
    /// What to show.
    pub token: u128,
}

impl Invitation {
    /// Bytes behind the header.
    pub const SIZE: usize = 24;

    /// As it is sent, numbers big endian.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let both = self.name.to_be_bytes().into_iter().chain(self.token.to_be_bytes());
        for (to, from) in bytes.iter_mut().zip(both) {
            *to = from;
        }
        bytes
    }

    /// Reads what stands behind a header.
    ///
    /// # Errors
    /// There are more or fewer bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, BadFrame> {
        let whole: &[u8; Self::SIZE] = bytes.try_into().map_err(|_| BadFrame::Short)?;
        let number = |bytes: &[u8]| bytes.iter().fold(0_u128, |n, b| n << 8 | u128::from(*b));
        let (name, token) = whole.split_at(8);
        Ok(Self { name: number(name) as u64, token: number(token) })
    }
}

/// The sender's own address in a packet; receivers ignore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpAddr {
    /// IPv4, in network order.
    V4([u8; 4]),
    /// IPv6, in network order.
    V6([u8; 16]),
}

/// In front of every packet on the UDP socket.
#[doc(alias = "ds_udp_header")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpHeader {
    /// What it is for.
    pub op: UdpOp,
    /// The sender's queue pair; 24 bits.
    pub qpn: u32,
    /// The address of that queue pair. Who the sender is, the UDP packet itself says.
    pub addr: UdpAddr,
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct RawUdp<const N: usize> {
    tag: U32,
    version: u8,
    op: u8,
    length: u8,
    reserved: u8,
    qpn: U32,
    addr: [u8; N],
}

impl UdpHeader {
    /// Bytes of an IPv4 header.
    pub const V4_SIZE: usize = 16;
    /// Bytes of an IPv6 header.
    pub const V6_SIZE: usize = 28;
    /// Whether a packet is meant for the exchange at all; what is not is whatever its sender says.
    #[must_use]
    pub fn is_tagged(packet: &[u8]) -> bool {
        packet.starts_with(&TAG.to_be_bytes())
    }

    fn raw<const N: usize>(&self, version: u8, length: usize, addr: [u8; N]) -> RawUdp<N> {
        RawUdp {
            tag: TAG.into(),
            version,
            op: self.op as u8,
            length: length as u8,
            reserved: 0,
            qpn: (self.qpn & QPN_MASK).into(),
            addr,
        }
    }

    /// As it is sent.
    #[must_use]
    pub fn to_bytes(&self) -> HeaderBytes {
        match self.addr {
            UdpAddr::V4(addr) => HeaderBytes::of(self.raw(4, Self::V4_SIZE, addr).as_bytes()),
            UdpAddr::V6(addr) => HeaderBytes::of(self.raw(6, Self::V6_SIZE, addr).as_bytes()),
        }
    }

    /// Reads the header of a packet and gives the user data behind it.
    ///
    /// # Errors
    /// The packet is to be dropped.
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), BadFrame> {
        let (short, _) = RawUdp::<0>::read_from_prefix(packet).map_err(|_| BadFrame::Short)?;
        if short.tag != U32::new(TAG) {
            return Err(BadFrame::Tag(short.tag.into()));
        }
        let (addr, rest) = match (short.version, usize::from(short.length)) {
            (4, Self::V4_SIZE) => {
                let (raw, rest) =
                    RawUdp::<4>::read_from_prefix(packet).map_err(|_| BadFrame::Short)?;
                (UdpAddr::V4(raw.addr), rest)
            }
            (6, Self::V6_SIZE) => {
                let (raw, rest) =
                    RawUdp::<16>::read_from_prefix(packet).map_err(|_| BadFrame::Short)?;
                (UdpAddr::V6(raw.addr), rest)
            }
            _ => return Err(BadFrame::Version(short.version, short.length)),
        };
        let op = UdpOp::parse(short.op)?;
        Ok((Self { op, qpn: u32::from(short.qpn) & QPN_MASK, addr }, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frame_of_section_9_2() {
        let frame = [4, 8, 0x1b, 0x5a, 127, 0, 0, 1, b'x'];
        let header = UdHeader::V4 { port: 7002, addr: [127, 0, 0, 1] };
        assert_eq!(UdHeader::parse(&frame), Ok((header, &b"x"[..])));
        assert_eq!(header.to_bytes().as_slice(), &frame[..8]);
    }

    #[test]
    fn packets_of_section_9_3() {
        let first = b"\x55\x55\x55\x55\x04\x00\x10\x00\x00\x00\x01\x23\x7f\x00\x00\x01first";
        let header = UdpHeader { op: UdpOp::Data, qpn: 0x123, addr: UdpAddr::V4([127, 0, 0, 1]) };
        assert_eq!(UdpHeader::parse(first), Ok((header, &b"first"[..])));
        assert_eq!(header.to_bytes().as_slice(), &first[..16]);
        let reply = UdpHeader { op: UdpOp::Address, ..header };
        assert_eq!(
            reply.to_bytes().as_slice(),
            b"\x55\x55\x55\x55\x04\x07\x10\x00\x00\x00\x01\x23\x7f\x00\x00\x01"
        );
    }

    #[test]
    fn wrong_frames_are_dropped() {
        assert_eq!(UdHeader::parse(&[4, 8, 0, 0, 0, 0, 0]), Err(BadFrame::Short));
        assert_eq!(UdHeader::parse(&[6, 24, 0, 0, 0, 0, 0, 0]), Err(BadFrame::Short));
        assert_eq!(UdHeader::parse(&[4, 24, 0, 0, 0, 0, 0, 0]), Err(BadFrame::Version(4, 24)));
        assert_eq!(UdpHeader::parse(&[0; 28]), Err(BadFrame::Tag(0)));
        let mut cut = [0x55; 15];
        cut[4..].copy_from_slice(&[4, 0, 16, 0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(UdpHeader::parse(&cut), Err(BadFrame::Short));
        let mut odd = *b"\x55\x55\x55\x55\x04\x05\x10\x00\x00\x00\x01\x23\x7f\x00\x00\x01";
        assert_eq!(UdpHeader::parse(&odd), Err(BadFrame::Op(5)));
        odd[5] = 8;
        assert_eq!(UdpHeader::parse(&odd).map(|(h, _)| h.op), Ok(UdpOp::Ask));
        odd[6] = 28;
        assert_eq!(UdpHeader::parse(&odd), Err(BadFrame::Version(4, 28)));
    }

    #[test]
    fn invitations_come_back() {
        let invitation = Invitation { name: 0x0102_0304_0506_0708, token: 0xffee_ddcc << 96 | 1 };
        let bytes = invitation.to_bytes();
        assert_eq!((bytes[0], bytes[8], bytes[23]), (1, 0xff, 1));
        assert_eq!(Invitation::parse(&bytes), Ok(invitation));
        assert_eq!(Invitation::parse(&bytes[..23]), Err(BadFrame::Short));
        assert_eq!(Invitation::parse(&[0; 25]), Err(BadFrame::Short));
    }

    proptest! {
        #[test]
        fn ud_round_trip(port: u16, flowinfo: [u8; 4], addr: [u8; 16], v6: bool) {
            let header = if v6 {
                UdHeader::V6 { port, flowinfo, addr }
            } else {
                UdHeader::V4 { port, addr: flowinfo }
            };
            let bytes = header.to_bytes();
            prop_assert_eq!(UdHeader::parse(bytes.as_slice()), Ok((header, &[][..])));
        }

        #[test]
        fn udp_round_trip(data: bool, qpn in 0u32..1 << 24, addr: [u8; 16], v6: bool) {
            let short = [addr[0], addr[1], addr[2], addr[3]];
            let header = UdpHeader {
                op: if data { UdpOp::Data } else { UdpOp::Address },
                qpn,
                addr: if v6 { UdpAddr::V6(addr) } else { UdpAddr::V4(short) },
            };
            let bytes = header.to_bytes();
            prop_assert_eq!(UdpHeader::parse(bytes.as_slice()), Ok((header, &[][..])));
        }

        #[test]
        fn anything_parses_or_is_dropped(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = UdHeader::parse(&bytes);
            let _ = UdpHeader::parse(&bytes);
        }
    }
}
