//! Direct placement between two pumps over the simulated device.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::os::fd::AsRawFd;

use proptest::prelude::*;

use super::direct_placement::Refused;
use super::pump::PeerEnd;
use super::pump_tests::{End, IOMAPS, ends, ends_with, settle};
use crate::device::QueuePair;
use crate::device::sim::Weather;
use crate::failure::Failure;
use crate::iomap;
use crate::proto::control::Mode;
use crate::wire::sge::Sge;

const MODES: [Mode; 2] = [Mode::Immediate, Mode::Message];

fn weather(mode: Mode) -> Weather {
    Weather { mode, ..Weather::default() }
}

impl End {
    fn place(&self, bytes: &[u8], offset: u64) -> Result<usize, Failure> {
        let v = [libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }];
        iomap::write(self.id, self.fd.as_raw_fd(), &v, offset as i64, libc::MSG_DONTWAIT)
    }

    /// Maps words that only this test looks at.
    fn map(&mut self, memory: &mut [u32], offset: u64) -> Result<u32, Refused> {
        // SAFETY: every test keeps its memory longer than its pumps.
        unsafe { self.pump.expose(memory.as_mut_ptr().cast(), size_of_val(memory) as u32, offset) }
    }
}

fn words(value: u32, count: usize) -> Vec<u8> {
    value.to_ne_bytes().repeat(count)
}

#[test]
fn bytes_appear_without_a_word() {
    for mode in MODES {
        let mut memory = vec![0; 100_000];
        let (world, mut a, mut b) = ends(weather(mode), 384, 131_072);
        assert_eq!(b.place(&words(7, 1), 4000), Err(Failure::BadAddress), "nothing is mapped yet");
        assert_eq!(a.map(&mut memory, 4000), Ok(0));
        settle(&world, &mut a, &mut b);
        // More than the ring holds, and across its end.
        let bytes: Vec<u8> = (0..100_000_u32).flat_map(u32::to_ne_bytes).collect();
        let mut done = 0;
        while done < bytes.len() {
            match b.place(&bytes[done..], 4000 + done as u64) {
                Ok(n) => done += n,
                Err(e) => assert_eq!(e, Failure::Blocked),
            }
            settle(&world, &mut a, &mut b);
        }
        assert_eq!(a.receive(1), Err(Failure::Blocked), "the program is not told");
        assert!(memory.iter().zip(0..).all(|(word, i)| *word == i));
        let end = 4000 + bytes.len() as u64;
        for wrong in [0, 3999, end, u64::MAX / 2] {
            assert_eq!(b.place(&bytes[..4], wrong), Err(Failure::BadAddress), "{wrong}");
        }
        assert_eq!(b.place(&bytes[..8], end - 4), Ok(4), "as far as the mapping goes");
    }
}

#[test]
fn mappings_come_and_go_and_cost_nothing() {
    for mode in MODES {
        for notes in [true, false] {
            let mut memory = vec![0; 10];
            let (world, mut a, mut b) = ends_with(weather(mode), 16, 4096, notes);
            for i in 1..300 {
                let offset = u64::from(i) * 1000;
                let index = a.map(&mut memory, offset).unwrap();
                settle(&world, &mut a, &mut b);
                if !notes {
                    // As upstream does, which looks at its table before each write.
                    b.pump.learn(index as u16);
                }
                assert_eq!(b.place(&words(i, 10), offset), Ok(40));
                settle(&world, &mut a, &mut b);
                assert_eq!(memory, [i; 10]);
                a.pump.withdraw(index);
                assert_eq!(a.pump.is_gone(index), !notes, "upstream does not answer");
                settle(&world, &mut a, &mut b);
                assert!(a.pump.is_gone(index));
                b.pump.learn(index as u16);
                assert_eq!(b.place(&words(0, 10), offset), Err(Failure::BadAddress));
            }
            assert_eq!((a.send(b"still"), b.send(b"here")), (5, 4));
            settle(&world, &mut a, &mut b);
            assert_eq!(
                (a.receive(9).unwrap(), b.receive(9).unwrap()),
                (b"here".to_vec(), b"still".to_vec())
            );
        }
    }
}

#[test]
fn a_peer_takes_as_many_as_it_said() {
    let mut memory = vec![0; 10 * usize::from(IOMAPS + 1)];
    let (world, mut a, mut b) = ends(Weather::default(), 384, 131_072);
    let mut parts = memory.chunks_mut(10);
    for i in 0..IOMAPS {
        assert_eq!(a.map(parts.next().unwrap(), u64::from(i) * 40), Ok(u32::from(i)));
    }
    let last = parts.next().unwrap();
    assert_eq!(a.map(last, 5000), Err(Refused::Full));
    a.pump.withdraw(2);
    assert_eq!(a.map(last, 5000), Ok(2), "the peer was never told of the one before");
    settle(&world, &mut a, &mut b);
    assert_eq!(b.place(&words(5, 40), 0), Ok(80), "two without a gap, then none");
    assert_eq!(b.place(&words(6, 40), 5000), Ok(40));
    settle(&world, &mut a, &mut b);
    for (i, value) in [(0, 5), (1, 5), (2, 0), (3, 0), (4, 6)] {
        assert_eq!(memory[i * 10..i * 10 + 10], [value; 10], "{i}");
    }
    a.pump.pair().close();
    settle(&world, &mut a, &mut b);
    assert_eq!(a.map(&mut memory[..10], 0), Err(Refused::NotConnected));
}

#[test]
fn what_is_on_its_way_when_a_mapping_goes_breaks_nothing() {
    for mode in MODES {
        for seed in 0..40 {
            let mut memory = vec![0; 1000];
            let (world, mut a, mut b) = ends(Weather { seed, ..weather(mode) }, 384, 131_072);
            let index = a.map(&mut memory, 0).unwrap();
            settle(&world, &mut a, &mut b);
            // Some in the ring, some with the device, some there.
            for i in 1..(seed as u32 % 7 + 3) {
                b.place(&words(i, 1000), 0).unwrap();
                if i % 2 == 0 {
                    b.pump.run();
                }
                if i % 3 == 0 {
                    world.borrow_mut().step();
                }
            }
            a.pump.withdraw(index);
            while !a.pump.is_gone(index) {
                let stepped = world.borrow_mut().step();
                assert!(a.pump.run() | stepped | b.pump.run(), "it waits for ever");
            }
            let before = memory.clone();
            settle(&world, &mut a, &mut b);
            assert_eq!(b.place(&words(99, 1000), 0), Err(Failure::BadAddress));
            assert_eq!(memory, before);
            b.send(b"alive");
            settle(&world, &mut a, &mut b);
            assert_eq!((a.receive(9).unwrap(), a.pump.peer()), (b"alive".to_vec(), PeerEnd::Open));
        }
    }
}

#[test]
fn after_the_last_close_nothing_is_written() {
    let mut memory = vec![0; 1000];
    let (world, mut a, mut b) = ends(Weather::default(), 384, 131_072);
    a.map(&mut memory, 0).unwrap();
    settle(&world, &mut a, &mut b);
    b.place(&words(1, 1000), 0).unwrap();
    b.pump.run();
    a.pump.forget_all();
    settle(&world, &mut a, &mut b);
    assert_eq!((memory, b.pump.peer()), (vec![0; 1000], PeerEnd::Broken));
}

#[test]
fn a_peer_reaches_what_is_mapped_and_nothing_else() {
    let mut memory = vec![0_u32; 30];
    for (before, len) in [(4, 4), (0, 44), (44, 0)] {
        let (world, mut a, mut b) = ends(Weather::default(), 384, 131_072);
        a.map(&mut memory[10..20], 0).unwrap();
        settle(&world, &mut a, &mut b);
        let name = b.pump.first_theirs().unwrap();
        let target = Sge { addr: (name.addr + 40).wrapping_sub(before), ..name };
        b.pump.pair().post_write(&vec![1; len + 4], target, None, 0).unwrap();
        settle(&world, &mut a, &mut b);
        assert_eq!((a.pump.peer(), b.pump.peer()), (PeerEnd::Broken, PeerEnd::Broken));
    }
    assert_eq!(memory, vec![0; 30]);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Writes so many words at this place of the mapping.
    Place(usize, usize),
    /// Sends how many direct writes there were, and so many bytes.
    Send(usize),
    Receive,
    /// Lets one end run, or the device.
    Run(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..8_usize, 1..4000_usize).prop_map(|(at, len)| Step::Place(at, len)),
        (0..3000_usize).prop_map(Step::Send),
        Just(Step::Receive),
        (0..3_u8).prop_map(Step::Run),
        (0..3_u8).prop_map(Step::Run),
    ]
}

const PART: usize = 4000;

/// What `b` has sent and `a` has received of it: messages of 4 bytes, how many direct writes there
/// were, and bytes.
#[derive(Default)]
struct History {
    /// Number and length of each direct write, by part.
    writes: [Vec<(u32, usize)>; 8],
    count: u32,
    sent: Vec<u8>,
    messages: Vec<(usize, u32)>,
    received: usize,
}

impl History {
    fn step(&mut self, step: Step, a: &End, b: &End) {
        match step {
            Step::Place(part, len) => {
                let value = self.count + 1;
                if let Ok(n) = b.place(&words(value, len), (part * PART * 4) as u64) {
                    self.count = value;
                    self.writes[part].push((value, n / 4));
                }
            }
            Step::Send(len) => {
                let message = [&self.count.to_ne_bytes()[..], &vec![0; len]].concat();
                let n = b.send(&message);
                self.sent.extend(&message[..n]);
                if n > 0 {
                    self.messages.push((self.sent.len() - n, self.count));
                }
            }
            Step::Receive => {
                let got = a.receive(5000).map_or(0, |got| got.len());
                self.received += got;
            }
            Step::Run(_) => {}
        }
    }

    /// Everything that was written before the last message that arrived, in part, is there, or
    /// something later.
    fn check(&self, memory: &[u32]) {
        let known =
            self.messages.iter().take_while(|(at, _)| *at < self.received).map(|(_, n)| *n).last();
        for (part, writes) in self.writes.iter().enumerate() {
            for (value, len) in writes.iter().filter(|(value, _)| Some(*value) <= known) {
                for word in &memory[part * PART..part * PART + len] {
                    assert!(*word >= *value, "{word} where write {value} was announced");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, ..ProptestConfig::default() })]
    #[test]
    fn what_was_written_before_a_message_is_there_with_it(
        steps in prop::collection::vec(step(), 1..120),
        seed: u64,
        message: bool,
        queue in prop_oneof![Just(16_u16), Just(384)],
        send_queue in prop_oneof![Just(16_u16), Just(384)],
    ) {
        let mode = if message { Mode::Message } else { Mode::Immediate };
        let mut memory = vec![0; 8 * PART];
        let (world, mut a, mut b) = ends(Weather { seed, send_queue, ..weather(mode) }, queue, 8192);
        a.map(&mut memory, 0).unwrap();
        settle(&world, &mut a, &mut b);
        let mut history = History::default();
        for step in steps {
            if let Step::Run(who) = step {
                match who {
                    0 => _ = a.pump.run(),
                    1 => _ = b.pump.run(),
                    _ => _ = world.borrow_mut().step(),
                }
            }
            history.step(step, &a, &b);
            history.check(&memory);
        }
        for _ in 0..200 {
            settle(&world, &mut a, &mut b);
            history.step(Step::Receive, &a, &b);
            history.check(&memory);
        }
        prop_assert_eq!(history.received, history.sent.len());
        let written = history.writes.iter().flatten().map(|(value, _)| *value).max().unwrap_or(0);
        prop_assert_eq!(memory.iter().copied().max(), Some(written));
    }
}
