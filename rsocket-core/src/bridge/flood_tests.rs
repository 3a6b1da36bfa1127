//! Peers that say more than they have to. What cannot be paid for must end, and what is paid for
//! must not be taken for it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::ffi::c_int;

use super::pump::{PeerEnd, Pump, prepare};
use super::pump_tests::{IOMAPS, byte, ends, program, settle};
use crate::device::sim::{self, SimPair, Weather};
use crate::device::{Completion, MemoryError, PostError, QueuePair};
use crate::failure::Failure;
use crate::proto::Violation;
use crate::proto::control::Mode;
use crate::proto::stream::{Payload, Post};
use crate::sys::vectors::Cursor;
use crate::wire::sge::Sge;
use crate::wire::word::Word;

/// Words that need no credit and mean nothing: keep-alive, what upstream ignores, a limit that is
/// as it was.
const WORDS: [Word; 4] = [Word::KEEPALIVE, Word(7 << 29 | 99), Word(2 << 29), Word::sgl(0, QUEUE)];
const QUEUE: u16 = 384;
/// Looks at the device after which a test takes the pump for stuck.
const STUCK: u32 = 100_000;

/// A pair whose other end says this word as fast as it is taken.
struct Flood {
    pair: SimPair,
    word: Word,
    looks: u32,
}

impl QueuePair for Flood {
    const SURVIVES: bool = SimPair::SURVIVES;

    fn mode(&self) -> Mode {
        self.pair.mode()
    }
    fn register(&mut self, len: u32) -> Result<Sge, MemoryError> {
        self.pair.register(len)
    }
    fn load(&self, addr: u64, into: &mut [u8]) -> Result<(), MemoryError> {
        self.pair.load(addr, into)
    }
    fn store(&mut self, addr: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        self.pair.store(addr, bytes)
    }
    fn post_receives(&mut self, _: u16) -> Result<(), PostError> {
        Ok(())
    }
    fn room(&self) -> u16 {
        self.pair.room()
    }
    fn post_write(
        &mut self,
        bytes: &[u8],
        to: Sge,
        word: Option<Word>,
        token: u64,
    ) -> Result<(), PostError> {
        self.pair.post_write(bytes, to, word, token)
    }
    fn post_send(&mut self, word: Word, token: u64) -> Result<(), PostError> {
        self.pair.post_send(word, token)
    }
    fn poll(&mut self, into: &mut [Completion]) -> usize {
        self.looks += 1;
        assert!(self.looks < STUCK, "it does not come to its end");
        into.fill(Completion::Word(self.word));
        into.len()
    }
    fn arm(&mut self) {
        self.pair.arm();
    }
    fn take_event(&mut self) -> bool {
        self.pair.take_event()
    }
    fn event_fd(&self) -> Option<c_int> {
        self.pair.event_fd()
    }
    fn close(&mut self) {
        self.pair.close();
    }
}

/// Shows `test` a pump whose peer says that word for ever.
fn flooded(word: Word, test: impl FnOnce(Pump<Flood>)) {
    let weather = Weather::default();
    let (_world, mut a, mut b) = sim::pair(weather);
    let own = prepare(&mut a, QUEUE, 131_072, weather.send_queue, IOMAPS).unwrap();
    let peer = prepare(&mut b, QUEUE, 131_072, weather.send_queue, IOMAPS).unwrap();
    let (_fd, _tie, _id, port) = program();
    let pair = Flood { pair: a, word, looks: 0 };
    test(Pump::new(port, pair, &own, &peer.private_data()).unwrap());
}

#[test]
fn words_without_end_are_the_end() {
    for word in WORDS {
        flooded(word, |mut pump| {
            pump.run();
            // The pair does not report what the pump itself had said by then.
            pump.outstanding = 0;
            assert_eq!((pump.peer(), pump.finished()), (PeerEnd::Broken, true), "{word:?}");
            assert_eq!(pump.violation(), Some(Violation::Flood));
            pump.run();
        });
    }
}

#[test]
fn a_thread_that_receives_is_not_held_by_words_without_end() {
    for word in WORDS {
        flooded(word, |mut pump| {
            let mut bytes = [0_u8; 10];
            let v = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
            assert!(!pump.receive_bypassing(&mut Cursor::new(&v)).done, "{word:?}");
        });
    }
}

/// Everything that both queues can hold, at once.
#[test]
fn two_full_queues_are_no_flood() {
    let (world, mut a, mut b) = ends(Weather::default(), QUEUE, 131_072);
    settle(&world, &mut a, &mut b);
    let mut sent = [0, 0];
    for (end, sent) in [&mut a, &mut b].into_iter().zip(&mut sent) {
        for i in 0..QUEUE.into() {
            *sent += end.send(&[byte(i)]);
            end.pump.run();
        }
    }
    // Words that cost nothing, behind them.
    for _ in 0..3 {
        let (payload, target) = (Payload::None, Sge::default());
        a.pump.post(&Post { payload, target, word: Word::KEEPALIVE, token: 0 });
        while world.borrow_mut().step() {}
    }
    b.pump.run();
    assert_eq!((b.pump.peer(), b.pump.violation()), (PeerEnd::Open, None));
    settle(&world, &mut a, &mut b);
    for (end, sent) in [&mut b, &mut a].into_iter().zip(sent) {
        let mut got = Vec::new();
        loop {
            match end.receive(1000) {
                Ok(more) => got.extend(more),
                Err(e) => break assert_eq!(e, Failure::Blocked),
            }
        }
        assert_eq!(got, (0..sent).map(byte).collect::<Vec<u8>>());
    }
}
