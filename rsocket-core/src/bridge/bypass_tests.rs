//! Two pumps over the simulated device, whose programs send and receive now by the channel, now
//! past it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use proptest::prelude::*;

use super::pump_tests::{End, byte, ends, settle};
use crate::channel::link;
use crate::conn::fork_group;
use crate::device::sim::Weather;
use crate::failure::Failure;
use crate::proto::control::Mode;
use crate::socket::hints;
use crate::sys::vectors::Cursor;

fn vector(bytes: &mut [u8]) -> [libc::iovec; 1] {
    [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }]
}

/// As a sending call does that is inside the bridge.
fn send_bypassing(end: &mut End, bytes: &mut [u8], whole: bool) -> usize {
    let v = vector(bytes);
    if whole {
        end.pump.send_whole(&v)
    } else {
        end.pump.send_bypassing(&mut Cursor::new(&v), false)
    }
}

/// As a receiving call does that is inside the bridge: `None` where the channel has something that
/// comes first. What it leaves may stay in the device's memory, or goes into the channel.
fn receive_bypassing(end: &mut End, most: usize, may_stay: bool) -> Option<Vec<u8>> {
    let s = fork_group::slot(end.id).unwrap();
    if hints::data_waiting(s, &link::ends(s).unwrap()) {
        return None;
    }
    let mut bytes = vec![0; most];
    let v = vector(&mut bytes);
    let mut cursor = Cursor::new(&v);
    let looked = end.pump.receive_bypassing(&mut cursor);
    if !looked.done || looked.left && !may_stay {
        end.pump.run();
    }
    let n = cursor.done();
    bytes.truncate(n);
    Some(bytes)
}

/// What one of the two programs, or the device, does next.
#[derive(Clone, Copy, Debug)]
enum Step {
    Send(usize),
    SendStraight(usize, bool),
    Receive(usize),
    ReceiveStraight(usize, bool),
    Device(usize),
    Pump(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let size = || prop_oneof![1..80usize, 1..5000usize, 50_000..200_000usize];
    prop_oneof![
        size().prop_map(Step::Send),
        (size(), any::<bool>()).prop_map(|(n, whole)| Step::SendStraight(n, whole)),
        size().prop_map(Step::Receive),
        (size(), any::<bool>()).prop_map(|(n, may_stay)| Step::ReceiveStraight(n, may_stay)),
        (1..20usize).prop_map(Step::Device),
        any::<bool>().prop_map(Step::Pump),
    ]
}

/// Carries out the steps, then lets all of it arrive; how many bytes passed the channels, out and
/// in.
fn carry(mode: Mode, queue: u16, buffer: u32, steps: &[Step]) -> (usize, usize) {
    let (world, mut a, mut b) = ends(Weather { mode, ..Weather::default() }, queue, buffer);
    let (mut sent, mut got) = (0, 0);
    let (mut past_out, mut past_in) = (0, 0);
    let check = |bytes: &[u8], got: &mut usize| {
        for x in bytes {
            assert_eq!(*x, byte(*got), "byte {got}");
            *got += 1;
        }
        bytes.len()
    };
    let from_channel = |b: &End, most: usize| match b.receive(most) {
        Ok(bytes) => bytes,
        Err(Failure::Blocked) => Vec::new(),
        Err(e) => panic!("{e:?}"),
    };
    for step in steps {
        match *step {
            Step::Send(n) => sent += a.send(&(sent..sent + n).map(byte).collect::<Vec<_>>()),
            Step::SendStraight(n, whole) => {
                let mut bytes: Vec<u8> = (sent..sent + n).map(byte).collect();
                let took = send_bypassing(&mut a, &mut bytes, whole);
                assert!(!whole || took == 0 || took == n, "{took} of {n}");
                sent += took;
                past_out += took;
            }
            Step::Receive(most) => {
                check(&from_channel(&b, most), &mut got);
            }
            Step::ReceiveStraight(most, may_stay) => {
                past_in +=
                    check(&receive_bypassing(&mut b, most, may_stay).unwrap_or_default(), &mut got);
            }
            Step::Device(n) => (0..n).for_each(|_| _ = world.borrow_mut().step()),
            Step::Pump(true) => _ = a.pump.run(),
            Step::Pump(false) => _ = b.pump.run(),
        }
    }
    for _ in 0..1000 {
        settle(&world, &mut a, &mut b);
        check(&from_channel(&b, 1 << 20), &mut got);
    }
    assert_eq!(got, sent, "all of it has arrived");
    (past_out, past_in)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn nothing_is_overtaken_by_what_goes_past_the_channel(
        message in any::<bool>(),
        small in any::<bool>(),
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mode = if message { Mode::Message } else { Mode::Immediate };
        let (queue, buffer) = if small { (16, 4096) } else { (384, 131_072) };
        carry(mode, queue, buffer, &steps);
    }
}

/// Without this the property above could hold of nothing.
#[test]
fn a_chat_never_touches_the_channel() {
    for mode in [Mode::Immediate, Mode::Message] {
        let round = [
            Step::SendStraight(64, true),
            Step::Device(20),
            Step::ReceiveStraight(64, true),
            Step::Device(20),
            Step::Pump(true),
        ];
        let steps: Vec<Step> = round.iter().copied().cycle().take(5 * 1000).collect();
        assert_eq!(carry(mode, 384, 131_072, &steps), (64_000, 64_000));
    }
}

/// What the program's buffer has no room for stays in the device's memory, as long as it may.
#[test]
fn the_rest_of_a_message_waits_for_the_next_call() {
    let (world, mut a, mut b) = ends(Weather::default(), 384, 131_072);
    assert_eq!(send_bypassing(&mut a, &mut b"0123456789".to_vec(), true), 10);
    while world.borrow_mut().step() {}
    assert_eq!(receive_bypassing(&mut b, 4, true).unwrap(), b"0123");
    assert_eq!(b.receive(100), Err(Failure::Blocked), "nothing is in the channel");
    assert_eq!(receive_bypassing(&mut b, 4, true).unwrap(), b"4567");
    b.pump.run();
    assert_eq!(receive_bypassing(&mut b, 4, true), None, "the channel comes first");
    assert_eq!(b.receive(100).unwrap(), b"89");
    assert_eq!(receive_bypassing(&mut b, 4, true).unwrap(), b"");
}

/// It came before its sender was given up, and is read before that is said.
#[test]
fn the_rest_of_a_message_outlives_its_sender() {
    let (world, mut a, mut b) = ends(Weather::default(), 384, 131_072);
    assert_eq!(send_bypassing(&mut a, &mut b"0123456789".to_vec(), true), 10);
    while world.borrow_mut().step() {}
    assert_eq!(receive_bypassing(&mut b, 4, true).unwrap(), b"0123");
    b.pump.give_up();
    assert_eq!(b.receive(100).unwrap(), b"456789");
}

/// Then the rest is in the channel, where every thread finds it.
#[test]
fn the_rest_of_a_message_is_in_the_channel() {
    let (world, mut a, mut b) = ends(Weather::default(), 384, 131_072);
    let mut text = *b"0123456789";
    assert_eq!(send_bypassing(&mut a, &mut text, true), 10);
    while world.borrow_mut().step() {}
    assert_eq!(receive_bypassing(&mut b, 4, false).unwrap(), b"0123");
    assert_eq!(receive_bypassing(&mut b, 4, false), None, "the channel comes first");
    assert_eq!(b.receive(100).unwrap(), b"456789");
    assert_eq!(receive_bypassing(&mut b, 4, false).unwrap(), b"");
}

/// Nothing goes past bytes that wait in the channel, nor past the end of the stream.
#[test]
fn what_waits_in_the_channel_goes_first() {
    let (_world, mut a, _b) = ends(Weather::default(), 384, 131_072);
    assert_eq!(a.send(b"first"), 5);
    assert_eq!(send_bypassing(&mut a, &mut b"second".to_vec(), false), 0);
    a.pump.run();
    assert_eq!(send_bypassing(&mut a, &mut b"second".to_vec(), false), 6);
    crate::socket::shutdown(a.id, std::os::fd::AsRawFd::as_raw_fd(&a.fd), libc::SHUT_WR);
    assert_eq!(send_bypassing(&mut a, &mut b"third".to_vec(), false), 0);
    a.pump.run();
    assert_eq!(send_bypassing(&mut a, &mut b"third".to_vec(), false), 0);
}

/// A sender that has waited in vain uses the channel, until the device has said something.
#[test]
fn a_sender_waits_for_room_while_the_device_has_news() {
    let (world, mut a, mut b) = ends(Weather::default(), 16, 4096);
    let mut bytes = vec![7; 100_000];
    assert!(a.pump.waits_for_room());
    let took = send_bypassing(&mut a, &mut bytes, false);
    assert!(took > 0 && took < bytes.len(), "{took}");
    assert!(a.pump.waits_for_room());
    a.pump.waited_in_vain();
    assert!(!a.pump.waits_for_room());
    a.pump.run();
    assert!(!a.pump.waits_for_room(), "the device has told nothing");
    settle(&world, &mut a, &mut b);
    assert!(a.pump.waits_for_room());
    assert!(send_bypassing(&mut a, &mut bytes, false) > 0);
}
