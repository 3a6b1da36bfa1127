//! The calls of direct placement: `riomap` and its relatives of rsocket(7).
//!
//! Must not know C. Entry points: [`map`], [`unmap`], [`write`].

use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use crate::conn::fork_group;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::direct_placement::table::{Entry, Map, Place};
use crate::direct_placement::{arrive, thread};
use crate::failure::Failure;
use crate::probe;
use crate::socket::call::Call;
use crate::socket::{send, wait};
use crate::sync::living;
use crate::sys::vectors::Cursor;
use crate::{bridge, sys};

/// Memory of the program's.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    at: *mut u8,
    len: usize,
    writable: bool,
}

impl Memory {
    /// So many bytes from there on. `writable`: the peer may write there. Nothing else has a use
    /// for a mapping: without it [`unmap`] finds it again, and that is all.
    ///
    /// # Safety
    /// Once it is mapped ([`map`]) the memory stays in the process until [`unmap`] or
    /// [`crate::direct_placement::closing`] takes it back. With `writable` the memory may change at
    /// any time until then. (Where nothing can be, [`map`] says so.)
    #[must_use]
    pub const unsafe fn new(at: *mut u8, len: usize, writable: bool) -> Self {
        Self { at, len, writable }
    }
}

/// Maps the memory at `offset` ([`ANY`](crate::direct_placement::ANY): at one of our choice), and
/// says where.
///
/// Waits for a connection that is still attaching, whatever the descriptor's flags say. The wait
/// takes a few milliseconds, five seconds at most where the peer has accepted it.
///
/// # Errors
/// - `EINVAL` for no bytes, 4 GiB or more, or an offset below 0 or too high;
/// - `EFAULT` for memory that cannot be written;
/// - `EEXIST` where another mapping of the connection has some of these offsets;
/// - `ENOMEM` when the peer remembers no more mappings (`RDMA_IOMAPSIZE` at its end), or no more
///   memory can be pinned;
/// - `ENOTCONN`, `ETIMEDOUT` without a connection;
/// - `EOPNOTSUPP` when the mappings of the connection are a sibling's.
pub fn map(id: SlotId, fd: RawFd, memory: Memory, offset: i64) -> Result<i64, Failure> {
    let Memory { at, len, writable } = memory;
    let s = fork_group::slot(id).ok_or(Failure::BadDescriptor)?;
    let bytes = u32::try_from(len).ok().filter(|n| *n > 0).ok_or(Failure::Invalid)?;
    if !Cursor::plausible(&[libc::iovec { iov_base: at.cast(), iov_len: len }]) {
        return Err(Failure::BadAddress);
    }
    if writable {
        probe::populate(at, len)?;
    }
    let ends = wait::attached(id, s, fd)?;
    own(s)?;
    let has_bridge = s.has_bridge();
    let place = Place::of_or_make(id);
    let mapped = place.with(|maps| {
        let offset = maps.choose(at, bytes, offset)?;
        let entry = if !writable {
            None
        } else if has_bridge {
            // SAFETY: the promise of Memory::new(), and withdraw follows.
            let index = unsafe { bridge::direct_placement::expose(s, at, bytes, offset) }?;
            Some(Entry { index, generation: 0 })
        } else {
            let most = ends.incoming.offered().unwrap_or(0);
            let index = maps.free_index().filter(|i| *i < most).ok_or(Failure::NoMemory)?;
            Some(Entry { index, generation: maps.next_generation(s) })
        };
        maps.list.push(Map { at: at.expose_provenance(), len: bytes, offset, entry });
        // The flag and the mapping before the peer hears of it.
        s.set(flag::MAPPED);
        if let Some(entry) = entry.filter(|_| !has_bridge) {
            ends.incoming.show_map(entry.index, entry.generation, offset, bytes);
        }
        Ok(offset)
    });
    let offset = mapped.unwrap_or(Err(Failure::Blocked))?;
    if writable && !has_bridge {
        thread::watch(id);
    }
    Ok(offset.cast_signed())
}

/// This process becomes the one whose memory is mapped on the connection.
pub(super) fn own(s: &Slot) -> Result<(), Failure> {
    let (me, before) = (sys::pid(), s.placement.owner.load(Ordering::Acquire));
    if before == me {
        return Ok(());
    }
    let free = before == 0 || !living::process(before);
    let taken = || {
        s.placement.owner.compare_exchange(before, me, Ordering::AcqRel, Ordering::Acquire).is_ok()
    };
    if free && taken() { Ok(()) } else { Err(Failure::Unsupported) }
}

/// Takes a mapping back, the first that was made of exactly this memory. From then on the peer's
/// direct writes there fail, and nothing of them arrives; what had arrived before is in place.
///
/// Over RDMA it waits until the peer has heard of it, a second at most. A peer with upstream's
/// library does not answer, and one of its writes that is under way ends the connection.
///
/// # Errors
/// `EINVAL` when there is none.
pub fn unmap(id: SlotId, at: *mut u8, len: usize) -> Result<(), Failure> {
    let s = fork_group::slot(id).ok_or(Failure::BadDescriptor)?;
    let place = Place::of(id).ok_or(Failure::Invalid)?;
    let has_bridge = s.has_bridge();
    let removed = place.with(|maps| {
        let found = maps.list.iter().position(|m| m.at == at.addr() && m.len as usize == len);
        let found = found.ok_or(Failure::Invalid)?;
        if !has_bridge && let Some(ends) = crate::channel::link::ends(s) {
            // What was sent before is in place before the mapping goes. The next thread that looks
            // finds a peer that broke a rule.
            let _ = arrive::all(s, &ends, maps);
            maps.hide(found, &ends, s);
            // Its writer may wait for the room that there is now, or for what will never come.
            ends.wake_writer();
        }
        Ok(maps.list.remove(found).entry)
    });
    let entry = removed.unwrap_or(Err(Failure::Blocked))?;
    if has_bridge && let Some(entry) = entry {
        bridge::direct_placement::withdraw(s, entry.index);
    }
    Ok(())
}

/// Writes to the peer's mapping at `offset`, as far as the peer's mappings go. Blocks as a send
/// does; never raises SIGPIPE: the caller does, on `EPIPE`.
///
/// # Errors
/// As send(2); `EFAULT` when the peer has no mapping there; `EINVAL` for an offset below 0.
pub fn write(
    id: SlotId,
    fd: RawFd,
    from: &[libc::iovec],
    offset: i64,
    flags: i32,
) -> Result<usize, Failure> {
    let s = fork_group::slot(id).ok_or(Failure::BadDescriptor)?;
    let offset = u64::try_from(offset).map_err(|_| Failure::Invalid)?;
    let call = Call { id, s, fd, flags };
    let sent = send::transfer(&call, from, send::Into::Mapping(offset));
    crate::socket::after_send(id, from, sent)
}
