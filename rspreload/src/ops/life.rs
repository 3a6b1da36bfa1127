//! How descriptors come and go: `socket`, `close`, and the calls that hand out numbers.

use core::ffi::{c_int, c_uint};

use rsocket_edge::socket as core_socket;
use rsocket_host::failure::Failure;
use rsocket_host::given::Place;
use rsocket_host::reason::Reason;
use rsocket_host::sys;
use rsocket_host::sys::sandbox;

use super::process::leave_to_kernel;
use crate::edge::{fail, keeping_errno};
use crate::room::{self, with_room};
use crate::shadow::{self, Entry};
use crate::{adopted, policy};

/// Closes the range, and leaves what is inside it alone: no descriptor, only an entry in the
/// kernel's table.
const CLOSE_RANGE_CLOEXEC: c_int = 4;
/// Gives the calling thread a descriptor table of its own first.
const CLOSE_RANGE_UNSHARE: c_int = 2;

/// A number that the kernel has just handed out for something that we never track.
pub(crate) fn plain(fd: c_int) -> c_int {
    shadow::fresh(fd);
    fd
}

/// The same for a call that gives a pair, if its result is 0.
pub(crate) fn plain_pair(result: c_int, pair: Place<'_, [c_int; 2]>) -> c_int {
    if result == 0
        && let Some([a, b]) = pair.get()
    {
        shadow::fresh(a);
        shadow::fresh(b);
    }
    result
}

fn is_tcp(domain: c_int, kind: c_int, protocol: c_int) -> bool {
    matches!(domain, libc::AF_INET | libc::AF_INET6)
        && kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == libc::SOCK_STREAM
        && matches!(protocol, 0 | libc::IPPROTO_TCP)
}

/// Begins to track a TCP socket that the program has just made.
fn track(fd: c_int, domain: c_int) {
    if policy::enabled()
        && policy::takes(domain)
        && shadow::claim()
        && let Some(slot) = core_socket::created(fd)
    {
        shadow::put(fd, Entry::Connection(slot));
        adopted::count_inherited();
    }
}

/// The close of one descriptor, which `real` does. What is ours the program cannot close: to it
/// there is none.
#[inline(always)]
pub(crate) fn close_by<R: From<c_int>>(fd: c_int, real: impl FnOnce() -> R) -> R {
    if sys::is_private(fd) {
        return fail(Failure::BadDescriptor).into();
    }
    before_close(fd);
    real()
}

/// Before `fd` is really closed. Its entry goes first: from the moment that the kernel has closed
/// it, another thread may get the number.
pub(crate) fn before_close(fd: c_int) {
    if shadow::entry(fd) == Entry::Foreign {
        return;
    }
    if shadow::mine() {
        shadow::let_go(fd, shadow::forget(fd), fd);
    } else {
        shadow::forget_copy(fd);
    }
}

/// The close of a range, piece by piece, each of which `real` does.
pub(crate) fn close_range_by(
    first: c_uint,
    last: c_uint,
    flags: c_int,
    real: impl Fn(c_uint, c_uint, c_int) -> c_int,
) -> c_int {
    let parts =
        flags & CLOSE_RANGE_UNSHARE != 0 && shadow::any() && !sandbox::inside() && shadow::mine();
    // With no threads but ours there is no thread to part from. Ours must go on with the program's
    // table, in which what the program closes is closed.
    let flags = if parts && !sys::has_threads() { flags & !CLOSE_RANGE_UNSHARE } else { flags };
    if flags & CLOSE_RANGE_UNSHARE != 0
        && shadow::any()
        && !sandbox::inside()
        && shadow::mine()
        && sys::has_threads()
    {
        // From here on a number may mean one thing to this thread and another to its siblings.
        keeping_errno(|| leave_to_kernel(Reason::SharedHolders));
        return if flags & CLOSE_RANGE_CLOEXEC != 0 || first > last {
            real(first, last, flags)
        } else {
            each_piece(first, last, |from, to| real(from, to, flags))
        };
    }
    let only = flags & !(CLOSE_RANGE_CLOEXEC | CLOSE_RANGE_UNSHARE) != 0
        || flags & CLOSE_RANGE_CLOEXEC != 0
        || first > last;
    if only || flags & CLOSE_RANGE_UNSHARE != 0 && !shadow::mine() {
        return real(first, last, flags);
    }
    each_piece(first, last, |from, to| {
        before_close_range(from, to);
        real(from, to, flags)
    })
}

/// Calls `close` for the pieces of a range that lie between our private descriptors; stops at an
/// error.
fn each_piece(first: c_uint, last: c_uint, close: impl Fn(c_uint, c_uint) -> c_int) -> c_int {
    let mut from = first;
    loop {
        let private = c_int::try_from(from)
            .ok()
            .and_then(sys::next_private)
            .and_then(|p| c_uint::try_from(p).ok())
            .filter(|p| *p <= last);
        let Some(private) = private else { return close(from, last) };
        if private > from {
            let r = close(from, private - 1);
            if r != 0 {
                return r;
            }
        }
        if private == last {
            return 0;
        }
        from = private + 1;
    }
}

/// Before the descriptors of a range are really closed.
fn before_close_range(first: c_uint, last: c_uint) {
    let end = shadow::end();
    let Ok(first) = c_int::try_from(first) else { return };
    let last = c_int::try_from(last).unwrap_or(c_int::MAX).min(end - 1);
    (first..=last).for_each(before_close);
}

/// `socket`, which `real` makes.
pub(crate) fn socket(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
    real: impl Fn() -> c_int,
) -> c_int {
    let fd = with_room(real);
    if fd >= 0 {
        shadow::fresh(fd);
        room::made(fd);
        if is_tcp(domain, kind, protocol) {
            keeping_errno(|| track(fd, domain));
        }
    }
    fd
}

/// `closefrom`. `close_range` closes what lies between two numbers, both of them with it; `real` is
/// libc's own.
pub(crate) fn closefrom(
    first: c_int,
    close_range: impl Fn(c_uint, c_uint) -> c_int,
    real: impl FnOnce(c_int),
) {
    let from = c_uint::try_from(first).unwrap_or(0);
    let mut rest = from;
    let next = |from| {
        c_int::try_from(from)
            .ok()
            .and_then(sys::next_private)
            .and_then(|p| c_uint::try_from(p).ok())
    };
    // All pieces but the last by close_range; the last is libc's closefrom, which also copes where
    // the kernel has no close_range.
    while let Some(private) = next(rest) {
        if private > rest {
            before_close_range(rest, private - 1);
            close_range(rest, private - 1);
        }
        rest = private + 1;
    }
    before_close_range(rest, c_uint::MAX);
    real(c_int::try_from(rest).unwrap_or(c_int::MAX));
}

/// `shutdown`; `real` passes it on.
pub(crate) fn shutdown(fd: c_int, how: c_int, real: impl FnOnce() -> c_int) -> c_int {
    if let Some(slot) = shadow::connection(fd) {
        core_socket::shutdown(slot, fd, how);
    }
    let r = real();
    if let Some(slot) = shadow::connection(fd) {
        if r == 0 {
            core_socket::has_shut(slot);
        } else if sys::errno() == libc::ENOTCONN {
            core_socket::heard::closed(slot);
        }
    }
    r
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tcp_is_tcp() {
        assert!(is_tcp(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0));
        assert!(is_tcp(libc::AF_INET6, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, libc::IPPROTO_TCP));
        assert!(!is_tcp(libc::AF_INET, libc::SOCK_DGRAM, 0));
        assert!(!is_tcp(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_SCTP));
        assert!(!is_tcp(libc::AF_UNIX, libc::SOCK_STREAM, 0));
    }
}
