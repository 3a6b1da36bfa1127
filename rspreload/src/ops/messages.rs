//! What `sendmmsg` and `recvmmsg` share. Must not know which way the messages go.

use core::ffi::c_int;

use rsocket_edge::conn::slot::SlotId;
use rsocket_edge::messages::Messages;
use rsocket_edge::socket;

/// Shows the packet tap what libc's call has moved in `result` messages. No other part of the
/// library looks into so many buffers.
pub(crate) fn saw_each(
    slot: SlotId,
    received: bool,
    list: Messages<'_>,
    result: c_int,
    flags: c_int,
) {
    socket::forget_fingerprint(slot, received);
    if !socket::tapped() || flags & (libc::MSG_PEEK | libc::MSG_TRUNC) != 0 {
        return;
    }
    for i in 0..usize::try_from(result).unwrap_or(0) {
        if let Some(pieces) = list.get(i).and_then(|message| message.pieces()) {
            socket::fingerprint_bytes(slot, received, pieces, list.moved(i));
        }
    }
}
