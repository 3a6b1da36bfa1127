//! Where the two ends of one TCP connection meet: an abstract UNIX name made from the connection's
//! four addresses. The connecting side offers (binds the name), the accepting side knocks (connects
//! to it), one message goes each way. Nothing here ever waits (`life-of-a-connection §3`).
//!
//! Anybody in the network namespace may knock, or take the name first, which costs the connection
//! its chance to attach, no more: who is really there is settled by [`super::trust`] and
//! [`super::hello`].
//!
//! The handles are plain numbers with an explicit `close`, since they live in memory that processes
//! share. A forked child inherits the descriptors, and an offer that the parent has closed stays
//! open until the child closes its own: that is for the child's fork handler to do. Must not know
//! what the messages say. Entry points: [`Offer::open`], [`knock`].

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
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::hello::LAYOUT_VERSION;
use crate::errno::Errno;
use crate::host::raw;
use crate::host::tuple::{TUPLE_BYTES, Tuple};
use crate::sys::{self, discard};

/// The most descriptors that one message can carry.
pub const MAX_FDS: usize = 4;

/// Those who may have knocked and not been picked up: the one who is meant, and some strangers.
const QUEUE: i32 = 4;

const PREFIX: &[u8] = b"rsockets/";
/// Prefix, four digits of the version, two digits for each byte of the tuple. The kernel's limit
/// is 107.
pub const NAME_LEN: usize = PREFIX.len() + 4 + 2 * TUPLE_BYTES;
const _: () = assert!(NAME_LEN <= 107);

/// The abstract name (without its leading zero byte) of a connection as its *connecting* side sees
/// it.
#[must_use]
pub fn name(connecting: &Tuple) -> [u8; NAME_LEN] {
    let hex = |b: u8| [b >> 4, b & 15].map(|d| if d < 10 { b'0' + d } else { b'a' - 10 + d });
    let digits =
        LAYOUT_VERSION.to_be_bytes().into_iter().chain(connecting.to_bytes()).flat_map(hex);
    let mut out = [0; NAME_LEN];
    for (to, from) in out.iter_mut().zip(PREFIX.iter().copied().chain(digits)) {
        *to = from;
    }
    out
}

fn address(connecting: &Tuple) -> Result<SocketAddrUnix, Errno> {
    Ok(SocketAddrUnix::new_abstract_name(&name(connecting))?)
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Passes the error on and closes the socket that it concerns.
fn or_discard(result: rustix::io::Result<()>, socket: OwnedFd) -> Result<OwnedFd, Errno> {
    match result {
        Ok(()) => Ok(socket),
        Err(e) => {
            discard(socket);
            Err(e.into())
        }
    }
}

/// The connecting side's open offer to meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Offer {
    /// The listening socket, a private descriptor.
    pub fd: RawFd,
}

impl Offer {
    /// Offers to meet about the connection that this side, the connecting one, sees as `tuple`.
    ///
    /// # Errors
    /// `EADDRINUSE` when somebody has the name already (another holder of the same socket, or a
    /// squatter); `EMFILE` and the like.
    pub fn open(tuple: &Tuple) -> Result<Self, Errno> {
        let address = address(tuple)?;
        let socket = socket()?;
        let ready =
            rustix::net::bind(&socket, &address).and_then(|()| rustix::net::listen(&socket, QUEUE));
        let fd = sys::make_private(or_discard(ready, socket)?)?;
        Ok(Self { fd })
    }

    /// Takes the next one who has knocked; nothing when nobody has. Ask again until nothing comes:
    /// a stranger may have been first.
    ///
    /// # Errors
    /// Those of `accept4`.
    pub fn pick_up(&self) -> Result<Option<Channel>, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(sys::borrow(self.fd), flags) {
            Ok(fd) => Ok(Some(Channel { fd: sys::make_private(fd)? })),
            // What Linux's accept returns for "nobody", or "he has gone away again".
            Err(
                rustix::io::Errno::AGAIN | rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR,
            ) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Withdraws the offer.
    pub fn close(self) {
        sys::close_private(self.fd);
    }
}

/// Knocks at the offer for the connection that this side, the accepting one, sees as `tuple`.
/// Nothing when nobody offers.
///
/// # Errors
/// `EAGAIN` when too many have knocked already and were not picked up, `EPROTOTYPE` when a
/// stranger's socket of another kind has the name, `EPERM` or `EACCES` where a security module
/// forbids it; `EMFILE` and the like.
pub fn knock(tuple: &Tuple) -> Result<Option<Channel>, Errno> {
    let address = address(&tuple.reversed())?;
    let socket = socket()?;
    match or_discard(rustix::net::connect(&socket, &address), socket) {
        Ok(socket) => Ok(Some(Channel { fd: sys::make_private(socket)? })),
        Err(Errno(libc::ECONNREFUSED)) => Ok(None),
        Err(e) => Err(e),
    }
}

/// As [`knock`], of one who has something to say already: the socket has its number, which takes a
/// moment, before it is seen there.
///
/// # Errors
/// As [`knock`].
pub fn knock_ready(tuple: &Tuple) -> Result<Option<Channel>, Errno> {
    let address = address(&tuple.reversed())?;
    let fd = sys::make_private(socket()?)?;
    match rustix::net::connect(sys::borrow(fd), &address) {
        Ok(()) => Ok(Some(Channel { fd })),
        Err(e) => {
            sys::close_private(fd);
            if e == rustix::io::Errno::CONNREFUSED { Ok(None) } else { Err(e.into()) }
        }
    }
}

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
    System(Errno),
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

impl Channel {
    /// The user of the process at the other end: who knocked, or who opened the offer.
    ///
    /// # Errors
    /// Those of `getsockopt`.
    pub fn peer_uid(&self) -> Result<u32, Errno> {
        Ok(self.credentials()?.uid)
    }

    /// The process at the other end, as this pid namespace numbers it: 0 when it cannot, or on
    /// failure. Only ever a hint; a number is used again.
    #[must_use]
    pub fn peer_pid(&self) -> u32 {
        self.credentials().map_or(0, |c| c.pid)
    }

    fn credentials(&self) -> Result<PeerCred, Errno> {
        let (cred, len) =
            raw::getsockopt::<PeerCred>(self.fd, libc::SOL_SOCKET, libc::SO_PEERCRED)?;
        if len == size_of::<PeerCred>() { Ok(cred) } else { Err(Errno::INVAL) }
    }

    /// Sends one message, with copies of the descriptors.
    ///
    /// # Errors
    /// `EAGAIN` when the other side has not read, `EPIPE` when it has gone, `EINVAL` for more than
    /// [`MAX_FDS`] descriptors.
    pub fn send(&self, message: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        if fds.len() > MAX_FDS {
            return Err(Errno::INVAL);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Errno::INVAL);
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = rustix::net::sendmsg(
            sys::borrow(self.fd),
            &[IoSlice::new(message)],
            &mut control,
            flags,
        )?;
        if sent == message.len() { Ok(()) } else { Err(Errno::INVAL) }
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
        let mut nfds = 0;
        let mut surplus = false;
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
        let bad = if got.flags.contains(ReturnFlags::CTRUNC) || surplus {
            ReceiveError::ControlTruncated
        } else if got.flags.contains(ReturnFlags::TRUNC) {
            ReceiveError::TooLong
        } else if got.bytes == 0 {
            // An empty message looks the same, and nobody of ours sends one.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_readable_and_distinct() {
        let mut t = Tuple { family: 4, ..Tuple::default() };
        t.local.port = 0xabcd;
        let text = String::from_utf8(name(&t).to_vec()).unwrap();
        assert!(text.starts_with("rsockets/"), "{text}");
        assert!(text.ends_with("abcd0000"), "{text}");
        assert_eq!(text.len(), NAME_LEN);
        assert_ne!(name(&t), name(&t.reversed()));
    }

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
