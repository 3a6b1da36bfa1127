//! Model tests of one direction's life: from TCP to the device, and back. Each side has two
//! threads. Holders die at every step, and ways back race with the program's calls. Run with
//! `RUSTFLAGS="--cfg shuttle" cargo test -p rsocket-core --release --test life_models`.
//!
//! These parts are the library's: the tables of `machine`, the words of `channel::handover_state`
//! on a real `Direction`, both halves of the protocol, and the lock. So are the slots with their
//! modes, counters and published states, and the repairs of `channel::guard`. TCP is a queue with
//! the kernel's two counters. The order of steps is copied from the functions that the comments
//! name. The scheduler has a place between any two steps that another thread can tell apart. All
//! orderings count as sequentially consistent.
#![cfg(shuttle)]

#[path = "life_support/mod.rs"]
mod life_support;

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use life_support::{Me, TINY, World, explore};
use rsocket_core::device::shm::channel::Beyond;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Arc;
use shuttle::thread::{self, JoinHandle};

/// What happens beside the program's calls.
#[derive(Clone, Copy, Default, Debug)]
struct Plan {
    /// The first sender dies at some step.
    sender_dies: bool,
    /// The first receiver dies at some step.
    receiver_dies: bool,
    /// The sending side goes back to TCP at some moment; the leaver dies at some step.
    sender_leaves: Option<bool>,
    /// The receiving side does.
    receiver_leaves: Option<bool>,
}

/// How many steps a thread of the model lives: one of the first few dozen, or for ever.
fn lives(dies: bool) -> Option<u32> {
    dies.then(|| thread_rng().gen_range(0..80))
}

fn start(
    world: &Arc<World>,
    tid: u32,
    lives: Option<u32>,
    work: impl Fn(&Me) -> Result<(), life_support::Died> + Send + 'static,
) -> JoinHandle<()> {
    let world = Arc::clone(world);
    thread::spawn(move || {
        let me = Me::new(&world, tid, lives);
        let _ = work(&me);
    })
}

/// Two senders, two receivers, and the threads that go back: all bytes arrive once, in the order in
/// which they were accepted.
fn live(world: &Arc<World>, plan: Plan) {
    let mut senders = vec![];
    for i in 0..2u8 {
        let lives = lives(plan.sender_dies && i == 0);
        senders.push(start(world, 1 + u32::from(i), lives, move |me| {
            for call in 0..5u8 {
                let first = i * 100 + call * 10;
                me.send(&[first, first + 1, first + 2])?;
            }
            Ok(())
        }));
    }
    let mut receivers = vec![];
    for i in 0..2u32 {
        let lives = lives(plan.receiver_dies && i == 0);
        receivers.push(start(world, 3 + i, lives, |me| {
            while me.receive(2)? {}
            Ok(())
        }));
    }
    if let Some(dies) = plan.sender_leaves {
        senders.push(start(world, 5, lives(dies), |me| me.leave_outgoing()));
    }
    if let Some(dies) = plan.receiver_leaves {
        senders.push(start(world, 6, lives(dies), |me| me.leave_incoming()));
    }
    senders.into_iter().for_each(|t| t.join().unwrap());
    let me = Me::new(world, 7, None);
    me.close().expect("immortal");
    receivers.into_iter().for_each(|t| t.join().unwrap());
    world.check();
    if plan.sender_leaves == Some(false) {
        assert!(world.from.send_mode().is_kernel(), "who has left for TCP stays there");
    }
    if plan.receiver_leaves == Some(false) {
        let mode = world.to.receive_mode();
        assert!(mode.is_kernel() || world.sender_left_first(), "who has left for TCP stays there");
    }
}

/// From TCP, or already on the device; with real buffers, or with such as are always full.
#[derive(Clone, Copy, Debug)]
enum From {
    Tcp,
    Device,
    TinyDevice,
}

fn check(from: From, plan: Plan) {
    explore(move || {
        let world = match from {
            From::Tcp => World::new(&Beyond::Peer.classes()),
            From::Device => World::paired_on_device(&Beyond::Peer.classes()),
            From::TinyDevice => World::paired_on_device(&[TINY, TINY]),
        };
        live(&world, plan);
    });
}

const PLAN: Plan =
    Plan { sender_dies: false, receiver_dies: false, sender_leaves: None, receiver_leaves: None };
const SENDER_LEAVES: Plan = Plan { sender_leaves: Some(false), ..PLAN };
const RECEIVER_LEAVES: Plan = Plan { receiver_leaves: Some(false), ..PLAN };
const BOTH_LEAVE: Plan = Plan { receiver_leaves: Some(false), ..SENDER_LEAVES };

#[test]
fn the_device_is_reached() {
    static REACHED: AtomicU32 = AtomicU32::new(0);
    shuttle::check_random(
        || {
            let world = World::new(&Beyond::Peer.classes());
            live(&world, PLAN);
            REACHED.fetch_add(u32::from(world.device_used()), Relaxed);
        },
        500,
    );
    let reached = REACHED.load(Relaxed);
    assert!(reached > 50, "a model that never switches shows nothing: {reached} of 500");
}

#[test]
fn the_buffers_turn_over() {
    check(From::TinyDevice, PLAN);
}

#[test]
fn a_sender_dies() {
    check(From::TinyDevice, Plan { sender_dies: true, ..PLAN });
}

#[test]
fn a_receiver_dies() {
    check(From::TinyDevice, Plan { receiver_dies: true, ..PLAN });
}

#[test]
fn both_sides_lose_a_holder() {
    check(From::TinyDevice, Plan { sender_dies: true, receiver_dies: true, ..PLAN });
}

#[test]
fn the_sending_side_goes_back() {
    check(From::Device, SENDER_LEAVES);
    check(From::Device, Plan { sender_dies: true, ..SENDER_LEAVES });
}

#[test]
fn the_receiving_side_goes_back() {
    check(From::Device, RECEIVER_LEAVES);
    check(From::Device, Plan { receiver_dies: true, ..RECEIVER_LEAVES });
}

/// Every plan from here: quiet, with holders that die, with leavers that die.
fn all(from: From) {
    for plan in [PLAN, SENDER_LEAVES, RECEIVER_LEAVES, BOTH_LEAVE] {
        check(from, plan);
        check(from, Plan { sender_dies: true, receiver_dies: true, ..plan });
        let dies = |leaves: Option<bool>| leaves.map(|_| true);
        let (sender_leaves, receiver_leaves) =
            (dies(plan.sender_leaves), dies(plan.receiver_leaves));
        check(from, Plan { sender_leaves, receiver_leaves, ..plan });
    }
}

#[test]
fn the_switch() {
    check(From::Tcp, PLAN);
    check(From::Tcp, Plan { sender_dies: true, receiver_dies: true, ..PLAN });
}

#[test]
fn from_the_device() {
    all(From::Device);
}

#[test]
fn from_tcp() {
    all(From::Tcp);
}
