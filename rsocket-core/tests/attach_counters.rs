//! The kernel's stream positions, on real loopback connections.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};

use rsocket_core::failure::Failure;
use rsocket_core::host::counters::{
    Taken, fin_received, in_queue, left_at_the_end, out_queue, put, taken, tcp_state,
};
use rsocket_core::host::tcp_state as state;

fn pair(listen: &str) -> Option<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(listen).ok()?;
    let client = TcpStream::connect(listener.local_addr().ok()?).ok()?;
    Some((client, listener.accept().ok()?.0))
}

fn took(fd: RawFd) -> (u64, u64, bool) {
    let Taken { bytes, waiting, fin } = taken(fd).expect("taken");
    (bytes, waiting, fin)
}

#[test]
fn both_directions_from_the_first_byte() {
    for listen in ["127.0.0.1:0", "[::1]:0"] {
        let Some((mut c, mut s)) = pair(listen) else { continue };
        let (cf, sf) = (c.as_raw_fd(), s.as_raw_fd());
        assert_eq!((put(cf, true), put(sf, false)), (Ok(0), Ok(0)));
        assert_eq!((took(cf), took(sf)), ((0, 0, false), (0, 0, false)));
        let mut sums = [0u64; 2];
        for round in 1..200usize {
            let piece = vec![7; round * 37 % 5000 + 1];
            c.write_all(&piece).expect("write");
            sums[0] += piece.len() as u64;
            assert_eq!(put(cf, true), Ok(sums[0]));
            assert_eq!(put(sf, false), Ok(sums[1]));
            let mut buf = vec![0; piece.len()];
            s.read_exact(&mut buf).expect("read");
            assert_eq!(took(sf), (sums[0], 0, false));
            s.write_all(&piece[..1]).expect("write");
            sums[1] += 1;
            c.read_exact(&mut buf[..1]).expect("read");
            assert_eq!(put(sf, false), Ok(sums[1]));
            assert_eq!(took(cf), (sums[1], 0, false));
        }
    }
}

#[test]
fn bytes_on_their_way() {
    let (c, mut s) = pair("127.0.0.1:0").expect("pair");
    c.set_nonblocking(true).expect("flag");
    let mut sent = 0;
    // Until neither the peer's channel nor our queue takes more.
    while let Ok(n) = (&c).write(&[1; 60_000]) {
        sent += n as u64;
    }
    assert!(out_queue(c.as_raw_fd()).expect("queue") > 0);
    assert_eq!(put(c.as_raw_fd(), true), Ok(sent));
    let (bytes, waiting, fin) = took(s.as_raw_fd());
    assert!(bytes == 0 && waiting > 0 && waiting < sent && !fin);
    assert_eq!(in_queue(s.as_raw_fd()), Ok(waiting));
    let mut read = 0;
    let mut buf = vec![0; 50_000];
    while read < sent {
        read += s.read(&mut buf).expect("read") as u64;
        assert_eq!(put(c.as_raw_fd(), true), Ok(sent));
        assert_eq!(took(s.as_raw_fd()).0, read);
    }
}

#[test]
fn a_peek_takes_nothing() {
    let (mut c, s) = pair("127.0.0.1:0").expect("pair");
    c.write_all(b"look").expect("write");
    s.peek(&mut [0; 4]).expect("peek");
    assert_eq!(took(s.as_raw_fd()), (0, 4, false));
}

#[test]
fn half_closed_each_way() {
    // The connecting side closes first, then the other way round.
    for connecting_first in [true, false] {
        let (c, s) = pair("127.0.0.1:0").expect("pair");
        let (mut first, mut second) = if connecting_first { (c, s) } else { (s, c) };
        first.write_all(b"hello").expect("write");
        first.shutdown(Shutdown::Write).expect("shutdown");
        assert_eq!(put(first.as_raw_fd(), connecting_first), Err(Failure::Ended));
        assert_eq!(took(first.as_raw_fd()), (0, 0, false));
        // FIN is in the second's counter, and is not counted as a byte: unread, read, and after end
        // of file.
        assert_eq!(took(second.as_raw_fd()), (0, 5, true));
        let mut buf = [0; 5];
        second.read_exact(&mut buf).expect("read");
        assert_eq!(took(second.as_raw_fd()), (5, 0, true));
        assert_eq!(second.read(&mut buf).expect("read"), 0);
        assert_eq!(took(second.as_raw_fd()), (5, 0, true));
        assert_eq!(fin_received(second.as_raw_fd()), Ok(true));
        assert_eq!(tcp_state(second.as_raw_fd()), Ok(state::CLOSE_WAIT));
        // It may still write, and that is counted.
        second.write_all(b"good bye").expect("write");
        assert_eq!(put(second.as_raw_fd(), !connecting_first), Ok(8));
        assert_eq!(took(first.as_raw_fd()), (0, 8, false));
        second.shutdown(Shutdown::Write).expect("shutdown");
        assert!(put(second.as_raw_fd(), !connecting_first).is_err());
        // Both FINs are through: the kernel has no connection any more, and no answer.
        assert_eq!(taken(first.as_raw_fd()), Err(Failure::NotConnected));
        assert_eq!(taken(second.as_raw_fd()), Err(Failure::NotConnected));
    }
}

/// How a connection comes to its end at a receiver that has not read all of it.
#[derive(Clone, Copy, Debug)]
enum Over {
    BothShut,
    Reset,
    ResetAfterFin,
}

#[test]
fn what_is_left_when_the_connection_is_no_more() {
    for how in [Over::BothShut, Over::Reset, Over::ResetAfterFin] {
        for read in [0, 1, 400, 999, 1000, 1001, 1500] {
            let (mut c, s) = pair("127.0.0.1:0").expect("pair");
            let cf = c.as_raw_fd();
            (&s).write_all(&[3; 1500]).expect("write");
            c.read_exact(&mut vec![0; read]).expect("read");
            match how {
                Over::BothShut => {
                    s.shutdown(Shutdown::Write).expect("shutdown");
                    c.shutdown(Shutdown::Write).expect("shutdown");
                }
                Over::Reset => reset(s),
                Over::ResetAfterFin => {
                    s.shutdown(Shutdown::Write).expect("shutdown");
                    // A byte that the closing end has not read makes the close a reset.
                    c.write_all(&[1]).expect("write");
                    drop(s);
                }
            }
            for _ in 0..2000 {
                if taken(cf) == Err(Failure::NotConnected) {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            assert_eq!(taken(cf), Err(Failure::NotConnected));
            let (told, first) = (read as u64, 1000);
            let left = left_at_the_end(cf, first);
            assert_eq!(
                left,
                Ok(first.checked_sub(told).filter(|_| told <= first)),
                "{how:?} after {read}"
            );
            assert_eq!(in_queue(cf), Ok(1500 - told), "and it was a look only");
        }
    }
}

fn reset(s: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&s, Some(std::time::Duration::ZERO)).expect("linger");
}

#[test]
fn nothing_is_left_of_a_queue_that_is_empty() {
    let (mut c, s) = pair("127.0.0.1:0").expect("pair");
    (&s).write_all(&[3; 50]).expect("write");
    c.read_exact(&mut [0; 50]).expect("read");
    s.shutdown(Shutdown::Write).expect("shutdown");
    c.shutdown(Shutdown::Write).expect("shutdown");
    let cf = c.as_raw_fd();
    assert_eq!(left_at_the_end(cf, 50), Ok(Some(0)));
    assert_eq!(left_at_the_end(cf, 49), Ok(None), "somebody has taken too much");
    assert_eq!(left_at_the_end(cf, 60), Ok(Some(9)), "what never came");
}

#[test]
fn shut_down_for_reading_only() {
    let (c, mut s) = pair("127.0.0.1:0").expect("pair");
    c.shutdown(Shutdown::Read).expect("shutdown");
    assert_eq!(put(c.as_raw_fd(), true), Ok(0));
    s.write_all(b"abc").expect("write");
    assert_eq!(took(c.as_raw_fd()), (0, 3, false));
}

#[test]
fn what_is_not_connected() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    assert_eq!(put(listener.as_raw_fd(), false), Err(Failure::NotConnected));
    assert_eq!(taken(listener.as_raw_fd()), Err(Failure::NotConnected));
    let (c, s) = pair("127.0.0.1:0").expect("pair");
    // A reset.
    rustix::net::sockopt::set_socket_linger(&s, Some(std::time::Duration::ZERO)).expect("linger");
    drop(s);
    assert_eq!(put(c.as_raw_fd(), true), Err(Failure::NotConnected));
    assert_eq!(taken(c.as_raw_fd()), Err(Failure::NotConnected));
    assert_eq!(put(-1, true), Err(Failure::BadDescriptor));
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
    assert!(put(udp.as_raw_fd(), true).is_err() && taken(udp.as_raw_fd()).is_err());
}

#[test]
fn while_acknowledgements_come_in() {
    const TOTAL: usize = 40 << 20;
    let (mut c, mut s) = pair("127.0.0.1:0").expect("pair");
    let reader = std::thread::spawn(move || {
        let mut buf = vec![0; 1 << 16];
        let mut sum = 0;
        while sum < TOTAL {
            sum += s.read(&mut buf).expect("read");
        }
        assert_eq!(took(s.as_raw_fd()).0, TOTAL as u64);
    });
    let (mut sum, mut busy) = (0, 0);
    let piece = vec![0; 1 << 16];
    while sum < TOTAL {
        c.write_all(&piece).expect("write");
        sum += piece.len();
        match put(c.as_raw_fd(), true) {
            Ok(n) => assert_eq!(n, sum as u64),
            Err(e) => {
                assert_eq!(e, Failure::Blocked);
                busy += 1;
            }
        }
    }
    reader.join().expect("reader");
    assert!(busy < 10, "{busy}");
}

/// The offsets, by the compiler and the header of this machine, where it has them.
#[test]
fn offsets_are_the_kernels() {
    let dir = std::env::temp_dir().join(format!("rsockets-tcpinfo-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let check = |body: &str| {
        let file = dir.join("o.c");
        std::fs::write(&file, body).expect("write");
        std::process::Command::new("cc")
            .arg("-fsyntax-only")
            .arg(&file)
            .output()
            .map(|o| o.status.success())
    };
    let text = "#include <stddef.h>\n#include <linux/tcp.h>\n\
        _Static_assert(offsetof(struct tcp_info, tcpi_state) == 0, \"state\");\n\
        _Static_assert(offsetof(struct tcp_info, tcpi_bytes_acked) == 120, \"acked\");\n\
        _Static_assert(offsetof(struct tcp_info, tcpi_bytes_received) == 128, \"received\");\n";
    let usable = check("#include <linux/tcp.h>\n").unwrap_or(false);
    let good = usable.then(|| check(text).expect("cc"));
    let _ = std::fs::remove_dir_all(&dir);
    assert_ne!(good, Some(false));
}
