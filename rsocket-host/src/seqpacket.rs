//! A UNIX socket that keeps messages apart, and carries descriptors with them. Nothing here ever
//! waits.
//!
//! A handle is a plain number with an explicit `close`, since it may live in memory that processes
//! share. Must not know what the messages say, nor how the two ends found each other. Entry point:
//! [`Channel`].

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::mem::MaybeUninit;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType,
};

use crate::facts::raw;
use crate::failure::Failure;
use crate::sys::{self, discard, sockets};

/// The most descriptors that one message can carry.
pub const MAX_FDS: usize = 4;

/// What [`Channel::receive`] brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes of the message.
    pub len: usize,
    /// Descriptors that came with it.
    pub nfds: usize,
}

/// Why [`Channel::receive`] brought nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveError {
    /// No message yet.
    NothingYet,
    /// The other side has closed.
    Closed,
    /// The message is longer than the buffer; it is gone, and what came with it is closed.
    TooLong,
    /// More or other control data than [`MAX_FDS`] descriptors; all that came is closed.
    ControlTruncated,
    /// The kernel's error.
    System(Failure),
}

/// One meeting: a connected UNIX socket that keeps messages apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Channel {
    /// The socket, a private descriptor.
    pub fd: RawFd,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct PeerCred {
    pid: u32,
    uid: u32,
    gid: u32,
}
// SAFETY: three integers without padding. (rustix's type cannot hold pid 0, which is what a process
// of another pid namespace has.)
unsafe impl raw::Plain for PeerCred {}

/// A socket of this kind that has no name yet, and does not block.
///
/// # Errors
/// As socket(2).
pub fn socket() -> Result<OwnedFd, Failure> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(rustix::net::socket_with(family, kind, sockets::OURS, None)?)
}

/// Two that are connected to each other.
///
/// # Errors
/// As socketpair(2).
pub fn pair() -> Result<(OwnedFd, OwnedFd), Failure> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(rustix::net::socketpair(family, kind, sockets::OURS, None)?)
}

impl Channel {
    /// The user of the process at the other end, which came to the offer, or opened it.
    ///
    /// # Errors
    /// Those of `getsockopt`.
    pub fn peer_uid(&self) -> Result<u32, Failure> {
        Ok(self.credentials()?.uid)
    }

    /// The process at the other end, as this pid namespace numbers it: 0 when it cannot, or on
    /// failure. Only ever a hint; a number is used again.
    #[must_use]
    pub fn peer_pid(&self) -> u32 {
        self.credentials().map_or(0, |c| c.pid)
    }

    fn credentials(&self) -> Result<PeerCred, Failure> {
        let (cred, len) =
            raw::getsockopt::<PeerCred>(self.fd, libc::SOL_SOCKET, libc::SO_PEERCRED)?;
        if len == size_of::<PeerCred>() { Ok(cred) } else { Err(Failure::Invalid) }
    }

    /// Sends one message, with copies of the descriptors.
    ///
    /// # Errors
    /// `EAGAIN` when the other side has not read, `EPIPE` when it has gone, `EINVAL` for more than
    /// [`MAX_FDS`] descriptors.
    pub fn send(&self, message: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Failure> {
        if fds.len() > MAX_FDS {
            return Err(Failure::Invalid);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Failure::Invalid);
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = rustix::net::sendmsg(
            sys::borrow(self.fd),
            &[IoSlice::new(message)],
            &mut control,
            flags,
        )?;
        if sent == message.len() { Ok(()) } else { Err(Failure::Invalid) }
    }

    /// Receives one message; its descriptors, close-on-exec, go to the front of `fds`.
    ///
    /// # Errors
    /// See [`ReceiveError`]. In the case of an error no descriptor is left behind.
    pub fn receive(
        &self,
        message: &mut [u8],
        fds: &mut [Option<OwnedFd>; MAX_FDS],
    ) -> Result<Received, ReceiveError> {
        match self.receive_once(message, fds, RecvFlags::empty()) {
            // Linux looks at the queue and then for the end, and the other side may have sent its
            // message and closed in between. After the end nothing comes any more, so the second
            // look is the truth.
            Err(ReceiveError::Closed) => self.receive_once(message, fds, RecvFlags::empty()),
            got => got,
        }
    }

    /// As [`Self::receive`], without taking the message; the descriptors are copies.
    ///
    /// # Errors
    /// As [`Self::receive`].
    pub fn peek(
        &self,
        message: &mut [u8],
        fds: &mut [Option<OwnedFd>; MAX_FDS],
    ) -> Result<Received, ReceiveError> {
        self.receive_once(message, fds, RecvFlags::PEEK)
    }

    fn receive_once(
        &self,
        message: &mut [u8],
        fds: &mut [Option<OwnedFd>; MAX_FDS],
        more: RecvFlags,
    ) -> Result<Received, ReceiveError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT | more;
        let mut parts = [IoSliceMut::new(message)];
        let got = match rustix::net::recvmsg(sys::borrow(self.fd), &mut parts, &mut control, flags)
        {
            Ok(got) => got,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                return Err(ReceiveError::NothingYet);
            }
            Err(rustix::io::Errno::CONNRESET) => return Err(ReceiveError::Closed),
            Err(e) => return Err(ReceiveError::System(e.into())),
        };
        let (nfds, surplus) = unpack(&mut control, fds);
        let bad = if got.flags.contains(ReturnFlags::CTRUNC) || surplus {
            ReceiveError::ControlTruncated
        } else if got.flags.contains(ReturnFlags::TRUNC) {
            ReceiveError::TooLong
        } else if got.bytes == 0 {
            // An empty message looks the same, and no library of ours sends one.
            ReceiveError::Closed
        } else {
            return Ok(Received { len: got.bytes, nfds });
        };
        fds.iter_mut().take(nfds).filter_map(Option::take).for_each(discard);
        Err(bad)
    }

    /// The beginning of the next message, which stays there with what came along; 0 bytes where
    /// there is none.
    #[must_use]
    pub fn glance(&self, message: &mut [u8]) -> usize {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        rustix::net::recv(sys::borrow(self.fd), message, flags).map_or(0, |(len, _)| len)
    }

    /// The other side's next message fails with `EPIPE`; what it has sent can still be received.
    pub fn hear_no_more(&self) {
        let _ = rustix::net::shutdown(sys::borrow(self.fd), rustix::net::Shutdown::Read);
    }

    /// Ends the meeting.
    pub fn close(self) {
        sys::close_private(self.fd);
    }
}

/// Puts the descriptors that came with a message to the front of `fds`: how many, and whether there
/// were more, which are closed.
fn unpack(
    control: &mut RecvAncillaryBuffer<'_>,
    fds: &mut [Option<OwnedFd>; MAX_FDS],
) -> (usize, bool) {
    let (mut nfds, mut surplus) = (0, false);
    for part in control.drain() {
        let RecvAncillaryMessage::ScmRights(list) = part else { continue };
        for fd in list {
            match fds.get_mut(nfds) {
                Some(place) => {
                    if let Some(old) = place.replace(fd) {
                        discard(old);
                    }
                    nfds += 1;
                }
                None => {
                    surplus = true;
                    discard(fd);
                }
            }
        }
    }
    (nfds, surplus)
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;

    /// The other side sends and closes at once, while this side looks again and again.
    #[test]
    fn a_message_is_not_lost_when_its_sender_closes() {
        use std::os::fd::AsRawFd;
        use std::sync::mpsc;
        let (give, take) = mpsc::sync_channel::<OwnedFd>(0);
        let sender = std::thread::spawn(move || {
            for socket in take {
                let channel = Channel { fd: socket.as_raw_fd() };
                channel.send(b"welcome", &[]).unwrap();
            }
        });
        let rounds = 30_000;
        for round in 0..rounds {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let (ours, theirs) =
                rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                    .unwrap();
            give.send(theirs).unwrap();
            let channel = Channel { fd: ours.as_raw_fd() };
            let mut message = [0; 16];
            loop {
                match channel.receive(&mut message, &mut Default::default()) {
                    Ok(got) => break assert_eq!(got.len, 7),
                    Err(ReceiveError::NothingYet) => {}
                    Err(e) => panic!("{e:?} in round {round}"),
                }
            }
        }
        drop(give);
        sender.join().unwrap();
    }
}
