//! What the far end of a channel has not taken is found again, after any number of laps. It is sent
//! by TCP when a direction goes back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::AsRawFd;

use proptest::prelude::*;

use super::send;
use crate::bridge::outgoing::Outgoing;
use crate::bridge::pump_tests::program;
use crate::channel::link;
use crate::conn::fork_group;
use crate::conn::slot::flag;
use crate::device::shm::channel::buffer_classes::locate;

/// Byte `at` of the stream.
fn byte(at: u64) -> u8 {
    (at * 31 + at / 251) as u8
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn what_a_bridge_has_not_taken_is_found(
        steps in prop::collection::vec((1_usize..200_000, 0_u32..300_000, any::<bool>()), 20..60)
    ) {
        let (fd, _tie, id, mut port) = program();
        let s = fork_group::slot(id).unwrap();
        s.set(flag::LARGE_OPEN);
        let ends = link::ends(s).unwrap();
        let (mut sent, mut taken) = (0_u64, 0_u64);
        for (n, mut take, short) in steps {
            let bytes: Vec<u8> = (sent..sent + if short { n as u64 % 4096 + 1 } else { n as u64 }).map(byte).collect();
            let v = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            sent += send::send(id, s, fd.as_raw_fd(), &[v], libc::MSG_DONTWAIT).unwrap_or(0) as u64;
            while let Outgoing::Bytes(len) = port.outgoing().unwrap()
                && take > 0
            {
                let part = len.min(take);
                port.consumed(part).unwrap();
                taken += u64::from(part);
                take -= part;
            }
            // SAFETY: no other thread sends.
            let state = *unsafe { s.send.alone() }.view();
            prop_assert_eq!(state.total(), sent);
            let mut at = taken;
            while at < sent {
                let (offset, len) = locate(&state, &ends.outgoing, at, link::beyond(s)).unwrap();
                let from = ends.outgoing.payload(offset, len as usize).unwrap();
                for i in 0..u64::from(len) {
                    // SAFETY: payload() vouches for the bytes, and no thread writes them now.
                    prop_assert_eq!(unsafe { from.add(i as usize).read() }, byte(at + i), "at {}", at + i);
                }
                at += u64::from(len);
            }
        }
    }
}
