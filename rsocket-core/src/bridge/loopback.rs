//! The kernel's part of a bridged connection: a TCP connection on the loopback interface between
//! the program's socket and one of ours. No byte travels over it but what goes past the library
//! ([`super::under`]).
//!
//! It gives the program what only the kernel can give: a descriptor that is connected, FIN and RST,
//! the accept queue, the last close. Must not know bridges or queue pairs. Entry points: [`tie`],
//! [`Near::open`], [`DoorWay::open`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::net::{AddressFamily, Shutdown};

use crate::failure::Failure;
use crate::host::events::Events;
use crate::host::kernel;
use crate::sys::{self, sockets};

/// The loopback addresses that a socket of this family can use, best first. An IPv6 socket may be
/// able to use either.
fn loopbacks(family: AddressFamily) -> impl Iterator<Item = SocketAddr> {
    let four = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));
    let six = SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::LOCALHOST, 0, 0, 0));
    let mapped = SocketAddr::V6(SocketAddrV6::new(Ipv4Addr::LOCALHOST.to_ipv6_mapped(), 0, 0, 0));
    let (first, second) =
        if family == AddressFamily::INET6 { (six, Some(mapped)) } else { (four, None) };
    core::iter::once(first).chain(second)
}

/// Connects the program's socket `fd` to a new one of ours, on the loopback interface, without
/// blocking for longer than that takes in the kernel. Gives our end, non-blocking and
/// close-on-exec.
///
/// # Errors
/// What the kernel says: no loopback interface, no descriptors, a socket that is connected already.
pub fn tie(fd: RawFd) -> Result<OwnedFd, Failure> {
    let program = sys::borrow(fd);
    let mut last = Failure::Invalid;
    for at in loopbacks(sockets::family(program)?) {
        match tie_at(program, at) {
            Ok(ours) => return Ok(ours),
            Err(e) => last = e,
        }
    }
    Err(last)
}

fn tie_at(program: BorrowedFd<'_>, at: SocketAddr) -> Result<OwnedFd, Failure> {
    let listener = sockets::stream_for(&at)?;
    sockets::listen_at(&listener, &at, 1)?;
    let door = sockets::own_name(&listener)?;
    match sockets::connect(program, &door) {
        // On the loopback interface the handshake is over when connect returns, even where it says
        // that it is still going on.
        Ok(()) | Err(Failure::UnderWay) => {}
        Err(e) => return Err(e),
    }
    let own = sockets::own_name(program)?;
    // A stranger of this host may have been faster: only the program's socket is let in.
    for _ in 0..64 {
        match sockets::accept(&listener) {
            Ok(ours) if sockets::peer_name(&ours) == Ok(own) => return Ok(ours),
            Ok(stranger) => sys::discard(stranger),
            Err(Failure::Blocked) => {
                let _ = kernel::poll_within(listener.as_raw_fd(), Events::IN, 20_000_000);
            }
            Err(e) => return Err(e),
        }
    }
    Err(Failure::TimedOut)
}

/// Makes the program's unconnected socket listen where only this host can reach it; the address.
///
/// # Errors
/// What the kernel says.
pub fn listen_near(fd: RawFd, backlog: i32) -> Result<SocketAddr, Failure> {
    let program = sys::borrow(fd);
    let mut last = Failure::Invalid;
    for at in loopbacks(sockets::family(program)?) {
        match sockets::bind(program, &at) {
            Ok(()) => {
                sockets::listen(program, backlog)?;
                return sockets::own_name(program);
            }
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// A socket of ours that is about to knock at a listening socket of the program's. Its address is
/// known before it knocks, so that the process that accepts it can be told which guest it is.
pub struct Near {
    fd: OwnedFd,
    /// Its own address.
    pub address: SocketAddr,
}

impl Near {
    /// One that can reach `door`, an address of this host.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open(door: &SocketAddr) -> Result<Self, Failure> {
        let fd = sockets::stream_for(door)?;
        let own: SocketAddr = match door.ip() {
            ip if ip.is_unspecified() => return Err(Failure::Invalid),
            ip => SocketAddr::new(ip, 0),
        };
        sockets::bind(&fd, &own)?;
        let address = sockets::own_name(&fd)?;
        Ok(Self { fd, address })
    }

    /// Knocks; gives the socket.
    ///
    /// # Errors
    /// No socket listens there any more, or its accept queue is full.
    pub fn knock(self, door: &SocketAddr) -> Result<OwnedFd, Failure> {
        match sockets::connect(&self.fd, door) {
            Ok(()) | Err(Failure::UnderWay) => Ok(self.fd),
            Err(e) => Err(e),
        }
    }
}

/// Whether a reset is what the kernel says when our end is closed, by whatever.
pub fn resets_at_close(fd: RawFd, so: bool) {
    sockets::reset_at_close(sys::borrow(fd), so);
}

/// The peer sends no more: the program's socket sees FIN.
pub fn say_fin(fd: RawFd) {
    resets_at_close(fd, false);
    let _ = sockets::shut(sys::borrow(fd), Shutdown::Write);
}

/// Dissolves a loopback connection by a reset. A program's socket can be connected anew then.
pub fn untie(fd: RawFd) {
    kernel::disconnect(fd);
}

/// Where a bridge waits for a socket of the program's, which may be another process's.
pub struct DoorWay {
    listener: OwnedFd,
    /// Where it is.
    pub at: SocketAddr,
    /// A connection that came, and has not been compared with the expected address.
    waiting: Option<OwnedFd>,
}

impl DoorWay {
    /// One that a socket of either family can reach, if `six` says which.
    ///
    /// # Errors
    /// What the kernel says: no loopback interface, no descriptors.
    pub fn open(six: bool) -> Result<Self, Failure> {
        let mut last = Failure::Invalid;
        for at in loopbacks(if six { AddressFamily::INET6 } else { AddressFamily::INET }) {
            match Self::open_at(at) {
                Ok(door) => return Ok(door),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    fn open_at(at: SocketAddr) -> Result<Self, Failure> {
        let listener = sockets::stream_for(&at)?;
        sockets::listen_at(&listener, &at, 4)?;
        let at = sockets::own_name(&listener)?;
        Ok(Self { listener, at, waiting: None })
    }

    /// What the service thread hears of.
    pub fn fd(&self) -> RawFd {
        self.listener.as_raw_fd()
    }

    /// The connection that came from `expected`, if there is one. Strangers are sent away, once it
    /// is known which connections are none.
    pub fn let_in(&mut self, expected: Option<SocketAddr>) -> Option<OwnedFd> {
        loop {
            if self.waiting.is_none() {
                self.waiting = Some(sockets::accept(&self.listener).ok()?);
            }
            let expected = expected?;
            let came = self.waiting.take()?;
            if sockets::peer_name(&came) == Ok(expected) {
                return Some(came);
            }
            sys::discard(came);
        }
    }

    /// Closes it.
    pub fn close(self) {
        self.waiting.into_iter().for_each(sys::discard);
        sys::discard(self.listener);
    }
}

/// Connects the program's socket, which is not connected, to a bridge's door; its own address then.
///
/// # Errors
/// What the kernel says: no bridge waits there any more.
pub fn reach(fd: RawFd, door: &SocketAddr) -> Result<SocketAddr, Failure> {
    let program = sys::borrow(fd);
    match sockets::connect(program, door) {
        // As in tie_at.
        Ok(()) | Err(Failure::UnderWay) => sockets::own_name(program),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{SocketFlags, SocketType, accept_with, connect, socket_with};

    use super::*;

    fn tcp(family: AddressFamily) -> OwnedFd {
        socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn a_program_is_tied_to_us_in_both_families() {
        for family in [AddressFamily::INET, AddressFamily::INET6] {
            let program = tcp(family);
            let Ok(ours) = tie(program.as_raw_fd()) else {
                assert_eq!(family, AddressFamily::INET6, "IPv4 loopback is everywhere");
                continue;
            };
            assert_eq!(sockets::peer_name(&ours), sockets::own_name(&program));
            say_fin(ours.as_raw_fd());
            let mut byte = [0];
            assert_eq!(rustix::io::read(&program, &mut byte), Ok(0));
        }
    }

    #[test]
    fn a_connected_socket_comes_to_a_door() {
        for flags in [SocketFlags::CLOEXEC, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK] {
            // Both ends of a TCP connection, one of which the peer has reset.
            let listener = tcp(AddressFamily::INET);
            let at = listen_near(listener.as_raw_fd(), 5).unwrap();
            let far = tcp(AddressFamily::INET);
            connect(&far, &at).unwrap();
            let program = accept_with(&listener, flags).unwrap();
            let fd = program.as_raw_fd();
            rustix::io::write(&program, b"unread").unwrap();
            drop(far);
            let mut door = DoorWay::open(false).unwrap();
            let stranger = tcp(AddressFamily::INET);
            connect(&stranger, &door.at).unwrap();
            assert!(door.let_in(None).is_none());
            untie(fd);
            let _ = kernel::take_error(fd);
            let own = reach(fd, &door.at).unwrap();
            let ours = door.let_in(Some(own)).unwrap();
            assert_eq!(kernel::take_error(fd), None);
            let mut byte = [0];
            assert_eq!(kernel::ending(fd), kernel::Ending::Open);
            drop(program);
            assert_eq!(rustix::io::read(&ours, &mut byte), Ok(0), "the last close is heard of");
            door.close();
        }
    }

    #[test]
    fn who_knocks_is_known_before() {
        let listener = tcp(AddressFamily::INET);
        let door = listen_near(listener.as_raw_fd(), 5).unwrap();
        let near = Near::open(&door).unwrap();
        let address = near.address;
        let ours = near.knock(&door).unwrap();
        let accepted = accept_with(&listener, SocketFlags::CLOEXEC).unwrap();
        assert_eq!(sockets::peer_name(&accepted), Ok(address));
        drop(ours);
    }
}
