//! The shared-memory device keeps the device contract, within one process and between two.
#![cfg(not(shuttle))]
#![allow(missing_docs)]

mod shm_support;

use std::cell::RefCell;
use std::ffi::c_int;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use rsocket_core::device::conformance::{self, Rig};
use rsocket_core::device::shm::arena::Channel;
use rsocket_core::device::shm::layout::{BUFFER_LEN, DATA_RING, TARGETS};
use rsocket_core::device::shm::queue_pair::{RECV_QUEUE, SEND_QUEUE, ShmPair};
use rsocket_core::device::{Completion, MemoryError, PostError, QueuePair};
use rsocket_core::proto::control::Mode;
use rsocket_core::wire::sge::Sge;
use rsocket_core::wire::word::Word;
use shm_support::{Child, Maps, readable};

/// Both ends in this process, each with a mapping of its own.
struct Near(Maps);

impl Rig for Near {
    type Pair = ShmPair;

    fn pair(&mut self) -> (ShmPair, ShmPair) {
        self.0.pair()
    }

    fn settle(&mut self) {}

    fn kill(&mut self, pair: ShmPair) {
        ShmPair::bury(self.0.last().1, pair.side());
    }
}

#[test]
fn keeps_the_contract_in_one_process() {
    conformance::all(&mut Near(Maps::new(16)));
}

/// One end, here or in a process of its own.
enum Side {
    Here(Box<ShmPair>),
    Away(RefCell<UnixStream>, #[allow(dead_code, reason = "killed when dropped")] Child),
}

/// A call to an end that is away: which one, its numbers, and bytes. The answer has the same shape.
type Call = (u8, [u64; 5], Vec<u8>);

fn put(stream: &mut UnixStream, (op, numbers, bytes): &Call) {
    let mut message = vec![*op];
    numbers.iter().chain([&(bytes.len() as u64)]).for_each(|n| message.extend(n.to_ne_bytes()));
    message.extend(bytes);
    stream.write_all(&message).unwrap();
}

/// `None` when the other process is gone.
fn get(stream: &mut UnixStream) -> Option<Call> {
    let mut head = [0; 49];
    stream.read_exact(&mut head).ok()?;
    let number = |i: usize| u64::from_ne_bytes(head[1 + 8 * i..9 + 8 * i].try_into().unwrap());
    let mut bytes = vec![0; number(5) as usize];
    stream.read_exact(&mut bytes).ok()?;
    Some((head[0], std::array::from_fn(number), bytes))
}

fn memory_code(result: Result<(), MemoryError>) -> u64 {
    result.map_or_else(|e| 1 + u64::from(e == MemoryError::Range), |()| 0)
}

fn memory_result(code: u64) -> Result<(), MemoryError> {
    [Ok(()), Err(MemoryError::Exhausted), Err(MemoryError::Range)][code as usize]
}

fn post_code(result: Result<(), PostError>) -> u64 {
    match result {
        Ok(()) => 0,
        Err(PostError::Full) => 1,
        Err(PostError::Ended) => 2,
        Err(PostError::Unsupported) => 3,
    }
}

fn post_result(code: u64) -> Result<(), PostError> {
    [Ok(()), Err(PostError::Full), Err(PostError::Ended), Err(PostError::Unsupported)]
        [code as usize]
}

/// The process of an end that is away: does what it is told.
fn serve(stream: &mut UnixStream, pair: &mut ShmPair) {
    while let Some((op, [a, b, c, d, _], mut bytes)) = get(stream) {
        let sge = Sge { addr: a, rkey: b as u32, len: 0 };
        let numbers = match op {
            0 => match pair.register(a as u32) {
                Ok(sge) => [0, sge.addr, sge.rkey.into(), sge.len.into(), 0],
                Err(e) => [memory_code(Err(e)), 0, 0, 0, 0],
            },
            1 => {
                bytes = vec![0; b as usize];
                [memory_code(pair.load(a, &mut bytes)), 0, 0, 0, 0]
            }
            2 => [memory_code(pair.store(a, &bytes)), 0, 0, 0, 0],
            3 => [post_code(pair.post_receives(a as u16)), 0, 0, 0, 0],
            4 => [pair.room().into(), 0, 0, 0, 0],
            5 => [post_code(pair.post_write(&bytes, sge, None, d)), 0, 0, 0, 0],
            6 => [post_code(pair.post_write(&bytes, sge, Some(Word(c as u32)), d)), 0, 0, 0, 0],
            7 => [post_code(pair.post_send(Word(c as u32), d)), 0, 0, 0, 0],
            8 => {
                let mut one = [Completion::None];
                pair.poll(&mut one);
                match one[0] {
                    Completion::None => [0; 5],
                    Completion::Sent { token } => [1, token, 0, 0, 0],
                    Completion::Failed { token } => [2, token, 0, 0, 0],
                    Completion::Word(word) => [3, word.0.into(), 0, 0, 0],
                    Completion::Ended => [4, 0, 0, 0, 0],
                }
            }
            9 => {
                pair.arm();
                [0; 5]
            }
            10 => [pair.take_event().into(), 0, 0, 0, 0],
            _ => {
                pair.close();
                [0; 5]
            }
        };
        put(stream, &(op, numbers, bytes));
    }
}

impl Side {
    fn away(channel: Channel, side: u32) -> Self {
        let (mine, mut its) = UnixStream::pair().unwrap();
        let child = Child::start(|| serve(&mut its, &mut ShmPair::open(channel, side).unwrap()));
        let side = Self::Away(RefCell::new(mine), child);
        // An answer says that it stands.
        assert_eq!(side.room(), SEND_QUEUE);
        side
    }

    /// The same call to an end here, or to one away.
    fn ask<T>(
        &mut self,
        here: impl FnOnce(&mut ShmPair) -> T,
        call: Call,
        answer: impl FnOnce([u64; 5]) -> T,
    ) -> T {
        match self {
            Self::Here(pair) => here(pair),
            Self::Away(stream, _) => answer(tell(stream, &call).1),
        }
    }
}

fn tell(stream: &RefCell<UnixStream>, call: &Call) -> Call {
    let mut stream = stream.borrow_mut();
    put(&mut stream, call);
    get(&mut stream).expect("the other process lives")
}

fn call(op: u8, numbers: [u64; 4], bytes: &[u8]) -> Call {
    let [a, b, c, d] = numbers;
    (op, [a, b, c, d, 0], bytes.to_vec())
}

impl QueuePair for Side {
    const SURVIVES: bool = ShmPair::SURVIVES;

    fn mode(&self) -> Mode {
        Mode::Immediate
    }

    fn register(&mut self, len: u32) -> Result<Sge, MemoryError> {
        let answer = |[code, addr, rkey, len, _]: [u64; 5]| {
            memory_result(code).map(|()| Sge { addr, rkey: rkey as u32, len: len as u32 })
        };
        self.ask(|pair| pair.register(len), call(0, [len.into(), 0, 0, 0], &[]), answer)
    }

    fn load(&self, addr: u64, into: &mut [u8]) -> Result<(), MemoryError> {
        match self {
            Self::Here(pair) => pair.load(addr, into),
            Self::Away(stream, _) => {
                let (_, [code, ..], bytes) =
                    tell(stream, &call(1, [addr, into.len() as u64, 0, 0], &[]));
                into.copy_from_slice(&bytes);
                memory_result(code)
            }
        }
    }

    fn store(&mut self, addr: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        self.ask(
            |pair| pair.store(addr, bytes),
            call(2, [addr, 0, 0, 0], bytes),
            |n| memory_result(n[0]),
        )
    }

    fn post_receives(&mut self, count: u16) -> Result<(), PostError> {
        let there = call(3, [count.into(), 0, 0, 0], &[]);
        self.ask(|pair| pair.post_receives(count), there, |n| post_result(n[0]))
    }

    fn room(&self) -> u16 {
        match self {
            Self::Here(pair) => pair.room(),
            Self::Away(stream, _) => tell(stream, &call(4, [0; 4], &[])).1[0] as u16,
        }
    }

    fn post_write(
        &mut self,
        bytes: &[u8],
        target: Sge,
        word: Option<Word>,
        token: u64,
    ) -> Result<(), PostError> {
        let op = if word.is_some() { 6 } else { 5 };
        let numbers =
            [target.addr, target.rkey.into(), word.map_or(0, |word| word.0.into()), token];
        let here = |pair: &mut ShmPair| pair.post_write(bytes, target, word, token);
        self.ask(here, call(op, numbers, bytes), |n| post_result(n[0]))
    }

    fn post_send(&mut self, word: Word, token: u64) -> Result<(), PostError> {
        let there = call(7, [0, 0, word.0.into(), token], &[]);
        self.ask(|pair| pair.post_send(word, token), there, |n| post_result(n[0]))
    }

    fn poll(&mut self, into: &mut [Completion]) -> usize {
        let Self::Away(stream, _) = self else {
            return self.ask(|pair| pair.poll(into), call(0, [0; 4], &[]), |_| 0);
        };
        for (count, slot) in into.iter_mut().enumerate() {
            let [kind, value, ..] = tell(stream, &call(8, [0; 4], &[])).1;
            *slot = match kind {
                1 => Completion::Sent { token: value },
                2 => Completion::Failed { token: value },
                3 => Completion::Word(Word(value as u32)),
                4 => Completion::Ended,
                _ => return count,
            };
        }
        into.len()
    }

    fn arm(&mut self) {
        self.ask(ShmPair::arm, call(9, [0; 4], &[]), |_| ());
    }

    fn take_event(&mut self) -> bool {
        self.ask(ShmPair::take_event, call(10, [0; 4], &[]), |n| n[0] == 1)
    }

    fn event_fd(&self) -> Option<c_int> {
        None
    }

    fn close(&mut self) {
        self.ask(ShmPair::close, call(11, [0; 4], &[]), |_| ());
    }
}

/// One end in this process, and the first or the second in another.
struct Far(Maps, u32);

impl Rig for Far {
    type Pair = Side;

    fn pair(&mut self) -> (Side, Side) {
        let (here, there) = self.0.channel();
        match self.1 {
            0 => (Side::away(there, 0), Side::Here(Box::new(ShmPair::open(here, 1).unwrap()))),
            _ => (Side::Here(Box::new(ShmPair::open(here, 0).unwrap())), Side::away(there, 1)),
        }
    }

    fn settle(&mut self) {}

    fn kill(&mut self, pair: Side) {
        // The first end of the pair, and by SIGKILL if it is away.
        drop(pair);
        ShmPair::bury(self.0.last().0, 0);
    }
}

#[test]
fn keeps_the_contract_between_two_processes() {
    for away in 0..2 {
        conformance::all(&mut Far(Maps::new(16), away));
    }
}

#[test]
fn limits_are_refusals() {
    let (mut a, mut b) = Maps::new(1).pair();
    assert_eq!(b.post_receives(RECV_QUEUE + 1), Err(PostError::Full));
    assert_eq!(b.post_receives(RECV_QUEUE), Ok(()));
    assert_eq!(b.post_receives(1), Err(PostError::Full));
    assert_eq!(b.register(BUFFER_LEN as u32 + 1), Err(MemoryError::Exhausted));
    assert_eq!(b.register(u32::MAX), Err(MemoryError::Exhausted));
    let places: Vec<_> = (0..TARGETS).map(|_| b.register(10).unwrap()).collect();
    assert_eq!(b.register(1), Err(MemoryError::Exhausted));
    // Memory is named by key as well: the place of one with the key of another is nowhere.
    let mixed = Sge { rkey: places[0].rkey, ..places[1] };
    assert_eq!(a.post_message(b"x", mixed, Word(1), 1), Err(PostError::Ended));
    let mut seen = [Completion::None; 4];
    assert_eq!((b.poll(&mut seen), seen[0]), (1, Completion::Ended));
    a.release();
    b.release();
    let (mut whole, other) = Maps::new(1).pair();
    assert_eq!(whole.register(BUFFER_LEN as u32).unwrap().len, BUFFER_LEN as u32);
    assert_eq!(whole.register(1), Err(MemoryError::Exhausted));
    whole.release();
    other.release();
}

/// All receives unused and all posts unreported: the ring holds them, over many laps.
#[test]
fn a_full_ring_loses_nothing() {
    let (mut a, mut b) = Maps::new(1).pair();
    let mut batch = [Completion::None; 2048];
    let (mut posted, mut expected) = (0_u32, 0_u32);
    b.post_receives(RECV_QUEUE).unwrap();
    while expected < 5 * DATA_RING {
        loop {
            match a.post_send(Word(posted), posted.into()) {
                Ok(()) => posted += 1,
                Err(PostError::Full) if a.poll(&mut batch) > 0 => {}
                Err(e) => break assert_eq!(e, PostError::Full),
            }
        }
        assert_eq!(posted - expected, u32::from(SEND_QUEUE) + u32::from(RECV_QUEUE));
        let count = b.poll(&mut batch);
        assert_eq!(count, usize::from(RECV_QUEUE));
        for completion in &batch[..count] {
            assert_eq!(*completion, Completion::Word(Word(expected)));
            expected += 1;
        }
        assert_eq!(a.poll(&mut batch), 0, "no receives, no reports");
        b.post_receives(RECV_QUEUE).unwrap();
    }
    a.release();
    b.release();
}

/// Events that an end causes itself: an end that armed and then posts must not sleep on the report.
#[test]
fn own_doings_are_events_too() {
    let mut maps = Maps::new(1);
    let (mut a, mut b) = maps.pair();
    let place = b.register(8).unwrap();
    let mut seen = [Completion::None; 4];
    a.arm();
    assert_eq!(a.poll(&mut seen), 0);
    a.post_write(b"x", place, None, 7).unwrap();
    assert!(readable(&a, 0) && a.take_event() && !readable(&a, 0));
    assert_eq!((a.poll(&mut seen), seen[0]), (1, Completion::Sent { token: 7 }));
    a.post_send(Word(1), 8).unwrap();
    b.arm();
    assert_eq!(b.poll(&mut seen), 0);
    assert!(!b.take_event(), "without a receive there is nothing to report");
    b.post_receives(1).unwrap();
    assert!(b.take_event());
    assert_eq!((b.poll(&mut seen), seen[0]), (1, Completion::Word(Word(1))));
    assert_eq!(a.poll(&mut seen), 1);
    a.arm();
    a.close();
    assert!(a.take_event());
    assert_eq!((a.poll(&mut seen), seen[0]), (1, Completion::Ended));
    a.release();
    b.release();
}

/// A peer that writes whatever it likes into the counts, the table and the end marks.
#[test]
fn a_lying_peer_harms_itself() {
    let mut maps = Maps::new(1);
    let (here, there) = maps.channel();
    let mut a = ShmPair::open(here, 0).unwrap();
    let its = there.direction(0);
    let mut seen = [Completion::None; 2048];
    for count in [1, u32::MAX, 1 << 31, 0, 12345] {
        its.publish_control(0, count);
        for token in 0..700 {
            let _ = a.post_send(Word(token), token.into());
        }
        a.poll(&mut seen);
        assert!(a.room() <= SEND_QUEUE);
    }
    its.publish_control(0, 1 << 30);
    a.poll(&mut seen);
    assert_eq!(a.room(), SEND_QUEUE);
    let outside = Sge { addr: BUFFER_LEN as u64 - 2, rkey: 1, len: u32::MAX };
    its.post_entry(0, outside);
    assert_eq!(a.post_write(b"spill", outside, None, 1), Err(PostError::Ended));
    let wrapping = Sge { addr: u64::MAX - 1, rkey: 1, len: u32::MAX };
    its.post_entry(0, wrapping);
    assert_eq!(a.post_write(b"spill", wrapping, None, 1), Err(PostError::Ended));
    its.sender().sender_closed.store(0, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(a.post_send(Word(1), 1), Err(PostError::Ended));
    a.release();
}
