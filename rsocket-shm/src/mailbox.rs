//! A ring of datagrams from one socket to another, in a sealed memfd of its own: one writes, one
//! reads.
//!
//! The writer makes it ([`Outgoing::create`]) and brings it to the reader by means that this module
//! does not know. The reader checks and maps it ([`Incoming::open`]) and says so in it. Each side
//! keeps its own place in private memory. What the other side writes (its place, lengths, bytes) is
//! read once and checked. A value that makes no sense ends the ring for the side that sees it. A
//! full ring takes nothing: what to do with a datagram then is the caller's business.
//!
//! Waking: a reader that is about to sleep says so ([`Incoming::sleeping`]), fences, and looks once
//! more. A writer that has put something in fences and takes that word ([`Put::Wake`]). How the
//! reader is then woken is the caller's business too.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::os::fd::{AsFd, OwnedFd};

use rustix::mm::{Advice, madvise, munmap};

use super::arena::{OpenError, map, sealed, sealed_size};
use rsocket_host::failure::Failure;
use rsocket_host::sys;

/// Datagrams that a ring holds.
pub const SLOTS: u32 = 64;
/// Bytes that a datagram may have.
pub const ROOM: usize = SLOT - size_of::<u64>();

const SLOT: usize = 2048;
const HEAD: usize = 4096;
const SIZE: usize = HEAD + SLOT * SLOTS as usize;
const MAGIC: u64 = u64::from_le_bytes(*b"rsockbox");
/// Raise it with every change of what lies where.
const VERSION: u32 = 1;

/// What one side writes, on lines of its own.
#[repr(C, align(128))]
struct Side {
    /// How many datagrams it has put in or taken out.
    place: AtomicU32,
    /// Nonzero: it has left.
    left: AtomicU32,
    /// The reader's: nonzero once it has mapped the ring.
    open: AtomicU32,
}

/// The first page.
#[repr(C)]
struct Head {
    magic: AtomicU64,
    version: AtomicU32,
    writer: Side,
    reader: Side,
    /// Nonzero: the reader sleeps. Set by the reader, taken by the writer.
    asleep: Asleep,
}

#[repr(C, align(128))]
struct Asleep(AtomicU32);

const _: () = assert!(size_of::<Head>() <= HEAD);

/// The mapping that both sides have.
struct Ring {
    base: NonNull<u8>,
    pid: u32,
}

// SAFETY: it is memory that another process changes at any time, reached by atomics and raw copies
// only.
unsafe impl Send for Ring {}

impl Ring {
    fn mapped(fd: impl AsFd) -> Result<Self, Failure> {
        let ring = Self { base: map(fd, SIZE)?, pid: sys::pid() };
        // A child of a fork has no business here: two readers or two writers would tear the ring.
        // SAFETY: the mapping made above, all of it.
        unsafe { madvise(ring.base.as_ptr().cast(), SIZE, Advice::LinuxDontFork) }?;
        Ok(ring)
    }

    fn head(&self) -> &Head {
        // SAFETY: the mapping is as long as SIZE, page-aligned, and lives as long as self. Every
        // field is an atomic, for which any bytes are a value.
        unsafe { self.base.cast::<Head>().as_ref() }
    }

    /// Where the datagram with this number lies: its length, and its bytes.
    fn slot(&self, number: u32) -> (&AtomicU32, *mut u8) {
        let at = HEAD + (number % SLOTS) as usize * SLOT;
        // SAFETY: the slot lies inside the mapping and is aligned for the length; as in head().
        unsafe {
            let start = self.base.as_ptr().add(at);
            (AtomicU32::from_ptr(start.cast()), start.add(size_of::<u64>()))
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.pid == sys::pid() {
            // SAFETY: our own mapping, whose only owner is self.
            let _ = unsafe { munmap(self.base.as_ptr().cast(), SIZE) };
        }
    }
}

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It is the reader's.
    Done,
    /// It is the reader's, which sleeps and is to be woken.
    Wake,
    /// There is no room.
    Full,
    /// The reader has left, or writes nonsense. The ring is good for nothing any more.
    Over,
}

/// The writing side. Dropped, it says that nothing more comes.
pub struct Outgoing {
    ring: Ring,
    /// Datagrams put in.
    place: u32,
}

impl Outgoing {
    /// A new ring, and the descriptor for the reader.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn create() -> Result<(Self, OwnedFd), Failure> {
        let fd = sealed(SIZE)?;
        let ring = match Ring::mapped(&fd) {
            Ok(ring) => ring,
            Err(e) => {
                sys::discard(fd);
                return Err(e);
            }
        };
        ring.head().version.store(VERSION, Ordering::Relaxed);
        // The first datagram wakes the reader that has just mapped it.
        ring.head().asleep.0.store(1, Ordering::Relaxed);
        // Release: pairs with the acquire in Incoming::open.
        ring.head().magic.store(MAGIC, Ordering::Release);
        Ok((Self { ring, place: 0 }, fd))
    }

    /// Whether the reader has it.
    #[must_use]
    pub fn is_open(&self) -> bool {
        // Acquire: pairs with the release in Incoming::open.
        self.ring.head().reader.open.load(Ordering::Acquire) != 0
    }

    /// Whether the reader has left.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.ring.head().reader.left.load(Ordering::Acquire) != 0
    }

    /// Puts one datagram in. `fill` writes all of its `len` bytes to where it is told.
    pub fn put(&mut self, len: usize, fill: impl FnOnce(*mut u8)) -> Put {
        let head = self.ring.head();
        // Acquire: pairs with the release in Incoming::taken, so that the slot is free to be
        // written.
        let used = self.place.wrapping_sub(head.reader.place.load(Ordering::Acquire));
        if self.is_over() || used > SLOTS || len > ROOM {
            return Put::Over;
        }
        if used == SLOTS {
            return Put::Full;
        }
        let (length, bytes) = self.ring.slot(self.place);
        length.store(len as u32, Ordering::Relaxed);
        fill(bytes);
        self.place = self.place.wrapping_add(1);
        // Release: pairs with the acquire in Incoming::look.
        head.writer.place.store(self.place, Ordering::Release);
        // Pairs with the fence in Incoming::sleeping: either we see that it sleeps, or it sees the
        // datagram.
        fence(Ordering::SeqCst);
        let sleeps = head.asleep.0.load(Ordering::Relaxed) != 0
            && head.asleep.0.swap(0, Ordering::Relaxed) != 0;
        if sleeps { Put::Wake } else { Put::Done }
    }

    /// The reader could not be woken: the next datagram tries again.
    pub fn not_woken(&self) {
        self.ring.head().asleep.0.store(1, Ordering::Relaxed);
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        if self.ring.pid == sys::pid() {
            // Release: what was put in comes before it. Pairs with the acquire in
            // Incoming::writer_left.
            self.ring.head().writer.left.store(1, Ordering::Release);
        }
    }
}

/// The ring says what cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonsense;

/// The reading side. Dropped, it says that nothing more is read.
pub struct Incoming {
    ring: Ring,
    /// Datagrams taken out.
    place: u32,
    /// Datagrams known to have been put in.
    seen: u32,
}

impl Incoming {
    /// Maps what a writer sent, after all that can be checked has been. The descriptor stays the
    /// caller's.
    ///
    /// # Errors
    /// Which check failed.
    pub fn open(fd: impl AsFd) -> Result<Self, OpenError> {
        if sealed_size(fd.as_fd())? != SIZE {
            return Err(OpenError::Size);
        }
        let ring = Ring::mapped(fd).map_err(OpenError::Kernel)?;
        // Acquire: pairs with the release in Outgoing::create.
        if ring.head().magic.load(Ordering::Acquire) != MAGIC {
            return Err(OpenError::Magic);
        }
        if ring.head().version.load(Ordering::Relaxed) != VERSION {
            return Err(OpenError::Version);
        }
        // Release: pairs with the acquire in Outgoing::is_open.
        ring.head().reader.open.store(1, Ordering::Release);
        Ok(Self { ring, place: 0, seen: 0 })
    }

    /// Whether anything waits, or the writer says nonsense: a hint, which changes nothing here.
    #[must_use]
    pub fn stirs(&self) -> bool {
        self.ring.head().writer.place.load(Ordering::Relaxed) != self.place
    }

    /// Whether something waits that no look has seen: a hint as well.
    #[must_use]
    pub fn has_new(&self) -> bool {
        self.ring.head().writer.place.load(Ordering::Relaxed) != self.seen
    }

    /// Looks for more; how many were found that no earlier look had.
    ///
    /// # Errors
    /// [`Nonsense`].
    pub fn look(&mut self) -> Result<u32, Nonsense> {
        // Acquire: pairs with the release in Outgoing::put.
        let put = self.ring.head().writer.place.load(Ordering::Acquire);
        if put.wrapping_sub(self.place) > SLOTS || put.wrapping_sub(self.place) < self.known() {
            return Err(Nonsense);
        }
        let more = put.wrapping_sub(self.seen);
        self.seen = put;
        Ok(more)
    }

    /// Datagrams that [`Self::look`] has seen and the reader has not taken.
    #[must_use]
    pub fn known(&self) -> u32 {
        self.seen.wrapping_sub(self.place)
    }

    /// The next of those: where its bytes lie, which the writer may change at any time, and how
    /// many they are.
    ///
    /// # Errors
    /// [`Nonsense`].
    pub fn next(&self) -> Result<Option<(*const u8, usize)>, Nonsense> {
        if self.known() == 0 {
            return Ok(None);
        }
        let (length, bytes) = self.ring.slot(self.place);
        let length = length.load(Ordering::Relaxed) as usize;
        if length > ROOM { Err(Nonsense) } else { Ok(Some((bytes.cast_const(), length))) }
    }

    /// The next one was copied.
    pub fn taken(&mut self) {
        if self.known() > 0 {
            self.place = self.place.wrapping_add(1);
            // Release: pairs with the acquire in Outgoing::put.
            self.ring.head().reader.place.store(self.place, Ordering::Release);
        }
    }

    /// The reader is about to sleep. To be followed by [`settle`] and another look.
    pub fn sleeping(&self) {
        self.ring.head().asleep.0.store(1, Ordering::Relaxed);
    }

    /// Whether the writer puts nothing more in.
    #[must_use]
    pub fn writer_left(&self) -> bool {
        // Acquire: pairs with the release in Outgoing's drop.
        self.ring.head().writer.left.load(Ordering::Acquire) != 0
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if self.ring.pid == sys::pid() {
            // Release: pairs with the acquire in Outgoing::is_over.
            self.ring.head().reader.left.store(1, Ordering::Release);
        }
    }
}

/// Between saying that one sleeps, in however many rings, and the last look.
pub fn settle() {
    // Pairs with the fence in Outgoing::put.
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(out: &mut Outgoing, bytes: &[u8]) -> Put {
        // SAFETY: the ring gives room for as many bytes as it was told.
        out.put(bytes.len(), |to| unsafe {
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len())
        })
    }

    fn take(from: &mut Incoming) -> Option<Vec<u8>> {
        let (at, len) = from.next().unwrap()?;
        // SAFETY: in the ring, which no other thread writes here.
        let bytes = unsafe { core::slice::from_raw_parts(at, len) }.to_vec();
        from.taken();
        Some(bytes)
    }

    fn pair() -> (Outgoing, Incoming) {
        let (out, fd) = Outgoing::create().unwrap();
        assert!(!out.is_open());
        let incoming = Incoming::open(&fd).unwrap();
        assert!(out.is_open());
        (out, incoming)
    }

    #[test]
    fn datagrams_keep_their_bounds_and_their_order() {
        let (mut out, mut incoming) = pair();
        for round in 0..5_u8 {
            for i in 0..SLOTS as u8 {
                let bytes = vec![i ^ round; usize::from(i) * 31];
                let sent = put(&mut out, &bytes);
                assert!(if round == 0 && i == 0 { sent == Put::Wake } else { sent == Put::Done });
            }
            assert_eq!(put(&mut out, b"no room"), Put::Full);
            assert_eq!(take(&mut incoming), None, "what was not looked for is not there");
            assert_eq!(incoming.look(), Ok(SLOTS));
            for i in 0..SLOTS as u8 {
                assert_eq!(take(&mut incoming), Some(vec![i ^ round; usize::from(i) * 31]));
            }
            assert_eq!((take(&mut incoming), incoming.look()), (None, Ok(0)));
        }
    }

    #[test]
    fn a_sleeper_is_woken_once() {
        let (mut out, mut incoming) = pair();
        assert_eq!((put(&mut out, b"a"), put(&mut out, b"b")), (Put::Wake, Put::Done));
        incoming.sleeping();
        settle();
        assert!(incoming.stirs());
        assert_eq!(put(&mut out, b"c"), Put::Wake);
        out.not_woken();
        assert_eq!(put(&mut out, b"d"), Put::Wake);
        assert_eq!(put(&mut out, b"e"), Put::Done);
        assert_eq!(incoming.look(), Ok(5));
    }

    #[test]
    fn each_side_sees_that_the_other_has_left() {
        let (mut out, incoming) = pair();
        drop(incoming);
        assert_eq!((out.is_over(), put(&mut out, b"x")), (true, Put::Over));
        let (mut out, mut incoming) = pair();
        assert_eq!(put(&mut out, b"last"), Put::Wake);
        assert!(!incoming.writer_left());
        drop(out);
        assert!(incoming.writer_left());
        assert_eq!(incoming.look(), Ok(1));
        assert_eq!(take(&mut incoming).as_deref(), Some(&b"last"[..]));
    }

    #[test]
    fn nonsense_is_seen_by_whoever_reads_it() {
        let (mut out, mut incoming) = pair();
        put(&mut out, b"one");
        out.ring.head().writer.place.store(SLOTS + 1, Ordering::Release);
        assert_eq!(incoming.look(), Err(Nonsense));
        out.ring.head().writer.place.store(1, Ordering::Release);
        assert_eq!(incoming.look(), Ok(1));
        // As after a hole was punched: fewer than there were.
        out.ring.head().writer.place.store(0, Ordering::Release);
        assert_eq!(incoming.look(), Err(Nonsense));
        out.ring.slot(0).0.store(ROOM as u32 + 1, Ordering::Relaxed);
        assert_eq!(incoming.next(), Err(Nonsense));
        out.ring.head().reader.place.store(2, Ordering::Release);
        assert_eq!(put(&mut out, b"x"), Put::Over);
    }

    #[test]
    fn only_what_is_sealed_and_ours_is_mapped() {
        let open = |fd: &OwnedFd| Incoming::open(fd).err();
        let plain = std::fs::File::open("/dev/zero").unwrap();
        assert_eq!(Incoming::open(&plain).err(), Some(OpenError::NotMemfd));
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let loose = rustix::fs::memfd_create(c"test", flags).unwrap();
        rustix::fs::ftruncate(&loose, SIZE as u64).unwrap();
        assert_eq!(open(&loose), Some(OpenError::NotSealed));
        assert_eq!(open(&sealed(SIZE + 4096).unwrap()), Some(OpenError::Size));
        assert_eq!(open(&sealed(SIZE).unwrap()), Some(OpenError::Magic));
        let (out, fd) = Outgoing::create().unwrap();
        out.ring.head().version.store(VERSION + 1, Ordering::Relaxed);
        assert_eq!(open(&fd), Some(OpenError::Version));
    }
}
