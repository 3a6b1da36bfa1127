//! Two pumps over the simulated device: what one program puts into its channel, the other takes out
//! of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::cell::RefCell;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use super::pump::{PeerEnd, Pump, prepare};
use super::{loopback, own_channel};
use crate::channel::{handover_state, link};
use crate::conn::fork_group;
use crate::conn::machine::{ReceiveMode, SendMode};
use crate::conn::slot::{SlotId, flag};
use crate::device::QueuePair;
use crate::device::sim::{self, SimPair, Weather, World};
use crate::failure::Failure;
use crate::host::events::Events;
use crate::socket::{self, ready};
use crate::wire::private_data::PrivateData;
use crate::wire::sge::{Endian, Sge};
use crate::wire::word::Word;

/// Mappings that each end takes.
pub(super) const IOMAPS: u16 = 4;

/// A program's end: its socket and its slot, and the pump behind them.
pub(super) struct End {
    pub(super) fd: OwnedFd,
    pub(super) tie: OwnedFd,
    pub(super) id: SlotId,
    pub(super) pump: Pump<SimPair>,
}

impl End {
    pub(super) fn send(&self, bytes: &[u8]) -> usize {
        let v = [libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }];
        match socket::send(self.id, self.fd.as_raw_fd(), &v, libc::MSG_DONTWAIT) {
            Ok(n) => n,
            Err(Failure::Blocked) => 0,
            Err(e) => panic!("send: {e:?}"),
        }
    }

    pub(super) fn receive(&self, most: usize) -> Result<Vec<u8>, Failure> {
        let mut bytes = vec![0; most];
        let v = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: most }];
        let n = socket::receive(self.id, self.fd.as_raw_fd(), &v, libc::MSG_DONTWAIT)?;
        bytes.truncate(n);
        Ok(bytes)
    }

    fn shutdown(&self, how: i32) {
        socket::shutdown(self.id, self.fd.as_raw_fd(), how);
        socket::has_shut(self.id);
    }

    pub(super) fn close(&self) {
        socket::closing(self.id, self.fd.as_raw_fd());
    }
}

pub(crate) fn program() -> (OwnedFd, OwnedFd, SlotId, super::channel_port::ChannelPort) {
    program_born(0)
}

/// As [`program`], of a slot that begins with these flags.
pub(crate) fn program_born(
    flags: u32,
) -> (OwnedFd, OwnedFd, SlotId, super::channel_port::ChannelPort) {
    let (fd, tie, id) = tied_born(flags);
    let (claim, port) = own_channel::channel().unwrap();
    own_channel::enter_new(id, fork_group::slot(id).unwrap(), (claim.record, claim.channel), 0)
        .unwrap();
    (fd, tie, id, port)
}

/// A program's socket that has no channel yet, and our end of it.
pub(crate) fn tied() -> (OwnedFd, OwnedFd, SlotId) {
    tied_born(0)
}

fn tied_born(flags: u32) -> (OwnedFd, OwnedFd, SlotId) {
    use rustix::net::{AddressFamily, SocketType, socket};
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::io::ioctl_fionbio(&fd, true).unwrap();
    let tie = loopback::tie(fd.as_raw_fd()).unwrap();
    let id = fork_group::take(flags, fd.as_raw_fd()).unwrap();
    (fd, tie, id)
}

pub(super) fn ends(weather: Weather, queue: u16, buffer: u32) -> (Rc<RefCell<World>>, End, End) {
    ends_with(weather, queue, buffer, true)
}

/// Two ends that take each other for one of ours, or for upstream's.
pub(super) fn ends_with(
    weather: Weather,
    queue: u16,
    buffer: u32,
    notes: bool,
) -> (Rc<RefCell<World>>, End, End) {
    let send_queue = weather.send_queue;
    let (world, mut a, mut b) = sim::pair(weather);
    let pa = prepare(&mut a, queue, buffer, send_queue, IOMAPS).unwrap();
    let pb = prepare(&mut b, queue, buffer, send_queue, IOMAPS).unwrap();
    let heard =
        |p: PrivateData| PrivateData::parse(&PrivateData { notes, ..p }.to_bytes()).unwrap();
    let end = |pair: SimPair, own, other| {
        let (fd, tie, id, port) = program();
        let pump = Pump::new(port, pair, &own, &heard(other)).unwrap();
        End { fd, tie, id, pump }
    };
    (world, end(a, pa, pb.private_data()), end(b, pb, pa.private_data()))
}

pub(super) fn settle(world: &RefCell<World>, a: &mut End, b: &mut End) {
    loop {
        let mut moved = a.pump.run() | b.pump.run();
        while world.borrow_mut().step() {
            moved = true;
        }
        if !moved {
            return;
        }
    }
}

pub(super) fn byte(i: usize) -> u8 {
    ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// The end of one that closed says more than the end of one that only sends no more.
#[test]
fn who_has_read_the_end_of_a_closed_peer_knows_that_it_takes_nothing() {
    for closes in [true, false] {
        let (world, mut a, mut b) = ends(Weather::default(), 384, 131_072);
        assert_eq!(a.send(b"last"), 4);
        if closes {
            a.close();
        } else {
            socket::shutdown(a.id, a.fd.as_raw_fd(), libc::SHUT_WR);
        }
        let mut got = Vec::new();
        // At the first moment at which the end can be read.
        loop {
            a.pump.run();
            b.pump.run();
            match b.receive(10) {
                Ok(end) if end.is_empty() => break,
                Ok(more) => got.extend(more),
                Err(e) => assert_eq!(e, Failure::Blocked),
            }
            world.borrow_mut().step();
        }
        assert_eq!(got, b"last");
        let ends = link::ends(fork_group::slot(b.id).unwrap()).unwrap();
        assert_eq!(handover_state::receiver_closed(&ends.outgoing), closes);
    }
}

/// Sends `total` bytes in pieces of the given sizes, and compares.
fn carry(weather: Weather, queue: u16, buffer: u32, sizes: &[usize], total: usize) {
    let (world, mut a, mut b) = ends(weather, queue, buffer);
    let (mut sent, mut got, mut turn) = (0, 0, 0);
    let mut idle = 0;
    while got < total {
        let before = (sent, got);
        if sent < total {
            let n = sizes[turn % sizes.len()].min(total - sent);
            let bytes: Vec<u8> = (sent..sent + n).map(byte).collect();
            sent += a.send(&bytes);
            turn += 1;
        }
        settle(&world, &mut a, &mut b);
        match b.receive(sizes[(turn + 1) % sizes.len()] * 2 + 1) {
            Ok(bytes) => {
                for (i, x) in bytes.iter().enumerate() {
                    assert_eq!(*x, byte(got + i), "byte {}", got + i);
                }
                got += bytes.len();
            }
            Err(Failure::Blocked) => {}
            Err(e) => panic!("receive: {e:?}"),
        }
        idle = if before == (sent, got) { idle + 1 } else { 0 };
        assert!(idle < 100, "stuck at {sent} sent, {got} received of {total}");
    }
    assert_eq!(b.receive(1), Err(Failure::Blocked));
}

#[test]
fn bytes_arrive_in_order_whatever_the_sizes() {
    for mode in [crate::proto::control::Mode::Immediate, crate::proto::control::Mode::Message] {
        let weather = || Weather { mode, ..Weather::default() };
        carry(weather(), 384, 131_072, &[1, 64, 5, 1000], 40_000);
        carry(weather(), 384, 131_072, &[70_000, 3, 300_000], 3_000_000);
        carry(weather(), 16, 4096, &[1, 9000, 17], 200_000);
    }
}

/// An entry counts from its SGL word on (`wire-protocol §5.6`). No other word makes the pump look
/// at what stands in the table before, or is still on its way there.
#[test]
fn an_entry_counts_from_its_word_on() {
    const HALF: u32 = 2048;
    for mode in [crate::proto::control::Mode::Immediate, crate::proto::control::Mode::Message] {
        let weather = Weather { mode, ..Weather::default() };
        let send_queue = weather.send_queue;
        let (world, mut pair, mut peer) = sim::pair(weather);
        let ours = prepare(&mut pair, 384, 131_072, send_queue, IOMAPS).unwrap();
        let theirs = prepare(&mut peer, 384, 2 * HALF, send_queue, IOMAPS).unwrap();
        let (fd, tie, id, port) = program();
        let pump = Pump::new(port, pair, &ours, &theirs.private_data()).unwrap();
        let mut end = End { fd, tie, id, pump };
        let enter = |peer: &mut SimPair, index: u32| {
            let half = Sge {
                addr: theirs.buffer.addr + u64::from(index * HALF),
                len: HALF,
                ..theirs.buffer
            };
            let place =
                Sge { addr: ours.table.addr + u64::from(index * 16), len: 16, ..ours.table };
            peer.post_write(&half.to_bytes(Endian::NATIVE), place, None, 0).unwrap();
        };
        let say = |peer: &mut SimPair, end: &mut End, word: Word| {
            let bytes: &[u8] = if word == Word::data(1) { b"x" } else { b"" };
            peer.post_message(bytes, ours.buffer, word, 0).unwrap();
            settle_one(&world, end);
            end.pump.stream.expected_entry()
        };
        enter(&mut peer, 1);
        assert_eq!(say(&mut peer, &mut end, Word::data(1)), Some(1));
        assert_eq!(say(&mut peer, &mut end, Word::sgl(0, 384)), None);
        // Both halves are used up, and promised again: one entry by each word.
        let bytes: Vec<u8> = (0..2 * HALF as usize).map(byte).collect();
        assert_eq!(end.send(&bytes), bytes.len());
        settle_one(&world, &mut end);
        assert_eq!(end.pump.stream.room(), 0);
        enter(&mut peer, 0);
        enter(&mut peer, 1);
        assert_eq!(say(&mut peer, &mut end, Word::sgl(2, 384)), Some(1));
        assert_eq!(end.pump.stream.room(), HALF);
        assert_eq!(say(&mut peer, &mut end, Word::sgl(2, 384)), None);
    }
}

/// Short messages that waited for the peer's credits go together when it has given them.
#[test]
fn what_had_to_wait_goes_together() {
    const CREDITS: u16 = 8;
    const MESSAGES: usize = 500;
    let (world, mut a, mut b) = ends(Weather::default(), CREDITS, 131_072);
    let text: Vec<u8> = (0..MESSAGES * 7).map(byte).collect();
    for part in text.chunks(7) {
        assert_eq!(a.send(part), 7);
    }
    let mut got = Vec::new();
    while got.len() < text.len() {
        settle(&world, &mut a, &mut b);
        while let Ok(bytes) = b.receive(10_000) {
            got.extend(bytes);
        }
    }
    assert_eq!(got, text);
    let words = b.pump.seen(false).signs;
    assert!(words < 20, "{words} messages carried what {MESSAGES} sends had put in");
}

/// Upstream's library posts receives for the credits that it gives and no more, and only inside its
/// calls. So data leave some of them to the words that cost no credit (`wire-protocol §5.5`). Ours
/// has spare ones.
#[test]
fn upstream_has_receives_left_for_what_is_not_data() {
    for (notes, most) in [(false, 12), (true, 16)] {
        for mode in [crate::proto::control::Mode::Immediate, crate::proto::control::Mode::Message] {
            let (world, mut a, mut b) =
                ends_with(Weather { mode, ..Weather::default() }, 16, 131_072, notes);
            // Looks at nothing meanwhile.
            b.pump.pair().post_receives(if notes { 8 } else { 0 }).unwrap();
            for i in 0..20 {
                assert_eq!(a.send(&[byte(i)]), 1);
                settle_one(&world, &mut a);
            }
            assert_eq!(
                (a.pump.carried.0, a.pump.outstanding),
                (most, 0),
                "none waits for a receive"
            );
            let mut got = Vec::new();
            while got.len() < 20 {
                settle(&world, &mut a, &mut b);
                got.extend(b.receive(100).unwrap());
            }
            assert_eq!(got, (0..20).map(byte).collect::<Vec<_>>());
        }
    }
}

#[test]
fn tcp_beside_says_when_it_has_room_and_no_more() {
    let (_fd, _tie, id, port) = program();
    let s = fork_group::slot(id).unwrap();
    s.set(flag::TCP_ANCHORED);
    s.set_send_mode(SendMode::Returned);
    let said = Events::OUT | Events::IN | Events::RDHUP;
    assert_eq!(ready::heard(s, -1, said), Events::OUT, "what is received comes by the device");
    port.close();
}

/// Between hosts: a reader that was told by FIN that there is an end to read finds it, whenever the
/// two ends met.
#[test]
fn who_has_heard_fin_does_not_let_the_sender_leave_tcp_any_more() {
    for fin in [true, false] {
        let (fd, tie, id, port) = program();
        let s = fork_group::slot(id).unwrap();
        s.set(flag::TCP_ANCHORED);
        s.set_receive_mode(ReceiveMode::Asked);
        if fin {
            loopback::say_fin(tie.as_raw_fd());
        }
        let mut byte = 0_u8;
        let v = [libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 }];
        let got = socket::receive(id, fd.as_raw_fd(), &v, libc::MSG_DONTWAIT);
        let (mode, expected) = if fin {
            (ReceiveMode::Asked, Ok(0))
        } else {
            (ReceiveMode::Acknowledged, Err(Failure::Blocked))
        };
        assert_eq!((s.receive_mode(), got), (mode, expected));
        port.close();
    }
}

/// TCP says at once that both directions have ended; a bridge's FIN comes a moment later.
#[test]
fn both_ends_of_a_stream_are_a_hang_up_at_once() {
    let (world, mut a, mut b) = ends(Weather::default(), 384, 131_072);
    socket::shutdown(a.id, a.fd.as_raw_fd(), libc::SHUT_WR);
    settle(&world, &mut a, &mut b);
    assert_eq!(b.receive(1).unwrap(), b"");
    let look = |end: &End| {
        ready::look(end.id, fork_group::slot(end.id).unwrap(), end.fd.as_raw_fd()).ready
    };
    assert!(!look(&b).contains(Events::HUP));
    b.close();
    settle(&world, &mut a, &mut b);
    assert_eq!(a.receive(1).unwrap(), b"");
    assert!(look(&a).contains(Events::HUP | Events::RDHUP | Events::IN));
}

#[test]
fn half_a_close_is_half_a_close() {
    let (world, mut a, mut b) = ends(Weather::default(), 384, 131_072);
    a.send(b"question");
    socket::shutdown(a.id, a.fd.as_raw_fd(), libc::SHUT_WR);
    settle(&world, &mut a, &mut b);
    assert_eq!(b.receive(100).unwrap(), b"question");
    assert_eq!(b.receive(100).unwrap(), b"");
    assert_eq!((b.pump.peer(), b.pump.finished()), (PeerEnd::Shut, false));
    b.send(b"answer");
    settle(&world, &mut a, &mut b);
    assert_eq!(a.receive(100).unwrap(), b"answer");
    b.close();
    settle(&world, &mut a, &mut b);
    assert_eq!(a.receive(100).unwrap(), b"");
    assert_eq!(a.pump.peer(), PeerEnd::Closed);
    assert!(a.pump.finished() && b.pump.finished());
}

#[test]
fn what_was_sent_before_the_close_arrives() {
    let (world, mut a, mut b) = ends(Weather::default(), 384, 131_072);
    let bytes: Vec<u8> = (0..1_000_000).map(byte).collect();
    let sent = a.send(&bytes);
    assert!(sent > 500_000);
    a.close();
    let mut got = Vec::new();
    for _ in 0..1000 {
        settle(&world, &mut a, &mut b);
        match b.receive(65536) {
            Ok(more) if more.is_empty() => break,
            Ok(more) => got.extend(more),
            Err(e) => assert_eq!(e, Failure::Blocked),
        }
    }
    assert!(got == bytes[..sent], "{} of {sent}", got.len());
    settle(&world, &mut a, &mut b);
    assert!(a.pump.finished());
    assert_eq!(b.pump.peer(), PeerEnd::Closed);
}

#[test]
fn a_lost_peer_is_no_clean_end() {
    let (world, mut a, mut b) = ends(Weather::default(), 384, 131_072);
    a.send(b"half a");
    settle(&world, &mut a, &mut b);
    a.pump.pair().close();
    settle(&world, &mut a, &mut b);
    assert_eq!(b.receive(100).unwrap(), b"half a");
    assert_eq!(b.pump.peer(), PeerEnd::Broken);
    assert!(b.pump.finished());
}

/// What is said when both directions are shut is DISCONNECT, in whatever order that is
/// (`wire-protocol §6.1`): the peer's sender hears of it. What has come before can still be read,
/// and then the end.
#[test]
fn shutting_both_directions_is_a_disconnect() {
    for mode in [crate::proto::control::Mode::Immediate, crate::proto::control::Mode::Message] {
        for hows in [
            &[libc::SHUT_RDWR][..],
            &[libc::SHUT_RD, libc::SHUT_WR],
            &[libc::SHUT_WR, libc::SHUT_RD],
        ] {
            let (world, mut a, mut b) = ends(Weather { mode, ..Weather::default() }, 384, 131_072);
            a.send(b"last");
            // All that the channel takes, and the device's buffer behind it.
            let mut sent = 0;
            loop {
                let text: Vec<u8> = (sent..sent + 100_000).map(byte).collect();
                match b.send(&text) {
                    0 => break,
                    n => sent += n,
                }
                settle(&world, &mut a, &mut b);
            }
            for how in hows {
                a.shutdown(*how);
                settle(&world, &mut a, &mut b);
            }
            assert_eq!(b.receive(100).unwrap(), b"last");
            assert_eq!(b.receive(100).unwrap(), b"");
            assert_eq!(b.pump.peer(), PeerEnd::Closed, "{hows:?}");
            assert!(b.pump.finished(), "the channel's end tells whoever sends");
            assert!(!a.pump.finished());
            let mut got = Vec::new();
            loop {
                match a.receive(65536).unwrap() {
                    end if end.is_empty() => break,
                    more => got.extend(more),
                }
                settle(&world, &mut a, &mut b);
            }
            assert!(
                got.len() > 600_000 && got.iter().enumerate().all(|(i, x)| *x == byte(i)),
                "{}",
                got.len()
            );
            assert_eq!(a.pump.peer(), PeerEnd::Closed);
            assert!(a.pump.finished());
        }
    }
}

/// The words of `wire-protocol §15`: nothing, then a DISCONNECT; between two of ours behind the
/// note of what was taken.
#[test]
fn who_reads_no_more_and_then_sends_no_more_says_one_word() {
    let hows = [&[libc::SHUT_RDWR][..], &[libc::SHUT_RD, libc::SHUT_WR]];
    for (hows, notes) in hows.into_iter().flat_map(|hows| [(hows, false), (hows, true)]) {
        let (world, mut a, mut b) = ends_with(Weather::default(), 384, 131_072, notes);
        settle(&world, &mut a, &mut b);
        let before = b.pump.seen(false).signs;
        for how in hows {
            assert_eq!(b.pump.seen(false).signs, before);
            a.shutdown(*how);
            settle(&world, &mut a, &mut b);
        }
        let words = 1 + u64::from(notes);
        assert_eq!((b.pump.seen(false).signs - before, b.pump.peer()), (words, PeerEnd::Closed));
    }
}

/// Upstream's sleeping reader hears of an end by its word only (`wire-protocol §6.2`). One of ours
/// takes the pair's end without a word for the reset that it is.
#[test]
fn a_reset_is_told_to_upstream_as_a_close() {
    for mode in [crate::proto::control::Mode::Immediate, crate::proto::control::Mode::Message] {
        for (notes, told) in [(false, PeerEnd::Closed), (true, PeerEnd::Broken)] {
            let (world, mut a, mut b) =
                ends_with(Weather { mode, ..Weather::default() }, 384, 131_072, notes);
            a.send(b"never read");
            settle(&world, &mut a, &mut b);
            b.send(b"not sent yet");
            b.pump.abort();
            settle(&world, &mut a, &mut b);
            assert_eq!((a.pump.peer(), b.pump.finished()), (told, true));
        }
    }
}

#[test]
fn over_iwarp_whoever_was_asked_waits_for_the_other_to_speak() {
    let weather = || Weather { mode: crate::proto::control::Mode::Message, ..Weather::default() };
    let (world, mut a, mut b) = ends(weather(), 384, 131_072);
    a.pump.begin(false);
    b.pump.begin(true);
    b.send(b"banner");
    b.pump.run();
    settle_one(&world, &mut b);
    assert_eq!(a.receive(100), Err(Failure::Blocked), "nothing may come before we have spoken");
    assert!(b.pump.due().is_some());
    // Our first word is the entry of the peer's table.
    settle(&world, &mut a, &mut b);
    assert_eq!(a.receive(100).unwrap(), b"banner");
    assert_eq!((a.pump.due(), b.pump.due()), (None, None));

    // A peer that never speaks is not waited for for ever. But one of ours will speak, however busy
    // its host is, and whatever comes before fails its attempt.
    for notes in [false, true] {
        let (world, mut a, mut b) = ends_with(weather(), 384, 131_072, notes);
        b.pump.begin(true);
        b.send(b"banner");
        settle_one(&world, &mut b);
        std::thread::sleep(std::time::Duration::from_nanos(super::opening::STRANGER_NS * 5 / 4));
        settle_one(&world, &mut b);
        a.pump.poll();
        assert_eq!(a.pump.words == 0, notes, "one of ours is waited for");
        settle(&world, &mut a, &mut b);
        assert_eq!(a.receive(100).unwrap(), b"banner");
    }
}

/// Lets one end and the device run, but not the other end.
fn settle_one(world: &RefCell<World>, end: &mut End) {
    while end.pump.run() | world.borrow_mut().step() {}
}

#[test]
fn a_silent_peer_is_asked_and_a_gone_one_is_noticed() {
    for mode in [crate::proto::control::Mode::Immediate, crate::proto::control::Mode::Message] {
        let (world, mut a, mut b) = ends(Weather { mode, ..Weather::default() }, 384, 131_072);
        a.send(b"the last thing said");
        settle(&world, &mut a, &mut b);
        assert_eq!(b.receive(100).unwrap(), b"the last thing said");
        settle(&world, &mut a, &mut b);
        let asked = |world: &RefCell<World>, b: &mut End| {
            b.pump.ask();
            let mut n = 0;
            while world.borrow_mut().step() {
                n += 1;
            }
            n
        };
        for _ in 0..10 {
            let before = b.pump.seen(true).signs;
            let progress = b.pump.seen(true).progress;
            assert_eq!(asked(&world, &mut b), 1);
            assert!(b.pump.seen(true).waiting);
            settle(&world, &mut a, &mut b);
            assert!(b.pump.seen(true).signs > before, "the answer is a sign of life");
            assert_eq!(b.pump.seen(true).progress, progress, "and no more");
            assert!(!b.pump.seen(true).waiting);
        }
        assert_eq!(a.receive(1), Err(Failure::Blocked), "the peer's program sees nothing of it");
        assert_eq!(b.receive(1), Err(Failure::Blocked));
        world.borrow_mut().unplug(a.pump.pair().side());
        settle(&world, &mut a, &mut b);
        assert_eq!((b.pump.peer(), b.pump.finished()), (PeerEnd::Open, false), "nobody knows yet");
        asked(&world, &mut b);
        b.pump.run();
        assert_eq!((b.pump.peer(), b.pump.finished()), (PeerEnd::Broken, true));
    }
}

#[test]
fn what_is_on_its_way_is_asking_enough() {
    let (world, mut a, mut b) = ends(Weather::default(), 384, 131_072);
    settle(&world, &mut a, &mut b);
    a.send(b"words");
    a.pump.run();
    for _ in 0..10 {
        a.pump.ask();
    }
    let mut steps = 0;
    while world.borrow_mut().step() {
        steps += 1;
    }
    assert_eq!(steps, 1, "only the words");
}

#[test]
fn a_peer_that_is_given_up_is_not_waited_for() {
    let (world, mut a, mut b) = ends(Weather::default(), 384, 131_072);
    a.send(b"never read by anybody");
    a.pump.run();
    a.pump.give_up();
    a.pump.pair().close();
    settle(&world, &mut a, &mut b);
    assert_eq!((a.pump.peer(), a.pump.finished()), (PeerEnd::Broken, true));
}
