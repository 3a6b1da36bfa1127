//! Memory that the device can reach.
//!
//! The memory is mapped for this alone, in whole pages, so that a child of a fork can be kept from
//! having it. Pages that a device writes must not be copied under the device. Memory of the
//! program's is the exception: the program's child has it. Since Linux 5.12 the kernel gives the
//! child the copy. Knows nothing of what lies there. Entry points: [`Region`], [`Exposed`], in a
//! [`Domain`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::contexts::Device;
use super::{CmError, ffi, gate};
use rsocket_device::MemoryError;
use rsocket_host::failure::Failure;
use rsocket_host::sys;
use rsocket_wire::sge::Sge;

/// A protection domain: what is registered in it can be reached by the pair that was made in it,
/// and by no other. Each pair has its own, so that a peer who guesses the key of another
/// connection's memory gains nothing by it.
pub(super) struct Domain {
    device: &'static Device,
    pd: *mut ffi::ibv_pd,
    pid: u32,
}

// SAFETY: libibverbs' functions on it may be called from any thread.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub(super) fn new(device: &'static Device) -> Result<Arc<Self>, CmError> {
        // SAFETY: the context is open, as devices stay.
        let pd = unsafe { (device.loaded.table.ibv_alloc_pd)(device.context) };
        if pd.is_null() {
            return Err(CmError::Os(gate::last_error()));
        }
        Ok(Arc::new(Self { device, pd, pid: sys::pid() }))
    }

    pub(super) const fn pd(&self) -> *mut ffi::ibv_pd {
        self.pd
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if self.pid == sys::pid() {
            // SAFETY: the last owner gives it up: the queue pair and all memory in it are gone. (If
            // they are not, because the device could not be told, it refuses.)
            unsafe { (self.device.loaded.table.ibv_dealloc_pd)(self.pd) };
        }
    }
}

/// Memory of the program's that the peer may write. Dropped, it is deregistered, and stays as it
/// is.
pub(super) struct Exposed {
    domain: Arc<Domain>,
    mr: *mut ffi::ibv_mr,
    name: Sge,
}

// SAFETY: as for Region.
unsafe impl Send for Exposed {}

impl Exposed {
    /// # Safety
    /// The memory stays mapped until this is dropped, and may change at any time until then.
    pub(super) unsafe fn new(domain: &Arc<Domain>, at: *mut u8, len: u32) -> Result<Self, Failure> {
        let f = &domain.device.loaded.table;
        // SAFETY: the protection domain is alive, and the memory is the caller's promise.
        let mr = unsafe {
            (f.ibv_reg_mr)(domain.pd, at.cast::<c_void>(), len as usize, ffi::REMOTE_WRITE)
        };
        if mr.is_null() {
            return Err(gate::last_error());
        }
        // SAFETY: registered just now.
        let rkey = unsafe { (*mr).rkey };
        Ok(Self { domain: Arc::clone(domain), mr, name: Sge { addr: at.addr() as u64, rkey, len } })
    }

    /// As the peer names it.
    pub(super) const fn name(&self) -> Sge {
        self.name
    }
}

impl Drop for Exposed {
    fn drop(&mut self) {
        if self.domain.pid == sys::pid() {
            // SAFETY: registered once, and deregistered here only.
            unsafe { (self.domain.device.loaded.table.ibv_dereg_mr)(self.mr) };
        }
    }
}

/// Registered memory. Dropped, it is deregistered and unmapped: nothing that names it may be under
/// way.
pub(super) struct Region {
    domain: Arc<Domain>,
    base: *mut u8,
    len: u32,
    mapped: usize,
    mr: *mut ffi::ibv_mr,
    pid: u32,
}

// SAFETY: it owns its mapping; the device may write it at any time, whatever thread looks.
unsafe impl Send for Region {}

impl Region {
    /// `len` bytes of zeroes, for the access that [`ffi::LOCAL_WRITE`] or [`ffi::REMOTE_WRITE`]
    /// names. Pins them, so it takes the kernel some microseconds per page.
    pub(super) fn new(domain: &Arc<Domain>, len: u32, access: c_int) -> Result<Self, Failure> {
        let page = rustix::param::page_size();
        let mapped = (len.max(1) as usize).next_multiple_of(page);
        // SAFETY: a fresh mapping touches nothing else.
        let base = unsafe {
            mmap_anonymous(
                core::ptr::null_mut(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?
        };
        let region = Self {
            domain: Arc::clone(domain),
            base: base.cast(),
            len,
            mapped,
            mr: core::ptr::null_mut(),
            pid: sys::pid(),
        };
        // SAFETY: the mapping made above, whole pages of it.
        unsafe { madvise(base, mapped, Advice::LinuxDontFork)? };
        region.registered(access)
    }

    fn registered(mut self, access: c_int) -> Result<Self, Failure> {
        let f = &self.domain.device.loaded.table;
        let len = (self.len as usize).max(1);
        // SAFETY: the protection domain stays, and the memory is ours until it is deregistered.
        self.mr =
            unsafe { (f.ibv_reg_mr)(self.domain.pd, self.base.cast::<c_void>(), len, access) };
        if self.mr.is_null() { Err(gate::last_error()) } else { Ok(self) }
    }

    /// The address of its first byte, as the device takes it.
    pub(super) fn addr(&self) -> u64 {
        self.base as u64
    }

    /// The key for our own posts.
    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: registered regions have one, until they are dropped.
        unsafe { (*self.mr).lkey }
    }

    /// As the peer names it.
    pub(super) fn sge(&self) -> Sge {
        // SAFETY: as above.
        Sge { addr: self.addr(), rkey: unsafe { (*self.mr).rkey }, len: self.len }
    }

    /// Where `len` bytes at the device's address lie; `None` when they are not all in here.
    pub(super) fn at(&self, addr: u64, len: usize) -> Option<*mut u8> {
        let offset = addr.checked_sub(self.addr())?;
        if len as u64 > u64::from(self.len).checked_sub(offset)? {
            return None;
        }
        // SAFETY: the offset is inside the mapping, or just behind its last byte.
        Some(unsafe { self.base.add(offset as usize) })
    }

    /// Where the word at a multiple of 4 bytes is.
    fn word_at(&self, offset: u32) -> Result<*mut u32, MemoryError> {
        let place = self.at(self.addr() + u64::from(offset), 4).ok_or(MemoryError::Range)?;
        if place.addr().is_multiple_of(align_of::<AtomicU32>()) {
            Ok(place.cast())
        } else {
            Err(MemoryError::Range)
        }
    }

    /// The word at a multiple of 4 bytes, which the device alone writes.
    pub(super) fn word(&self, offset: u32) -> Result<[u8; 4], MemoryError> {
        let place = self.word_at(offset)?;
        // After the completion that announced it, which the provider's own barrier orders.
        compiler_fence(Ordering::Acquire);
        // SAFETY: four bytes in the mapping, aligned; only the device writes there.
        Ok(unsafe { AtomicU32::from_ptr(place) }.load(Ordering::Relaxed).to_ne_bytes())
    }

    /// Changes the word at a multiple of 4 bytes, which the device reads when a post names it.
    pub(super) fn set_word(&self, offset: u32, word: [u8; 4]) -> Result<(), MemoryError> {
        let place = self.word_at(offset)?;
        // Relaxed: before the post, which the provider's own barrier orders.
        // SAFETY: four bytes in the mapping, aligned; there is no reference into it.
        unsafe { AtomicU32::from_ptr(place) }.store(u32::from_ne_bytes(word), Ordering::Relaxed);
        Ok(())
    }
}

impl Region {
    /// Leaves it to the device for ever.
    pub(super) const fn leak(&mut self) {
        // No process has this id.
        self.pid = 0;
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // A child of a fork has no such mapping, and maybe another at its place.
        if self.pid != sys::pid() {
            return;
        }
        let freed = self.mr.is_null()
            // SAFETY: registered once, and its owner has no use for it any more.
            || unsafe { (self.domain.device.loaded.table.ibv_dereg_mr)(self.mr) == 0 };
        // Memory that the device still has cannot be given to others.
        if freed {
            // SAFETY: our own mapping, which nothing refers to any more.
            let _ = unsafe { munmap(self.base.cast(), self.mapped) };
        }
    }
}
