//! Where in its stream a TCP connection is, by the kernel's own counters. They say how many bytes
//! were put into it at this end, and how many were taken out. They are exact, because they count
//! what every holder of the socket did, through hooks or past them (`life-of-a-connection §4`).
//!
//! The caller makes sure that no thread is inside the kernel on the direction in question.
//! Otherwise the answer is that of some moment during the call. Must not know devices or messages.
//! Entry points: [`put`], [`taken`]; [`left_at_the_end`] for a connection that is no more.
//!
//! What the kernel counts besides the program's bytes (seen):
//! - `tcpi_bytes_acked` has our SYN on the side that sent one (connecting), and our FIN. So [`put`]
//!   refuses once we have sent FIN.
//! - `tcpi_bytes_received` has the peer's FIN and no SYN.
//! - `SIOCOUTQ` has an unacknowledged FIN and no SYN.
//! - `FIONREAD` has neither. It stops at an urgent byte: where there may be one, [`taken_exactly`]
//!   counts past it.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::mem::offset_of;
use std::os::fd::RawFd;

use super::{raw, tcp_state as state};
use crate::failure::Failure;

const SIOCOUTQ: u32 = 0x5411;
const SIOCOUTQNSD: u32 = 0x894b;
const FIONREAD: u32 = 0x541b;
const SIOCATMARK: u32 = 0x8905;
/// The option that makes the kernel say beside each receive what then waits, and the kind of that
/// control message (Linux 4.18). In sequence numbers: FIN is one of them, unlike in the answer to
/// `FIONREAD`.
const TCP_INQ: i32 = 36;

/// The beginning of the kernel's `struct tcp_info`, up to the two counters (Linux 4.1 and later).
#[derive(Clone, Copy)]
#[repr(C)]
struct TcpInfo {
    state: u8,
    /// `tcpi_ca_state` to `tcpi_reordering`, with 32-bit fields from offset 8 on; not of interest.
    _between: [u8; 3],
    _words: [u32; 25],
    _pacing: [u64; 2],
    bytes_acked: u64,
    bytes_received: u64,
}
// SAFETY: integers only; the layout, checked below, leaves no padding.
unsafe impl raw::Plain for TcpInfo {}

const _: () = assert!(
    offset_of!(TcpInfo, state) == 0
        && offset_of!(TcpInfo, bytes_acked) == 120
        && offset_of!(TcpInfo, bytes_received) == 128
        && size_of::<TcpInfo>() == 136
);

fn info(fd: RawFd) -> Result<TcpInfo, Failure> {
    let (info, len) = raw::getsockopt::<TcpInfo>(fd, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    // A kernel that knows less, or another protocol's answer at the same level, has no counters.
    if len < size_of::<TcpInfo>() { Err(Failure::Unsupported) } else { Ok(info) }
}

/// How often a pair of counters is read again when it moved in between. Acknowledgements and
/// arrivals come in bursts, so that a few times are enough.
const TRIES: u32 = 64;

/// What has been put into a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// Bytes that have been sent at this end.
    pub bytes: u64,
    /// Those of them that the other end has not acknowledged.
    pub queued: u64,
}

/// How many bytes have been put into the connection at this end, since it began. `connecting`: this
/// end called `connect`.
///
/// # Errors
/// `EPIPE`: this end has sent FIN (shut down for writing). `ENOTCONN`: it is not, or no more,
/// connected. `EAGAIN`: the counters would not stand still.
pub fn put(fd: RawFd, connecting: bool) -> Result<u64, Failure> {
    put_and_queued(fd, connecting).map(|put| put.bytes)
}

/// As [`put`], with what is under way.
///
/// # Errors
/// As [`put`].
pub fn put_and_queued(fd: RawFd, connecting: bool) -> Result<Put, Failure> {
    for _ in 0..TRIES {
        let before = info(fd)?;
        match before.state {
            state::ESTABLISHED | state::CLOSE_WAIT => {}
            state::FIN_WAIT1
            | state::FIN_WAIT2
            | state::TIME_WAIT
            | state::LAST_ACK
            | state::CLOSING => {
                return Err(Failure::Ended);
            }
            _ => return Err(Failure::NotConnected),
        }
        let queued = out_queue(fd)?;
        let after = info(fd)?;
        // What leaves the queue is acknowledged in the same moment. With the acknowledged part
        // unchanged and the state unchanged, the two numbers belong together.
        if (after.bytes_acked, after.state) == (before.bytes_acked, before.state) {
            let sum = before.bytes_acked.checked_add(queued).ok_or(Failure::Invalid)?;
            let bytes = sum.checked_sub(u64::from(connecting)).ok_or(Failure::Invalid)?;
            return Ok(Put { bytes, queued });
        }
    }
    Err(Failure::Blocked)
}

/// How much has arrived at this end, FIN included: it changes with each arrival.
///
/// # Errors
/// As `getsockopt`.
pub fn arrived(fd: RawFd) -> Result<u64, Failure> {
    info(fd).map(|info| info.bytes_received)
}

/// What has been taken out of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Bytes that have been read at this end.
    pub bytes: u64,
    /// Bytes that wait to be read.
    pub waiting: u64,
    /// The peer's FIN has arrived: `bytes + waiting` is all there will ever be.
    pub fin: bool,
}

/// How many bytes have been taken out of the connection at this end, and how many wait.
///
/// # Errors
/// `ENOTCONN`: the connection does not exist yet or no more. After the end the kernel does not say
/// whether it counted a FIN. `EAGAIN`: the counters would not stand still.
pub fn taken(fd: RawFd) -> Result<Taken, Failure> {
    for _ in 0..TRIES {
        let before = info(fd)?;
        let fin = has_fin(before.state)?;
        let waiting = in_queue(fd)?;
        let after = info(fd)?;
        if (after.bytes_received, after.state) == (before.bytes_received, before.state) {
            let arrived =
                before.bytes_received.checked_sub(u64::from(fin)).ok_or(Failure::Invalid)?;
            let bytes = arrived.checked_sub(waiting).ok_or(Failure::Invalid)?;
            return Ok(Taken { bytes, waiting, fin });
        }
    }
    Err(Failure::Blocked)
}

/// As [`taken`], of a connection whose queue may have an urgent byte.
///
/// # Errors
/// As of [`taken`].
pub fn taken_exactly(fd: RawFd) -> Result<u64, Failure> {
    for _ in 0..TRIES {
        let before = info(fd)?;
        let fin = u64::from(has_fin(before.state)?);
        let waiting = match noted(fd) {
            // FIN is behind unread bytes, and so unread itself.
            Ok(Some(numbers)) => numbers.saturating_sub(fin),
            Ok(None) => in_queue(fd)?,
            // Nothing but an urgent byte that is kept apart.
            Err(Failure::Blocked) => u64::from(at_mark(fd)?),
            Err(e) => return Err(e),
        };
        let after = info(fd)?;
        if (after.bytes_received, after.state) == (before.bytes_received, before.state) {
            let arrived = before.bytes_received.checked_sub(fin).ok_or(Failure::Invalid)?;
            return arrived.checked_sub(waiting).ok_or(Failure::Invalid);
        }
    }
    Err(Failure::Blocked)
}

/// At most how many bytes have been taken out of the connection at this end: exact unless something
/// arrived just now. Unlike [`taken`] it never has to try again, however busy the sender is.
///
/// # Errors
/// As of [`taken`], without `EAGAIN`.
pub fn taken_at_most(fd: RawFd) -> Result<u64, Failure> {
    // The queue first: what arrives after it was measured makes the answer too high.
    let waiting = in_queue(fd)?;
    let info = info(fd)?;
    let arrived =
        info.bytes_received.checked_sub(u64::from(has_fin(info.state)?)).ok_or(Failure::Invalid)?;
    arrived.checked_sub(waiting).ok_or(Failure::Invalid)
}

/// How many of the first `n` bytes of the stream wait in the queue of a connection that is no more.
/// [`taken`] says `ENOTCONN` of such a connection. Where some of the bytes never came, the answer
/// is more than there is. `None`: more than `n` were taken. No other thread may be taking any.
///
/// # Errors
/// Those of the calls that ask.
pub fn left_at_the_end(fd: RawFd, n: u64) -> Result<Option<u64>, Failure> {
    let arrived = info(fd)?.bytes_received;
    let waiting = in_queue(fd)?;
    if waiting == 0 {
        // Less the FIN, if there was one; behind the last byte it makes no difference to what is
        // left.
        return Ok(if arrived > n.saturating_add(1) {
            None
        } else {
            Some(n.saturating_sub(arrived))
        });
    }
    Ok(n.checked_sub(arrived.saturating_sub(numbers_waiting(fd, waiting)?)))
}

/// How many sequence numbers the queue still has, in which there are `bytes`: FIN is one of them,
/// if it came. Of a kernel that does not say so it is believed, since most connections end by it.
fn numbers_waiting(fd: RawFd, bytes: u64) -> Result<u64, Failure> {
    Ok(noted(fd)?.unwrap_or(bytes + 1))
}

/// The sequence numbers that wait to be read, FIN and urgent bytes among them. `None` where the
/// kernel does not say; `EAGAIN` where there are no bytes to receive.
fn noted(fd: RawFd) -> Result<Option<u64>, Failure> {
    let Ok((before, _)) = raw::getsockopt::<i32>(fd, libc::IPPROTO_TCP, TCP_INQ) else {
        return Ok(None);
    };
    if before == 0 {
        raw::setsockopt_int(fd, libc::IPPROTO_TCP, TCP_INQ, 1)?;
    }
    let note = raw::peek_with_note(fd, libc::IPPROTO_TCP, TCP_INQ);
    if before == 0 {
        raw::setsockopt_int(fd, libc::IPPROTO_TCP, TCP_INQ, 0)?;
    }
    Ok(note?.and_then(|n| u64::try_from(n).ok()))
}

/// Whether the next byte is the urgent one, taken or not.
///
/// # Errors
/// Those of the ioctl.
pub fn at_mark(fd: RawFd) -> Result<bool, Failure> {
    Ok(raw::ioctl_int(fd, SIOCATMARK)? != 0)
}

/// Whether a socket in this state has received FIN.
fn has_fin(tcp_state: u8) -> Result<bool, Failure> {
    match tcp_state {
        state::ESTABLISHED | state::FIN_WAIT1 | state::FIN_WAIT2 => Ok(false),
        state::CLOSE_WAIT | state::LAST_ACK | state::CLOSING | state::TIME_WAIT => Ok(true),
        _ => Err(Failure::NotConnected),
    }
}

/// Whether the peer's FIN has arrived.
///
/// # Errors
/// As of [`taken`].
pub fn fin_received(fd: RawFd) -> Result<bool, Failure> {
    has_fin(tcp_state(fd)?)
}

/// The TCP state of the socket, by the kernel's numbers ([`state`]).
///
/// # Errors
/// Those of `getsockopt`.
pub fn tcp_state(fd: RawFd) -> Result<u8, Failure> {
    Ok(info(fd)?.state)
}

/// Bytes (and a FIN) that were put in and are not acknowledged yet.
///
/// # Errors
/// Those of the ioctl.
pub fn out_queue(fd: RawFd) -> Result<u64, Failure> {
    u64::try_from(raw::ioctl_int(fd, SIOCOUTQ)?).map_err(|_| Failure::Invalid)
}

/// Bytes that were sent, and that TCP has not sent on yet: it has no window, or keeps them back.
///
/// # Errors
/// Those of the ioctl.
pub fn unsent(fd: RawFd) -> Result<u64, Failure> {
    u64::try_from(raw::ioctl_int(fd, SIOCOUTQNSD)?).map_err(|_| Failure::Invalid)
}

/// Bytes that can be read now.
///
/// # Errors
/// Those of the ioctl.
pub fn in_queue(fd: RawFd) -> Result<u64, Failure> {
    u64::try_from(raw::ioctl_int(fd, FIONREAD)?).map_err(|_| Failure::Invalid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    fn urge(s: &TcpStream) {
        // SAFETY: one byte is readable there.
        assert_eq!(unsafe { libc::send(s.as_raw_fd(), b"!".as_ptr().cast(), 1, libc::MSG_OOB) }, 1);
    }

    fn arrived(fd: RawFd, n: u64) {
        while info(fd).unwrap().bytes_received != n {
            std::thread::yield_now();
        }
    }

    /// What was read is counted exactly, however much of the rest is before an urgent byte.
    #[test]
    fn urgent_bytes_are_counted() {
        for inline in [0, 1] {
            let l = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut there = TcpStream::connect(l.local_addr().unwrap()).unwrap();
            let (mut here, _) = l.accept().unwrap();
            let fd = here.as_raw_fd();
            raw::setsockopt_int(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, inline).unwrap();
            assert_eq!(taken_exactly(fd), Ok(0));
            there.write_all(b"abc").unwrap();
            urge(&there);
            arrived(fd, 4);
            assert_eq!((taken_exactly(fd), at_mark(fd)), (Ok(0), Ok(false)));
            let mut b = [0; 3];
            here.read_exact(&mut b).unwrap();
            // Nothing but the urgent byte.
            assert_eq!((taken_exactly(fd), at_mark(fd)), (Ok(3), Ok(true)));
            there.write_all(b"more").unwrap();
            arrived(fd, 8);
            assert_eq!((taken_exactly(fd), at_mark(fd)), (Ok(3), Ok(true)));
            // It is passed by, or is the first of them.
            here.read_exact(&mut b).unwrap();
            assert_eq!(taken_exactly(fd), Ok(if inline == 0 { 7 } else { 6 }));
            drop(there);
            while !fin_received(fd).unwrap() {
                std::thread::yield_now();
            }
            assert_eq!(taken_exactly(fd), Ok(if inline == 0 { 7 } else { 6 }));
            let mut rest = Vec::new();
            here.read_to_end(&mut rest).unwrap();
            assert_eq!(taken_exactly(fd), Ok(8));
        }
    }
}
