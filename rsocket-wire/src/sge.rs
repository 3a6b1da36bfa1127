//! The 16-byte descriptor of a remote buffer (`wire-protocol §3.2`).
//!
//! Knows nothing of what lies at the address. Entry points: [`Sge::to_bytes`] and
//! [`Sge::from_bytes`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// In which order a host stores the bytes of an integer.
///
/// Entries are written in the order of the host that owns the table (`wire-protocol §3.4`). The
/// flag in the private data said once which order that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endian {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

impl Endian {
    /// This host's.
    pub const NATIVE: Self = if cfg!(target_endian = "big") { Self::Big } else { Self::Little };
}

/// Where in a peer's memory a write may go, in host byte order.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Sge {
    /// Virtual address, or whatever the device takes for one.
    pub addr: u64,
    /// Remote key of the memory region.
    pub rkey: u32,
    /// Bytes.
    pub len: u32,
}

const _: () = assert!(size_of::<Sge>() == Sge::SIZE);

impl Sge {
    /// Bytes of an entry in a target table.
    pub const SIZE: usize = 16;

    /// As the owner of the table will read it.
    #[must_use]
    pub fn to_bytes(self, reader: Endian) -> [u8; Self::SIZE] {
        let swapped = match reader {
            Endian::Little => {
                Self { addr: self.addr.to_le(), rkey: self.rkey.to_le(), len: self.len.to_le() }
            }
            Endian::Big => {
                Self { addr: self.addr.to_be(), rkey: self.rkey.to_be(), len: self.len.to_be() }
            }
        };
        zerocopy::transmute!(swapped)
    }

    /// Reads an entry that was written for a host of this order.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::SIZE], reader: Endian) -> Self {
        let raw: Self = zerocopy::transmute!(bytes);
        match reader {
            Endian::Little => Self {
                addr: u64::from_le(raw.addr),
                rkey: u32::from_le(raw.rkey),
                len: u32::from_le(raw.len),
            },
            Endian::Big => Self {
                addr: u64::from_be(raw.addr),
                rkey: u32::from_be(raw.rkey),
                len: u32::from_be(raw.len),
            },
        }
    }

    /// The address just behind the last byte; `None` when no memory can end there.
    #[must_use]
    pub const fn end(self) -> Option<u64> {
        self.addr.checked_add(self.len as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_lie_where_section_3_2_says() {
        let entry = Sge { addr: 0x0102_0304_0506_0708, rkey: 0x1112_1314, len: 65536 };
        assert_eq!(
            entry.to_bytes(Endian::Little),
            [8, 7, 6, 5, 4, 3, 2, 1, 0x14, 0x13, 0x12, 0x11, 0, 0, 1, 0]
        );
        assert_eq!(
            entry.to_bytes(Endian::Big),
            [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0, 1, 0, 0]
        );
    }

    proptest! {
        #[test]
        fn round_trip(addr: u64, rkey: u32, len: u32, big: bool) {
            let order = if big { Endian::Big } else { Endian::Little };
            let entry = Sge { addr, rkey, len };
            prop_assert_eq!(Sge::from_bytes(entry.to_bytes(order), order), entry);
        }
    }
}
