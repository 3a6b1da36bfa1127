//! What `sendmmsg` and `recvmmsg` share: lists of messages. Must not know which way they go.

use core::ffi::c_int;

use libc::{mmsghdr, msghdr};
use rsocket_edge::conn::slot::SlotId;
use rsocket_edge::socket;
use rsocket_host::failure::Failure;
use rsocket_host::probe::present;

use crate::edge::iovecs;

/// Why a scatter list is none.
pub(crate) fn bad_list(message: &msghdr) -> Failure {
    let there = present(message.msg_iov, message.msg_iovlen.min(1024));
    if there { Failure::MessageTooLong } else { Failure::BadAddress }
}

/// Shows the packet tap what libc's call has moved in `result` messages. No other part of the
/// library looks into so many buffers.
///
/// # Safety
/// The kernel has filled the first `result` entries of `list`.
pub(crate) unsafe fn saw_each(
    slot: SlotId,
    received: bool,
    list: *const mmsghdr,
    result: c_int,
    flags: c_int,
) {
    socket::forget_fingerprint(slot, received);
    if !socket::tapped() || flags & (libc::MSG_PEEK | libc::MSG_TRUNC) != 0 {
        return;
    }
    for i in 0..usize::try_from(result).unwrap_or(0) {
        // SAFETY: the caller's promise; the scatter list in an entry is valid too.
        let (pieces, n) = unsafe {
            let entry = list.add(i);
            (iovecs((*entry).msg_hdr.msg_iov, (*entry).msg_hdr.msg_iovlen), (*entry).msg_len)
        };
        if let Some(pieces) = pieces {
            socket::fingerprint_bytes(slot, received, pieces, n as usize);
        }
    }
}

/// The bytes that `result` messages moved, or the error that `result` is.
///
/// # Safety
/// The kernel has filled the first `result` entries of `list`.
pub(crate) unsafe fn total(result: c_int, list: *const mmsghdr) -> isize {
    let Ok(n) = usize::try_from(result) else { return -1 };
    // SAFETY: the caller's promise.
    (0..n).fold(0, |sum: isize, i| sum.saturating_add(unsafe { (*list.add(i)).msg_len } as isize))
}
