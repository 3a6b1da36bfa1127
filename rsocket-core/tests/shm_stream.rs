//! A stream over the shared-memory device delivers exactly the bytes, between threads that sleep
//! and between processes that die.
#![cfg(not(shuttle))]
#![allow(missing_docs)]

mod proto_support;
mod shm_support;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use proptest::prelude::*;
use proto_support::{End, byte, bytes, prepare};
use rsocket_core::device::QueuePair;
use rsocket_core::device::shm::arena::Channel;
use rsocket_core::device::shm::queue_pair::{SEND_QUEUE, ShmPair};
use rsocket_core::proto::recv_half::RecvParams;
use rsocket_core::proto::state::Event;
use rsocket_core::proto::stream::{Readable, StreamParams};
use rsocket_core::wire::private_data::PrivateData;
use shm_support::{Child, Maps, readable};

/// A program on one end: sends so much, says that this was all, reads everything, and sleeps on the
/// event's descriptor meanwhile. How many bytes it read.
fn run(end: &mut End<ShmPair>, to_send: usize, chunk: usize) -> u64 {
    let data = bytes(0, to_send);
    let (mut sent, mut read, mut shut, mut armed) = (0, 0, false, false);
    loop {
        let mut moved = end.progress();
        if sent < to_send && end.stream.room() > 0 {
            let count = end.send(&data[sent..(sent + chunk).min(to_send)]);
            sent += count;
            moved |= count > 0;
        }
        if sent == to_send && !shut {
            shut = end.stream.on_event(Event::ShutWrite);
            moved = true;
        }
        let got = end.recv(chunk);
        for (i, got) in got.iter().enumerate() {
            assert_eq!(*got, byte(read + i as u64), "byte {}", read + i as u64);
        }
        read += got.len() as u64;
        moved |= !got.is_empty();
        assert_eq!(end.violation, None);
        if !moved
            && (end.ended
                || (shut && end.verdict() != Readable::Nothing && !end.stream.has_farewell()))
        {
            return read;
        }
        match (moved, armed) {
            (true, _) => armed = false,
            (false, false) => {
                end.pair.arm();
                armed = true;
            }
            (false, true) => {
                sleep(&end.pair);
                assert!(end.pair.take_event());
                armed = false;
            }
        }
    }
}

fn sleep(pair: &ShmPair) {
    assert!(readable(pair, 20), "a lost event");
}

fn shapes() -> impl Strategy<Value = RecvParams> {
    let queue = prop_oneof![Just(16u16), Just(17), Just(64), Just(384)];
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

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]

    #[test]
    fn a_stream_delivers_exactly_the_bytes(
        recv in [shapes(), shapes()],
        amounts in [0usize..400_000, 0usize..400_000],
        chunks in [1usize..70_000, 1usize..70_000],
        send_queue in 24..=SEND_QUEUE,
        grow: bool,
    ) {
        let amounts = amounts.map(|n| n.min(chunks[0].min(chunks[1]) * 2000));
        let mut maps = Maps::new(1);
        let (mut a, mut b) = maps.pair();
        let pa = prepare(&mut a, recv[0], recv[1].segments, send_queue);
        let pb = prepare(&mut b, recv[1], recv[0].segments, send_queue);
        let ends = [End::new(a, pa, &pb.private_data()), End::new(b, pb, &pa.private_data())];
        let reads = std::thread::scope(|scope| {
            let work = |mut end: End<ShmPair>, to_send, chunk| {
                end.grow = grow;
                let read = run(&mut end, to_send, chunk);
                assert_eq!(end.verdict(), Readable::End);
                end.pair.release();
                read as usize
            };
            let [a, b] = ends;
            let threads = [
                scope.spawn(move || work(a, amounts[0], chunks[0])),
                scope.spawn(move || work(b, amounts[1], chunks[1])),
            ];
            threads.map(|thread| thread.join().unwrap())
        });
        maps.unmap();
        prop_assert_eq!(reads, [amounts[1], amounts[0]]);
    }
}

/// An end in `channel` that told the other process, by `stream`, what it has, and was told.
fn meet(channel: Channel, side: u32, stream: &mut UnixStream) -> End<ShmPair> {
    let shape = RecvParams { queue: 64, segments: 4, large: 16384, small: 512 };
    let mut pair = ShmPair::open(channel, side).unwrap();
    let params: StreamParams = prepare(&mut pair, shape, 4, SEND_QUEUE);
    let mut offer = params.private_data().to_bytes();
    stream.write_all(&offer).unwrap();
    stream.read_exact(&mut offer).unwrap();
    End::new(pair, params, &PrivateData::parse(&offer).unwrap())
}

#[test]
fn a_stream_between_two_processes() {
    const AMOUNTS: [usize; 2] = [3_000_000, 1_000_000];
    let mut maps = Maps::new(1);
    let (here, there) = maps.channel();
    let (mut mine, mut its) = UnixStream::pair().unwrap();
    let child = Child::start(|| {
        let mut end = meet(there, 1, &mut its);
        assert_eq!(run(&mut end, AMOUNTS[1], 10_000), AMOUNTS[0] as u64);
        assert_eq!(end.verdict(), Readable::End);
    });
    let mut end = meet(here, 0, &mut mine);
    assert_eq!(run(&mut end, AMOUNTS[0], 30_000), AMOUNTS[1] as u64);
    assert_eq!(end.verdict(), Readable::End);
    assert!(child.collect());
}

#[test]
fn a_killed_process_never_looks_like_an_end() {
    for millis in [0, 1, 2, 5, 10] {
        let mut maps = Maps::new(1);
        let (here, there) = maps.channel();
        let (mut mine, mut its) = UnixStream::pair().unwrap();
        let child = Child::start(|| {
            run(&mut meet(there, 1, &mut its), 1 << 30, 30_000);
        });
        let mut end = meet(here, 0, &mut mine);
        std::thread::scope(|scope| {
            // What the owner of the TCP connection does when it sees the reset.
            scope.spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(millis));
                drop(child);
                ShmPair::bury(here, 1);
            });
            run(&mut end, 0, 30_000);
        });
        assert!(end.ended);
        assert_eq!(end.verdict(), Readable::Broken);
        end.pair.release();
    }
}
