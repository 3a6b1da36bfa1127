//! The two halves of one direction against each other, with two rings between them and nothing
//! else. Any interleaving delivers the bytes, neither half breaks a rule, and neither gets stuck.

use proptest::prelude::*;
use rsocket_wire::proto::{RecvHalf, RecvParams, Region, SendHalf, Violation};
use rsocket_wire::sge::Sge;
use rsocket_wire::word::{Message, Word};
use std::collections::VecDeque;

/// Where the receive buffer pretends to be.
const BASE: u64 = 0x5000_0000;

/// A direction: sender, receiver, the memory and the rings between them.
struct Direction {
    send: SendHalf,
    recv: RecvHalf,
    buffer: Vec<u8>,
    table: Vec<Sge>,
    data: VecDeque<Word>,
    control: VecDeque<Word>,
    sent: u64,
    read: u64,
    grow: bool,
    /// Bytes of the buffer that the sender may write, as far as the receiver promised.
    promised: Vec<bool>,
}

fn byte(i: u64) -> u8 {
    (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

impl Direction {
    fn new(p: &RecvParams, sparing: bool) -> Self {
        let recv = RecvHalf::new(p);
        let first = recv.first();
        let len = RecvHalf::buffer_len(p) as usize;
        let send = SendHalf::new(p.queue, sge(first), p.segments).unwrap();
        let mut direction = Self {
            send: if sparing { send.sparing() } else { send },
            recv,
            buffer: vec![0; len],
            table: vec![Sge::default(); p.segments as usize],
            data: VecDeque::new(),
            control: VecDeque::new(),
            sent: 0,
            read: 0,
            grow: false,
            promised: vec![false; len],
        };
        direction.promise(first);
        direction
    }

    fn promise(&mut self, region: Region) {
        for place in &mut self.promised[region.offset as usize..][..region.len as usize] {
            assert!(!*place, "promised twice");
            *place = true;
        }
    }

    fn send(&mut self, len: u32) -> bool {
        let room = self.send.room();
        let before = self.send.credits();
        let Some(write) = self.send.next_data(len) else {
            assert!(len == 0 || room == 0);
            return false;
        };
        assert_eq!(write.target.len, len.min(room));
        assert_eq!(self.send.credits(), before - 1);
        let at = (write.target.addr - BASE) as usize;
        for i in 0..write.target.len as usize {
            assert!(self.promised[at + i], "writes only where it was told");
            self.promised[at + i] = false;
            self.buffer[at + i] = byte(self.sent);
            self.sent += 1;
        }
        self.data.push_back(write.word);
        true
    }

    fn take_credit(&mut self) -> bool {
        let Some(word) = self.control.pop_front() else { return false };
        let Ok(Message::Sgl(limit)) = word.message() else { panic!("{word:?} in the credit ring") };
        let before = self.send.credits();
        self.send.on_credit(u32::from(limit)).unwrap();
        assert!(self.send.credits() >= before, "credits never go backwards");
        while let Some(index) = self.send.expected_entry() {
            let entry = core::mem::take(&mut self.table[index as usize]);
            if entry.len == 0 {
                break;
            }
            self.send.on_entry(index, entry).unwrap();
        }
        true
    }

    fn read(&mut self, most: u32) -> bool {
        if self.recv.readable() == 0 {
            match self.data.pop_front().map(Word::message) {
                Some(Ok(Message::Data(len))) => self.recv.on_data(len).unwrap(),
                Some(Ok(Message::Ctrl(_))) => self.recv.on_shutdown(),
                Some(Ok(Message::Iomap(_))) => self.recv.on_iomap().unwrap(),
                Some(other) => panic!("{other:?} in the message ring"),
                None => return false,
            }
        }
        let region = self.recv.next_read();
        let len = most.min(region.len);
        for at in &self.buffer[region.offset as usize..][..len as usize] {
            assert_eq!(*at, byte(self.read));
            self.read += 1;
        }
        self.recv.on_read(len);
        assert_eq!(self.recv.total(), self.read);
        true
    }

    fn update(&mut self) -> bool {
        let Some(update) = self.recv.next_update(self.grow) else { return false };
        if let Some((index, region)) = update.entry {
            assert_eq!(self.table[index as usize].len, 0, "no entry is written over");
            self.promise(region);
            self.table[index as usize] = sge(region);
        }
        self.control.push_back(update.word);
        true
    }

    /// Runs until `target` bytes were read. Whenever nothing moves, it is stuck.
    fn finish(&mut self, target: u64) {
        while self.read < target {
            let mut moved = self.send(u32::try_from(target - self.sent).unwrap());
            moved |= self.read(u32::MAX);
            while self.update() {
                moved = true;
            }
            while self.take_credit() {
                moved = true;
            }
            assert!(moved, "stuck: {:?} {:?}", self.send, self.recv);
        }
    }
}

fn sge(region: Region) -> Sge {
    Sge { addr: BASE + u64::from(region.offset), rkey: 1, len: region.len }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Send(u32),
    Read(u32),
    Update,
    Credit,
    Grow,
    Iomap,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1u32..3000).prop_map(Op::Send),
        1 => Just(Op::Send(u32::MAX)),
        4 => (1u32..3000).prop_map(Op::Read),
        3 => Just(Op::Update),
        3 => Just(Op::Credit),
        1 => Just(Op::Grow),
        1 => Just(Op::Iomap),
    ]
}

fn params() -> impl Strategy<Value = RecvParams> {
    let queue = prop_oneof![1u16..20, Just(384), Just(65535)];
    (queue, 2u32..=8, 1u32..5000, prop_oneof![Just(0u32), 1u32..700])
        .prop_map(|(queue, segments, large, small)| RecvParams { queue, segments, large, small })
}

/// Miri is slow.
const CASES: u32 = if cfg!(miri) { 3 } else { 400 };

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(CASES) })]

    #[test]
    fn any_interleaving_delivers(
        p in params(),
        sparing: bool,
        ops in proptest::collection::vec(op(), 0..300),
    ) {
        let mut d = Direction::new(&p, sparing);
        for op in ops {
            match op {
                Op::Send(len) => { d.send(len); }
                Op::Read(len) => { d.read(len); }
                Op::Update => { d.update(); }
                Op::Credit => { d.take_credit(); }
                Op::Grow => d.grow = true,
                Op::Iomap => d.data.extend(d.send.next_iomap(0)),
            }
        }
        d.finish(d.sent + 20_000);
        d.data.extend(d.send.shut());
        while d.read(u32::MAX) {}
        prop_assert!(d.recv.ended());
        prop_assert_eq!(d.send.total(), d.sent);
    }

    #[test]
    fn a_lying_receiver_is_caught_or_harmless(
        words in proptest::collection::vec((any::<u32>(), any::<bool>()), 0..100),
        entries in proptest::collection::vec((0u32..9, any::<u64>(), any::<u32>()), 0..100),
        queue in 1u16..400,
    ) {
        let first = Sge { addr: BASE, rkey: 1, len: 1000 };
        let mut send = SendHalf::new(queue, first, 4).unwrap();
        let mut entries = entries.into_iter();
        for (word, near) in words {
            let word = if near { word & 0x1ff } else { word };
            let before = send;
            match send.on_credit(word) {
                Ok(()) => prop_assert!(send.credits() >= before.credits() && send.credits() <= queue),
                Err(_) => prop_assert_eq!(send, before),
            }
            if let Some((index, addr, len)) = entries.next() {
                let before = send;
                let expected = send.expected_entry();
                match send.on_entry(index, Sge { addr, rkey: 1, len }) {
                    Ok(()) => prop_assert!(len == 0 || expected == Some(index)),
                    Err(_) => prop_assert_eq!(send, before),
                }
            }
            if let Some(write) = send.next_data(700) {
                prop_assert!(write.target.len > 0 && write.target.len <= 700);
                prop_assert!(write.target.end().is_some());
            }
        }
    }

    #[test]
    fn a_lying_sender_is_caught_or_harmless(
        p in params(),
        lens in proptest::collection::vec((prop_oneof![1u32..6000, any::<u32>()], any::<bool>()), 0..200),
    ) {
        let mut recv = RecvHalf::new(&p);
        let size = RecvHalf::buffer_len(&p);
        for (len, update) in lens {
            let before = recv;
            match recv.on_data(len) {
                Ok(()) => {
                    let region = recv.next_read();
                    prop_assert_eq!(region.len, len);
                    prop_assert!(region.offset.checked_add(len).unwrap() <= size);
                    recv.on_read(u32::MAX);
                }
                Err(violation) => {
                    prop_assert_eq!(recv, before);
                    prop_assert!(violation != Violation::Unread);
                }
            }
            if update {
                while recv.next_update(len % 7 == 0).is_some() {}
            }
        }
    }
}
