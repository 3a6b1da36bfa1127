//! Taking bytes from TCP and messages from the channel, wherever the stream goes on afterwards.
//!
//! Must not know of the switch offset. Entry points: [`from_kernel`], [`take_messages`].

use std::os::fd::RawFd;

use crate::channel::broken;
use crate::channel::link::Ends;
use crate::conn::slot::{Slot, flag};
use crate::copy::CopyHint;
use crate::device::shm::channel::Taking;
use crate::direct_placement::{Placed, Placer};
use crate::failure::Failure;
use crate::host::counters;
use crate::host::kernel::{self, Ending};
use crate::live_segment::conn_counters;
use crate::reason::Reason;
use crate::sys::sandbox;
use crate::sys::vectors::Cursor;

/// What one attempt brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Got {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing yet.
    Nothing,
    /// Nothing, now or ever: the end of the stream.
    End,
}

/// Takes up to `limit` bytes from TCP without blocking.
pub(super) fn from_kernel(
    s: &Slot,
    fd: RawFd,
    to: &mut Cursor<'_>,
    limit: usize,
    flags: i32,
) -> Result<Got, Failure> {
    if s.has(flag::RSOCKET) {
        return only_the_end(s, fd);
    }
    let kept = libc::MSG_PEEK | libc::MSG_TRUNC;
    if to.done() > 0
        && !sandbox::inside()
        && let Some(got) = nothing_more(fd)?
    {
        return Ok(got);
    }
    match kernel::receive(fd, to.rest().list(), limit, flags & kept) {
        Ok(0) => Ok(Got::End),
        Ok(n) => {
            to.advance(n);
            conn_counters::received_tcp(s, n);
            Ok(Got::Bytes(n))
        }
        Err(Failure::Blocked) => Ok(Got::Nothing),
        Err(e) => Err(e),
    }
}

/// What a call that has bytes already finds in TCP where it may take no more of it: nothing yet,
/// the end, or the mark of urgent data. What comes behind the mark is another call's, as on TCP.
fn nothing_more(fd: RawFd) -> Result<Option<Got>, Failure> {
    let here = match kernel::ending(fd) {
        Ending::Failed(e) => return Err(e),
        Ending::Bytes => None,
        Ending::Open => Some(Got::Nothing),
        Ending::Fin => Some(Got::End),
    };
    // A receive that the kernel begins at the mark passes it. So the mark is asked for after that
    // look: a byte that is here, and has no mark by then, gets none any more.
    Ok(if counters::at_mark(fd) == Ok(true) { Some(Got::End) } else { here })
}

/// What TCP may say to an rsocket: that the stream has ended. Bytes are those of a program that is
/// none.
#[cold]
fn only_the_end(s: &Slot, fd: RawFd) -> Result<Got, Failure> {
    match kernel::ending(fd) {
        Ending::Open => Ok(Got::Nothing),
        Ending::Fin => Ok(Got::End),
        Ending::Failed(e) => Err(e),
        Ending::Bytes => {
            broken::break_connection(s, fd, Reason::NoOffer);
            Err(Failure::Reset)
        }
    }
}

/// How what is taken is copied; `None` where it is thrown away.
pub(super) fn copying(s: &Slot, flags: i32) -> Option<CopyHint> {
    let hint = if s.has(flag::BRIDGED) { CopyHint::Near } else { CopyHint::Ordinary };
    (flags & libc::MSG_TRUNC == 0).then_some(hint)
}

/// Copies messages out until the buffers are full or none is left. False when the peer broke a
/// rule.
pub(super) fn take_messages(
    taking: &mut Taking<'_>,
    to: &mut Cursor<'_>,
    copying: Option<CopyHint>,
    placer: Option<(Placer<'_>, &Ends)>,
) -> bool {
    while to.left() > 0 {
        let readable = taking.state().readable();
        if readable == 0 {
            if taking.state().ended != 0 {
                return true;
            }
            let Some(word) = taking.arrived() else { return true };
            // Only now: what was written to our mappings before this message is there, as the
            // message is.
            match placer.map_or(Placed::All, |(placer, ends)| placer.place(ends)) {
                Placed::All => {}
                Placed::NotNow => return true,
                Placed::Broken => return false,
            }
            if taking.accept(word).is_err() {
                return false;
            }
            continue;
        }
        let Some((at, room)) = to.stretch() else { return true };
        let n = readable.min(u32::try_from(room).unwrap_or(u32::MAX));
        match copying {
            None => taking.skip(n),
            Some(hint) => {
                // SAFETY: the cursor's stretch is writable for n bytes, as the program vouched, and
                // not the arena.
                let copied = unsafe { taking.copy_out(n, at, hint) };
                if copied.is_err() {
                    return false;
                }
            }
        }
        to.advance(n as usize);
    }
    true
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use rustix::net::SendFlags;

    use super::*;

    /// Two ends of a TCP connection.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    /// What has to be seen in the end: loopback delivers at once, but for a busy machine.
    fn becomes(far: &TcpStream, wanted: Option<Got>) {
        let seen = || nothing_more(far.as_raw_fd()).unwrap();
        while seen() != wanted {
            std::thread::yield_now();
        }
        assert_eq!(seen(), wanted);
    }

    #[test]
    fn a_call_that_has_bytes_stops_at_the_mark() {
        let (mut near, far) = pair();
        becomes(&far, Some(Got::Nothing));
        rustix::net::send(&near, b"!", SendFlags::OOB).unwrap();
        becomes(&far, Some(Got::End));
        // Whatever comes behind it.
        near.write_all(b"more").unwrap();
        near.shutdown(Shutdown::Write).unwrap();
        becomes(&far, Some(Got::End));
        assert!(counters::at_mark(far.as_raw_fd()).unwrap(), "a look passes no mark");
    }

    #[test]
    fn a_byte_before_the_mark_is_there_to_be_taken() {
        let (mut near, far) = pair();
        near.write_all(b"a").unwrap();
        becomes(&far, None);
        rustix::net::send(&near, b"!", SendFlags::OOB).unwrap();
        becomes(&far, None);
    }

    #[test]
    fn the_end_is_seen() {
        let (near, far) = pair();
        near.shutdown(Shutdown::Write).unwrap();
        becomes(&far, Some(Got::End));
    }
}
