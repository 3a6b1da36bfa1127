//! How rsockets come and go, what they are called, and how they meet.

use core::ffi::c_int;
use std::os::fd::IntoRawFd;

use libc::{sockaddr, socklen_t};
use rsocket_edge::conn::slot::SlotId;
use rsocket_edge::descriptors;
use rsocket_edge::descriptors::Entry;
use rsocket_edge::edge::done;
use rsocket_edge::{native, socket};
use rsocket_host::address::SockAddr;
use rsocket_host::failure::Failure;
use rsocket_host::given::{Answer, Bytes};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::{datagram, epoll, init, table};

/// A new socket, for a stream or for datagrams.
fn make(domain: c_int, kind: c_int, protocol: c_int) -> Result<c_int, Failure> {
    let family = match domain {
        libc::AF_INET => AddressFamily::INET,
        libc::AF_INET6 => AddressFamily::INET6,
        _ => return Err(Failure::Unsupported),
    };
    let flags = kind & (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    let datagrams = match (kind & !flags, protocol) {
        (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => false,
        (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => true,
        _ => return Err(Failure::Unsupported),
    };
    init::settle();
    if !descriptors::claim() {
        // A child of vfork, or of a raw clone: what is known here is its parent's.
        return Err(Failure::Unsupported);
    }
    let flags = SocketFlags::from_bits_truncate(flags.unsigned_abs());
    let (kind, protocol) = if datagrams {
        (SocketType::DGRAM, rustix::net::ipproto::UDP)
    } else {
        (SocketType::STREAM, rustix::net::ipproto::TCP)
    };
    let fd = rustix::net::socket_with(family, kind, flags, Some(protocol))?.into_raw_fd();
    let slot = if datagrams { socket::created_datagram(fd) } else { socket::created(fd) };
    let entered = match slot {
        Some(slot) => {
            table::enter(fd, slot).and_then(|()| ready_for_datagrams(fd, slot, datagrams))
        }
        None => Err(Failure::NoFiles),
    };
    if entered.is_err() {
        table::close(fd);
    }
    entered.map(|()| fd)
}

fn ready_for_datagrams(fd: c_int, slot: SlotId, datagrams: bool) -> Result<(), Failure> {
    let made = if datagrams { rsocket_edge::datagram::created(slot, fd) } else { Ok(()) };
    if made.is_err() {
        descriptors::let_go(fd, descriptors::forget(fd), fd);
    }
    made
}

fn listen(fd: c_int, backlog: c_int) -> Result<(), Failure> {
    let slot = table::rsocket(fd)?;
    native::listen(slot, fd, backlog)?;
    descriptors::put(fd, Entry::Listener(slot));
    Ok(())
}

fn accept(fd: c_int) -> Result<(c_int, SockAddr), Failure> {
    let listener = match descriptors::entry(fd) {
        Entry::Listener(slot) => slot,
        Entry::Connection(_) if datagram::behind(fd).is_some() => return Err(Failure::Unsupported),
        Entry::Connection(_) => return Err(Failure::Invalid),
        _ => return Err(Failure::BadDescriptor),
    };
    let (slot, new, peer) = native::accept(listener, fd, 0)?;
    match table::enter(new, slot) {
        Ok(()) => Ok((new, peer)),
        Err(e) => {
            table::close(new);
            Err(e)
        }
    }
}

fn close(fd: c_int) -> Result<(), Failure> {
    if epoll::is_set(fd) {
        return epoll::close(fd);
    }
    table::rsocket(fd)?;
    // The entry goes first: as soon as the kernel has closed the descriptor, another open file may
    // have its number.
    if descriptors::mine() {
        descriptors::let_go(fd, descriptors::forget(fd), fd);
    }
    table::close(fd);
    Ok(())
}

/// A name for the program, or the error.
fn give(name: Result<SockAddr, Failure>, answer: Answer<'_>) -> c_int {
    done(name.and_then(|name| {
        if answer.is_null() {
            return Err(Failure::BadAddress);
        }
        answer.name(&name);
        Ok(())
    }))
}

call! {
    fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        match make(domain, kind, protocol) {
            Ok(fd) => fd,
            Err(e) => done(Err(e)),
        }
    }

    fn rbind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
        let name = Bytes::new(address.cast(), length);
        done(table::rsocket(fd).and_then(|slot| native::bind(slot, fd, &name.name()?)))
    }

    fn rlisten(fd: c_int, backlog: c_int) -> c_int {
        done(listen(fd, backlog))
    }

    fn raccept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
        match accept(fd) {
            Ok((new, peer)) => {
                Answer::new(address.cast(), length).name(&peer);
                new
            }
            Err(e) => done(Err(e)),
        }
    }

    fn rconnect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
        let name = Bytes::new(address.cast(), length);
        if let Some(slot) = datagram::behind(fd) {
            return done(datagram::connect(slot, fd, name));
        }
        done(table::rsocket(fd).and_then(|slot| native::connect(slot, fd, &name.name()?)))
    }

    /// What was accepted before is in the peer's memory already, so that there is nothing to wait
    /// for.
    fn rshutdown(fd: c_int, how: c_int) -> c_int {
        done(table::rsocket(fd).and_then(|slot| native::shutdown(slot, fd, how)))
    }

    /// As `rshutdown`: what was accepted is the peer's.
    fn rclose(fd: c_int) -> c_int {
        done(close(fd))
    }

    fn rgetpeername(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
        let name = table::rsocket(fd).and_then(|slot| native::peer_name(slot, fd));
        give(name, Answer::new(address.cast(), length))
    }

    fn rgetsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
        let name = table::rsocket(fd).and_then(|slot| native::local_name(slot, fd));
        give(name, Answer::new(address.cast(), length))
    }
}
