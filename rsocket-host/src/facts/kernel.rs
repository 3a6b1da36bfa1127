//! The TCP socket underneath: the few calls we make on it ourselves, none of which blocks.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::events::Events;
use crate::failure::Failure;
use crate::given::{Answer, Bytes};
use crate::sys::{self, sandbox};

fn result(n: libc::c_long) -> Result<usize, Failure> {
    usize::try_from(n).map_err(|_| Failure::last())
}

/// Receives from the TCP socket without blocking, at most `limit` bytes.
///
/// # Errors
/// As recvmsg(2).
pub fn receive(fd: RawFd, to: &[libc::iovec], limit: usize, flags: i32) -> Result<usize, Failure> {
    if sandbox::inside() {
        return read(fd, to, limit);
    }
    let mut cut = [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; 16];
    let vectors = limited(to, limit, &mut cut);
    // SAFETY: an all-zero msghdr is a valid empty one.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = vectors.as_ptr().cast_mut();
    header.msg_iovlen = vectors.len() as _;
    // SAFETY: the header names the caller's buffers, which the program promised are writable.
    result(unsafe {
        libc::syscall(libc::SYS_recvmsg, fd, &raw mut header, flags | libc::MSG_DONTWAIT)
    })
}

/// Sends into the TCP socket without blocking and without SIGPIPE.
///
/// # Errors
/// As sendmsg(2).
pub fn send(fd: RawFd, from: &[libc::iovec], flags: i32) -> Result<usize, Failure> {
    if sandbox::inside() {
        return write(fd, from);
    }
    // SAFETY: an all-zero msghdr is a valid empty one.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    let count = from.len().min(1024);
    header.msg_iov = from.as_ptr().cast_mut();
    header.msg_iovlen = count as _;
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the header names the caller's buffers, which the program promised are readable.
    result(unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const header, flags) })
}

/// In a sandbox, where `recvmsg` may be deadly: the call that every program with a socket may make.
/// It blocks as the descriptor says, and is only made where the program asked to receive.
#[cold]
fn read(fd: RawFd, to: &[libc::iovec], limit: usize) -> Result<usize, Failure> {
    let Some(v) = to.iter().find(|v| v.iov_len > 0) else { return Ok(0) };
    // SAFETY: the program promised that the buffer is writable.
    result(unsafe { libc::syscall(libc::SYS_read, fd, v.iov_base, v.iov_len.min(limit)) })
}

/// As [`read`].
#[cold]
fn write(fd: RawFd, from: &[libc::iovec]) -> Result<usize, Failure> {
    let Some(v) = from.iter().find(|v| v.iov_len > 0) else { return Ok(0) };
    // SAFETY: the program promised that the buffer is readable.
    result(unsafe { libc::syscall(libc::SYS_write, fd, v.iov_base, v.iov_len) })
}

/// At most 16 of the vectors, and of them at most `limit` bytes.
fn limited<'a>(
    to: &[libc::iovec],
    limit: usize,
    cut: &'a mut [libc::iovec; 16],
) -> &'a [libc::iovec] {
    let mut left = limit;
    let mut n = 0;
    for (from, into) in to.iter().zip(cut.iter_mut()) {
        if left == 0 {
            break;
        }
        *into = libc::iovec { iov_base: from.iov_base, iov_len: from.iov_len.min(left) };
        left -= into.iov_len;
        n += 1;
    }
    cut.get(..n).unwrap_or(&[])
}

/// What the TCP socket says about the end of the incoming direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Nothing: the connection stands, no byte is waiting.
    Open,
    /// FIN, and nothing before it.
    Fin,
    /// Bytes are waiting.
    Bytes,
    /// The connection was reset, or worse.
    Failed(Failure),
}

/// Looks, with one system call, whether the incoming direction has ended. Takes a pending error.
pub fn ending(fd: RawFd) -> Ending {
    let mut byte = 0u8;
    let v = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    match receive(fd, &[v], 1, libc::MSG_PEEK) {
        Ok(0) => Ending::Fin,
        Ok(_) => Ending::Bytes,
        Err(Failure::Blocked) => Ending::Open,
        Err(e) => Ending::Failed(e),
    }
}

/// The error that the TCP socket has for a receiver, which is taken. Behind FIN it has none: what
/// came after that stays where it is, for a sender, for poll(2) and for `SO_ERROR`.
pub fn receivers_error(fd: RawFd) -> Option<Failure> {
    if sandbox::inside() {
        return None;
    }
    match ending(fd) {
        Ending::Failed(e) => Some(e),
        Ending::Open | Ending::Fin | Ending::Bytes => None,
    }
}

/// Whether the descriptor is non-blocking right now. The kernel is asked: another holder may change
/// it.
pub fn nonblocking(fd: RawFd) -> bool {
    // SAFETY: F_GETFL takes no argument and touches no memory.
    let flags = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::c_long::from(libc::O_NONBLOCK) != 0
}

/// SO_RCVTIMEO or SO_SNDTIMEO in nanoseconds; `None` is no limit.
pub fn timeout(fd: RawFd, option: i32) -> Option<u64> {
    let mut t = libc::timeval { tv_sec: 0, tv_usec: 0 };
    get(fd, libc::SOL_SOCKET, option, &mut t)?;
    let ns = t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1000;
    (ns != 0).then_some(ns)
}

/// An integer option; `None` where the kernel does not say.
pub fn integer(fd: RawFd, level: i32, option: i32) -> Option<i32> {
    let mut value = 0i32;
    get(fd, level, option, &mut value)?;
    Some(value)
}

/// Any option, as many of its bytes as there is room for; how many those are.
///
/// # Errors
/// As getsockopt(2).
pub fn option(fd: RawFd, level: i32, option: i32, into: &mut [u8]) -> Result<usize, Failure> {
    let mut len = libc::socklen_t::try_from(into.len()).unwrap_or(libc::socklen_t::MAX);
    // SAFETY: the slice is writable for its length, which the kernel is told.
    let r = unsafe {
        libc::syscall(libc::SYS_getsockopt, fd, level, option, into.as_mut_ptr(), &raw mut len)
    };
    result(r).map(|_| into.len().min(len as usize))
}

/// Whether the kernel would refuse to set an option of this socket to what stands at an address of
/// the program's. The answer is what the kernel does with a new socket of the same family. A socket
/// that cannot be made says nothing.
#[cold]
pub fn would_refuse(fd: RawFd, level: i32, option: i32, value: (usize, u32)) -> bool {
    let (value, length) = value;
    let Some(family) = integer(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) else { return false };
    let family = AddressFamily::from_raw(family as u16);
    let Ok(like) = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)
    else {
        return false;
    };
    // SAFETY: the kernel checks the address, from which it only reads.
    let r = unsafe {
        libc::syscall(libc::SYS_setsockopt, like.as_raw_fd(), level, option, value, length)
    };
    sys::discard(like);
    r < 0
}

/// The port of the socket's own name.
pub fn local_port(fd: RawFd) -> Option<u16> {
    let name = rustix::net::getsockname(sys::borrow(fd)).ok()?;
    SocketAddr::try_from(name).ok().map(|name| name.port())
}

/// `SO_LINGER`: the seconds, where it is on.
pub fn linger(fd: RawFd) -> Option<i32> {
    let mut linger = libc::linger { l_onoff: 0, l_linger: 0 };
    get(fd, libc::SOL_SOCKET, libc::SO_LINGER, &mut linger)?;
    (linger.l_onoff != 0).then_some(linger.l_linger)
}

/// The pending socket error, which is cleared.
pub fn take_error(fd: RawFd) -> Option<Failure> {
    let mut e = 0i32;
    get(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut e)?;
    (e != 0).then_some(Failure::from_code(e))
}

/// Sends what small segments wait for an acknowledgement (Nagle's rule, RFC 896). Between two plain
/// ends it would have come with what the peer sent, which may have gone by the device.
pub fn push(fd: RawFd) {
    set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1_i32);
}

/// Sends what TCP keeps back for bytes that are to follow (`MSG_MORE`, `TCP_CORK`, Nagle's rule;
/// tcp(7)). They follow by the device, and the kernel would wait for up to 200 ms. `TCP_NODELAY`
/// stays as the program has set it.
pub fn push_held_back(fd: RawFd) {
    let mut no_delay = 0i32;
    if get(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &mut no_delay).is_some() {
        push(fd);
        if no_delay == 0 {
            set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &0_i32);
        }
    }
}

/// Has what is read acknowledged at once. Where answers went out lately, the kernel keeps an
/// acknowledgement back, which would travel with the next answer. That answer goes by the device,
/// and a sender of small segments waits meanwhile (Nagle's rule). The kernel does the same after
/// the first that it kept back in vain, some 40 ms later, and ends it when TCP sends again.
pub fn acknowledge_at_once(fd: RawFd) {
    if sandbox::inside() {
        return;
    }
    set(fd, libc::IPPROTO_TCP, libc::TCP_QUICKACK, &1_i32);
}

/// Makes the next close of the connection a reset.
pub fn reset_on_close(fd: RawFd) {
    set(fd, libc::SOL_SOCKET, libc::SO_LINGER, &libc::linger { l_onoff: 1, l_linger: 0 });
}

/// Has accept(2) give connections by which nothing has come yet, whatever `TCP_DEFER_ACCEPT` said.
pub fn accept_at_once(fd: RawFd) {
    set(fd, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, &0_i32);
}

/// Has connect(2) send its packet at once, whatever `TCP_FASTOPEN_CONNECT` said.
pub fn connect_at_once(fd: RawFd) {
    set(fd, libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, &0_i32);
}

fn set<T>(fd: RawFd, level: i32, option: i32, value: &T) {
    // SAFETY: the kernel reads size_of::<T>() bytes at a valid address.
    unsafe {
        libc::syscall(
            libc::SYS_setsockopt,
            fd,
            level,
            option,
            core::ptr::from_ref(value),
            size_of::<T>(),
        )
    };
}

/// Sends FIN.
pub fn shut_sending(fd: RawFd) {
    // SAFETY: no memory is passed.
    unsafe { libc::syscall(libc::SYS_shutdown, fd, libc::SHUT_WR) };
}

/// Breaks the TCP connection for both ends: the loud end after an inconsistency.
pub fn shut_both(fd: RawFd) {
    // SAFETY: no memory is passed.
    unsafe { libc::syscall(libc::SYS_shutdown, fd, libc::SHUT_RDWR) };
}

/// Takes the socket out of its connection, which is reset. A process that has it, and knows nothing
/// of us, hears of an error and not of an end.
pub fn disconnect(fd: RawFd) {
    let none = libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
    // SAFETY: the kernel reads an address of the size that it is told.
    unsafe { libc::syscall(libc::SYS_connect, fd, &raw const none, size_of::<libc::sockaddr>()) };
}

/// Sets an option as a caller gave it.
///
/// # Errors
/// As setsockopt(2).
pub fn set_given(fd: RawFd, level: i32, name: i32, value: Bytes<'_>) -> Result<(), Failure> {
    let (at, length) = (value.as_ptr(), value.length());
    // SAFETY: as many bytes are there by the value's promise, and the kernel checks.
    let r = unsafe { libc::syscall(libc::SYS_setsockopt, fd, level, name, at, length) };
    if r == 0 { Ok(()) } else { Err(Failure::last()) }
}

/// Has the kernel answer a caller's question.
///
/// # Errors
/// As getsockopt(2).
pub fn get_given(fd: RawFd, level: i32, name: i32, to: Answer<'_>) -> Result<(), Failure> {
    let (at, length) = to.as_ptrs();
    // SAFETY: there is room for as many bytes as the length says, by the promise of the answer.
    let r = unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, at, length) };
    if r == 0 { Ok(()) } else { Err(Failure::last()) }
}

fn get<T>(fd: RawFd, level: i32, option: i32, value: &mut T) -> Option<()> {
    if sandbox::inside() {
        return None;
    }
    let mut len = size_of::<T>() as libc::socklen_t;
    let p: *mut T = value;
    // SAFETY: value is writable for len bytes, and every T used here is plain integers.
    let r = unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, option, p, &raw mut len) };
    (r == 0).then_some(())
}

/// What the kernel says about one descriptor now.
pub fn poll_now(fd: RawFd, ask: Events) -> Events {
    poll_within(fd, ask, 0)
}

/// Descriptors that [`any_ready`] asks about at most.
pub const FEW: usize = 16;

/// Whether the kernel has now what is asked of any of them. False where they are more than [`FEW`],
/// or it is not to be asked ([`sandbox`]). No cancellation point.
#[must_use]
#[allow(clippy::unnecessary_cast, reason = "rustix over libc, as under Miri, has signed flags")]
pub fn any_ready(fds: &[libc::pollfd]) -> bool {
    if fds.is_empty() || sandbox::inside() {
        return false;
    }
    let none = libc::pollfd { fd: -1, events: 0, revents: 0 };
    let places = core::array::from_fn::<_, FEW, _>(|i| *fds.get(i).unwrap_or(&none));
    let borrowed = places.map(|p| (sys::borrow(p.fd), p.events));
    let mut asked = borrowed
        .each_ref()
        .map(|(fd, events)| PollFd::new(fd, PollFlags::from_bits_retain(*events as u16 as _)));
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let asked = asked.get_mut(..fds.len());
    asked.is_some_and(|asked| matches!(rustix::event::poll(asked, Some(&now)), Ok(1..)))
}

/// As [`poll_now`], once one of those is so, or so many nanoseconds (below a second) have passed.
/// No cancellation point.
#[inline]
#[allow(clippy::unnecessary_cast, reason = "rustix over libc, as under Miri, has signed flags")]
pub fn poll_within(fd: RawFd, ask: Events, ns: u32) -> Events {
    let fd = sys::borrow(fd);
    let limit = rustix::event::Timespec { tv_sec: 0, tv_nsec: ns.into() };
    let mut one = [PollFd::new(&fd, PollFlags::from_bits_retain(ask.bits() as _))];
    match rustix::event::poll(&mut one, Some(&limit)) {
        Ok(1..) => one.first().map_or(Events::empty(), |p| {
            Events::from_bits_truncate(u32::from(p.revents().bits() as u16))
        }),
        _ => Events::empty(),
    }
}
