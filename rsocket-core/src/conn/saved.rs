//! The timestamp of the SYN that began an accepted connection, out of the headers that the kernel
//! has kept of it.
//!
//! What is read came from the network, and any host may have sent it. Must not know sockets'
//! options or slots. Entry point: [`timestamp`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

/// The longest that the kernel keeps of us: an IPv6 header with extensions, and a TCP header.
pub const LONGEST: usize = 256;

const TCP: u8 = 6;
/// Extension headers of IPv6 that say their length in eight bytes after the first eight.
const EXTENSIONS: [u8; 3] = [0, 43, 60];
const OPTION_END: u8 = 0;
const OPTION_NOTHING: u8 = 1;
const OPTION_TIMESTAMP: u8 = 8;
/// Kind, length, the sender's clock, the echo of the receiver's.
const TIMESTAMP_LEN: usize = 10;
/// FIN, SYN, RST, ACK.
const FLAGS: u8 = 0x17;
const SYN: u8 = 0x02;

/// `TSval` of a SYN, given its IP and TCP headers; `None` where there is none, or the bytes are no
/// SYN.
#[must_use]
pub fn timestamp(headers: &[u8]) -> Option<u32> {
    let tcp = match headers.first()? >> 4 {
        4 => {
            let len = usize::from(headers.first()? & 15) * 4;
            (len >= 20 && *headers.get(9)? == TCP).then(|| headers.get(len..))?
        }
        6 => behind_extensions(*headers.get(6)?, headers.get(40..)?),
        _ => None,
    }?;
    if *tcp.get(13)? & FLAGS != SYN {
        return None;
    }
    let len = usize::from(*tcp.get(12)? >> 4) * 4;
    in_options(tcp.get(20..len)?)
}

fn behind_extensions(mut next: u8, mut rest: &[u8]) -> Option<&[u8]> {
    // Each takes eight bytes at least, so that this comes to its end.
    while EXTENSIONS.contains(&next) {
        next = *rest.first()?;
        rest = rest.get((usize::from(*rest.get(1)?) + 1) * 8..)?;
    }
    (next == TCP).then_some(rest)
}

fn in_options(mut options: &[u8]) -> Option<u32> {
    loop {
        let len = match *options.first()? {
            OPTION_END => return None,
            OPTION_NOTHING => 1,
            kind => {
                let len = usize::from(*options.get(1)?);
                let option = options.get(..len)?;
                if kind == OPTION_TIMESTAMP {
                    let clock = option.get(2..6).filter(|_| len == TIMESTAMP_LEN)?;
                    return Some(u32::from_be_bytes(clock.try_into().ok()?));
                }
                // Shorter than its own head: nothing behind it can be found.
                if len < 2 {
                    return None;
                }
                len
            }
        };
        options = options.get(len..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CLOCK: u32 = 0x0102_0304;

    fn tcp(flags: u8, options: &[u8]) -> Vec<u8> {
        let padded = options.len().next_multiple_of(4);
        let mut header = vec![0; 20];
        header[12] = ((20 + padded) as u8 / 4) << 4;
        header[13] = flags;
        header.extend_from_slice(options);
        header.resize(20 + padded, 0);
        header
    }

    fn v4(tcp: &[u8]) -> Vec<u8> {
        let mut header = vec![0; 20];
        (header[0], header[9]) = (0x45, TCP);
        [header, tcp.to_vec()].concat()
    }

    fn v6(next: u8, rest: &[u8]) -> Vec<u8> {
        let mut header = vec![0; 40];
        (header[0], header[6]) = (0x60, next);
        [header, rest.to_vec()].concat()
    }

    /// As Linux sends them: MSS, SACK, timestamps, window scale.
    const USUAL: [u8; 20] = [2, 4, 0xff, 0xd7, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7];

    #[test]
    fn the_usual_syn() {
        let syn = tcp(SYN, &USUAL);
        assert_eq!(timestamp(&v4(&syn)), Some(CLOCK));
        assert_eq!(timestamp(&v6(TCP, &syn)), Some(CLOCK));
        // With ECN; and behind a hop-by-hop header.
        assert_eq!(timestamp(&v4(&tcp(SYN | 0xc0, &USUAL))), Some(CLOCK));
        let hop = [vec![TCP, 0, 1, 4, 0, 0, 0, 0], syn].concat();
        assert_eq!(timestamp(&v6(0, &hop)), Some(CLOCK));
    }

    #[test]
    fn what_has_no_timestamp() {
        assert_eq!(timestamp(&v4(&tcp(SYN, &[2, 4, 0xff, 0xd7]))), None, "tcp_timestamps = 0");
        assert_eq!(timestamp(&[]), None, "SYN cookies, or not asked for");
        assert_eq!(timestamp(&v4(&tcp(SYN | 0x10, &USUAL))), None, "SYN and ACK");
        assert_eq!(timestamp(&v4(&tcp(0x10, &USUAL))), None);
        assert_eq!(timestamp(&v6(17, &tcp(SYN, &USUAL))), None, "UDP");
        assert_eq!(
            timestamp(&v4(&tcp(SYN, &[8, 9, 1, 2, 3, 4, 0, 0, 0, 0]))),
            None,
            "a wrong length"
        );
        assert_eq!(timestamp(&v4(&tcp(SYN, &[30, 0, 8, 10, 1, 2, 3, 4]))), None, "no length");
        assert_eq!(
            timestamp(&v4(&tcp(SYN, &[0, 8, 10, 1, 2, 3, 4, 0, 0, 0]))),
            None,
            "behind the end"
        );
        let whole = v4(&tcp(SYN, &USUAL));
        for len in 0..whole.len() {
            assert_eq!(timestamp(&whole[..len]), None, "cut to {len}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_their_end(bytes in proptest::collection::vec(any::<u8>(), 0..LONGEST)) {
            let _ = timestamp(&bytes);
            let _ = timestamp(&v4(&bytes));
            let _ = timestamp(&v6(0, &bytes));
        }
    }
}
