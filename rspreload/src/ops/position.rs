//! Reads and writes at a position. A socket has none, and the kernel says so (`ESPIPE`). But the
//! calls with flags take -1 for "where the file stands", and then they are `readv` and `writev`.

use core::ffi::c_int;

use libc::ssize_t;
use rsocket_edge::message::List;
use rsocket_edge::socket;
use rsocket_edge::socket::Route;
use rsocket_host::failure::Failure;

use super::recv;
use super::send::{self, How};
use crate::edge::fail;
use crate::shadow;

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

/// `preadv2` from where the file stands; there is no list where its length is negative. `real`
/// passes the call on.
pub(crate) fn read(
    fd: c_int,
    list: Option<List<'_>>,
    flags: c_int,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let Some(slot) = shadow::connection(fd) else { return real() };
    match (list.and_then(List::taken), as_flags(flags)) {
        (Some(to), Some(flags)) => recv::read_like(slot, fd, to, flags, real),
        (None, _) => real(),
        (_, None) => match recv::enter_kernel(slot, fd) {
            Route::Kernel => {
                let r = real();
                socket::leave_receive(slot, fd, r);
                socket::forget_fingerprint(slot, true);
                r
            }
            // What the kernel says of most of them.
            Route::Device => fail(Failure::Unsupported) as ssize_t,
        },
    }
}

/// `pwritev2` to where the file stands, as [`read`].
pub(crate) fn write(
    fd: c_int,
    list: Option<List<'_>>,
    flags: c_int,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let Some(slot) = shadow::connection(fd) else { return real() };
    match list.and_then(List::taken) {
        Some(from) => {
            let known = as_flags(flags);
            let how = How { flags: known.unwrap_or(0), odd: known.is_none() };
            send::transmit(slot, fd, from, how, real)
        }
        None => real(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_files_are_those_of_sockets_or_nothing() {
        assert_eq!(as_flags(0), Some(0));
        assert_eq!(as_flags(EMPTY), Some(0));
        assert_eq!(as_flags(NOWAIT | EMPTY), Some(libc::MSG_DONTWAIT));
        // RWF_APPEND is the kernel's to refuse.
        assert_eq!(as_flags(16), None);
        assert_eq!(as_flags(NOWAIT | 16), None);
    }
}
