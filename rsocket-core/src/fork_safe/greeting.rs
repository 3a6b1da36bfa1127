//! The bytes of upstream's fork mode (`wire-protocol §12.6`): four zero bytes from the end that
//! accepted, on the TCP connection, say "come to me by RDMA". Pure. Entry points: [`GREETING`],
//! [`read`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

/// What the end that accepted sends, before anything else.
pub const GREETING: [u8; 4] = [0; 4];

/// What the first bytes from the end that accepted say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Too little to tell.
    Unclear,
    /// Come by RDMA.
    Greeting,
    /// An ordinary program's bytes.
    Other,
}

/// Reads what has come so far, all of it or at least the first four bytes.
#[must_use]
pub fn read(so_far: &[u8]) -> Heard {
    let first = so_far.get(..GREETING.len()).unwrap_or(so_far);
    if !GREETING.starts_with(first) {
        Heard::Other
    } else if first.len() == GREETING.len() {
        Heard::Greeting
    } else {
        Heard::Unclear
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn upstreams_bytes_are_known() {
        // As seen on the wire from Debian's librspreload.so.
        assert_eq!(read(b"\0\0\0\0"), Heard::Greeting);
        assert_eq!(read(b"\0\0\0\0what follows"), Heard::Greeting);
        assert_eq!(read(b""), Heard::Unclear);
        assert_eq!(read(b"\0\0\0"), Heard::Unclear);
        assert_eq!(read(b"\0\0\0x"), Heard::Other);
        assert_eq!(read(b"x\0\0\0"), Heard::Other);
        assert_eq!(read(b"220 ready\r\n"), Heard::Other);
        assert_eq!(read(b"x"), Heard::Other);
    }

    proptest! {
        #[test]
        fn more_bytes_never_take_an_answer_back(bytes: Vec<u8>) {
            let mut last = Heard::Unclear;
            for n in 0..=bytes.len() {
                let now = read(&bytes[..n]);
                prop_assert!(last == Heard::Unclear || now == last);
                last = now;
            }
            prop_assert_eq!(last == Heard::Greeting, bytes.starts_with(&GREETING));
        }
    }
}
