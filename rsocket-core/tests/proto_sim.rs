//! Two ends over the simulated device, in all weathers. The bytes arrive, in order, whatever the
//! order of sends, receives, completions and sleeps. No end sleeps for ever. A death never looks
//! like an end. A peer that breaks a rule loses its connection and gets nothing else.

mod proto_support;

use proptest::prelude::*;
use proto_support::{End, UPSTREAM, byte, bytes, connect, connect_as, prepare, settle};
use rsocket_core::device::sim::{self, Weather, World};
use rsocket_core::device::{Completion, QueuePair};
use rsocket_core::proto::control::Mode;
use rsocket_core::proto::recv_half::RecvParams;
use rsocket_core::proto::state::{Event, State};
use rsocket_core::proto::stream::Readable;
use rsocket_core::wire::private_data::PrivateData;
use rsocket_core::wire::sge::Sge;
use rsocket_core::wire::word::Word;
use std::cell::RefCell;

/// A program on one end: sends so much, reads everything, says goodbye when both are done.
struct Program {
    end: End,
    to_send: u64,
    data: Vec<u8>,
    sent: u64,
    read: u64,
    chunk: usize,
    asleep: bool,
    done: bool,
}

impl Program {
    fn new(end: End, to_send: u64, chunk: usize) -> Self {
        Self {
            end,
            to_send,
            data: bytes(0, to_send as usize),
            sent: 0,
            read: 0,
            chunk,
            asleep: false,
            done: false,
        }
    }

    /// One turn of a program that sleeps when there is nothing to do, as the contract says to: arm,
    /// look again, sleep. Whether it did anything.
    fn turn(&mut self) -> bool {
        if self.done || (self.asleep && !self.end.pair.take_event()) {
            return false;
        }
        self.asleep = false;
        if self.work() {
            return true;
        }
        self.end.pair.arm();
        if !self.work() && !self.done {
            self.asleep = true;
        }
        true
    }

    fn work(&mut self) -> bool {
        let mut moved = self.end.progress();
        let left = (self.to_send - self.sent).min(self.chunk as u64) as usize;
        if left > 0 && self.end.stream.room() > 0 {
            let count = self.end.send(&self.data[self.sent as usize..][..left]);
            self.sent += count as u64;
            moved |= count > 0;
            if self.sent == self.to_send {
                self.end.stream.on_event(Event::ShutWrite);
            }
        }
        let got = self.end.recv(self.chunk);
        for (i, got) in got.iter().enumerate() {
            assert_eq!(*got, byte(self.read + i as u64), "byte {}", self.read + i as u64);
        }
        self.read += got.len() as u64;
        moved |= !got.is_empty();
        if self.end.ended || (self.sent == self.to_send && self.end.verdict() != Readable::Nothing)
        {
            // Nothing more to do; a farewell that waits for a slot still has to go.
            self.end.progress();
            self.done = got.is_empty() && !self.end.stream.has_farewell();
        }
        moved
    }
}

/// Runs both until they are done. False when both sleep and nothing is under way: a deadlock.
fn run(
    world: &RefCell<World>,
    programs: &mut [Program; 2],
    order: &[u8],
    limit: Option<usize>,
) -> bool {
    for turn in 0.. {
        if limit == Some(turn) {
            return true;
        }
        assert!(turn < 4_000_000, "it goes round and round");
        let moved = match order[turn % order.len()] {
            0 => programs[0].turn(),
            1 => programs[1].turn(),
            _ => world.borrow_mut().step(),
        };
        if programs.iter().all(|p| p.done) {
            return true;
        }
        if !moved && !world.borrow_mut().step() && !programs[0].turn() && !programs[1].turn() {
            return false;
        }
    }
    true
}

fn shapes() -> impl Strategy<Value = RecvParams> {
    let queue = prop_oneof![1u16..16, Just(16), Just(17), Just(64), Just(384)];
    let shape = prop_oneof![
        Just((2u32, 65536u32, 0u32)),
        Just((2, 3000, 0)),
        Just((4, 16384, 512)),
        Just((8, 4096, 100)),
        Just((8, 65536, 4096)),
    ];
    (queue, shape).prop_map(|(queue, (segments, large, small))| RecvParams {
        queue,
        segments,
        large,
        small,
    })
}

fn weather() -> impl Strategy<Value = Weather> {
    (any::<bool>(), any::<u64>(), 1u64..200, prop_oneof![Just(0u8), Just(20)], 24u16..400).prop_map(
        |(message, seed, delay, spurious, send_queue)| Weather {
            mode: if message { Mode::Message } else { Mode::Immediate },
            seed,
            delay,
            spurious,
            send_queue,
            ..Weather::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    #[test]
    fn everything_arrives_in_order_and_nobody_sleeps_for_ever(
        weather in weather(),
        recv in [shapes(), shapes()],
        amounts in [1u64..300_000, 1u64..300_000],
        chunks in [1usize..70_000, 1usize..70_000],
        order in proptest::collection::vec(0u8..3, 1..40),
        grow: bool,
        notes: bool,
    ) {
        // One-byte sends or receives of all of it would only make the test slow.
        let amounts = amounts.map(|n| n.min(chunks[0].min(chunks[1]) as u64 * 2000));
        let (world, mut a, mut b) = connect_as(weather, recv, notes);
        a.grow = grow;
        b.grow = grow;
        let mut programs = [Program::new(a, amounts[0], chunks[0]), Program::new(b, amounts[1], chunks[1])];
        prop_assert!(run(&world, &mut programs, &order, None), "deadlock");
        for (me, peer) in [(0, 1), (1, 0)] {
            prop_assert_eq!(programs[me].read, programs[peer].to_send);
            prop_assert_eq!(programs[me].end.violation, None);
            prop_assert_eq!(programs[me].end.verdict(), Readable::End);
        }
    }

    #[test]
    fn a_lying_peer_loses_its_connection_and_gets_nothing_else(
        weather in weather(),
        lies in proptest::collection::vec((lie(), any::<u16>()), 1..60),
        recv in shapes(),
    ) {
        let (world, mut pa, mut pb) = sim::pair(weather);
        let mine = prepare(&mut pa, recv, 2, weather.send_queue);
        let theirs = prepare(&mut pb, UPSTREAM, recv.segments, weather.send_queue);
        let mut a = End::new(pa, mine, &theirs.private_data());
        let mut seen = [Completion::None; 64];
        for (lie, extra) in lies {
            let (target, payload) = match lie {
                Lie::Word(_) => (Sge::default(), vec![]),
                Lie::Entry(index, entry, _) => {
                    let at = mine.table.addr + u64::from(index % 2) * 16;
                    let entry = entry.to_bytes(rsocket_core::wire::sge::Endian::NATIVE);
                    (Sge { addr: at, len: 16, ..mine.table }, entry.to_vec())
                }
            };
            let (Lie::Word(word) | Lie::Entry(_, _, word)) = lie;
            let _ = pb.post_message(&payload, target, word, 0);
            settle(&world);
            a.progress();
            a.send(&bytes(0, usize::from(extra)));
            a.recv(usize::from(extra));
            pb.poll(&mut seen);
            let _ = pb.post_receives(4);
            if a.violation.is_some() {
                let (log, totals) = (a.log.len(), a.stream.totals());
                prop_assert_eq!(a.stream.violation(), a.violation);
                prop_assert_eq!(a.state(), State::Error);
                prop_assert_eq!((a.send(b"more"), a.recv(10)), (0, vec![]));
                settle(&world);
                a.progress();
                prop_assert!(a.ended);
                prop_assert_eq!((a.log.len(), a.stream.totals()), (log, totals));
                prop_assert_eq!(a.verdict(), Readable::Broken);
                return Ok(());
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Lie {
    Word(Word),
    Entry(u32, Sge, Word),
}

fn lie() -> impl Strategy<Value = Lie> {
    let word = || {
        prop_oneof![
            4 => (1u32..5000).prop_map(Word),
            4 => (380u32..500).prop_map(|n| Word(0x8000_0000 | n)),
            1 => any::<u32>().prop_map(Word),
            1 => (0u32..4).prop_map(|n| Word(0xe000_0000 | n)),
            1 => (0u32..4).prop_map(|n| Word(0xc000_0000 | n)),
        ]
    };
    let entry = (0u32..2, any::<u64>(), any::<u32>(), 0u32..70_000);
    prop_oneof![
        3 => word().prop_map(Lie::Word),
        1 => (entry, word()).prop_map(|((i, addr, rkey, len), w)| Lie::Entry(i, Sge { addr, rkey, len }, w)),
    ]
}

/// Either side dies, after every number of turns. The bytes that the survivor read are a prefix of
/// those that were sent. The survivor sees an end only if all the bytes are there.
#[test]
fn a_death_never_looks_like_an_end() {
    for survives in [false, true] {
        for mode in [Mode::Immediate, Mode::Message] {
            for victim in [0, 1] {
                let mut ends = 0;
                for limit in 0.. {
                    let weather =
                        Weather { mode, seed: limit as u64, survives, ..Weather::default() };
                    let shape = RecvParams { queue: 16, segments: 4, large: 2000, small: 300 };
                    let (world, a, b) = connect(weather, [shape; 2]);
                    let mut programs = [Program::new(a, 6000, 700), Program::new(b, 2000, 300)];
                    assert!(run(&world, &mut programs, &[0, 2, 1, 2, 2], Some(limit)));
                    if programs.iter().all(|p| p.done) {
                        break;
                    }
                    world.borrow_mut().kill(victim);
                    let [a, b] = programs;
                    let (mut left, dead) = if victim == 0 { (b, a) } else { (a, b) };
                    while left.turn() {}
                    assert!(left.done, "the survivor sleeps for ever");
                    assert!(left.read <= dead.sent, "what was read was sent");
                    match left.end.verdict() {
                        Readable::End => {
                            assert_eq!(left.read, dead.to_send);
                            ends += 1;
                        }
                        Readable::Broken => {}
                        other => panic!("{other:?} after a death"),
                    }
                    assert_eq!(left.end.violation, None);
                }
                assert!(ends > 0, "the last deaths come after the goodbye");
            }
        }
    }
}

/// The tests above would notice a lost wake-up.
#[test]
fn a_device_that_loses_events_is_found_out() {
    let stuck = (0..20).filter(|seed| {
        let weather = Weather { seed: *seed, lost: 50, ..Weather::default() };
        let (world, a, b) = connect(weather, [RecvParams { queue: 16, ..UPSTREAM }; 2]);
        let mut programs = [Program::new(a, 300_000, 70_000), Program::new(b, 300_000, 70_000)];
        !run(&world, &mut programs, &[0, 1, 0, 1, 2], None)
    });
    assert!(stuck.count() > 0);
}

/// A sender that knows no limit: more messages than it has credits for.
#[test]
fn more_messages_than_credits() {
    let (world, mut pa, mut pb) = sim::pair(Weather::default());
    let mine = prepare(&mut pa, RecvParams { queue: 16, ..UPSTREAM }, 2, 384);
    let theirs = prepare(&mut pb, UPSTREAM, 2, 384);
    let mut a = End::new(pa, mine, &theirs.private_data());
    for _ in 0..17 {
        pb.post_message(b"x", mine.buffer, Word(1), 0).unwrap();
    }
    settle(&world);
    a.progress();
    assert_eq!(a.violation, Some(rsocket_core::proto::Violation::CreditOverrun));
}

/// Without spare receives, words that cost no credit wait for the receiver (RNR) and nothing is
/// lost.
#[test]
fn a_full_receive_queue_only_delays() {
    let weather = Weather { rnr_delay: 655, ..Weather::default() };
    let (world, mut pa, mut pb) = sim::pair(weather);
    let shape = RecvParams { queue: 16, ..UPSTREAM };
    let (ta, tb) = (pa.register(32).unwrap(), pb.register(32).unwrap());
    let (ba, bb) = (pa.register(131_072).unwrap(), pb.register(131_072).unwrap());
    pa.post_receives(16).unwrap();
    pb.post_receives(16).unwrap();
    let of = |table: Sge, buffer| rsocket_core::proto::stream::StreamParams {
        mode: Mode::Immediate,
        send_queue: 384,
        recv: shape,
        buffer,
        table: Sge { len: 2, ..table },
        iomaps: 0,
    };
    let (xa, xb): (_, _) = (of(ta, ba), of(tb, bb));
    let reply: PrivateData = xb.private_data();
    let (a, b) = (End::new(pa, xa, &reply), End::new(pb, xb, &xa.private_data()));
    let mut programs = [Program::new(a, 5000, 1), Program::new(b, 5000, 1)];
    // The second program looks rarely, so that the first one runs into the wall.
    let order: Vec<u8> =
        (0..60).map(|i| if i == 59 { 1 } else { u8::from(i % 2 == 0) * 2 }).collect();
    assert!(run(&world, &mut programs, &order, None));
    assert_eq!(programs.map(|p| p.read), [5000, 5000]);
}
