//! Misfortune at every moment. Two programs talk through their sockets, channels, pumps and the
//! simulated device. At one moment after another one of them dies, or loses its power.
//!
//! What must hold whatever happens: each program has read the first bytes of what the other sent,
//! in order. A program sees a clean end only behind all of them. The program that is left over
//! learns of the fault, and comes to its end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;
use std::cell::RefCell;

use super::pump::PeerEnd;
use super::pump_tests::{End, byte, ends, settle};
use crate::conn::fork_group;
use crate::device::sim::{Weather, World};
use crate::failure::Failure;
use crate::proto::control::Mode;
use crate::socket;
use std::os::fd::AsRawFd;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The process is no more, and its host says so.
    Killed,
    /// The host is no more, and nothing says so.
    Unplugged,
}

/// What one program has done so far.
#[derive(Debug, Default)]
struct Program {
    sent: usize,
    received: usize,
    /// It sends no more.
    shut: bool,
    /// It has read the end.
    ended: bool,
}

struct Chance(u64);

impl Chance {
    fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % below
    }
}

/// Bytes that each program sends, before it says that it sends no more.
const BYTES: usize = 12_000;

/// The `side`'s byte number `i`.
fn of(side: usize, i: usize) -> u8 {
    byte(i).wrapping_add(side as u8)
}

fn send(end: &End, side: usize, program: &mut Program, n: usize) {
    let n = n.min(BYTES - program.sent);
    if n > 0 {
        let bytes: Vec<u8> = (program.sent..program.sent + n).map(|i| of(side, i)).collect();
        program.sent += end.send(&bytes);
    } else if !program.shut {
        program.shut = true;
        socket::shutdown(end.id, end.fd.as_raw_fd(), libc::SHUT_WR);
    }
}

/// Reads something, and checks it against what the other one has sent.
fn receive(end: &End, side: usize, programs: &mut [Program; 2], most: usize) -> bool {
    let from = 1 - side;
    match end.receive(most) {
        Ok(bytes) if bytes.is_empty() => {
            let other = &programs[from];
            assert!(
                other.shut && programs[side].received == other.sent,
                "an end before the end: {programs:?}"
            );
            programs[side].ended = true;
            false
        }
        Ok(bytes) => {
            for x in &bytes {
                assert_eq!(
                    *x,
                    of(from, programs[side].received),
                    "byte {}",
                    programs[side].received
                );
                programs[side].received += 1;
            }
            assert!(programs[side].received <= programs[from].sent);
            true
        }
        Err(e) => {
            assert_eq!(e, Failure::Blocked);
            false
        }
    }
}

/// One thing that happens, by chance.
fn act(
    world: &RefCell<World>,
    both: &mut [End; 2],
    programs: &mut [Program; 2],
    chance: &mut Chance,
) {
    let side = chance.below(2) as usize;
    match chance.below(6) {
        0 | 1 => {
            let n = [1, 40, 700, 3000][chance.below(4) as usize];
            send(&both[side], side, &mut programs[side], n);
        }
        2 => {
            receive(&both[side], side, programs, [1, 500, 9000][chance.below(3) as usize]);
        }
        3 => {
            both[side].pump.run();
        }
        _ => {
            world.borrow_mut().step();
        }
    }
}

/// The conversation of this seed. Without a fault to its end; how many things happened.
fn talk(weather: Weather, seed: u64, fault: Option<(usize, usize, Fault)>) -> usize {
    let (world, a, b) = ends(weather, 16, 8192);
    let mut both = [a, b];
    let mut programs = [Program::default(), Program::default()];
    let mut chance = Chance(seed);
    for n in 0.. {
        if let Some((_, victim, fault)) = fault.filter(|(at, ..)| *at == n) {
            afterwards(&world, &mut both, &mut programs, victim, fault);
            return n;
        }
        if programs.iter().all(|p| p.ended) {
            assert!(programs.iter().all(|p| p.received == BYTES));
            return n;
        }
        assert!(n < 100_000, "it does not come to its end: {programs:?}");
        act(&world, &mut both, &mut programs, &mut chance);
    }
    unreachable!()
}

/// The victim does nothing any more. The other one reads what there is, and goes on until it knows.
fn afterwards(
    world: &RefCell<World>,
    both: &mut [End; 2],
    programs: &mut [Program; 2],
    victim: usize,
    fault: Fault,
) {
    let side = both[victim].pump.pair().side();
    match fault {
        Fault::Killed => world.borrow_mut().kill(side),
        Fault::Unplugged => world.borrow_mut().unplug(side),
    }
    let left = 1 - victim;
    for turn in 0.. {
        let mut moved = both[left].pump.run();
        while world.borrow_mut().step() {
            moved = true;
        }
        moved |= receive(&both[left], left, programs, 9000);
        if !moved
            && both[left].pump.peer() != PeerEnd::Open
            && (turn > 0 || both[left].pump.finished())
        {
            break;
        }
        if !moved {
            // As the service thread does where nothing is heard for a while.
            both[left].pump.ask();
        }
        assert!(
            turn < 1000,
            "{fault:?}: the one that is left over does not learn of it: {programs:?}"
        );
    }
    let said = both[left].pump.peer();
    let whole = programs[victim].shut && programs[left].received == programs[victim].sent;
    assert!(said == PeerEnd::Broken || whole, "{said:?} without all the bytes: {programs:?}");
    socket::closing(both[left].id, both[left].fd.as_raw_fd());
    for _ in 0..1000 {
        if both[left].pump.finished() {
            return;
        }
        both[left].pump.gone();
        both[left].pump.run();
        both[left].pump.ask();
        while world.borrow_mut().step() {}
    }
    panic!("{fault:?}: the one that is left over does not come to its end");
}

fn every_moment(weather: Weather, seed: u64) {
    let moments = talk(weather, seed, None);
    for at in 0..moments {
        for victim in 0..2 {
            for fault in [Fault::Killed, Fault::Unplugged] {
                talk(weather, seed, Some((at, victim, fault)));
            }
        }
    }
}

#[test]
fn a_death_at_any_moment_is_no_clean_end_and_no_end_of_patience() {
    for mode in [Mode::Immediate, Mode::Message] {
        every_moment(Weather { mode, seed: 3, delay: 30, send_queue: 16, ..Weather::default() }, 1);
    }
}

#[test]
fn a_slow_device_with_false_alarms_changes_nothing() {
    for seed in 0..40 {
        let mode = if seed % 2 == 0 { Mode::Immediate } else { Mode::Message };
        let weather = Weather {
            mode,
            seed,
            delay: 1 + seed * 37 % 500,
            rnr_delay: 1000,
            spurious: 30,
            send_queue: 16 + (seed % 5) as u16,
            recv_queue: 64,
            survives: seed % 3 == 0,
            ..Weather::default()
        };
        let moments = talk(weather, seed, None);
        for part in 1..10 {
            talk(weather, seed, Some((moments * part / 10, (seed % 2) as usize, Fault::Killed)));
        }
    }
}

/// What the service thread learns of a peer that has sent its end belongs to senders. The reader
/// finds the bytes, and the end, as often as it asks.
#[test]
fn an_end_that_has_come_is_read_before_what_broke_behind_it() {
    for mode in [Mode::Immediate, Mode::Message] {
        let (world, mut a, mut b) = ends(Weather { mode, ..Weather::default() }, 16, 8192);
        let bytes: Vec<u8> = (0..700).map(byte).collect();
        assert_eq!(b.send(&bytes), 700);
        socket::shutdown(b.id, b.fd.as_raw_fd(), libc::SHUT_WR);
        settle(&world, &mut a, &mut b);
        world.borrow_mut().unplug(b.pump.pair().side());
        let s = fork_group::slot(a.id).unwrap();
        // Release: as the service thread does where a heartbeat is not answered.
        s.pending_error.store(Failure::TimedOut.code(), Ordering::Release);
        assert_eq!(a.receive(500).unwrap(), bytes[..500]);
        assert_eq!(a.receive(500).unwrap(), bytes[500..]);
        for _ in 0..3 {
            assert_eq!(a.receive(500), Ok(vec![]));
        }
        assert_eq!(s.pending_error.load(Ordering::Relaxed), Failure::TimedOut.code());
    }
}
