//! The 40 bytes that each side sends while connecting (`wire-protocol §2.2` to `§2.4`).
//!
//! Knows nothing of connection managers, only of the bytes they carry. Entry points:
//! [`PrivateData::to_bytes`] and [`PrivateData::parse`], and the two for AF_IB requests.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::iomap::Iomap;
use super::sge::{Endian, Sge};

/// The one version of the protocol.
pub const VERSION: u8 = 1;

/// The sender stores integers with the most significant byte first.
const FLAG_BIG_ENDIAN: u8 = 0x01;
/// The sender's target table is followed by an iomap table.
const FLAG_IOMAP: u8 = 0x02;
/// The sender understands the notes of rsocket-core's `bridge::peer_control`. One of the bits that
/// upstream leaves alone (`wire-protocol §2.2`). Each set of notes has a bit of its own: two ends
/// that know different ones keep to the protocol alone. 0x04 stood for all but `Closed`.
const FLAG_NOTES: u8 = 0x08;

/// What one side tells the other about itself. The request and the reply look the same.
#[doc(alias = "rs_conn_data")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateData {
    /// How the sender stores integers; entries in its table are written that way.
    pub endian: Endian,
    /// Messages that it can receive before it has read any.
    pub credits: u16,
    /// Entries of its iomap table; `None` when it has no such table. Rounded by
    /// [`representable_iomap`].
    pub iomap: Option<u16>,
    /// Whether it is one of ours, and answers our notes.
    pub notes: bool,
    /// Its target table. The length counts entries, not bytes.
    pub table: Sge,
    /// The part of its receive buffer that may be written first.
    pub buffer: Sge,
}

/// Why private data is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadPrivateData {
    /// Fewer bytes than there must be.
    Short,
    /// Another protocol. Upstream answers with a reject, or with `ENOTSUP` (`wire-protocol §2.7`).
    Version(u8),
    /// No credits: nothing could ever be sent.
    NoCredits,
    /// Fewer than 2 entries in the target table: there is none to write next.
    TableSize(u32),
    /// No bytes in the first buffer.
    EmptyBuffer,
    /// A table or a buffer that runs past the end of memory.
    Bounds,
}

/// As it lies on the wire: big endian throughout.
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct Raw {
    version: u8,
    flags: u8,
    credits: U16,
    reserved: [u8; 3],
    iomap: u8,
    table: RawSge,
    buffer: RawSge,
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct RawSge {
    addr: U64,
    rkey: U32,
    len: U32,
}

const _: () = assert!(size_of::<Raw>() == PrivateData::SIZE);

impl From<Sge> for RawSge {
    fn from(sge: Sge) -> Self {
        Self { addr: sge.addr.into(), rkey: sge.rkey.into(), len: sge.len.into() }
    }
}

impl From<RawSge> for Sge {
    fn from(raw: RawSge) -> Self {
        Self { addr: raw.addr.into(), rkey: raw.rkey.into(), len: raw.len.into() }
    }
}

impl PrivateData {
    /// Bytes on the wire.
    pub const SIZE: usize = 40;
    /// Bytes of placeholder before a request over AF_IB, where the kernel adds no header of its
    /// own.
    pub const IB_HEADER: usize = 36;
    /// Bytes of a request over AF_IB.
    pub const IB_REQUEST_SIZE: usize = Self::IB_HEADER + Self::SIZE;

    /// As it is sent, except for a request over AF_IB.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let big = if self.endian == Endian::Big { FLAG_BIG_ENDIAN } else { 0 };
        let iomap = if self.iomap.is_some() { FLAG_IOMAP } else { 0 };
        zerocopy::transmute!(Raw {
            version: VERSION,
            flags: big | iomap | if self.notes { FLAG_NOTES } else { 0 },
            credits: self.credits.into(),
            reserved: [0; 3],
            iomap: encode_iomap_size(self.iomap.unwrap_or(0)),
            table: self.table.into(),
            buffer: self.buffer.into(),
        })
    }

    /// A request over AF_IB: 36 bytes that no receiver reads, here 0, then the 40
    /// (`wire-protocol §2.3`). The reply has no placeholder.
    #[must_use]
    pub fn to_ib_request(&self) -> [u8; Self::IB_REQUEST_SIZE] {
        #[repr(C)]
        #[derive(IntoBytes, Immutable)]
        struct Request([u8; PrivateData::IB_HEADER], [u8; PrivateData::SIZE]);
        zerocopy::transmute!(Request([0; Self::IB_HEADER], self.to_bytes()))
    }

    /// Reads and checks what a peer sent. Bytes behind the 40, unknown flags and reserved bytes are
    /// left alone: they are room for extensions.
    ///
    /// # Errors
    /// [`BadPrivateData`]: upstream checks only the version, we check all that it relies on.
    pub fn parse(bytes: &[u8]) -> Result<Self, BadPrivateData> {
        let (raw, _) = Raw::read_from_prefix(bytes).map_err(|_| BadPrivateData::Short)?;
        if raw.version != VERSION {
            return Err(BadPrivateData::Version(raw.version));
        }
        let data = Self {
            endian: if raw.flags & FLAG_BIG_ENDIAN != 0 { Endian::Big } else { Endian::Little },
            credits: raw.credits.into(),
            iomap: (raw.flags & FLAG_IOMAP != 0).then(|| decode_iomap_size(raw.iomap)),
            notes: raw.flags & FLAG_NOTES != 0,
            table: raw.table.into(),
            buffer: raw.buffer.into(),
        };
        if data.credits == 0 {
            return Err(BadPrivateData::NoCredits);
        }
        if data.table.len < 2 {
            return Err(BadPrivateData::TableSize(data.table.len));
        }
        if data.buffer.len == 0 {
            return Err(BadPrivateData::EmptyBuffer);
        }
        // The whole table has to exist, or entry addresses could wrap around to somewhere else.
        let iomaps = u64::from(data.iomap.unwrap_or(0)) * Iomap::SIZE as u64;
        let table = u64::from(data.table.len) * Sge::SIZE as u64 + iomaps;
        if data.buffer.end().is_none() || data.table.addr.checked_add(table).is_none() {
            return Err(BadPrivateData::Bounds);
        }
        Ok(data)
    }

    /// Reads a request that came over AF_IB.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn parse_ib_request(bytes: &[u8]) -> Result<Self, BadPrivateData> {
        Self::parse(bytes.get(Self::IB_HEADER..).ok_or(BadPrivateData::Short)?)
    }

    /// Where to write entry `index` of the target table.
    #[must_use]
    pub fn entry_addr(&self, index: u32) -> Option<u64> {
        (index < self.table.len)
            .then(|| self.table.addr.checked_add(u64::from(index) * Sge::SIZE as u64))?
    }

    /// Where to write entry `index` of the iomap table, which follows the target table
    /// (`wire-protocol §2.6`).
    #[must_use]
    pub fn iomap_addr(&self, index: u16) -> Option<u64> {
        let start = self.table.addr.checked_add(u64::from(self.table.len) * Sge::SIZE as u64)?;
        (index < self.iomap?).then(|| start.checked_add(u64::from(index) * Iomap::SIZE as u64))?
    }
}

/// The most iomap entries that the scaled byte can say.
pub const MAX_IOMAP: u16 = 32512;

/// A count of iomap entries as one byte (`wire-protocol §2.4`). Counts above 128 are cut to a
/// multiple of 256 (or to 128), counts above [`MAX_IOMAP`] to that: upstream loses their high bits
/// instead.
#[must_use]
pub const fn encode_iomap_size(count: u16) -> u8 {
    match count {
        0..=128 => count as u8,
        129..=0x7fff => 0x80 | (count >> 8) as u8,
        0x8000.. => 0xff,
    }
}

/// The count that the byte stands for.
#[must_use]
pub const fn decode_iomap_size(byte: u8) -> u16 {
    if byte <= 128 { byte as u16 } else { ((byte & 0x7f) as u16) << 8 }
}

/// What is left of a count after it was sent.
#[must_use]
pub const fn representable_iomap(count: u16) -> u16 {
    decode_iomap_size(encode_iomap_size(count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn defaults() -> PrivateData {
        PrivateData {
            endian: Endian::Little,
            credits: 384,
            iomap: Some(0),
            notes: false,
            table: Sge { addr: 0x1122_3344_5566_7788, rkey: 0x0a0b_0c0d, len: 2 },
            buffer: Sge { addr: 0x99aa_bbcc_0000_0000, rkey: 0x0102_0304, len: 65536 },
        }
    }

    const GOLDEN: [u8; 40] = [
        0x01, 0x02, 0x01, 0x80, 0, 0, 0, 0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x0a,
        0x0b, 0x0c, 0x0d, 0, 0, 0, 2, 0x99, 0xaa, 0xbb, 0xcc, 0, 0, 0, 0, 1, 2, 3, 4, 0, 1, 0, 0,
    ];

    #[test]
    fn golden_vector_of_section_15() {
        assert_eq!(defaults().to_bytes(), GOLDEN);
        assert_eq!(PrivateData::parse(&GOLDEN), Ok(defaults()));
        assert_eq!(PrivateData { iomap: Some(1), ..defaults() }.to_bytes()[7], 1);
        assert_eq!(PrivateData { credits: 16, ..defaults() }.to_bytes()[2..4], [0, 0x10]);
        assert_eq!(PrivateData { endian: Endian::Big, ..defaults() }.to_bytes()[1], 3);
        assert_eq!(PrivateData { notes: true, ..defaults() }.to_bytes()[1], 0x0a);
    }

    #[test]
    fn iomap_sizes_of_section_2_4() {
        for (count, byte, meaning) in [
            (0, 0, 0),
            (128, 0x80, 128),
            (129, 0x80, 128),
            (255, 0x80, 128),
            (256, 0x81, 256),
            (511, 0x81, 256),
            (32512, 0xff, 32512),
            (40000, 0xff, 32512),
        ] {
            assert_eq!(encode_iomap_size(count), byte);
            assert_eq!(decode_iomap_size(byte), meaning);
        }
        assert_eq!(decode_iomap_size(0x9c), 7168);
    }

    #[test]
    fn ib_request_has_a_placeholder() {
        let request = defaults().to_ib_request();
        assert_eq!(request.len(), 76);
        assert_eq!(request[36..], GOLDEN);
        assert_eq!(PrivateData::parse_ib_request(&request), Ok(defaults()));
        assert_eq!(PrivateData::parse_ib_request(&request[..75]), Err(BadPrivateData::Short));
        assert_eq!(PrivateData::parse_ib_request(&[]), Err(BadPrivateData::Short));
    }

    #[test]
    fn extensions_are_left_alone() {
        let mut longer = [0xffu8; 56];
        longer[..40].copy_from_slice(&GOLDEN);
        longer[1] |= 0xf0;
        longer[4..7].copy_from_slice(&[1, 2, 3]);
        assert_eq!(PrivateData::parse(&longer), Ok(defaults()));
    }

    #[test]
    fn what_upstream_relies_on_is_checked() {
        let with = |f: fn(&mut PrivateData)| {
            let mut data = defaults();
            f(&mut data);
            PrivateData::parse(&data.to_bytes())
        };
        assert_eq!(with(|d| d.credits = 0), Err(BadPrivateData::NoCredits));
        assert_eq!(with(|d| d.table.len = 1), Err(BadPrivateData::TableSize(1)));
        assert_eq!(with(|d| d.buffer.len = 0), Err(BadPrivateData::EmptyBuffer));
        assert_eq!(with(|d| d.buffer.addr = u64::MAX), Err(BadPrivateData::Bounds));
        assert_eq!(with(|d| d.table.addr = u64::MAX - 31), Err(BadPrivateData::Bounds));
        assert_eq!(PrivateData::parse(&GOLDEN[..39]), Err(BadPrivateData::Short));
        let mut other = GOLDEN;
        other[0] = 2;
        assert_eq!(PrivateData::parse(&other), Err(BadPrivateData::Version(2)));
    }

    #[test]
    fn entries_are_where_section_2_6_says() {
        let data = PrivateData { iomap: Some(2), ..defaults() };
        let base = data.table.addr;
        assert_eq!(data.entry_addr(1), Some(base + 16));
        assert_eq!(data.entry_addr(2), None);
        assert_eq!(data.iomap_addr(1), Some(base + 32 + 24));
        assert_eq!(data.iomap_addr(2), None);
        assert_eq!(PrivateData { iomap: None, ..data }.iomap_addr(0), None);
    }

    proptest! {
        #[test]
        fn anything_parses_or_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..90)) {
            if let Ok(data) = PrivateData::parse(&bytes) {
                prop_assert_eq!(PrivateData::parse(&data.to_bytes()), Ok(data));
            }
            let _ = PrivateData::parse_ib_request(&bytes);
        }

        #[test]
        fn iomap_sizes_settle(count: u16) {
            let once = representable_iomap(count);
            prop_assert!(once <= count.max(1));
            prop_assert_eq!(representable_iomap(once), once);
        }
    }
}
