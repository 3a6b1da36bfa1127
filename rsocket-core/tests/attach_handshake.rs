//! What both ends of a TCP connection know of its SYN's timestamp agrees, in this kernel.
//!
//! The ignored tests are two ends of many connections in two processes. They are for
//! `tests/programs/handshake.sh`, which puts them into network namespaces of their own. `HANDSHAKE`
//! is the address to listen on, or to dial.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::time::Duration;

use rsocket_core::attach::meet::place;
use rsocket_core::conn::dialled::Bounds;
use rsocket_core::conn::handshake::Handshake;
use rsocket_core::conn::offsets;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

fn begin() {
    place::find_out(Some(b"/tmp"));
    assert!(place::is_there());
}

fn listen(at: SocketAddr) -> (TcpListener, Handshake) {
    let l = TcpListener::bind(at).unwrap();
    let h = Handshake::default();
    h.listens(l.as_raw_fd());
    (l, h)
}

/// Calls connect and notes when, as the hooks do.
fn dial(to: &SocketAddr, waits: bool) -> (TcpStream, Handshake) {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags =
        if waits { SocketFlags::CLOEXEC } else { SocketFlags::CLOEXEC | SocketFlags::NONBLOCK };
    let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, None).unwrap();
    let h = Handshake::default();
    h.dials();
    let r = rustix::net::connect(&fd, to);
    h.has_dialled();
    assert!(matches!(r, Ok(()) | Err(rustix::io::Errno::INPROGRESS)), "{r:?}");
    // SAFETY: the number is this socket's, which is given up here.
    let stream = unsafe { TcpStream::from_raw_fd(fd.into_raw_fd()) };
    stream.set_nonblocking(false).unwrap();
    (stream, h)
}

fn accept(l: &TcpListener, listener: &Handshake) -> (TcpStream, Handshake) {
    let s = l.accept().unwrap().0;
    let h = Handshake::default();
    h.accepted(listener);
    (s, h)
}

#[test]
fn both_ends_agree() {
    begin();
    // Of a kernel that has one offset for many connections, nothing is believed.
    let own = offsets::are_each_ones_own(-1);
    let mut known = 0;
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let Ok(l) = TcpListener::bind(at) else { continue };
        let listener = Handshake::default();
        listener.listens(l.as_raw_fd());
        for round in 0..40 {
            let (c, dialled) = dial(&l.local_addr().unwrap(), round % 2 == 0);
            let (s, accepted) = accept(&l, &listener);
            if round % 4 == 3 {
                std::thread::sleep(Duration::from_millis(7));
            }
            let timestamp = accepted.accepted_timestamp(s.as_raw_fd()).expect("a SYN was kept");
            assert_eq!(
                accepted.accepted_timestamp(s.as_raw_fd()),
                Some(timestamp),
                "and is remembered"
            );
            // A thread that was not run meanwhile knows too little, and says so.
            if let Some(bounds) = dialled.dialled_bounds(c.as_raw_fd()) {
                assert!(bounds.hold(timestamp), "{bounds:?} {timestamp}");
                known += 1;
            }
        }
    }
    assert_eq!(known > 10, own, "{known}");
}

/// An IPv4 connection that an IPv6 listener has accepted.
#[test]
fn a_listener_for_both_families() {
    begin();
    let Ok(l) = TcpListener::bind("[::]:0") else { return };
    let listener = Handshake::default();
    listener.listens(l.as_raw_fd());
    let to = SocketAddr::from(([127, 0, 0, 1], l.local_addr().unwrap().port()));
    let met = (0..20).filter(|_| {
        let (c, dialled) = dial(&to, true);
        let (s, accepted) = accept(&l, &listener);
        let timestamp = accepted.accepted_timestamp(s.as_raw_fd()).unwrap();
        dialled.dialled_bounds(c.as_raw_fd()).is_some_and(|b| b.hold(timestamp))
    });
    assert_eq!(met.count() > 0, offsets::are_each_ones_own(-1));
}

#[test]
fn who_saves_syns_itself_keeps_them() {
    begin();
    let l = TcpListener::bind("127.0.0.1:0").unwrap();
    let on = 1_i32;
    // SAFETY: an integer is readable there.
    let r = unsafe {
        libc::setsockopt(l.as_raw_fd(), libc::IPPROTO_TCP, 27, (&raw const on).cast(), 4)
    };
    assert_eq!(r, 0);
    let listener = Handshake::default();
    listener.listens(l.as_raw_fd());
    let (c, _) = dial(&l.local_addr().unwrap(), true);
    let (s, accepted) = accept(&l, &listener);
    assert_eq!(accepted.accepted_timestamp(s.as_raw_fd()), None);
    assert!(!accepted.asked(s.as_raw_fd(), libc::IPPROTO_TCP, 27));
    let (mut bytes, mut len) = ([0_u8; 256], 256);
    // SAFETY: so many bytes are writable there.
    let r = unsafe {
        libc::getsockopt(
            s.as_raw_fd(),
            libc::IPPROTO_TCP,
            28,
            bytes.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    assert!(r == 0 && len >= 60, "{len}");
    // An end that has not dialled, or not accepted, knows nothing.
    assert_eq!(Handshake::default().dialled_bounds(c.as_raw_fd()), None);
    assert_eq!(Handshake::default().accepted_timestamp(s.as_raw_fd()), None);
}

/// An attempt that failed says nothing of the next one.
#[test]
fn a_second_attempt() {
    begin();
    let (l, listener) = listen("127.0.0.1:0".parse().unwrap());
    let fd = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let h = Handshake::default();
    h.dials();
    let nobody: SocketAddr = "127.0.0.1:1".parse().unwrap();
    assert!(rustix::net::connect(&fd, &nobody).is_err());
    assert_eq!(h.dialled_bounds(fd.as_raw_fd()), None);
    std::thread::sleep(Duration::from_millis(30));
    h.dials();
    rustix::net::connect(&fd, &l.local_addr().unwrap()).unwrap();
    h.has_dialled();
    let (s, accepted) = accept(&l, &listener);
    let timestamp = accepted.accepted_timestamp(s.as_raw_fd()).unwrap();
    if let Some(bounds) = h.dialled_bounds(fd.as_raw_fd()) {
        assert!(bounds.hold(timestamp));
    }
}

/// Connections of the two processes: so many at a time, so often.
const ROUNDS: usize = 40;
const AT_A_TIME: usize = 16;

fn address() -> SocketAddr {
    std::env::var("HANDSHAKE").expect("HANDSHAKE").parse().expect("an address")
}

/// Says, by the connection, what it knows. One letter tells it what the other end thinks of that:
/// y, n, or - where one of them knows nothing.
#[test]
#[ignore = "one of two processes"]
fn dials() {
    begin();
    let mut told = [0_usize; 3];
    for _ in 0..ROUNDS {
        let mut all: Vec<_> = (0..AT_A_TIME).map(|i| dial(&address(), i % 2 == 0)).collect();
        // The last first: neither end goes by an order.
        for (c, h) in all.iter_mut().rev() {
            let said = h.dialled_bounds(c.as_raw_fd());
            let [first, more] = said.map_or([0, u32::MAX], |b| [b.first, b.more]);
            c.write_all(&(u64::from(first) << 32 | u64::from(more)).to_be_bytes()).unwrap();
        }
        for (c, _) in &mut all {
            let mut letter = [0];
            c.read_exact(&mut letter).unwrap();
            told["yn-".find(char::from(letter[0])).unwrap()] += 1;
        }
    }
    println!("agree {} differ {} unknown {}", told[0], told[1], told[2]);
}

#[test]
#[ignore = "one of two processes"]
fn listens() {
    begin();
    let (l, listener) = listen(address());
    println!("listening");
    let mut timestamps = Vec::new();
    let mut misled = 0;
    for _ in 0..ROUNDS {
        let all: Vec<_> = (0..AT_A_TIME).map(|_| accept(&l, &listener)).collect();
        let round: Vec<_> = all.iter().map(|(s, h)| h.accepted_timestamp(s.as_raw_fd())).collect();
        for (i, (s, _)) in all.iter().enumerate() {
            let (mut s, mut said) = (s, [0; 8]);
            s.read_exact(&mut said).unwrap();
            let said = u64::from_be_bytes(said);
            let bounds = Bounds { first: (said >> 32) as u32, more: said as u32 };
            let known = bounds.more != u32::MAX;
            let letter = match round[i] {
                Some(timestamp) if known => {
                    if bounds.hold(timestamp) {
                        "y"
                    } else {
                        "n"
                    }
                }
                _ => "-",
            };
            // How many others of those that are open could be taken for this one.
            let others = round
                .iter()
                .enumerate()
                .filter(|(j, t)| *j != i && t.is_some_and(|t| bounds.hold(t)));
            misled += if known { others.count() } else { 0 };
            s.write_all(letter.as_bytes()).unwrap();
        }
        timestamps.extend(round);
    }
    println!(
        "accepted {} known {} mistakable {misled}",
        timestamps.len(),
        timestamps.iter().flatten().count()
    );
}
