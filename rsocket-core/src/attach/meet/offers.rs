//! Offers in the directory: names that this process has bound there, and how other processes call
//! at them.
//!
//! The owner of a name takes it away. If the owner was killed, a process that finds no process
//! behind the name takes it away. Every user may call at the sockets, whatever the program's umask
//! says: the directory decides which processes may meet. Must not know what is said there. Entry
//! points: [`open`], [`withdraw`], [`withdraw_all`]; [`call`], [`reap`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::net::SocketAddrUnix;

use super::names::Name;
use super::place::{self, Path};
use crate::failure::Failure;
use crate::seqpacket;
use crate::sys::files::{self, For};
use crate::sys::settle::Settle;
use crate::sys::{self, clock, identity, sockets};

/// Offers that a process can have there.
const MOST: usize = 64;
/// Processes that may have called and not been picked up: the one that is meant, and some
/// strangers.
const QUEUE: i32 = 8;
/// Every user may call.
const MODE: u32 = 0o666;

/// Their descriptors, each plus one. Relaxed: the thread that has a descriptor changes its word.
static OPEN: [AtomicI32; MOST] = [const { AtomicI32::new(0) }; MOST];
static COUNT: AtomicU32 = AtomicU32::new(0);
/// Whose they are: a `vfork` child shares our memory, and ends.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// An offer under this name: the listening socket, a private descriptor.
///
/// # Errors
/// Why the directory cannot be used; `EAGAIN` where there are too many.
pub fn open(name: &Name) -> Result<RawFd, Failure> {
    let socket = seqpacket::socket()?;
    let text = name.text();
    let ready = bind(&socket, &text)
        .and_then(|()| sockets::listen(&socket, QUEUE))
        .and_then(|()| open_to_all(&text))
        .and_then(|()| sys::private_copy(&socket));
    if ready.is_err() {
        unlink_bound(&socket);
    }
    sys::discard(socket);
    let fd = ready?;
    let free = |p: &&AtomicI32| {
        p.compare_exchange(0, fd.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    if OPEN.iter().find(free).is_none() {
        unlink(&text);
        sys::close_private(fd);
        return Err(Failure::Blocked);
    }
    OWNER.store(sys::pid(), Ordering::Relaxed);
    COUNT.fetch_add(1, Ordering::Relaxed);
    Ok(fd)
}

/// Binds by way of the descriptor, or by the path where the process has no `/proc`.
fn bind(socket: &OwnedFd, name: &[u8]) -> Result<(), Failure> {
    let mut last = Failure::Invalid;
    for by_descriptor in [true, false] {
        let mut buffer: Path = [0; 108];
        let Some(path) = place::path(&mut buffer, name, by_descriptor) else { continue };
        let bound = SocketAddrUnix::new(path)
            .map_err(Failure::from)
            .and_then(|at| sockets::bind(socket, &at));
        match bound {
            Ok(()) => return Ok(()),
            Err(e) => last = e,
        }
        if !matches!(bound, Err(Failure::Missing | Failure::Denied | Failure::NotADirectory)) {
            break;
        }
    }
    Err(last)
}

/// The file itself, whatever else may have come to have its name.
fn file(name: &[u8]) -> Result<OwnedFd, Failure> {
    let directory = place::directory().ok_or(Failure::Invalid)?;
    files::open_in(directory, name, For::Place)
}

fn is_socket(file: &OwnedFd) -> bool {
    files::status_of(file).is_ok_and(|s| s.is_socket() && s.links() == 1)
}

/// `/proc/self/fd/` and the number: a way to a file that no name can lead astray.
fn link_to<'a>(file: &OwnedFd, buffer: &'a mut [u8; 32]) -> Option<&'a [u8]> {
    let room = buffer.len() - 1;
    let mut rest = buffer.get_mut(..room)?;
    write!(rest, "/proc/self/fd/{}", file.as_raw_fd()).ok()?;
    let left = rest.len();
    buffer.get(..room - left)
}

/// Lets every user call at what we have just bound. Where that cannot be said, our own user can.
fn open_to_all(name: &[u8]) -> Result<(), Failure> {
    let file = file(name)?;
    let own = files::status_of(&file).is_ok_and(|s| s.owner() == identity::user());
    if own && is_socket(&file) {
        let mut buffer = [0; 32];
        if let Some(link) = link_to(&file, &mut buffer) {
            let _ = files::permit(link, MODE);
        }
    }
    sys::discard(file);
    Ok(())
}

fn unlink(name: &[u8]) {
    if let Some(directory) = place::directory() {
        let _ = files::remove_in(directory, name);
    }
}

/// The same by the path to which the socket is bound: that may be of another directory, in a
/// process that has changed its root.
fn unlink_bound(socket: &OwnedFd) {
    if let Some(name) = sockets::own_unix_name(socket)
        && let Some(path) = name.path_bytes()
    {
        let _ = files::remove(path);
    }
}

/// The name of an offer, or of that which a channel was made at; `None` of what has none there.
#[must_use]
pub fn name_of(fd: RawFd) -> Option<Name> {
    let fd = sys::borrow(fd);
    // The socket of a process that has called has no name of its own. For any other socket the name
    // of the other end is not to be believed.
    let named = match sockets::own_unix_name(fd) {
        Some(own) if own.abstract_name().is_none_or(|name| !name.is_empty()) => own,
        _ => sockets::peer_unix_name(fd)?,
    };
    Name::parse(named.path_bytes()?.rsplit(|b| *b == b'/').next()?)
}

/// Whether this is an offer of this process's in the directory.
#[must_use]
pub fn is_one(fd: RawFd) -> bool {
    fd >= 0
        && COUNT.load(Ordering::Relaxed) != 0
        && OPEN.iter().any(|p| p.load(Ordering::Relaxed) == fd.wrapping_add(1))
}

/// The descriptor is about to be closed: takes its name away, if it has one there.
pub fn withdraw(fd: RawFd) {
    if fd < 0 || COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    let ours = |p: &&AtomicI32| {
        let word = fd.wrapping_add(1);
        p.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    if OPEN.iter().find(ours).is_some() {
        COUNT.fetch_sub(1, Ordering::Relaxed);
        if let Some(name) = name_of(fd) {
            unlink(&name.text());
        }
    }
}

/// The process ends: takes all its names away. The descriptors stay.
pub fn withdraw_all() {
    if COUNT.load(Ordering::Relaxed) == 0 || OWNER.load(Ordering::Relaxed) != sys::pid() {
        return;
    }
    for place in &OPEN {
        withdraw(place.load(Ordering::Relaxed).wrapping_sub(1));
    }
}

/// In the child of a fork: all are the parent's.
pub fn forked() {
    if COUNT.load(Ordering::Relaxed) != 0 {
        COUNT.settle(0);
        OPEN.iter().for_each(|p| p.store(0, Ordering::Relaxed));
    }
}

/// How a call went.
#[derive(Debug)]
pub enum Called {
    /// We are waiting to be picked up, with this private descriptor.
    Here(RawFd),
    /// No process is behind the name.
    Nobody,
    /// It is gone, or too many wait there, or it is nothing to call at.
    NotNow,
}

/// Calls at the offer of this name. What is no socket is left alone.
pub fn call(name: &Name) -> Called {
    let Ok(file) = file(&name.text()) else { return Called::NotNow };
    let called = if is_socket(&file) { call_at(&file, name) } else { Called::NotNow };
    sys::discard(file);
    called
}

/// What is to be said can be said at once, since the socket has its number before.
fn call_at(file: &OwnedFd, name: &Name) -> Called {
    let Ok(fd) = seqpacket::socket().and_then(sys::make_private) else { return Called::NotNow };
    let socket = sys::borrow(fd);
    let mut buffer = [0; 32];
    let through = link_to(file, &mut buffer).map(SocketAddrUnix::new);
    let mut connected = match through {
        Some(Ok(at)) => sockets::connect(socket, &at),
        _ => Err(Failure::Missing),
    };
    if connected == Err(Failure::Missing) {
        let mut buffer: Path = [0; 108];
        let at = place::path(&mut buffer, &name.text(), false).map(SocketAddrUnix::new);
        if let Some(Ok(at)) = at {
            connected = sockets::connect(socket, &at);
        }
    }
    match connected {
        Ok(()) => Called::Here(fd),
        Err(e) => {
            sys::close_private(fd);
            if e == Failure::Refused { Called::Nobody } else { Called::NotNow }
        }
    }
}

/// Names younger than this are left: their owner may not listen yet, or is about to take them away.
const OLD_SECONDS: u64 = 5;
/// Of names that the process has not called at, only older ones are looked at.
const FORGOTTEN_SECONDS: u64 = 30;

/// Seconds since the file was made.
fn age(name: &[u8]) -> Option<u64> {
    let directory = place::directory()?;
    let status = files::status_in(directory, name).ok().filter(|s| s.is_socket())?;
    (clock::since_epoch() / 1_000_000_000).checked_sub(status.changed())
}

/// Takes away a name at which no process was found ([`Called::Nobody`]), if it is old enough;
/// whether it is.
pub fn reap(name: &Name) -> bool {
    let text = name.text();
    let is_old = age(&text).is_some_and(|age| age >= OLD_SECONDS);
    if is_old {
        unlink(&text);
    }
    is_old
}

/// Takes away a name that has been there for long, if no process is behind it.
pub fn reap_if_forgotten(name: &Name) {
    if age(&name.text()).is_none_or(|age| age < FORGOTTEN_SECONDS) {
        return;
    }
    match call(name) {
        Called::Here(socket) => sys::close_private(socket),
        Called::Nobody => {
            reap(name);
        }
        Called::NotNow => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::rendezvous::Offer;
    use crate::conn::dialled::Bounds;
    use crate::seqpacket::Channel;

    /// A directory of this test program's, which is the place to meet for all of it.
    fn place() -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("rsocket-offers-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        place::find_out(Some(path.to_str().unwrap().as_bytes()));
        assert!(place::is_there());
        path
    }

    fn name() -> Name {
        let random = crate::host::raw::random().unwrap();
        Name::new(Bounds { first: 4711, more: 2 }, 80, random)
    }

    #[test]
    fn an_offer_is_called_at_and_taken_away() {
        use std::os::unix::fs::PermissionsExt;
        let (path, name) = (place(), name());
        let file = path.join(String::from_utf8(name.text().to_vec()).unwrap());
        assert!(matches!(call(&name), Called::NotNow), "not there yet");
        let offer = Offer { fd: open(&name).unwrap() };
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, MODE);
        assert!(is_one(offer.fd) && name_of(offer.fd) == Some(name));
        let Called::Here(ours) = call(&name) else { panic!("nobody is there") };
        let theirs: Channel = offer.pick_up().unwrap().unwrap();
        assert_eq!((name_of(ours), name_of(theirs.fd)), (Some(name), Some(name)));
        theirs.close();
        withdraw(offer.fd);
        offer.close();
        assert!(!file.exists() && !is_one(offer.fd));
        std::fs::remove_dir(path).unwrap();
    }
}
