//! The 24-byte entry that describes a buffer for direct placement (`wire-protocol §3.3`).
//!
//! Knows nothing of mappings or of who may write them. Entry points: [`Iomap::to_bytes`] and
//! [`Iomap::from_bytes`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::sge::{Endian, Sge};

/// One mapping, in host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Iomap {
    /// The offset by which applications name the first byte of the mapping.
    pub offset: u64,
    /// Where it is.
    pub target: Sge,
}

/// As it lies in memory. Its alignment is 8 and its fields leave no gap.
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
struct Raw {
    offset: [u8; 8],
    target: [u8; Sge::SIZE],
}

const _: () = assert!(size_of::<Raw>() == Iomap::SIZE);

impl Iomap {
    /// Bytes of an entry.
    pub const SIZE: usize = 24;

    /// As the owner of the table will read it.
    #[must_use]
    pub fn to_bytes(self, reader: Endian) -> [u8; Self::SIZE] {
        let offset = match reader {
            Endian::Little => self.offset.to_le_bytes(),
            Endian::Big => self.offset.to_be_bytes(),
        };
        zerocopy::transmute!(Raw { offset, target: self.target.to_bytes(reader) })
    }

    /// Reads an entry that was written for a host of this order.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::SIZE], reader: Endian) -> Self {
        let raw: Raw = zerocopy::transmute!(bytes);
        let offset = match reader {
            Endian::Little => u64::from_le_bytes(raw.offset),
            Endian::Big => u64::from_be_bytes(raw.offset),
        };
        Self { offset, target: Sge::from_bytes(raw.target, reader) }
    }

    /// Where a direct write of up to `len` bytes at `offset` goes: as much of it as this mapping
    /// holds. `None` when the mapping does not hold the first byte, or is nonsense
    /// (`wire-protocol §8.3`).
    #[must_use]
    pub fn locate(self, offset: u64, len: u32) -> Option<Sge> {
        let into = u32::try_from(offset.checked_sub(self.offset)?).ok()?;
        let left = self.target.len.checked_sub(into).filter(|left| *left > 0)?;
        self.target.end()?;
        let addr = self.target.addr + u64::from(into);
        Some(Sge { addr, rkey: self.target.rkey, len: len.min(left) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_lie_where_section_3_3_says() {
        let entry = Iomap { offset: 0x0a0b, target: Sge { addr: 0x1000, rkey: 0x77, len: 8192 } };
        let mut expected = [0u8; 24];
        expected[6] = 0x0a;
        expected[7] = 0x0b;
        expected[14] = 0x10;
        expected[19] = 0x77;
        expected[22] = 0x20;
        assert_eq!(entry.to_bytes(Endian::Big), expected);
    }

    #[test]
    fn a_mapping_holds_its_bytes_and_no_others() {
        let entry = Iomap { offset: 100, target: Sge { addr: 0x1000, rkey: 7, len: 10 } };
        assert_eq!(entry.locate(99, 1), None);
        assert_eq!(entry.locate(100, 99), Some(Sge { addr: 0x1000, rkey: 7, len: 10 }));
        assert_eq!(entry.locate(109, 99), Some(Sge { addr: 0x1009, rkey: 7, len: 1 }));
        assert_eq!(entry.locate(110, 1), None);
        let nonsense = Iomap { offset: 0, target: Sge { addr: u64::MAX, rkey: 7, len: 10 } };
        assert_eq!(nonsense.locate(5, 1), None);
    }

    proptest! {
        #[test]
        fn round_trip(offset: u64, addr: u64, rkey: u32, len: u32, big: bool) {
            let order = if big { Endian::Big } else { Endian::Little };
            let entry = Iomap { offset, target: Sge { addr, rkey, len } };
            prop_assert_eq!(Iomap::from_bytes(entry.to_bytes(order), order), entry);
        }

        #[test]
        fn locate_stays_inside(base: u64, addr: u64, len: u32, offset: u64, wanted: u32) {
            let target = Sge { addr, rkey: 1, len };
            if let Some(hit) = (Iomap { offset: base, target }).locate(offset, wanted) {
                prop_assert!(hit.addr >= target.addr && hit.end().unwrap() <= target.end().unwrap());
            }
        }
    }
}
