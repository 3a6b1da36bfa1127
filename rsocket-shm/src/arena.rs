//! One sealed memfd that two processes map: made by the connecting side, checked and mapped by the
//! other.
//!
//! The peer can write every byte of the memfd at any time. So what is read at [`Arena::open`] is
//! checked, kept in private memory and never read again. Size and seals are the kernel's word. Must
//! not know which connection has which channel. Entry points: [`Arena::create`], [`Arena::open`],
//! [`Arena::channel`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, MremapFlags, ProtFlags};

use super::direction::Direction;
use super::layout::{
    ArenaHeader, CHANNEL_LEN, DIRECTION_LEN, HEADER_LEN, MAGIC, ReadySide, VERSION, arena_len,
};
use super::park::Announce;
use rsocket_host::failure::Failure;
use rsocket_host::sys;

/// What keeps an arena mappable for ever: no process can resize it, nor take these seals away.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The file system of memfds (a huge-page memfd has another: its size is not counted in pages).
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Why a descriptor that a peer sent is not an arena of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// Not a memfd in ordinary pages.
    NotMemfd,
    /// The peer could still resize it.
    NotSealed,
    /// The size is not that of any number of channels, or of too many.
    Size,
    /// The first bytes are something else.
    Magic,
    /// Made by a library with another layout.
    Version,
    /// Its header contradicts its size.
    Header,
    /// The kernel refused.
    Kernel(Failure),
}

impl From<Failure> for OpenError {
    fn from(e: Failure) -> Self {
        Self::Kernel(e)
    }
}

/// A mapped arena. It stays mapped until [`Arena::unmap`]: there is no destructor, because the
/// handles that come from it are plain pointers.
#[derive(Debug)]
pub struct Arena {
    base: NonNull<u8>,
    channels: u32,
    id: [u64; 2],
}

/// An arena that no handle has come from yet, so that it can be unmapped safely.
#[derive(Debug)]
pub struct Unused(Arena);

impl Unused {
    /// As [`Arena::create`].
    ///
    /// # Errors
    /// As there.
    pub fn create(channels: u32) -> Result<(Self, OwnedFd), Failure> {
        Arena::create(channels).map(|(arena, fd)| (Self(arena), fd))
    }

    /// As [`Arena::open`].
    ///
    /// # Errors
    /// As there.
    pub fn open(fd: impl AsFd) -> Result<Self, OpenError> {
        Arena::open(fd).map(Self)
    }

    /// As [`Arena::id`].
    #[must_use]
    pub fn id(&self) -> [u64; 2] {
        self.0.id
    }

    /// As [`Arena::channels`].
    #[must_use]
    pub fn channels(&self) -> u32 {
        self.0.channels
    }

    /// The arena, to be used.
    #[must_use]
    pub fn put_to_use(self) -> Arena {
        self.0
    }

    /// Ends the mapping.
    pub fn discard(self) {
        // SAFETY: no caller has had the arena, from which alone handles come.
        unsafe { self.0.unmap() };
    }
}

// SAFETY: the memory is shared between processes and only reached by atomics and raw copies, so
// that threads add nothing new. The other fields are plain values.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Makes an arena of `channels` channels, mapped here, and the descriptor to send to the peer.
    /// Nothing but its first page is touched.
    ///
    /// # Errors
    /// `EINVAL` for a count that [`arena_len`] refuses; what the kernel says otherwise.
    pub fn create(channels: u32) -> Result<(Self, OwnedFd), Failure> {
        let size = arena_len(channels).ok_or(Failure::Invalid)?;
        let fd = sealed(size)?;
        let id = super::random::bits()?;
        let id = [id as u64, (id >> 64) as u64];
        let arena = Self { base: map(&fd, size)?, channels, id };
        let header = arena.header();
        header.version.store(VERSION, Ordering::Relaxed);
        header.channels.store(channels, Ordering::Relaxed);
        header.size.store(size as u64, Ordering::Relaxed);
        header.id[0].store(id[0], Ordering::Relaxed);
        header.id[1].store(id[1], Ordering::Relaxed);
        // Release: pairs with the Acquire in `open`, should the peer be faster than the message
        // that brings it the descriptor.
        header.magic.store(MAGIC, Ordering::Release);
        Ok((arena, fd))
    }

    /// Maps an arena that a peer made, after all that can be checked has been.
    ///
    /// # Errors
    /// Which check failed. The descriptor stays the caller's.
    pub fn open(fd: impl AsFd) -> Result<Self, OpenError> {
        let fd = fd.as_fd();
        let size = sealed_size(fd)?;
        let channels = size.checked_sub(HEADER_LEN).ok_or(OpenError::Size)? / CHANNEL_LEN;
        let channels = u32::try_from(channels).map_err(|_| OpenError::Size)?;
        if arena_len(channels) != Some(size) {
            return Err(OpenError::Size);
        }
        let mut arena = Self { base: map(fd, size)?, channels, id: [0; 2] };
        match arena.check(size) {
            Ok(id) => {
                arena.id = id;
                Ok(arena)
            }
            Err(e) => {
                // SAFETY: no handle has left this function.
                unsafe { arena.unmap() };
                Err(e)
            }
        }
    }

    /// Compares the header with what the kernel said; gives the arena's name.
    fn check(&self, size: usize) -> Result<[u64; 2], OpenError> {
        let header = self.header();
        // Acquire: pairs with the Release in `create`.
        if header.magic.load(Ordering::Acquire) != MAGIC {
            return Err(OpenError::Magic);
        }
        if header.version.load(Ordering::Relaxed) != VERSION {
            return Err(OpenError::Version);
        }
        if header.channels.load(Ordering::Relaxed) != self.channels
            || header.size.load(Ordering::Relaxed) != size as u64
        {
            return Err(OpenError::Header);
        }
        Ok([header.id[0].load(Ordering::Relaxed), header.id[1].load(Ordering::Relaxed)])
    }

    fn header(&self) -> &ArenaHeader {
        // SAFETY: the mapping starts with HEADER_LEN bytes, page-aligned, and lives as long as self
        // (only `unmap` ends it, and it takes self). Every field is an atomic, for which any bytes
        // are valid.
        unsafe { self.base.cast::<ArenaHeader>().as_ref() }
    }

    /// The 128 random bits that name the arena.
    #[must_use]
    pub fn id(&self) -> [u64; 2] {
        self.id
    }

    /// How many channels there are.
    #[must_use]
    pub fn channels(&self) -> u32 {
        self.channels
    }

    /// The channel of that number.
    #[must_use]
    #[inline]
    pub fn channel(&self, index: u32) -> Option<Channel> {
        (index < self.channels).then_some(Channel { arena: self.base, index })
    }

    /// One side's ready bitmap: bit `i % 64` of word `i / 64` stands for channel `i`. A thread that
    /// looks first hears the side's wakers ([`super::park::hear`]). Then it takes a word by
    /// `swap(0, Acquire)`, which pairs with the Release in [`super::park::Sleepers::wake`].
    #[must_use]
    pub fn ready(&self, side: u32) -> &ReadySide {
        let [connecting, accepting] = &self.header().ready;
        if side & 1 == 0 { connecting } else { accepting }
    }

    /// The address and the number of channels, to be kept in a table of plain words.
    #[must_use]
    pub fn into_parts(self) -> (usize, u32, [u64; 2]) {
        (self.base.as_ptr().expose_provenance(), self.channels, self.id)
    }

    /// The arena again. `None` for the address 0.
    ///
    /// # Safety
    /// The parts come from [`Arena::into_parts`] in this process (or in the one it was forked
    /// from), and no copy of them has been unmapped.
    #[must_use]
    #[inline]
    pub unsafe fn from_parts(base: usize, channels: u32, id: [u64; 2]) -> Option<Self> {
        let base = NonNull::new(core::ptr::with_exposed_provenance_mut(base))?;
        Some(Self { base, channels, id })
    }

    /// Gives the memory back and keeps the addresses, at which everything is zero from now on.
    /// Stores there stay private. False if there is no room for that; then everything is as it was.
    pub fn hollow(&self) -> bool {
        arena_len(self.channels).is_some_and(|size| self.replaced(size) || self.overlaid())
    }

    /// By memory that is made elsewhere, and moved here in one step.
    fn replaced(&self, size: usize) -> bool {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let Ok(new) = sys::unlocked::map(None, size, flags) else { return false };
        let (new, at) = (new.as_ptr().cast(), self.base.as_ptr().cast());
        // SAFETY: replaces a mapping of ours of just that size. All that is ever looked at there
        // are atomics and bytes, for which zeroes are valid.
        let moved =
            unsafe { rustix::mm::mremap_fixed(new, size, size, MremapFlags::MAYMOVE, at) }.is_ok();
        if !moved {
            // SAFETY: the mapping just made, which no other thread has seen.
            let _ = unsafe { rustix::mm::munmap(new, size) };
        }
        moved
    }

    /// Where there are not the addresses for that.
    fn overlaid(&self) -> bool {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: replaces a mapping of ours of just that size, in one step. All that is ever
        // looked at there are atomics and bytes, for which zeroes are valid.
        arena_len(self.channels).is_some_and(|size| unsafe {
            rustix::mm::mmap_anonymous(self.base.as_ptr().cast(), size, protection, flags).is_ok()
        })
    }

    /// Ends the mapping.
    ///
    /// # Safety
    /// No [`Channel`] or [`Direction`] of this arena is used again, by any thread.
    pub unsafe fn unmap(self) {
        if let Some(size) = arena_len(self.channels) {
            // SAFETY: base and size are those of one mapping of ours; no thread uses it again
            // (caller).
            let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), size) };
        }
    }
}

/// The size of what a peer sent, which cannot change any more.
pub(super) fn sealed_size(fd: BorrowedFd<'_>) -> Result<usize, OpenError> {
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| OpenError::NotMemfd)?;
    if rustix::fs::fstatfs(fd).map_err(Failure::from)?.f_type as u64 != TMPFS_MAGIC {
        return Err(OpenError::NotMemfd);
    }
    if !seals.contains(SEALS) {
        return Err(OpenError::NotSealed);
    }
    usize::try_from(rustix::fs::fstat(fd).map_err(Failure::from)?.st_size)
        .map_err(|_| OpenError::Size)
}

/// A memfd of that size, which no process can change.
pub(super) fn sealed(size: usize) -> Result<OwnedFd, Failure> {
    if !sys::file_may_reach(size as u64) {
        return Err(Failure::FileTooLong);
    }
    let fd = memfd()?;
    rustix::fs::ftruncate(&fd, size as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SEALS)?;
    Ok(fd)
}

/// A memfd that can be sealed, and that cannot be made executable where the kernel knows of that.
fn memfd() -> Result<OwnedFd, Failure> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let made = rustix::fs::memfd_create(c"rsockets", flags | MemfdFlags::NOEXEC_SEAL);
    match made.map_err(Failure::from) {
        // Before Linux 6.3 the flag is unknown.
        Err(Failure::Invalid) => Ok(rustix::fs::memfd_create(c"rsockets", flags)?),
        made => made,
    }
}

/// Maps the whole, shared, without touching it.
pub(super) fn map(fd: impl AsFd, size: usize) -> Result<NonNull<u8>, Failure> {
    Ok(sys::unlocked::map(Some(fd.as_fd()), size, MapFlags::SHARED)?)
}

/// A handle on one channel: a copy of plain pointers, valid while its arena stays mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel {
    arena: NonNull<u8>,
    index: u32,
}

// SAFETY: as for Arena: pointers to memory that is only reached by atomics and raw copies.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    /// Its number in the arena.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// One of its two directions: 0 for bytes from the connecting to the accepting side, 1 for the
    /// others.
    #[must_use]
    #[inline]
    pub fn direction(&self, which: u32) -> Direction {
        let offset =
            HEADER_LEN + self.index as usize * CHANNEL_LEN + (which & 1) as usize * DIRECTION_LEN;
        // SAFETY: the index was below the arena's count when `Arena::channel` made this handle. The
        // mapping has arena_len(count) bytes, so offset + DIRECTION_LEN lies inside it,
        // page-aligned. The arena is mapped while the handle may be used (`Arena::unmap`).
        unsafe { Direction::from_base(self.arena.add(offset)) }
    }

    /// How an epoll set at one side (0 connecting, 1 accepting) is told that this channel is ready.
    #[must_use]
    #[inline]
    pub fn announce(&self, side: u32) -> Announce<'_> {
        // SAFETY: as in Arena::header; the mapping lives while the handle may be used.
        let header = unsafe { self.arena.cast::<ArenaHeader>().as_ref() };
        let [connecting, accepting] = &header.ready;
        let ReadySide { bits, woken } = if side & 1 == 0 { connecting } else { accepting };
        let [first, ..] = bits;
        let word = bits.get(self.index as usize / 64).unwrap_or(first);
        Announce { word, bit: 1 << (self.index % 64), woken }
    }

    /// Both directions as if fresh, for the next connection in this channel. No thread of either
    /// side may be using it.
    pub fn wipe(&self) {
        self.direction(0).wipe();
        self.direction(1).wipe();
    }
}
