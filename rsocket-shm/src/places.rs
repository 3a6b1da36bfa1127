//! Direct placement in a direction: the receiver's mappings, as the sender may see them, and the
//! ring in which bytes for them travel.
//!
//! The memory behind a mapping is the receiving program's own, which no other process can reach. So
//! the bytes lie in a ring of the channel, until a thread of the receiver's side puts them into
//! place. Each piece lies behind a [`Header`] that names mapping and place. The ring has room of
//! its own, apart from the receive buffer: a program that does not read its stream holds up nothing
//! here. Positions are the caller's, as in [`super::direction`]; they count bytes since the start.
//! Nothing that is read here is to be believed. [`Direction::next_place`] checks that a piece lies
//! in the ring, and the caller checks that it lies in a mapping.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::direction::Direction;
use super::layout::{MAPS, PLACES};
use rsocket_host::copy::Bytes;

/// What stands before the bytes of a piece.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Header {
    /// Which entry of the table.
    pub index: u32,
    /// Which of the mappings that this entry has had.
    pub generation: u32,
    /// Where in the mapping.
    pub at: u32,
    /// Bytes, at least 1.
    pub len: u32,
}

impl Header {
    /// Bytes of a header; pieces start at multiples of it, so that none is broken by the ring's
    /// end.
    pub const SIZE: usize = size_of::<Self>();

    /// Bytes of the ring that the whole piece takes.
    #[must_use]
    pub const fn extent(&self) -> u64 {
        Self::SIZE as u64 + (self.len as u64).next_multiple_of(Self::SIZE as u64)
    }
}

const _: () = assert!(Header::SIZE == 16 && PLACES.is_multiple_of(Header::SIZE));

/// The other side wrote what cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonsense;

/// Where a direct write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// As [`Header::index`].
    pub index: u32,
    /// As [`Header::generation`].
    pub generation: u32,
    /// As [`Header::at`].
    pub at: u32,
    /// Bytes from there to the mapping's end, at least 1.
    pub left: u32,
}

impl Direction {
    /// Sender: says how many mappings it remembers, at most [`MAPS`].
    pub fn offer(&self, mappings: u32) {
        // Release: nothing else hangs on it; the number alone counts.
        self.placing().offered.store(mappings.min(MAPS as u32) + 1, Ordering::Release);
    }

    /// Receiver: how many mappings the sender remembers; `None` before it has said so.
    #[must_use]
    pub fn offered(&self) -> Option<u32> {
        let said = self.placing().offered.load(Ordering::Acquire).checked_sub(1)?;
        Some(said.min(MAPS as u32))
    }

    /// Receiver: shows the sender a mapping of `len` bytes, or with 0 that there is none any more.
    /// `generation` is even, and another one than before.
    pub fn show_map(&self, index: u32, generation: u32, offset: u64, len: u32) {
        let Some((entry, before)) =
            self.maps().get(..=index as usize).and_then(|all| all.split_last())
        else {
            return;
        };
        // Relaxed: only we write it. Entries that were skipped are of an earlier connection of this
        // channel.
        let high = self.placed().high.load(Ordering::Relaxed) as usize;
        before.iter().skip(high).for_each(|skipped| skipped.len.store(0, Ordering::Relaxed));
        // Release fence: a sender that reads a field of the new mapping reads a generation that is
        // odd or new (find_map).
        entry.generation.store(generation | 1, Ordering::Relaxed);
        fence(Ordering::Release);
        entry.offset.store(offset, Ordering::Relaxed);
        entry.len.store(len, Ordering::Relaxed);
        // Release: pairs with the first Acquire in find_map.
        entry.generation.store(generation, Ordering::Release);
        // Release: pairs with the Acquire in find_map; below it all entries are this connection's.
        self.placed().high.fetch_max(index + 1, Ordering::Release);
    }

    /// Sender: the mapping that holds the byte at this offset.
    #[must_use]
    pub fn find_map(&self, offset: u64) -> Option<Spot> {
        let high = self.placed().high.load(Ordering::Acquire) as usize;
        self.maps().iter().take(high).zip(0..).find_map(|(entry, index)| {
            // Acquire, and the fence below: pair with show_map. The fields are those of one
            // generation.
            let generation = entry.generation.load(Ordering::Acquire);
            let (start, len) =
                (entry.offset.load(Ordering::Relaxed), entry.len.load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if generation & 1 != 0 || entry.generation.load(Ordering::Relaxed) != generation {
                return None;
            }
            let at = u32::try_from(offset.checked_sub(start)?).ok()?;
            let left = len.checked_sub(at).filter(|left| *left > 0)?;
            Some(Spot { index, generation, at, left })
        })
    }

    /// Sender: the most bytes that one more piece can have; 0 when there is no room.
    ///
    /// # Errors
    /// The receiver says that it has taken what was never put there.
    pub fn place_room(&self, put: u64) -> Result<usize, Nonsense> {
        // Acquire: pairs with the Release in publish_taken; what lay there was taken before we
        // write over it.
        let used = put.wrapping_sub(self.placed().taken.load(Ordering::Acquire));
        let free = (PLACES as u64).checked_sub(used).ok_or(Nonsense)? as usize;
        Ok((free / Header::SIZE * Header::SIZE).saturating_sub(Header::SIZE))
    }

    /// Sender: writes the header of a piece at this position.
    pub fn write_header(&self, put: u64, header: &Header) {
        let bytes = header.as_bytes();
        // SAFETY: positions are multiples of a header's size, so that it lies whole in the ring,
        // which is writable; no reference into it exists.
        unsafe {
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), self.place(put as usize), Header::SIZE)
        };
    }

    /// Sender: copies bytes of the piece at `put`, `done` bytes behind its header.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes and outside the arena; `done + len` is at most the room
    /// there is.
    pub unsafe fn write_place(&self, put: u64, done: usize, from: *const u8, len: usize) {
        let at = (put as usize).wrapping_add(Header::SIZE + done) % PLACES;
        let first = len.min(PLACES - at);
        // SAFETY: both stretches lie in the ring, which is longer than any room it has; the source
        // is the caller's promise. The receiver looks there only when the piece is published.
        unsafe {
            core::ptr::copy_nonoverlapping(from, self.place(at), first);
            core::ptr::copy_nonoverlapping(from.add(first), self.place(0), len - first);
        }
    }

    /// Sender: shows the receiver all pieces before this position.
    pub fn publish_put(&self, put: u64) {
        // Release: pairs with the Acquire in next_place.
        self.placing().put.store(put, Ordering::Release);
    }

    /// Receiver: whether anything was put behind this position.
    #[must_use]
    #[inline]
    pub fn places_waiting(&self, taken: u64) -> bool {
        // Acquire: as in next_place.
        self.placing().put.load(Ordering::Acquire) != taken
    }

    /// Receiver: the header of the piece at this position, once it is there.
    ///
    /// # Errors
    /// The piece does not lie in what the sender can have put there.
    pub fn next_place(&self, taken: u64) -> Result<Option<Header>, Nonsense> {
        // Acquire: pairs with the Release in publish_put; the piece is there when the position says
        // so.
        let there = self.placing().put.load(Ordering::Acquire).wrapping_sub(taken);
        if there == 0 {
            return Ok(None);
        }
        let mut bytes = [0; Header::SIZE];
        // SAFETY: as in write_header. It is read once, by this copy; the sender may be changing it.
        unsafe {
            core::ptr::copy_nonoverlapping(
                self.place(taken as usize),
                bytes.as_mut_ptr(),
                Header::SIZE,
            );
        }
        let header = Header::read_from_bytes(&bytes).map_err(|_| Nonsense)?;
        if there > PLACES as u64 || header.len == 0 || header.extent() > there {
            return Err(Nonsense);
        }
        Ok(Some(header))
    }

    /// Receiver: the bytes of the piece at `taken`, which has `len` more from the `done`th on, as
    /// far as they lie in a row.
    #[must_use]
    pub fn stretch(&self, taken: u64, done: usize, len: usize) -> Bytes<'_> {
        let at = (taken as usize).wrapping_add(Header::SIZE + done) % PLACES;
        // SAFETY: the ring has so many behind that place; they stay while this handle may be used.
        unsafe { Bytes::new(self.place(at), len.min(PLACES - at)) }
    }

    /// Receiver: copies the piece at `taken`, of `len` bytes, to where the program wants it. The
    /// last bytes come last, at once. A program that looks at them sees them change after all
    /// others, as it does where a device writes.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes, and outside the arena.
    pub unsafe fn land(&self, taken: u64, to: *mut u8, len: usize) {
        let mut done = 0;
        while done < len {
            let from = self.stretch(taken, done, len - done);
            let n = from.len();
            // SAFETY: done + n is at most `len`, and the rest is the caller's promise; the program
            // may look at the bytes as they come.
            unsafe {
                if done + n < len {
                    core::ptr::copy_nonoverlapping(from.at(), to.add(done), n);
                } else {
                    last_byte_last(to.add(done), from.at(), n);
                }
            }
            done += n;
        }
    }

    /// Receiver: everything before this position was taken.
    pub fn publish_taken(&self, taken: u64) {
        // Release: pairs with the Acquire in place_room.
        self.placed().taken.store(taken, Ordering::Release);
    }
}

/// Copies so that a program that watches the last byte sees it change after all others, as it does
/// where a device writes. Where the last eight bytes are aligned, this holds for all eight of them.
///
/// # Safety
/// As for a copy of `len` bytes, at least one.
unsafe fn last_byte_last(to: *mut u8, from: *const u8, len: usize) {
    let word = len >= 8 && (to.addr() + len).is_multiple_of(8);
    let head = len - if word { 8 } else { 1 };
    // SAFETY: the caller's promise; the tail is 8 aligned bytes, or one. Release: pairs with
    // however the program looks.
    unsafe {
        core::ptr::copy_nonoverlapping(from, to, head);
        if word {
            let tail = from.add(head).cast::<u64>().read_unaligned();
            AtomicU64::from_ptr(to.add(head).cast()).store(tail, Ordering::Release);
        } else {
            AtomicU8::from_ptr(to.add(head)).store(from.add(head).read(), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use proptest::prelude::*;

    fn direction() -> Direction {
        let (arena, _fd) = Arena::create(1).unwrap();
        // Never unmapped: the test's process is short-lived.
        arena.channel(0).unwrap().direction(0)
    }

    fn put(d: &Direction, at: &mut u64, spot: Spot, bytes: &[u8]) -> bool {
        if d.place_room(*at).unwrap() < bytes.len() {
            return false;
        }
        let header = Header {
            index: spot.index,
            generation: spot.generation,
            at: spot.at,
            len: bytes.len() as u32,
        };
        d.write_header(*at, &header);
        // SAFETY: the bytes are a slice's, and there is room for them.
        unsafe { d.write_place(*at, 0, bytes.as_ptr(), bytes.len()) };
        *at = at.wrapping_add(header.extent());
        d.publish_put(*at);
        true
    }

    fn take(d: &Direction, at: &mut u64) -> Option<(Header, Vec<u8>)> {
        let header = d.next_place(*at).unwrap()?;
        let mut bytes = Vec::new();
        while bytes.len() < header.len as usize {
            let from = d.stretch(*at, bytes.len(), header.len as usize - bytes.len());
            let done = bytes.len();
            bytes.resize(done + from.len(), 0);
            from.copy_to(&mut bytes[done..]);
        }
        *at = at.wrapping_add(header.extent());
        d.publish_taken(*at);
        Some((header, bytes))
    }

    #[test]
    fn a_mapping_is_found_by_its_bytes_and_no_others() {
        let d = direction();
        assert_eq!((d.offered(), d.find_map(0)), (None, None));
        d.offer(3);
        assert_eq!(d.offered(), Some(3));
        d.offer(u32::MAX - 1);
        assert_eq!(d.offered(), Some(MAPS as u32));
        d.show_map(0, 2, 100, 10);
        d.show_map(1, 2, 1 << 40, u32::MAX);
        assert_eq!(d.find_map(99), None);
        assert_eq!(d.find_map(100), Some(Spot { index: 0, generation: 2, at: 0, left: 10 }));
        assert_eq!(d.find_map(109), Some(Spot { index: 0, generation: 2, at: 9, left: 1 }));
        assert_eq!(d.find_map(110), None);
        let end = (1 << 40) + u64::from(u32::MAX);
        assert_eq!(d.find_map(end - 1).unwrap().left, 1);
        assert_eq!(d.find_map(end), None);
        d.show_map(0, 4, 0, 0);
        assert_eq!(d.find_map(100), None);
        d.show_map(0, 7, 100, 10);
        assert_eq!(d.find_map(100), None, "it is being changed");
    }

    #[test]
    fn lies_are_found_out() {
        let d = direction();
        d.publish_taken(1);
        assert_eq!(d.place_room(0), Err(Nonsense), "more was taken than was put");
        for (said, len) in
            [(16, 1), (32, 0), (32, 17), (48, u32::MAX), (u64::MAX, 1), (PLACES as u64 + 16, 1)]
        {
            d.write_header(0, &Header { len, ..Header::default() });
            d.publish_put(said);
            assert_eq!(d.next_place(0), Err(Nonsense), "{len} bytes, {said} in all");
        }
    }

    proptest! {
        #[test]
        fn pieces_come_out_as_they_went_in(start: u32, sizes in prop::collection::vec(1_usize..70_000, 1..60)) {
            let d = direction();
            // Anywhere, also where the count is about to wrap.
            let start = 0_u64.wrapping_sub(u64::from(start / 16 * 16));
            let (mut at, mut from) = (start, start);
            d.publish_put(start);
            d.publish_taken(start);
            let mut waiting = std::collections::VecDeque::new();
            for (i, size) in sizes.into_iter().enumerate() {
                let spot = Spot { index: i as u32, generation: 2, at: 5, left: 0 };
                let bytes: Vec<u8> = (0..size).map(|k| (k * 31 + i) as u8).collect();
                while !put(&d, &mut at, spot, &bytes) {
                    prop_assert_eq!(take(&d, &mut from).unwrap().1, waiting.pop_front().unwrap());
                }
                waiting.push_back(bytes);
            }
            while let Some((_, bytes)) = take(&d, &mut from) {
                prop_assert_eq!(bytes, waiting.pop_front().unwrap());
            }
            prop_assert!(waiting.is_empty());
            prop_assert_eq!(d.place_room(at), Ok(PLACES - Header::SIZE));
        }
    }

    #[test]
    fn every_byte_is_copied() {
        let from: Vec<u8> = (1..100).collect();
        for start in 0..16 {
            for len in 1..40 {
                let mut to = [0_u64; 8];
                let base = to.as_mut_ptr().cast::<u8>();
                // SAFETY: 16 + 40 bytes are fewer than there are on either side.
                let seen = unsafe {
                    last_byte_last(base.add(start), from.as_ptr(), len);
                    core::slice::from_raw_parts(base, 64)
                };
                assert_eq!(&seen[start..start + len], &from[..len]);
                assert!(seen[..start].iter().chain(&seen[start + len..]).all(|b| *b == 0));
            }
        }
    }
}
