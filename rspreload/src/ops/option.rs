//! What a socket is asked to be: `setsockopt`, `fcntl`, `ioctl`.
//!
//! The options themselves are the kernel's, since the descriptor is its socket. An option that is
//! not known to be harmless to a connection on a device keeps the connection on TCP, or brings it
//! back there.

use core::ffi::{c_int, c_long, c_ulong};
use core::mem::offset_of;

use rsocket_edge::conn::slot::SlotId;
use rsocket_edge::conn::{handshake, timers};
use rsocket_edge::socket::options::{
    Before, changes_sending, harmless, refuse_for, would_change_nothing,
};
use rsocket_edge::socket::{heard, inq, stamps, urgent};
use rsocket_edge::{native, socket};
use rsocket_host::failure::Failure;
use rsocket_host::given::{Answer, Bytes, Place};
use rsocket_host::reason::Reason;
use rsocket_host::sys;

use super::dup::alias;
use super::exec::meant_for_next;
use crate::edge::{fail, keeping_errno, readable};
use crate::room::with_room;
use crate::shadow;
use crate::shadow::Entry;
use rsocket_edge::socket::timing;

/// `SIOCOUTQNSD`: like `SIOCOUTQ`, but only what has not been sent at all.
const SIOCOUTQNSD: c_ulong = 0x894B;
/// Whether the next byte is the urgent one.
const SIOCATMARK: c_ulong = 0x8905;

/// The `fcntl` commands that make another name for a descriptor.
#[inline(always)]
fn duplicates(command: c_int) -> bool {
    matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC)
}

/// An option's value, if it is an integer that can be read.
fn integer_at(value: Bytes<'_>) -> Option<c_int> {
    let is_one = value.length() as usize >= size_of::<c_int>()
        && readable(value.as_ptr(), size_of::<c_int>());
    if is_one { value.integer().ok() } else { None }
}

/// A connection, or a listener, whose options the sockets that it gives will have.
fn endpoint(fd: c_int) -> Option<SlotId> {
    match shadow::entry(fd) {
        Entry::Connection(slot) | Entry::Listener(slot) => Some(slot),
        Entry::Set | Entry::Foreign => None,
    }
}

/// `SO_RCVTIMEO` and `SO_SNDTIMEO` as programs with 64-bit time on 32-bit machines name them.
const SO_RCVTIMEO_NEW: c_int = 66;
const SO_SNDTIMEO_NEW: c_int = 67;

/// Takes note of a time-out that the kernel has just set: it has read the value.
fn timeout_was_set(fd: c_int, level: c_int, name: c_int, value: Bytes<'_>) {
    let option = match name {
        libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW => libc::SO_RCVTIMEO,
        libc::SO_SNDTIMEO | SO_SNDTIMEO_NEW => libc::SO_SNDTIMEO,
        _ => return,
    };
    if level == libc::SOL_SOCKET
        && let Entry::Connection(slot) | Entry::Listener(slot) = shadow::entry(fd)
        && let Some(seconds) = value.seconds()
    {
        socket::timeout_set(slot, option, seconds);
    }
}

/// Takes note of an option that the kernel has just set.
fn was_set(fd: c_int, level: c_int, name: c_int) {
    handshake::sets_options();
    match shadow::entry(fd) {
        // What a listener gives has its mark.
        Entry::Connection(slot) | Entry::Listener(slot)
            if (level, name) == (libc::SOL_SOCKET, libc::SO_RCVLOWAT) =>
        {
            socket::low_water(slot, fd);
            rsocket_edge::readiness::epoll::said_anew(slot);
        }
        Entry::Connection(_) | Entry::Listener(_)
            if (level, name) == (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) =>
        {
            socket::accept_deferred(fd);
        }
        Entry::Connection(slot) | Entry::Listener(slot) if inq::concerns(level, name) => {
            inq::changed(slot, fd)
        }
        Entry::Connection(slot) | Entry::Listener(slot) if stamps::concerns(level, name) => {
            stamps::changed(slot, fd)
        }
        Entry::Connection(slot) | Entry::Listener(slot) if handshake::concerns(level, name) => {
            socket::option_was_set(slot, fd, level, name)
        }
        Entry::Connection(slot) if timers::concerns(level, name) => timing::changed(slot, fd),
        _ => {}
    }
}

/// `SO_ERROR` of a connection that has no TCP to stay on, and did not attach.
fn unattached(slot: SlotId, fd: c_int) -> Option<c_int> {
    keeping_errno(|| socket::unattached(slot, fd)).map(Failure::code)
}

/// Takes note of what the kernel's answer tells the program of the connection's end.
fn tells((slot, fd): (SlotId, c_int), option: (c_int, c_int), answer: Answer<'_>) {
    let Some(said) = answer.said() else { return };
    // `tcpi_state` is the first byte.
    if option == (libc::IPPROTO_TCP, libc::TCP_INFO)
        && let Some(state) = said.byte()
    {
        heard::state(slot, state);
    } else if option == (libc::SOL_SOCKET, libc::SO_ERROR)
        && said.length() as usize == size_of::<c_int>()
        && said.integer().is_ok_and(|error| error != 0)
    {
        keeping_errno(|| heard::error(slot, fd));
    }
}

/// The kernel sends the signals, for what TCP brings: the peer's next bytes are to be of those.
fn signalled(fd: c_int) {
    if let Some(slot) = shadow::connection(fd) {
        keeping_errno(|| socket::refuse(slot, fd, Reason::OddUse));
    }
}

/// Answers `TCP_ZEROCOPY_RECEIVE` where bytes lie that the kernel does not have: nothing was
/// mapped, and so many bytes are there for recv(2). False where the kernel is to say what is wrong
/// with the question.
fn nothing_to_map(answer: Answer<'_>, unread: usize) -> bool {
    /// The fields that every version of `struct tcp_zerocopy_receive` has (linux/tcp.h).
    #[repr(C)]
    struct Asked {
        address: u64,
        length: u32,
        recv_skip_hint: u32,
    }
    let hint = u32::try_from(unread).unwrap_or(u32::MAX);
    answer.room() >= size_of::<Asked>()
        && answer.part(offset_of!(Asked, length), &0_u32.to_ne_bytes())
        && answer.part(offset_of!(Asked, recv_skip_hint), &hint.to_ne_bytes())
}

/// An `fcntl` that asks for a signal whenever something is ready: the kernel sends it, for what it
/// sees.
#[inline(always)]
fn signals(command: c_int, argument: c_long) -> bool {
    command == libc::F_SETFL && argument & c_long::from(libc::O_ASYNC) != 0
}

/// An `fcntl` that has the next program keep a number of ours.
#[inline(always)]
fn keeps(fd: c_int, command: c_int, argument: c_long) -> bool {
    command == libc::F_SETFD
        && argument & c_long::from(libc::FD_CLOEXEC) == 0
        && shadow::tracked(fd)
}

/// Whether there is anything for [`control`] to do.
#[inline(always)]
pub(crate) fn concerns(fd: c_int, command: c_int, argument: c_long) -> bool {
    duplicates(command)
        || signals(command, argument)
        || keeps(fd, command, argument)
        || sys::is_private(fd)
}

/// What an `fcntl` that is ours does; `real` passes it on.
pub(crate) fn control(fd: c_int, command: c_int, real: impl Fn() -> c_int) -> c_int {
    if sys::is_private(fd) {
        return fail(Failure::BadDescriptor);
    }
    if duplicates(command) {
        return alias(fd, || with_room(real));
    }
    match command {
        libc::F_SETFD => meant_for_next(fd),
        _ => signalled(fd),
    }
    real()
}

/// `setsockopt`; `real` passes it on.
pub(crate) fn setsockopt(
    fd: c_int,
    (level, name): (c_int, c_int),
    value: Bytes<'_>,
    real: impl FnOnce() -> c_int,
) -> c_int {
    let odd = if harmless(level, name) { None } else { endpoint(fd) };
    let given = || (value.as_ptr().addr(), value.length());
    let nothing = || would_change_nothing(fd, level, name, given(), integer_at(value));
    if let Some(slot) = odd
        && changes_sending(level, name)
        && !keeping_errno(nothing)
    {
        keeping_errno(|| refuse_for(slot, fd, level, name));
    }
    let before = odd.map(|slot| (slot, keeping_errno(|| Before::ask(fd, level, name))));
    let r = real();
    if r == 0 {
        // What the kernel refuses, or what is so already, changes nothing.
        if let Some((slot, before)) = before {
            keeping_errno(|| {
                if before.has_changed(fd) {
                    refuse_for(slot, fd, level, name)
                }
            });
        }
        keeping_errno(|| {
            was_set(fd, level, name);
            timeout_was_set(fd, level, name, value);
        });
    }
    r
}

/// `getsockopt`; `real` passes it on.
pub(crate) fn getsockopt(
    fd: c_int,
    (level, name): (c_int, c_int),
    answer: Answer<'_>,
    real: impl FnOnce() -> c_int,
) -> c_int {
    if handshake::concerns(level, name)
        && let Some(slot) = endpoint(fd)
        && keeping_errno(|| socket::option_asked(slot, fd, level, name))
    {
        let r = real();
        if r == 0 {
            // The kernel has answered with an integer, or with as much of it as there is room for.
            let none = 0_i32.to_ne_bytes();
            answer.part(0, none.get(..answer.room()).unwrap_or(&none));
        }
        return r;
    }
    let Some(slot) = shadow::connection(fd) else { return real() };
    if answered_here((slot, fd), (level, name), answer) {
        return 0;
    }
    let r = real();
    if r == 0 {
        tells((slot, fd), (level, name), answer);
    }
    r
}

/// Answers what the kernel does not know of a connection; false where it is to be asked.
fn answered_here((slot, fd): (SlotId, c_int), option: (c_int, c_int), answer: Answer<'_>) -> bool {
    // The one option that takes bytes from the stream.
    if option == (libc::IPPROTO_TCP, libc::TCP_ZEROCOPY_RECEIVE) {
        keeping_errno(|| refuse_for(slot, fd, option.0, option.1));
        if let Some(unread) = keeping_errno(|| socket::unread(slot, fd))
            && nothing_to_map(answer, unread)
        {
            return true;
        }
    }
    if option == (libc::SOL_SOCKET, libc::SO_ERROR)
        && let Some(error) = native::rdma::error(slot, fd).or_else(|| unattached(slot, fd))
    {
        return answer.whole(&error.to_ne_bytes());
    }
    false
}

/// Whether the argument of an `ioctl` that is ours is the place of an integer.
#[inline]
pub(crate) const fn names_integer(request: c_ulong) -> bool {
    matches!(request, libc::FIOASYNC | libc::FIONREAD | libc::TIOCOUTQ | SIOCOUTQNSD | SIOCATMARK)
}

/// `ioctl`: `place` is null where the request is none that [`names_integer`]; `real` passes it on.
pub(crate) fn ioctl(
    (slot, fd): (SlotId, c_int),
    request: c_ulong,
    place: Place<'_, c_int>,
    real: impl FnOnce() -> c_int,
) -> c_int {
    let has_room = || readable(place.as_ptr(), size_of::<c_int>());
    if request == libc::FIONCLEX {
        meant_for_next(fd);
    }
    if request == libc::FIOASYNC && has_room() && place.get().is_some_and(|wanted| wanted != 0) {
        signalled(fd);
    }
    let known = match request {
        libc::FIONREAD => socket::unread(slot, fd),
        libc::TIOCOUTQ | SIOCOUTQNSD => socket::unsent(slot, fd),
        SIOCATMARK if urgent::stands_before_mark(slot) => Some(0),
        _ => None,
    };
    match known {
        // A bad pointer is for the kernel to refuse.
        Some(n) if has_room() => {
            place.set(c_int::try_from(n).unwrap_or(c_int::MAX));
            0
        }
        _ => real(),
    }
}

/// `sockatmark`; `real` passes it on.
pub(crate) fn sockatmark(slot: SlotId, real: impl FnOnce() -> c_int) -> c_int {
    if urgent::stands_before_mark(slot) { 0 } else { real() }
}
