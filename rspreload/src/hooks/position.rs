//! Reads and writes at a position. A socket has none, and the kernel says so (`ESPIPE`); but the calls with flags take -1 for
//! "where the file stands", and then they are `readv` and `writev`.

use core::ffi::c_int;

use libc::{iovec, off_t, ssize_t};
use rsocket_core::errno::Errno;
use rsocket_core::socket::{self, Route, SlotId};

use super::{recv, send};
use crate::edge::{fail, iovecs};
use crate::{real, shadow};

/// `RWF_NOWAIT`: `MSG_DONTWAIT` on a socket.
const NOWAIT: c_int = 8;
/// `RWF_HIPRI`, `RWF_DSYNC`, `RWF_SYNC`: nothing on a socket.
const EMPTY: c_int = 1 | 2 | 4;

fn as_flags(flags: c_int) -> Option<c_int> {
    match flags & !EMPTY {
        0 => Some(0),
        NOWAIT => Some(libc::MSG_DONTWAIT),
        _ => None,
    }
}

/// # Safety
/// The contract of `readv`; `real` passes the call on.
unsafe fn read(
    slot: SlotId,
    fd: c_int,
    list: *const iovec,
    length: c_int,
    flags: c_int,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    // SAFETY: the caller's promise.
    let to = usize::try_from(length).ok().and_then(|n| unsafe { iovecs(list, n) });
    match (to, as_flags(flags)) {
        (Some(to), Some(flags)) => recv::read_like(slot, fd, to, flags, real),
        (None, _) => real(),
        (_, None) => match recv::enter_kernel(slot, fd) {
            Route::Kernel => {
                let r = real();
                socket::leave_receive(slot, fd, r);
                socket::unwitnessed(slot, true);
                r
            }
            // What the kernel says of most of them.
            Route::Device => fail(Errno::OPNOTSUPP) as ssize_t,
        },
    }
}

/// # Safety
/// The contract of `writev`; `real` passes the call on.
unsafe fn write(
    slot: SlotId,
    fd: c_int,
    list: *const iovec,
    length: c_int,
    flags: c_int,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    // SAFETY: the caller's promise.
    match usize::try_from(length).ok().and_then(|n| unsafe { iovecs(list, n) }) {
        Some(from) => {
            let known = as_flags(flags);
            send::transmit(slot, fd, from, known.unwrap_or(0), known.is_none(), real)
        }
        None => real(),
    }
}

hook! {
    fn preadv2(fd: c_int, list: *const iovec, length: c_int, at: off_t, flags: c_int) -> ssize_t, when at == -1 && shadow::tracked(fd) => {
        let Some(slot) = shadow::connection(fd) else { return real::preadv2(fd, list, length, at, flags) };
        read(slot, fd, list, length, flags, || real::preadv2(fd, list, length, at, flags))
    }

    fn preadv64v2(fd: c_int, list: *const iovec, length: c_int, at: off_t, flags: c_int) -> ssize_t, when at == -1 && shadow::tracked(fd) => {
        preadv2(fd, list, length, at, flags)
    }

    fn pwritev2(fd: c_int, list: *const iovec, length: c_int, at: off_t, flags: c_int) -> ssize_t, when at == -1 && shadow::tracked(fd) => {
        let Some(slot) = shadow::connection(fd) else { return real::pwritev2(fd, list, length, at, flags) };
        write(slot, fd, list, length, flags, || real::pwritev2(fd, list, length, at, flags))
    }

    fn pwritev64v2(fd: c_int, list: *const iovec, length: c_int, at: off_t, flags: c_int) -> ssize_t, when at == -1 && shadow::tracked(fd) => {
        pwritev2(fd, list, length, at, flags)
    }
}
