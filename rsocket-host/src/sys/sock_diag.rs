//! A question to the kernel about sockets of this network namespace (sock_diag(7)).
//!
//! Must not know what is asked. Entry points: [`open`], [`ask`].
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, netlink};

use super::sockets;
use crate::failure::Failure;

/// The longest answer that is read.
const ANSWER: usize = 1024;

/// A socket for questions; it does not block.
///
/// # Errors
/// As socket(2).
pub fn open() -> Result<OwnedFd, Failure> {
    let (family, protocol) = (AddressFamily::NETLINK, Some(netlink::SOCK_DIAG));
    Ok(rustix::net::socket_with(family, SocketType::RAW, sockets::OURS, protocol)?)
}

/// Has `read` look at the kernel's answer to a request.
///
/// # Errors
/// As sendto(2) and recvfrom(2), and those of `read`; `EAGAIN` where nothing but strangers'
/// messages came.
pub fn ask<R>(
    socket: &OwnedFd,
    request: &[u8],
    read: impl FnOnce(&[u8]) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let kernel = netlink::SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(socket, request, SendFlags::NOSIGNAL, &kernel)?;
    // The kernel has answered before sendto came back. Messages from other senders are no answers.
    for _ in 0..4 {
        let mut buf = [0u8; ANSWER];
        let (_, len, from) = rustix::net::recvfrom(socket, &mut buf[..], RecvFlags::DONTWAIT)?;
        let from = from.and_then(|a| netlink::SocketAddrNetlink::try_from(a).ok());
        if from.is_some_and(|a| a.pid() == 0) {
            return read(buf.get(..len).unwrap_or(&buf));
        }
    }
    Err(Failure::Blocked)
}
