//! `sendfile` to a connection on a device: a file's bytes, from a position, into the channel.
//!
//! Long pieces are read straight into the channel ([`super::send_file`]); what is short, or does
//! not fit there, goes through a buffer. Must not know C's arguments. Entry point: [`to_device`].

use core::ffi::c_int;
use core::mem::MaybeUninit;

use super::file::Sent;
use super::{send, send_file};
use crate::conn::slot::SlotId;
use crate::failure::Failure;
use crate::sync::stack;
use crate::sys::files;
use crate::sys::vectors::one;

/// How much is read from the file at a time.
const PIECE: usize = 16 * 1024;
const _: () = assert!(PIECE <= stack::LENT);

/// The most that one call moves, as in the kernel.
const MOST: usize = 0x7fff_f000;

/// A file, and where in it the first byte to be sent stands.
#[derive(Clone, Copy)]
struct From {
    file: c_int,
    start: u64,
}

/// Sends up to `length` bytes of `file`, from `at` or from where the file stands; that moves by
/// what was accepted. Nothing that was read is lost when the connection takes less. Blocks as the
/// connection does.
///
/// # Errors
/// `EINVAL` for what has no position (sendfile(2)), those of pread(2), and those of a send that has
/// moved nothing.
pub fn to_device(
    slot: SlotId,
    fd: c_int,
    file: c_int,
    at: Option<u64>,
    length: usize,
) -> Result<usize, Failure> {
    let start = match at {
        Some(position) => position,
        // A pipe or a socket has no position; the kernel says EINVAL there.
        None => files::position(file).map_err(|_| Failure::Invalid)?,
    };
    // Not on the stack, and without a destructor: the send may sleep, and be cancelled.
    let Some(room) = stack::lend() else { return Err(Failure::NoMemory) };
    // SAFETY: so much was lent at least, to us alone, and bytes need no alignment and no value.
    let piece = unsafe { &mut *room.cast::<[MaybeUninit<u8>; PIECE]>() };
    let result = by_pieces((slot, fd), From { file, start }, length.min(MOST), piece);
    stack::take_back(room);
    if at.is_none()
        && let Ok(moved @ 1..) = result
    {
        files::move_to(file, start.saturating_add(moved as u64))?;
    }
    result
}

/// One step: so many bytes have gone, and there may be more, or that was all for now.
enum Step {
    More(usize),
    Last(usize),
}

fn by_pieces(
    to: (SlotId, c_int),
    from: From,
    length: usize,
    piece: &mut [MaybeUninit<u8>; PIECE],
) -> Result<usize, Failure> {
    let mut moved = 0;
    while moved < length {
        let rest = From { start: from.start.saturating_add(moved as u64), ..from };
        match step(to, rest, length - moved, piece) {
            Ok(Step::More(n)) => moved += n,
            Ok(Step::Last(n)) => return Ok(moved + n),
            Err(e) if moved == 0 => return Err(e),
            Err(_) => break,
        }
    }
    Ok(moved)
}

/// A short file is not worth a call that may not be answered.
fn step(
    to: (SlotId, c_int),
    from: From,
    left: usize,
    piece: &mut [MaybeUninit<u8>; PIECE],
) -> Result<Step, Failure> {
    if left < PIECE {
        return through(to, from, left, piece);
    }
    match send_file(to.0, to.1, from.file, from.start, left)? {
        Sent::All(n) => Ok(Step::Last(n)),
        Sent::Next(n) => {
            let rest = From { start: from.start.saturating_add(n as u64), ..from };
            match through(to, rest, left.saturating_sub(n), piece) {
                Ok(Step::More(k)) => Ok(Step::More(n + k)),
                Ok(Step::Last(k)) => Ok(Step::Last(n + k)),
                Err(e) if n == 0 => Err(e),
                Err(_) => Ok(Step::Last(n)),
            }
        }
    }
}

/// One piece through the buffer.
fn through(
    (slot, fd): (SlotId, c_int),
    from: From,
    left: usize,
    piece: &mut [MaybeUninit<u8>; PIECE],
) -> Result<Step, Failure> {
    let want = left.min(PIECE);
    let Some(room) = piece.get_mut(..want) else { return Ok(Step::Last(0)) };
    let got = match files::fill_at(from.file, from.start, room) {
        Err(Failure::NoPositions) => return Err(Failure::Invalid),
        filled => filled?,
    };
    if got == 0 {
        return Ok(Step::Last(0));
    }
    // More is coming unless this is the end, which is what the kernel's own sendfile says too.
    let more = if got == want && got < left { libc::MSG_MORE } else { 0 };
    let n = send(slot, fd, &one(piece.as_ptr().cast(), got), more)?;
    Ok(if n < got { Step::Last(n) } else { Step::More(n) })
}
