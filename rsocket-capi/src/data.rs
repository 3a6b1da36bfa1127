//! Bytes in and out.

use core::ffi::{c_int, c_void};

use libc::{iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use rsocket_edge::edge::{count, length, one, sent};
use rsocket_edge::message::{List, Message};
use rsocket_edge::{native, socket};
use rsocket_host::failure::Failure;
use rsocket_host::given::{Answer, Bytes};

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

/// What a received message has beside its bytes: the peer's name, and no control data.
fn describe(fd: c_int, message: Message<'_>) {
    if let Some(sender) = message.sender() {
        say_peer(fd, sender);
    }
    message.finish(0);
}

/// Gives the peer's name where the program asked for it; a length of 0 where there is none any
/// more.
fn say_peer(fd: c_int, answer: Answer<'_>) {
    if answer.is_null() {
        return;
    }
    match table::rsocket(fd).and_then(|slot| native::peer_name(slot, fd)) {
        Ok(peer) => answer.name(&peer),
        Err(_) => answer.no_name(),
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
        let from = Answer::new(from.cast(), from_length);
        if let Some(slot) = datagram::behind(fd) {
            return count(datagram::receive_from(slot, fd, &one(buffer, size), flags, from));
        }
        let result = receive(fd, &one(buffer, size), flags);
        if result.is_ok() {
            say_peer(fd, from);
        }
        count(result)
    }

    fn rrecvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        let message = Message::new(message);
        if let Some(slot) = datagram::behind(fd) {
            return count(datagram::receive_message(slot, fd, message, flags));
        }
        let result = message.list().and_then(|to| receive(fd, to, flags));
        if result.is_ok() {
            describe(fd, message);
        }
        count(result)
    }

    fn rread(fd: c_int, buffer: *mut c_void, size: size_t) -> ssize_t {
        count(read(fd, &one(buffer, size)))
    }

    fn rreadv(fd: c_int, list: *const iovec, n: c_int) -> ssize_t {
        let list = List::counted(list, n);
        count(list.checked(Failure::Invalid).and_then(|to| read(fd, to)))
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
            let to = Some(Bytes::new(to.cast(), to_length));
            return count(datagram::send_to(slot, fd, &one(buffer, size), flags, to));
        }
        told(fd, send(fd, &one(buffer, size), flags), flags)
    }

    fn rsendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        let message = Message::new(message.cast_mut());
        let from = match message.list() {
            // Descriptors and credentials travel over no device.
            Ok(_) if message.has_control() => Err(Failure::Unsupported),
            other => other,
        };
        if let Some(slot) = datagram::behind(fd) {
            let to = message.name();
            return count(from.and_then(|from| datagram::send_to(slot, fd, from, flags, to)));
        }
        told(fd, from.and_then(|from| send(fd, from, flags)), flags)
    }

    fn rwrite(fd: c_int, buffer: *const c_void, size: size_t) -> ssize_t {
        told(fd, send(fd, &one(buffer, size), 0), 0)
    }

    fn rwritev(fd: c_int, list: *const iovec, n: c_int) -> ssize_t {
        let list = List::counted(list, n);
        told(fd, list.checked(Failure::Invalid).and_then(|from| send(fd, from, 0)), 0)
    }
}
