//! Bytes from one descriptor to another without passing through the program: `sendfile`, `splice`.

use core::ffi::{c_int, c_uint};
use core::mem::MaybeUninit;

use libc::{loff_t, off_t, size_t, ssize_t};
use rsocket_edge::conn::slot::SlotId;
use rsocket_edge::socket;
use rsocket_edge::socket::prospect::{Prospect, prospect};
use rsocket_edge::socket::sendfile::to_device;
use rsocket_edge::socket::{Route, splice};
use rsocket_host::failure::Failure;
use rsocket_host::given::Place;
use rsocket_host::signals;
use rsocket_host::signals::Since;
use rsocket_host::stack;
use rsocket_host::sys;

use super::send;
use crate::edge::{fail, keeping_errno, one, sent};
use crate::shadow;
use rsocket_edge::handover::pipe::Pipe;

/// How much is read from the file at a time.
const PIECE: usize = 16 * 1024;
const _: () = assert!(PIECE <= stack::LENT);

/// The most that one call moves, as in the kernel.
const MOST: usize = 0x7fff_f000;

/// What the kernel has sent of a file, for the packet tap.
#[cold]
fn show_file(slot: SlotId, file: c_int, start: u64, length: usize) {
    stack::on_own(|| show_pieces(slot, file, start, length));
}

fn show_pieces(slot: SlotId, file: c_int, start: u64, length: usize) {
    let mut piece = [MaybeUninit::<u8>::uninit(); PIECE];
    let mut shown = 0;
    while shown < length {
        let Some(room) = piece.get_mut(..(length - shown).min(PIECE)) else { break };
        let got = rustix::io::pread(sys::borrow(file), room, start.saturating_add(shown as u64));
        let Ok(n @ 1..) = got.map(|(bytes, _)| bytes.len()) else { break };
        socket::fingerprint_bytes(slot, false, &one(piece.as_ptr().cast(), n), n);
        shown += n;
    }
}

/// A long file goes by TCP in parts while its connection may leave that: the ends meet between
/// them. The result is the next part of a file of which `moved` bytes have gone. Calls are few
/// beside the bytes, and the first part that the device could have had is not long.
fn part(prospect: Prospect, moved: usize) -> usize {
    const FIRST: usize = 64 * 1024;
    match prospect {
        Prospect::None => MOST,
        Prospect::Some => FIRST.max(moved / 8),
        Prospect::Soon => FIRST.max(moved / 64),
    }
}

/// `sendfile` to a connection; `real` is the kernel's way, with a length.
pub(crate) fn sendfile(
    (slot, to): (SlotId, c_int),
    from: c_int,
    offset: Place<'_, off_t>,
    length: size_t,
    mut real: impl FnMut(size_t) -> ssize_t,
) -> ssize_t {
    let seen = signals::seen();
    // All the parts together, as one call of the kernel's.
    let length = length.min(MOST);
    let mut moved = 0;
    loop {
        let left = length.saturating_sub(moved);
        let (r, wanted) = if socket::enter_send(slot, to) == Route::Kernel {
            let now = left.min(part(prospect(slot), moved));
            (by_kernel((slot, to), from, offset, || real(now)), now)
        } else {
            (by_device((slot, to), from, offset, left), left)
        };
        let Ok(n) = usize::try_from(r) else {
            if moved == 0 {
                return r;
            }
            // What has gone is said now, and the error by the next call.
            socket::leave_error(slot, Failure::last());
            break;
        };
        moved += n;
        // As in the kernel, a handler ends a call that has moved something.
        if n < wanted || moved >= length || !matches!(seen.since(), Since::Nothing) {
            break;
        }
    }
    ssize_t::try_from(moved).unwrap_or(ssize_t::MAX)
}

/// One call of the kernel's, after [`socket::enter_send`].
fn by_kernel(
    (slot, to): (SlotId, c_int),
    from: c_int,
    offset: Place<'_, off_t>,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let start = || match offset.to_read().read().ok()? {
        None => rustix::fs::tell(sys::borrow(from)).ok(),
        Some(offset) => u64::try_from(offset).ok(),
    };
    let start = if socket::tapped() { start() } else { None };
    let r = real();
    socket::leave_send(slot, to, r);
    socket::forget_fingerprint(slot, false);
    if let (Some(start), Ok(n)) = (start, usize::try_from(r)) {
        show_file(slot, from, start, n);
    }
    r
}

/// The same by the device, which moves the caller's offset.
fn by_device(
    (slot, to): (SlotId, c_int),
    from: c_int,
    offset: Place<'_, off_t>,
    length: usize,
) -> ssize_t {
    let position = |at: Option<off_t>| at.map(u64::try_from).transpose();
    let given = offset.to_read().read();
    let at = match given.and_then(|at| position(at).map_err(|_| Failure::Invalid)) {
        Ok(at) => at,
        Err(e) => return fail(e) as ssize_t,
    };
    if sys::is_private(from) {
        return fail(Failure::BadDescriptor) as ssize_t;
    }
    let result = to_device(slot, to, from, at, length);
    if let (Some(position), Ok(n)) = (at, result) {
        offset.set(off_t::try_from(position.saturating_add(n as u64)).unwrap_or(off_t::MAX));
    }
    sent(result, 0)
}

/// The pipe's end of a call, if the kernel would look further than at the arguments: anything else
/// fails there, before a byte is moved.
fn end_of(
    pipe: c_int,
    access: c_int,
    offsets: [*mut loff_t; 2],
    length: size_t,
    flags: c_uint,
) -> Option<Pipe> {
    const KNOWN: c_uint =
        libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
    let odd = length == 0 || flags & !KNOWN != 0 || offsets.iter().any(|offset| !offset.is_null());
    if odd || sys::is_private(pipe) {
        return None;
    }
    Pipe::of(pipe, access, flags & libc::SPLICE_F_NONBLOCK == 0)
}

/// From a connection into a pipe; `real` is the kernel's way.
fn splice_out(
    slot: SlotId,
    fd: c_int,
    pipe: Option<Pipe>,
    length: usize,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    loop {
        if socket::enter_receive(slot, fd) == Route::Kernel {
            let r = real();
            socket::leave_receive(slot, fd, r);
            socket::forget_fingerprint(slot, true);
            return r;
        }
        let Some(pipe) = pipe else { return real() };
        match splice::to_pipe(slot, fd, pipe, length.min(MOST)) {
            Ok(None) => {}
            Ok(Some(n)) => return sent(Ok(n), 0),
            Err(e) => return sent(Err(e), 0),
        }
    }
}

/// From a pipe into a connection; `real` is the kernel's way.
fn splice_in(
    slot: SlotId,
    fd: c_int,
    pipe: Option<Pipe>,
    length: usize,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    if socket::enter_send(slot, fd) == Route::Device {
        let Some(pipe) = pipe else { return real() };
        match splice::from_pipe(slot, fd, pipe, length.min(MOST)) {
            Ok(Some(n)) => return sent(Ok(n), 0),
            Err(e) => return sent(Err(e), 0),
            Ok(None) if splice::goes_by_kernel(slot) => return real(),
            Ok(None) => {
                if let Err(e) = send::enter_kernel(slot, fd) {
                    return fail(e) as ssize_t;
                }
            }
        }
    }
    let r = real();
    socket::leave_send(slot, fd, r);
    socket::forget_fingerprint(slot, false);
    r
}

/// `splice` from the first descriptor to the second; `real` is the kernel's way.
pub(crate) fn splice(
    [from, to]: [c_int; 2],
    offsets: [*mut loff_t; 2],
    length: size_t,
    flags: c_uint,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let with = |pipe, access| keeping_errno(|| end_of(pipe, access, offsets, length, flags));
    if let Some(slot) = shadow::connection(from) {
        splice_out(slot, from, with(to, libc::O_WRONLY), length, real)
    } else if let Some(slot) = shadow::connection(to) {
        splice_in(slot, to, with(from, libc::O_RDONLY), length, real)
    } else {
        real()
    }
}
