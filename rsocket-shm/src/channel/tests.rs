//! Both ends of a channel over memory of its own. What was committed comes once and in order,
//! whatever is dropped, peeked at, or done by an end that dies on the way.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::ptr::NonNull;

use proptest::prelude::*;

use super::sender::{PIECE, Step};
use super::*;
use crate::direction::Direction;
use crate::layout::DIRECTION_LEN;
use rsocket_host::copy::CopyHint;
use rsocket_sync::guarded::Own;
use rsocket_wire::word::Word;

struct Ends {
    _memory: Vec<u128>,
    send: Own<SendState>,
    recv: Own<RecvState>,
    d: Direction,
    sent: u64,
    got: u64,
}

/// Byte `at` of the stream.
fn byte(at: u64) -> u8 {
    (at * 31 + at / 251) as u8
}

fn text(from: u64, n: usize) -> Vec<u8> {
    (from..from + n as u64).map(byte).collect()
}

impl Ends {
    fn new() -> Self {
        let mut memory = vec![0_u128; DIRECTION_LEN / 16 + 4096 / 16];
        let at = memory.as_mut_ptr().cast::<u8>();
        let base = NonNull::new(at.wrapping_add(at.align_offset(4096))).unwrap();
        // SAFETY: page-aligned, long enough, the ends' alone, and freed with the ends.
        let d = unsafe { Direction::from_base(base) };
        let (recv, send) = fresh(Beyond::Peer).unwrap();
        let (send, recv) = (Own::new(send), Own::new(recv));
        let mut ends = Self { _memory: memory, send, recv, d, sent: 0, got: 0 };
        ends.receiver().give_back();
        ends
    }

    fn sender(&mut self) -> Sender<'_> {
        Sender::new(self.send.hold(), &self.d)
    }

    fn receiver(&mut self) -> Receiver<'_> {
        Receiver::new(self.recv.hold(), &self.d)
    }

    /// One message, and how far its commit comes; how many bytes it has.
    fn send(&mut self, n: usize, short: bool, dies: Option<Step>) -> usize {
        let (from, d) = (self.sent, self.d);
        let mut sender = Sender::new(self.send.hold(), &d);
        sender.make_room(n).unwrap();
        let wanted = n.min(PIECE) as u32;
        let reserved =
            if short { sender.reserve_short(wanted) } else { sender.reserve(wanted).ok() };
        let Some(mut message) = reserved else { return 0 };
        let bytes = text(from, message.len());
        let (first, second) = bytes.split_at(bytes.len() / 2);
        for part in [first, second] {
            // SAFETY: a slice's bytes.
            assert!(unsafe { message.fill(part.as_ptr(), part.len(), CopyHint::Ordinary) });
        }
        // SAFETY: as above; it is not read.
        assert!(!unsafe { message.fill(bytes.as_ptr(), 1, CopyHint::Ordinary) }, "it is full");
        let end = message.in_steps(|step| if dies == Some(step) { Err(step) } else { Ok(()) });
        let lives = end.is_ok();
        // As channel::guard has it.
        let mut held = self.send.hold();
        let told = !lives && d.data_published(held.view().data_position);
        if told {
            held.roll_forward();
        }
        assert_eq!(told, dies == Some(Step::Published));
        let n = if lives || told { bytes.len() } else { 0 };
        self.sent += n as u64;
        n
    }

    /// Takes up to `n` bytes, or looks at them only.
    fn receive(&mut self, n: usize, peeks: bool) {
        let (mut at, end) = (self.got, self.got + n as u64);
        let mut taking = self.receiver().take();
        let mut out = [0; 300_000];
        while at < end
            && let Next::Bytes(len) = taking.next().unwrap()
        {
            let len = len.min((end - at) as u32);
            // SAFETY: no message is longer than the array.
            unsafe { taking.copy_out(len, out.as_mut_ptr(), CopyHint::Ordinary) }.unwrap();
            assert_eq!(out[..len as usize], text(at, len as usize));
            at += u64::from(len);
        }
        if !peeks {
            taking.commit();
            self.got = at;
        }
    }

    /// Gives room back, and dies at a step of the first thing that is given.
    fn give_back(&mut self, dies: Option<u32>) {
        let d = self.d;
        let mut steps = 0;
        if self.recv.view().owes() {
            let end = self.receiver().give_one(|_| {
                steps += 1;
                if dies == Some(steps) { Err(()) } else { Ok(()) }
            });
            let mut held = self.recv.hold();
            if end.is_err() && d.control_published(held.view().control_position) {
                held.roll_forward();
            }
        }
        self.receiver().give_back();
    }
}

#[derive(Clone, Debug)]
enum Op {
    Send(usize, bool, Option<Step>),
    Receive(usize, bool),
    GiveBack(Option<u32>),
    Forget(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let size = || prop_oneof![4 => 1_usize..200, 2 => 200_usize..5000, 1 => 5000_usize..300_000];
    let step = prop_oneof![
        6 => Just(None),
        1 => Just(Some(Step::Copied)),
        1 => Just(Some(Step::Written)),
        1 => Just(Some(Step::Published)),
    ];
    prop_oneof![
        4 => (size(), any::<bool>(), step).prop_map(|(n, short, dies)| Op::Send(n, short, dies)),
        4 => (size(), prop::bool::weighted(0.2)).prop_map(|(n, peeks)| Op::Receive(n, peeks)),
        2 => prop_oneof![3 => Just(None), 1 => (1_u32..4).prop_map(Some)].prop_map(Op::GiveBack),
        1 => size().prop_map(Op::Forget),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn what_was_committed_comes_once(ops in prop::collection::vec(op(), 1..300)) {
        let mut ends = Ends::new();
        for op in ops {
            match op {
                Op::Send(n, short, dies) => {
                    ends.send(n, short, dies);
                }
                Op::Receive(n, peeks) => ends.receive(n, peeks),
                Op::GiveBack(dies) => ends.give_back(dies),
                Op::Forget(n) => {
                    let from = text(1 << 40, n.min(100));
                    if let Ok(mut message) = ends.sender().reserve(n as u32) {
                        let n = message.len().min(from.len());
                        // SAFETY: a slice's bytes.
                        let filled = unsafe { message.fill(from.as_ptr(), n, CopyHint::Ordinary) };
                        prop_assert!(filled);
                    }
                }
            }
            prop_assert_eq!(ends.send.view().total(), ends.sent);
            prop_assert_eq!(ends.recv.view().total(), ends.got);
        }
        while ends.got < ends.sent {
            let before = ends.got;
            ends.receive(300_000, false);
            prop_assert!(ends.got > before, "something was lost");
        }
        prop_assert_eq!(ends.got, ends.sent);
    }
}

#[test]
fn a_shorter_message_leaves_its_room_to_the_next() {
    let mut ends = Ends::new();
    let mut sender = ends.sender();
    let mut message = sender.reserve(10_000).unwrap();
    let n = message.fill_by(|to, len| {
        let bytes = text(0, 3000);
        assert!(len >= bytes.len());
        // SAFETY: there is room for `len` bytes.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Some(bytes.len())
    });
    assert_eq!((n, message.commit().total()), (Some(3000), 3000));
    ends.sent = 3000;
    ends.send(5000, false, None);
    ends.receive(8000, false);
    assert_eq!(ends.got, 8000);
}

#[test]
fn nothing_is_no_message() {
    let mut ends = Ends::new();
    let mut sender = ends.sender();
    sender.reserve(10).unwrap().commit();
    assert_eq!(sender.reserve(0).err(), Some(Refused::Full));
    assert!(ends.receiver().arrived().is_none());
}

#[test]
fn the_end_comes_behind_all_bytes_and_once() {
    let mut ends = Ends::new();
    ends.send(100, true, None);
    assert!(ends.sender().shut());
    assert!(!ends.sender().shut());
    assert_eq!(ends.sender().reserve(1).err(), Some(Refused::Full));
    ends.receive(100, false);
    let mut taking = ends.receiver().take();
    assert_eq!(taking.next(), Ok(Next::End));
    assert_eq!(taking.commit().ended, 1);
    assert!(ends.receiver().arrived().is_none());
}

#[test]
fn what_breaks_a_rule_is_not_taken() {
    let mut ends = Ends::new();
    ends.send(4, true, None);
    // No message is so long, and none of no bytes.
    for (position, word) in [(1, 5000), (1, 0), (1, 0x6000_0000)] {
        ends.d.publish_data(position, word);
        let mut taking = ends.receiver().take();
        assert_eq!(taking.next(), Ok(Next::Bytes(4)));
        taking.skip(4);
        assert_eq!(taking.next(), Err(Broken));
    }
    // Bytes, and a credit that was never given.
    for word in [Word::data(1), Word::sgl(0x7000, 0xfff)] {
        let mut ends = Ends::new();
        ends.d.publish_control(0, word.0);
        assert_eq!(ends.sender().refresh(), Err(Broken), "{word:?}");
    }
}
