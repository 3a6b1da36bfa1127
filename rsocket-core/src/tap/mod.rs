//! The packet tap. `RSOCKET_PCAP` names a file into which the bytes of all connections are written
//! as TCP segments. They are for Wireshark and its like, which see nothing of what does not travel
//! by TCP.
//!
//! The segments are made up: what a call of the program's moved is one segment (or a few), when the
//! call has returned. One write each, at the end of the file, so that processes can share it. Off
//! it costs one look at a byte for each call ([`crate::socket::watching`]). Must not know how bytes
//! travel. Entry points: [`open`], [`moved`], [`over`].

#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod pcapng;

use core::ffi::CStr;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::os::fd::RawFd;

use crate::conn::fork_group::{self, MAX_SLOTS};
use crate::conn::slot::{Name, Slot, SlotId, flag};
use crate::log::open_append;
use crate::sync::published::Published;
use crate::sys::mapped::{self, Words};
use crate::sys::{self, clock, files, sandbox, sockets};
use pcapng::{Segment, tcp};

/// Bytes of a stream in one segment; IPv4 ends at 65 535.
const MOST: usize = 32 * 1024;
/// Pieces of the program's buffers in one segment.
const PIECES: usize = 16;

static FD: AtomicI32 = AtomicI32::new(-1);
static STREAMS: Published<[Stream; MAX_SLOTS]> = Published::new();

/// How far a connection has come. Fork siblings share it, as they share the connection.
#[repr(C)]
struct Stream {
    /// Bytes in each direction: what we sent, what we received.
    moved: [AtomicU64; 2],
    names: [Name; 2],
    /// The generation of the slot that this is about.
    generation: AtomicU32,
    /// Nonzero once it was closed.
    closed: AtomicU32,
}

// SAFETY: atomic integers alone, of which a name is made, too.
unsafe impl Words for Stream {}

/// Opens the file that `RSOCKET_PCAP` names, if it does; true if the tap is on from now on.
pub fn open<'a>(env: impl Fn(&CStr) -> Option<&'a CStr>) -> bool {
    let Some(file) = env(c"RSOCKET_PCAP").map(CStr::to_bytes).filter(|f| !f.is_empty()) else {
        return false;
    };
    if !STREAMS.is_there() {
        match mapped::zeros() {
            Ok(streams) => STREAMS.publish(streams),
            Err(e) => {
                crate::log_warn!("no packets are written: {}", e);
                return false;
            }
        }
    }
    match open_append(file).and_then(sys::make_private) {
        Ok(fd) => {
            let old = FD.swap(fd, Ordering::Relaxed);
            if old >= 0 {
                sys::close_private(old);
            }
            let opening = pcapng::opening();
            if sys::may_append(sys::borrow(fd), opening.get().len()) {
                let _ = files::write(sys::borrow(fd), opening.get());
            }
            true
        }
        Err(e) => {
            crate::log_warn!("no packets are written: {} of the file", e);
            false
        }
    }
}

/// In a forked child: a file that is to be each process's own is opened anew.
pub fn forked() {
    let own = |v: &CStr| v.to_bytes().windows(2).any(|w| w == b"%p");
    if FD.load(Ordering::Relaxed) >= 0
        && crate::environment::variable(c"RSOCKET_PCAP").is_some_and(own)
    {
        open(crate::environment::variable);
    }
}

fn stream(id: SlotId) -> Option<&'static Stream> {
    STREAMS.get()?.get(id.raw() as usize)
}

/// The program's call has moved the first `n` bytes of this list: to the peer, or (`received`) from
/// it.
#[cold]
pub fn moved(id: SlotId, s: &Slot, received: bool, list: &[libc::iovec], n: usize) {
    if FD.load(Ordering::Relaxed) < 0 || sandbox::inside() {
        return;
    }
    sys::keeping_errno(|| {
        if let Some(stream) = stream(id) {
            begin(stream, id, s);
            let mut left = n;
            let mut rest = Rest { list, skip: 0 };
            while left > 0 {
                let (pieces, count, len) = rest.next(left.min(MOST));
                if len == 0 {
                    break;
                }
                left -= len;
                let Some(pieces) = pieces.get(..count) else { break };
                write(stream, received, tcp::ACK | tcp::PSH, pieces, len);
            }
        }
    });
}

/// The last owner closes the connection.
#[cold]
pub fn over(id: SlotId, s: &Slot) {
    let known = stream(id)
        .filter(|t| t.generation.load(Ordering::Relaxed) == s.generation.load(Ordering::Relaxed));
    if let Some(stream) = known
        && !sandbox::inside()
        && stream.closed.swap(1, Ordering::Relaxed) == 0
    {
        write(stream, false, tcp::ACK | tcp::FIN, &[], 0);
        write(stream, true, tcp::ACK | tcp::FIN, &[], 0);
    }
}

/// The pieces of a list that are still to be written.
struct Rest<'a> {
    list: &'a [libc::iovec],
    /// Bytes of the first one that are done.
    skip: usize,
}

impl Rest<'_> {
    /// At most `most` bytes in some pieces.
    fn next(&mut self, most: usize) -> ([libc::iovec; PIECES], usize, usize) {
        let nothing = libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
        let mut pieces = [nothing; PIECES];
        let (mut count, mut len) = (0, 0);
        while let (Some(first), Some(place)) = (self.list.first(), pieces.get_mut(count)) {
            let here = first.iov_len.saturating_sub(self.skip).min(most - len);
            if here > 0 {
                let iov_base = first.iov_base.cast::<u8>().wrapping_add(self.skip).cast();
                *place = libc::iovec { iov_base, iov_len: here };
                count += 1;
                len += here;
                self.skip += here;
            }
            if self.skip < first.iov_len {
                break;
            }
            self.list = self.list.get(1..).unwrap_or(&[]);
            self.skip = 0;
        }
        (pieces, count, len)
    }
}

/// The first bytes of a connection: the addresses of its ends, and the handshake.
fn begin(stream: &Stream, id: SlotId, s: &Slot) {
    let generation = s.generation.load(Ordering::Relaxed);
    if stream.generation.swap(generation, Ordering::Relaxed) == generation {
        return;
    }
    let fd = fork_group::descriptor(id);
    let nobody = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
    let known = s.names.each_ref().map(|name| name.get());
    let [ours, theirs] = match known {
        [Some(ours), Some(theirs)] => [ours, theirs],
        _ => kernels(fd).unwrap_or([nobody, nobody]),
    };
    for (place, name) in stream.names.iter().zip([ours, theirs]) {
        place.set(Some(name));
    }
    stream.moved.iter().for_each(|n| n.store(0, Ordering::Relaxed));
    stream.closed.store(0, Ordering::Relaxed);
    let connecting = s.has(flag::CONNECTING);
    write(stream, !connecting, tcp::SYN, &[], 0);
    write(stream, connecting, tcp::SYN | tcp::ACK, &[], 0);
    write(stream, !connecting, tcp::ACK, &[], 0);
}

fn kernels(fd: RawFd) -> Option<[SocketAddr; 2]> {
    if fd < 0 { None } else { sockets::names(sys::borrow(fd)) }
}

/// One segment. A file that takes no more is left alone.
fn write(stream: &Stream, received: bool, flags: u8, pieces: &[libc::iovec], len: usize) {
    let [sent_so_far, received_so_far] = &stream.moved;
    let (own, other) =
        if received { (received_so_far, sent_so_far) } else { (sent_so_far, received_so_far) };
    let [ours, theirs] = stream.names.each_ref().map(|n| n.get());
    let (Some(ours), Some(theirs)) = (ours, theirs) else { return };
    let (from, to) = if received { (theirs, ours) } else { (ours, theirs) };
    let first = own.fetch_add(len as u64, Ordering::Relaxed);
    // The SYN is number 0.
    let sequence = if flags & tcp::SYN != 0 { 0 } else { (first as u32).wrapping_add(1) };
    let first_syn = flags & (tcp::SYN | tcp::ACK) == tcp::SYN;
    let acknowledged =
        if first_syn { 0 } else { (other.load(Ordering::Relaxed) as u32).wrapping_add(1) };
    let time = clock::since_epoch();
    let segment = Segment { from, to, sequence, acknowledged, flags, len, time };
    let (head, tail) = (segment.head(), segment.tail());
    let piece = |b: &[u8]| libc::iovec { iov_base: b.as_ptr().cast_mut().cast(), iov_len: b.len() };
    let mut all = [piece(&[]); PIECES + 2];
    let parts =
        [piece(head.get())].into_iter().chain(pieces.iter().copied()).chain([piece(tail.get())]);
    let mut count = 0;
    let mut whole = 0;
    for (to, from) in all.iter_mut().zip(parts) {
        whole += from.iov_len;
        *to = from;
        count += 1;
    }
    let fd = FD.load(Ordering::Relaxed);
    let done = if fd >= 0 && sys::may_append(sys::borrow(fd), whole) {
        // SAFETY: the pieces are the program's, readable as it vouched by its own call, and two
        // buffers of ours.
        unsafe { files::write_pieces(fd, all.get(..count).unwrap_or_default()) }.ok()
    } else {
        None
    };
    if done != Some(whole)
        && fd >= 0
        && FD.compare_exchange(fd, -1, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    {
        crate::log_warn!("the file takes no more packets");
        sys::close_private(fd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_list() {
        let bytes = [0u8; 100];
        let piece = |len| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: len };
        let list = [piece(10), piece(0), piece(70), piece(20)];
        let mut rest = Rest { list: &list, skip: 0 };
        let (_, count, len) = rest.next(50);
        assert_eq!((count, len), (2, 50));
        let (pieces, count, len) = rest.next(35);
        assert_eq!((count, len, pieces[0].iov_len), (2, 35, 30));
        assert_eq!(pieces[0].iov_base.cast::<u8>().cast_const(), bytes[40..].as_ptr());
        assert_eq!(rest.next(100).2, 15);
        assert_eq!(rest.next(100).2, 0);
        let many = [piece(1); 40];
        let mut rest = Rest { list: &many, skip: 0 };
        assert_eq!(
            [rest.next(100).2, rest.next(100).2, rest.next(100).2, rest.next(100).2],
            [16, 16, 8, 0]
        );
    }
}
