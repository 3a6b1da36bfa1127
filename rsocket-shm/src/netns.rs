//! Home: the network namespace in which the wakers of this process have their names.
//!
//! The kernel looks for an abstract name where the socket that asks belongs, which is where its
//! thread was when it was made. A thread may go elsewhere (`setns`, `unshare`), and take
//! connections along that have attached. So the process makes a socket that stays at home, and
//! keeps it. It does so before the first connection attaches, and before the first waker is made.
//! By this socket it signals wakers wherever its thread is. No waker is made elsewhere, since no
//! peer would find it, and no connection of another namespace attaches ([`settle`]).
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{AtomicI32, Ordering};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use rsocket_host::failure::Failure;
use rsocket_host::sys;

/// The socket, a private descriptor; -1 before there is one. Relaxed everywhere: the descriptor is
/// the kernel's, and a forked child has a copy of the word.
static HOME: AtomicI32 = AtomicI32::new(-1);

/// What [`settle`] says of a socket that belongs elsewhere.
pub const ELSEWHERE: Failure = Failure::Elsewhere;

/// The socket that is at home, if there is one.
pub(super) fn socket() -> Option<RawFd> {
    Some(HOME.load(Ordering::Relaxed)).filter(|fd| *fd >= 0)
}

/// Makes sure that there is a home, and that `fd` belongs there. The first thread that asks makes
/// the place where it is home.
///
/// # Errors
/// [`ELSEWHERE`], and those of `socket`.
pub fn settle(fd: RawFd) -> Result<(), Failure> {
    let home = match socket() {
        Some(home) => home,
        None => found(datagram_socket()?)?,
    };
    // A kernel that does not say (before 5.14) says so of both.
    if sys::network_namespace(fd) == sys::network_namespace(home) { Ok(()) } else { Err(ELSEWHERE) }
}

pub(super) fn datagram_socket() -> Result<OwnedFd, Failure> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?)
}

/// A new socket that is at home, for a peer of another network namespace, which signals our wakers
/// by it. No other peer has the same one: what the peer does to it is the peer's own loss.
///
/// # Errors
/// [`ELSEWHERE`] where the calling thread is not at home, and those of `socket`.
pub fn envoy() -> Result<OwnedFd, Failure> {
    let new = datagram_socket()?;
    match settle(new.as_raw_fd()) {
        Ok(()) => Ok(new),
        Err(e) => {
            sys::discard(new);
            Err(e)
        }
    }
}

/// The new socket, or that of another thread, which was first.
fn found(new: OwnedFd) -> Result<RawFd, Failure> {
    let new = sys::make_private(new)?;
    match HOME.compare_exchange(-1, new, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => Ok(new),
        Err(first) => {
            sys::close_private(new);
            Ok(first)
        }
    }
}

/// For the list of what the next program inherits.
#[must_use]
pub fn descriptor() -> RawFd {
    HOME.load(Ordering::Relaxed)
}

/// Whether `exec` leaves the socket open.
pub fn keep_across_exec(keep: bool) {
    if let Some(fd) = socket() {
        sys::keep_across_exec(fd, keep);
    }
}

/// After `exec`: where the last program of this process was at home.
pub fn inherit(fd: RawFd) {
    if fd >= 0 {
        sys::inherit_private(fd);
        HOME.store(fd, Ordering::Relaxed);
    }
}
