//! Direct placement: memory of the program's that its peer may write, `riomap` and its relatives of
//! rsocket(7).
//!
//! One side maps a buffer at an offset; the other side writes to offsets, and the bytes appear in
//! the buffer. Nothing is received, and nobody is told; but what is sent after them is received
//! after they are in place.
//!
//! - *Over RDMA* the buffer is registered with the device, its address and key go to the peer
//!   (`wire-protocol §8`), and the peer's device writes there. The relay does all that
//!   ([`crate::relay::placement`]).
//! - *Over shared memory* the buffer is memory of this process alone. The bytes lie in a ring of
//!   the window until this process puts them into place, after it has checked that they are meant
//!   for a mapping and lie inside it ([`arrive`]): a thread of the program before it takes up what
//!   was sent after them, or a thread of ours ([`thread`]) while the program computes. Letting the
//!   sender write here itself (`process_vm_writev`) would save a copy; but it takes a permission
//!   that hardened hosts do not give, and `riounmap` could not promise that no write is under way.
//!
//! A direct write takes the same way at its sender's end whatever carries it ([`depart`]): into the
//! ring of the window, whose other side is the peer process or the relay. What the peer has mapped
//! stands in the window too.
//!
//! A mapping belongs to the process that made it, and so does all placing on that connection:
//! memory is not a relative's. Must not know C. Entry points: [`map`], [`unmap`], [`write`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use crate::attach::link::Ends;
use crate::conn::family;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::errno::Errno;
use crate::relay;
use crate::sync::living;
use crate::sys;
use crate::{
    socket::{send, wait},
    sys::vectors::Cursor,
};

pub(crate) mod arrive;
pub(crate) mod depart;
mod table;
#[cfg(test)]
mod tests;
mod thread;

pub(crate) use arrive::{Placed, Placer};
use table::{Entry, Map, Place};

/// The offset by which a program leaves the choice to us.
pub const ANY: i64 = -1;

/// Maps `len` bytes of the program's memory from `at` on at `offset` ([`ANY`]: at one of our
/// choice), and says where. With `writable`, for the peer to write; otherwise only for [`unmap`] to
/// find it again, since nothing else has a use for it.
///
/// Waits for a connection that is still attaching, whatever the descriptor's flags say: a few
/// milliseconds, five seconds at most where the peer has accepted it.
///
/// # Errors
/// `EINVAL` for no bytes, 4 GiB or more, or an offset below 0 or too high; `EFAULT` for memory that
/// cannot be written; `EEXIST` where another mapping of the connection has some of these offsets;
/// `ENOMEM` when the peer remembers no more mappings (`RDMA_IOMAPSIZE` at its end), or no more
/// memory can be pinned; `ENOTCONN`, `ETIMEDOUT` without a connection; `EOPNOTSUPP` when the
/// mappings of the connection are a relative's.
///
/// # Safety
/// The memory stays mapped in the process until [`unmap`] or [`closing`] takes it back; with
/// `writable` it may change at any time until then.
pub unsafe fn map(
    id: SlotId,
    fd: RawFd,
    at: *mut u8,
    len: usize,
    writable: bool,
    offset: i64,
) -> Result<i64, Errno> {
    let s = family::slot(id).ok_or(Errno::BADF)?;
    let bytes = u32::try_from(len).ok().filter(|n| *n > 0).ok_or(Errno::INVAL)?;
    if !Cursor::plausible(&[libc::iovec { iov_base: at.cast(), iov_len: len }]) {
        return Err(Errno(libc::EFAULT));
    }
    if writable {
        table::populate(at, len)?;
    }
    let ends = wait::attached(id, s, fd)?;
    own(s)?;
    let place = Place::of_or_make(id);
    let mapped = place.with(|maps| {
        let offset = maps.choose(at, bytes, offset)?;
        let entry = if !writable {
            None
        } else if s.has(flag::RELAYED) {
            // SAFETY: the caller's promise, and withdraw follows.
            let index = unsafe { relay::placement::expose(s, at, bytes, offset) }?;
            Some(Entry { index, generation: 0 })
        } else {
            let most = ends.incoming.offered().unwrap_or(0);
            let index = maps.free_index().filter(|i| *i < most).ok_or(Errno::NOMEM)?;
            Some(Entry { index, generation: next_generation(s) })
        };
        maps.list.push(Map { at: at.expose_provenance(), len: bytes, offset, entry });
        // The flag and the mapping before the peer hears of it.
        s.set(flag::MAPPED);
        if let Some(entry) = entry.filter(|_| !s.has(flag::RELAYED)) {
            ends.incoming.show_map(entry.index, entry.generation, offset, bytes);
        }
        Ok(offset)
    });
    let offset = mapped.unwrap_or(Err(Errno::AGAIN))?;
    if writable && !s.has(flag::RELAYED) {
        thread::watch(id);
    }
    Ok(offset.cast_signed())
}

fn next_generation(s: &Slot) -> u32 {
    // Relaxed: under the place's lock. Even, and never 0 before it wraps, which nobody remembers by
    // then.
    s.placement.generation.fetch_add(2, Ordering::Relaxed).wrapping_add(2)
}

/// This process becomes the one whose memory is mapped on the connection.
fn own(s: &Slot) -> Result<(), Errno> {
    let (me, before) = (sys::pid(), s.placement.owner.load(Ordering::Acquire));
    if before == me {
        return Ok(());
    }
    let free = before == 0 || !living::process(before);
    let taken = || {
        s.placement.owner.compare_exchange(before, me, Ordering::AcqRel, Ordering::Acquire).is_ok()
    };
    if free && taken() { Ok(()) } else { Err(Errno::OPNOTSUPP) }
}

/// Takes a mapping back, the first that was made of exactly this memory. From then on the peer's
/// direct writes there fail, and nothing of them arrives; what had arrived before is in place.
///
/// Over RDMA it waits until the peer has heard of it, a second at most. A peer with upstream's
/// library does not answer, and one of its writes that is under way ends the connection.
///
/// # Errors
/// `EINVAL` when there is none.
pub fn unmap(id: SlotId, at: *mut u8, len: usize) -> Result<(), Errno> {
    let s = family::slot(id).ok_or(Errno::BADF)?;
    let place = Place::of(id).ok_or(Errno::INVAL)?;
    let removed = place.with(|maps| {
        let found = maps.list.iter().position(|m| m.at == at.addr() && m.len as usize == len);
        let found = found.ok_or(Errno::INVAL)?;
        if !s.has(flag::RELAYED)
            && let Some(ends) = crate::attach::link::ends(s)
        {
            // What was sent before is in place before the mapping goes. A peer that broke a rule is
            // found by whoever looks next.
            let _ = arrive::all(s, &ends, maps);
            maps.hide(found, &ends, || next_generation(s));
            // Its writer may wait for the room that there is now, or for what will never come.
            ends.wake_writer();
        }
        Ok(maps.list.remove(found).entry)
    });
    let entry = removed.unwrap_or(Err(Errno::AGAIN))?;
    if s.has(flag::RELAYED)
        && let Some(entry) = entry
    {
        relay::placement::withdraw(s, entry.index);
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
) -> Result<usize, Errno> {
    let s = family::slot(id).ok_or(Errno::BADF)?;
    let offset = u64::try_from(offset).map_err(|_| Errno::INVAL)?;
    let sent = send::transfer(id, s, fd, from, flags, send::Into::Mapping(offset));
    crate::socket::after_send(id, from, sent)
}

/// This process closes its last descriptor of the connection: its memory is its own again.
pub fn closing(id: SlotId, s: &Slot) {
    let Some(place) = Place::of(id) else { return };
    place.with(|maps| {
        if !s.has(flag::RELAYED)
            && let Some(ends) = crate::attach::link::ends(s)
        {
            let _ = arrive::all(s, &ends, maps);
            for i in 0..maps.list.len() {
                maps.hide(i, &ends, || next_generation(s));
            }
            ends.wake_writer();
        }
        maps.list.clear();
        thread::forget(id);
        place.leave(id);
    });
    if s.has(flag::RELAYED) {
        relay::placement::withdraw_all(s);
    }
    if s.placement.owner.load(Ordering::Acquire) == sys::pid() {
        s.placement.owner.store(0, Ordering::Release);
    }
}

/// Whether a direct write that found no room would find some now: then, and not before, is the
/// connection writable.
pub(crate) fn room_again(s: &Slot, ends: &Ends) -> bool {
    depart::room(s, ends).is_none_or(|n| n >= depart::WORTH)
}

/// In the child of a fork: mappings are the parent's.
pub fn forked() {
    table::forked();
    thread::forked();
}
