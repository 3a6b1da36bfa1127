//! A socket that stands in for one whose stream is over but not read.
//!
//! A reader that has only the kernel is to read a connection: another program, or the process that
//! is sent the descriptor. What the channel has cannot come by TCP any more, since the peer's FIN
//! is there. So it goes into a new connection over the loopback interface, as far as the kernel's
//! buffers hold it, and that takes the number. The addresses of that connection are its own. Must
//! not know who reads. Entry point: [`replace`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use super::pipe::{Pipe, take_messages};
use crate::bridge::loopback;
use crate::channel::guard::RecvGuard;
use crate::channel::handover_state;
use crate::channel::link::Ends;
use crate::conn::machine::ReceiveMode;
use crate::conn::slot::Slot;
use crate::failure::Failure;
use crate::host::{counters, kernel};
use crate::sys::{self, descriptor, sockets};

/// What goes at a time by way of memory of ours.
const FEW: usize = 512;

/// Puts a socket at `fd` that has all that is left of the stream, and its end. False if that cannot
/// be had. Then what was moved is lost, and the caller must see to it that the stream does not look
/// whole. The connection's peer has sent FIN, and its channel has so many bytes `unread`.
pub(crate) fn replace(guard: &mut RecvGuard<'_>, fd: RawFd, unread: usize) -> bool {
    let (s, ends) = (guard.s, guard.ends);
    let Ok((reader, writer)) = pair(fd, unread) else { return false };
    let Some(ahead) = before_the_channel(s, fd, ends) else { return false };
    if !kernels(fd, &writer, ahead) || channels(guard, &writer) != unread {
        return false;
    }
    // What the peer sent by TCP behind the channel.
    if handover_state::end(&ends.incoming).is_some() && !kernels(fd, &writer, u64::MAX) {
        return false;
    }
    // Its end, before the reader reads.
    if matches!(kernel::ending(fd), kernel::Ending::Failed(_)) {
        kernel::reset_on_close(writer.as_raw_fd());
    }
    sys::discard(writer);
    put_at(reader, fd).is_ok()
}

/// How many bytes TCP has brought that come before the channel's.
fn before_the_channel(s: &Slot, fd: RawFd, ends: &Ends) -> Option<u64> {
    if s.receive_mode() != ReceiveMode::Acknowledged {
        return Some(0);
    }
    let switch_offset = handover_state::switch_offset(&ends.incoming)?;
    match counters::taken(fd) {
        Ok(taken) => Some(switch_offset.saturating_sub(taken.bytes)),
        // Both directions have ended, or it was reset.
        Err(Failure::NotConnected) => {
            counters::left_at_the_end(fd, switch_offset).ok().map(Option::unwrap_or_default)
        }
        Err(_) => None,
    }
}

/// Two ends of a connection: the reader's, of the same family as `fd`, and ours, with room for
/// `bytes`.
fn pair(fd: RawFd, bytes: usize) -> Result<(OwnedFd, OwnedFd), Failure> {
    let reader = sockets::stream_like(sys::borrow(fd))?;
    let writer = loopback::tie(reader.as_raw_fd())?;
    // The kernel cuts it down to what it allows, and counts its own needs in it.
    sockets::set_send_room(&writer, bytes.saturating_mul(2).max(1 << 20))?;
    Ok((reader, writer))
}

/// Moves up to `length` bytes from the kernel's receive queue. False if they do not fit.
fn kernels(fd: RawFd, writer: &OwnedFd, length: u64) -> bool {
    let mut few = [0_u8; FEW];
    let mut left = length;
    while left > 0 {
        let most = usize::try_from(left).map_or(FEW, |left| left.min(FEW));
        let to = [libc::iovec { iov_base: few.as_mut_ptr().cast(), iov_len: most }];
        match kernel::receive(fd, &to, most, libc::MSG_DONTWAIT) {
            Ok(0) => return length == u64::MAX,
            Ok(n) => {
                let from = [libc::iovec { iov_base: few.as_mut_ptr().cast(), iov_len: n }];
                if kernel::send(writer.as_raw_fd(), &from, libc::MSG_DONTWAIT) != Ok(n) {
                    return false;
                }
                left = left.saturating_sub(n as u64);
            }
            Err(_) => return false,
        }
    }
    true
}

/// Moves what the channel has, as far as it fits; how much that was.
fn channels(guard: &mut RecvGuard<'_>, writer: &OwnedFd) -> usize {
    let to = Pipe::taking(writer.as_raw_fd());
    let mut moved = 0;
    loop {
        match take_messages(guard, to, usize::MAX) {
            0 => return moved,
            n => moved += n,
        }
    }
}

/// Puts the reader's end at `fd`, with the flags that are there.
fn put_at(reader: OwnedFd, fd: RawFd) -> Result<(), Failure> {
    descriptor::set_modes(&reader, descriptor::modes(fd)?)?;
    sys::put_at(reader, fd, descriptor::closes_on_exec(fd)?)
}
