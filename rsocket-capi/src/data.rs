//! Bytes in and out.

use core::ffi::{c_int, c_void};

use libc::{iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use rsocket_edge::edge::{count, iovecs, length, nowhere, one, sent};
use rsocket_edge::{native, socket};
use rsocket_host::failure::Failure;

use crate::{datagram, table};

/// Flags of receiving calls that mean something here. Others mean nothing on a stream, and are
/// ignored.
const RECEIVING: c_int = libc::MSG_PEEK | libc::MSG_WAITALL | libc::MSG_DONTWAIT | libc::MSG_TRUNC;
/// The same of sending calls.
const SENDING: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE;

fn receive(fd: c_int, to: &[iovec], flags: c_int) -> Result<usize, Failure> {
    let slot = table::rsocket(fd)?;
    if rsocket_edge::datagram::is(slot) {
        return datagram::receive(slot, fd, to, flags);
    }
    native::before_data(slot)?;
    if flags & libc::MSG_OOB != 0 {
        return Err(Failure::Unsupported);
    }
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Err(Failure::Blocked);
    }
    socket::receive(slot, fd, to, flags & RECEIVING)
}

/// `read` is `recv` without flags, but for nothing: a read of no bytes never sleeps.
fn read(fd: c_int, to: &[iovec]) -> Result<usize, Failure> {
    if length(to) == 0 { table::connection(fd).map(|_| 0) } else { receive(fd, to, 0) }
}

fn send(fd: c_int, from: &[iovec], flags: c_int) -> Result<usize, Failure> {
    let slot = table::rsocket(fd)?;
    if rsocket_edge::datagram::is(slot) {
        return datagram::send(slot, fd, from, flags);
    }
    native::before_data(slot)?;
    if flags & libc::MSG_OOB != 0 {
        return Err(Failure::Unsupported);
    }
    socket::send(slot, fd, from, flags & SENDING)
}

/// What a sending call returns: a broken pipe is a signal too, but not of a datagram socket.
fn told(fd: c_int, result: Result<usize, Failure>, flags: c_int) -> ssize_t {
    if result == Err(Failure::Ended) && datagram::behind(fd).is_some() {
        count(result)
    } else {
        sent(result, flags)
    }
}

/// The program's scatter list. `too_long` is what this call says to one that has too many elements.
///
/// # Safety
/// `list` points to `n` elements.
unsafe fn scatter<'a>(
    list: *const iovec,
    n: usize,
    too_long: Failure,
) -> Result<&'a [iovec], Failure> {
    const MOST: usize = 1024;
    match n {
        1.. if n > MOST => Err(too_long),
        1.. if nowhere(list) => Err(Failure::BadAddress),
        // SAFETY: the caller's promise.
        _ => unsafe { iovecs(list, n) }.ok_or(Failure::Invalid),
    }
}

/// As [`scatter`], for `readv` and `writev`.
///
/// # Safety
/// As [`scatter`].
unsafe fn vector<'a>(list: *const iovec, n: c_int) -> Result<&'a [iovec], Failure> {
    // SAFETY: the caller's promise.
    usize::try_from(n)
        .map_err(|_| Failure::Invalid)
        .and_then(|n| unsafe { scatter(list, n, Failure::Invalid) })
}

/// The message header of `sendmsg` and `recvmsg` with its scatter list.
///
/// # Safety
/// `message` is null or points to a valid header.
unsafe fn header<'a>(message: *const msghdr) -> Result<&'a [iovec], Failure> {
    if nowhere(message) {
        return Err(Failure::BadAddress);
    }
    // SAFETY: not null; the caller's promise.
    unsafe { scatter((*message).msg_iov, (*message).msg_iovlen, Failure::MessageTooLong) }
}

/// What a received message has beside its bytes: the peer's name, and no control data.
///
/// # Safety
/// `message` points to a valid header.
unsafe fn describe(fd: c_int, message: *mut msghdr) {
    // SAFETY: the caller's promise; the name is written within the length that stands there.
    unsafe {
        let message = &mut *message;
        say_peer(fd, message.msg_name.cast(), &raw mut message.msg_namelen);
        message.msg_controllen = 0;
        message.msg_flags = 0;
    }
}

/// Writes the peer's name where the program asked for it; a length of 0 where there is none any
/// more.
///
/// # Safety
/// As `SockAddr::write`.
unsafe fn say_peer(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) {
    if address.is_null() || length.is_null() {
        return;
    }
    match table::rsocket(fd).and_then(|slot| native::peer_name(slot, fd)) {
        // SAFETY: the caller's promise.
        Ok(peer) => unsafe { peer.write(address, length) },
        // SAFETY: as above, and not null.
        Err(_) => unsafe { length.write_unaligned(0) },
    }
}

call! {
    fn rrecv(fd: c_int, buffer: *mut c_void, size: size_t, flags: c_int) -> ssize_t {
        count(receive(fd, &one(buffer, size), flags))
    }

    fn rrecvfrom(
        fd: c_int,
        buffer: *mut c_void,
        size: size_t,
        flags: c_int,
        from: *mut sockaddr,
        from_length: *mut socklen_t,
    ) -> ssize_t {
        if let Some(slot) = datagram::behind(fd) {
            return count(datagram::receive_from(slot, fd, &one(buffer, size), flags, (from, from_length)));
        }
        let result = receive(fd, &one(buffer, size), flags);
        if result.is_ok() {
            say_peer(fd, from, from_length);
        }
        count(result)
    }

    fn rrecvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        if let Some(slot) = datagram::behind(fd) {
            return count(header(message).and_then(|to| datagram::receive_message(slot, fd, to, message, flags)));
        }
        let result = header(message).and_then(|to| receive(fd, to, flags));
        if result.is_ok() {
            describe(fd, message);
        }
        count(result)
    }

    fn rread(fd: c_int, buffer: *mut c_void, size: size_t) -> ssize_t {
        count(read(fd, &one(buffer, size)))
    }

    fn rreadv(fd: c_int, list: *const iovec, n: c_int) -> ssize_t {
        count(vector(list, n).and_then(|to| read(fd, to)))
    }

    fn rsend(fd: c_int, buffer: *const c_void, size: size_t, flags: c_int) -> ssize_t {
        told(fd, send(fd, &one(buffer, size), flags), flags)
    }

    /// The address is ignored on a connected stream, as Linux does.
    fn rsendto(
        fd: c_int,
        buffer: *const c_void,
        size: size_t,
        flags: c_int,
        to: *const sockaddr,
        to_length: socklen_t,
    ) -> ssize_t {
        if let Some(slot) = datagram::behind(fd) {
            return count(datagram::send_to(slot, fd, &one(buffer, size), flags, (to, to_length)));
        }
        told(fd, send(fd, &one(buffer, size), flags), flags)
    }

    fn rsendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        let from = match header(message) {
            // Descriptors and credentials travel over no device.
            Ok(_) if (*message).msg_controllen != 0 => Err(Failure::Unsupported),
            other => other,
        };
        if let Some(slot) = datagram::behind(fd) {
            let to = ((*message).msg_name.cast_const().cast(), (*message).msg_namelen);
            return count(from.and_then(|from| datagram::send_to(slot, fd, from, flags, to)));
        }
        told(fd, from.and_then(|from| send(fd, from, flags)), flags)
    }

    fn rwrite(fd: c_int, buffer: *const c_void, size: size_t) -> ssize_t {
        told(fd, send(fd, &one(buffer, size), 0), 0)
    }

    fn rwritev(fd: c_int, list: *const iovec, n: c_int) -> ssize_t {
        told(fd, vector(list, n).and_then(|from| send(fd, from, 0)), 0)
    }
}
