//! The short way does what the ordinary way does: two connections with the same history, one by
//! each, come out the same.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;
use std::os::fd::{AsRawFd, OwnedFd};

use proptest::prelude::*;

use super::{family, receive, send, short};
use crate::conn::slot::{Slot, SlotId, flag};
use crate::errno::Errno;
use crate::relay::port::{Outgoing, Port};
use crate::relay::pump_tests::program;

/// A program's end, and the peer's side of its window, driven by hand.
struct End {
    fd: OwnedFd,
    _tie: OwnedFd,
    id: SlotId,
    port: Port,
    /// Whether it goes the short way where that is one.
    short: bool,
    /// How often it did.
    taken: [usize; 2],
}

impl End {
    fn new(short: bool) -> Self {
        let (fd, tie, id, port) = program();
        let s = family::slot(id).unwrap();
        s.clear(flag::RELAYED);
        // Grown when the first long message is sent, which takes a peer that can.
        s.set(flag::LARGE_OPEN);
        Self { fd, _tie: tie, id, port, short, taken: [0; 2] }
    }

    fn slot(&self) -> &'static Slot {
        family::slot(self.id).unwrap()
    }

    /// Sends the bytes in so many buffers, or a few less, and an empty one.
    fn send(&mut self, bytes: &[u8], buffers: usize) -> Result<usize, Errno> {
        let mut v: Vec<_> = bytes
            .chunks(bytes.len().div_ceil(buffers))
            .map(|b| libc::iovec { iov_base: b.as_ptr().cast_mut().cast(), iov_len: b.len() })
            .collect();
        if buffers > 1 {
            v.insert(1, libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 });
        }
        if self.short
            && let Some(n) = short::send(self.slot(), &v)
        {
            self.taken[0] += 1;
            return Ok(n);
        }
        send::send(self.id, self.slot(), self.fd.as_raw_fd(), &v, libc::MSG_DONTWAIT)
    }

    fn receive(&mut self, most: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; most];
        let v = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: most }];
        let got = match if self.short {
            short::receive(self.slot(), &v, libc::MSG_DONTWAIT)
        } else {
            None
        } {
            Some(n) => {
                self.taken[1] += 1;
                n
            }
            None => {
                receive::receive(self.id, self.slot(), self.fd.as_raw_fd(), &v, libc::MSG_DONTWAIT)?
            }
        };
        bytes.truncate(got);
        Ok(bytes)
    }

    /// The peer sends.
    fn hears(&mut self, bytes: &[u8]) -> u32 {
        // SAFETY: a slice's bytes.
        unsafe { self.port.deliver(bytes.as_ptr(), bytes.len() as u32) }.unwrap()
    }

    /// The peer takes at most so many bytes of what was sent.
    fn is_heard(&mut self, most: u32) -> Vec<u8> {
        let Outgoing::Bytes { at, len } = self.port.outgoing().unwrap() else { return Vec::new() };
        let n = len.min(most);
        // SAFETY: the port promises `len` readable bytes.
        let bytes = unsafe { core::slice::from_raw_parts(at, n as usize) }.to_vec();
        self.port.consumed(n).unwrap();
        bytes
    }

    /// All that the two ways keep of the connection.
    fn state(&self) -> String {
        let s = self.slot();
        let (sending, receiving) = (s.send.lock(|_| ()).unwrap(), s.receive.lock(|_| ()).unwrap());
        format!(
            "{:?} {:?} {:x} {:x} {}",
            sending.view(),
            receiving.view(),
            s.room_hint.load(Ordering::Relaxed),
            s.unread_hint.load(Ordering::Relaxed),
            s.wake_due.load(Ordering::Relaxed),
        )
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send(usize, usize),
    Receive(usize),
    Hear(usize),
    BeHeard(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let size = || prop_oneof![4 => 1_usize..200, 2 => 200_usize..5000, 1 => 5000_usize..60_000];
    prop_oneof![
        (size(), 1_usize..5).prop_map(|(n, buffers)| Step::Send(n, buffers)),
        size().prop_map(Step::Receive),
        size().prop_map(Step::Hear),
        size().prop_map(|n| Step::BeHeard(n as u32)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
    #[test]
    fn both_ways_come_out_the_same(steps in prop::collection::vec(step(), 1..300)) {
        let [mut a, mut b] = [true, false].map(End::new);
        let text: Vec<u8> = (0..60_000_u32).map(|i| ((i * 7) >> 3) as u8).collect();
        for step in &steps {
            match *step {
                Step::Send(n, buffers) => prop_assert_eq!(a.send(&text[..n], buffers), b.send(&text[..n], buffers)),
                Step::Receive(n) => prop_assert_eq!(a.receive(n), b.receive(n)),
                Step::Hear(n) => prop_assert_eq!(a.hears(&text[..n]), b.hears(&text[..n])),
                Step::BeHeard(n) => prop_assert_eq!(a.is_heard(n), b.is_heard(n)),
            }
            prop_assert_eq!(a.state(), b.state(), "after {:?}", step);
        }
        let short = |step: &Step| matches!(step, Step::Send(..1000, _));
        // The first goes the ordinary way, on which it is asked who reads it.
        let several = steps.iter().take(3).filter(|step| short(step)).count() > 1;
        prop_assert!(a.taken[0] > 0 || !several, "the short way is never taken");
    }
}
