//! The world of the life models: one direction of a connection, TCP as a queue, and the steps of
//! the calls.
#![allow(unreachable_pub)] // A module of one test.
#![allow(clippy::wrong_self_convention)] // The methods are named as the functions they copy.

use std::alloc::{Layout, alloc_zeroed};
use std::cell::Cell;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Mutex;

use rsocket_core::channel::{guard, handover_state};
use rsocket_core::conn::machine::{Phase, ReceiveEvent, ReceiveMode, SendEvent, SendMode};
use rsocket_core::conn::slot::{Slot, flag};
use rsocket_core::copy::CopyHint;
use rsocket_core::device::shm::channel::buffer_classes::{self, entry};
use rsocket_core::device::shm::channel::sender::Step;
use rsocket_core::device::shm::channel::{
    Beyond, Broken, Next, Receiver, RecvState, Refused, SendState, Sender, Taking,
};
use rsocket_core::device::shm::direction::Direction;
use rsocket_core::device::shm::layout;
use rsocket_core::proto::{RecvHalf, RecvParams, SendHalf};
use rsocket_core::sync::guarded::Held;
use rsocket_core::sync::lock::{self, Os, Taken};
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use shuttle::thread;

/// Buffers so small that both halves turn them over all the time. (The large class lies elsewhere.)
pub const TINY: RecvParams = RecvParams { queue: 16, segments: 2, large: 4, small: 0 };

/// Explores a model by random walks and by the schedules that find rare bugs soonest.
pub fn explore(model: impl Fn() + Copy + Send + Sync + 'static) {
    let runs = std::env::var("SHM_MODEL_RUNS").ok().and_then(|v| v.parse().ok()).unwrap_or(1500);
    shuttle::check_random(model, runs);
    shuttle::check_pct(model, runs, 3);
}

/// The thread that got this is no more.
#[derive(Debug)]
pub struct Died;
type Lived<T> = Result<T, Died>;

impl From<Broken> for Died {
    fn from(_: Broken) -> Self {
        panic!("what was given back breaks a rule");
    }
}

#[derive(Default)]
struct Tcp {
    queue: VecDeque<u8>,
    /// What `counters::put` and `counters::taken` say.
    put: u64,
    taken: u64,
    fin: bool,
}

/// Everything that the threads share. Only what is `shuttle`'s is a place for the scheduler.
pub struct World {
    /// The slot of the sending side.
    pub from: &'static Slot,
    /// The slot of the receiving side.
    pub to: &'static Slot,
    ring: Direction,
    send_lock: AtomicU32,
    receive_lock: AtomicU32,
    from_pairing: AtomicU32,
    to_pairing: AtomicU32,
    tcp: Mutex<Tcp>,
    sent: Mutex<Vec<u8>>,
    received: Mutex<Vec<u8>>,
    dead: [AtomicBool; 8],
    clock: AtomicU32,
    broken: Mutex<Option<&'static str>>,
}

/// Slots and directions of worlds that have ended.
static POOL: Mutex<Vec<(&'static Slot, &'static Slot, Direction)>> = Mutex::new(vec![]);

fn zeroed<T>(layout: Layout) -> NonNull<T> {
    // SAFETY: the layout has bytes.
    NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory").cast()
}

fn fresh() -> (&'static Slot, &'static Slot, Direction) {
    // SAFETY: zeroes are a valid slot (it starts its life in zeroed shared memory), and nothing
    // frees it.
    let slot = || unsafe { zeroed::<Slot>(Layout::new::<Slot>()).as_ref() };
    let memory = Layout::from_size_align(layout::DIRECTION_LEN, layout::PAGE).expect("layout");
    // SAFETY: so many bytes, aligned, never freed.
    (slot(), slot(), unsafe { Direction::from_base(zeroed(memory)) })
}

impl Drop for World {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            POOL.lock().unwrap().push((self.from, self.to, self.ring));
        }
    }
}

impl World {
    /// A paired connection of which this direction is still on TCP.
    pub fn new(classes: &[RecvParams; 2]) -> Arc<Self> {
        let (from, to, ring) = POOL.lock().unwrap().pop().unwrap_or_else(fresh);
        ring.wipe();
        for slot in [from, to] {
            slot.reset(0);
            slot.set_phase(Phase::Paired);
        }
        let world = Arc::new(Self {
            from,
            to,
            ring,
            send_lock: AtomicU32::new(0),
            receive_lock: AtomicU32::new(0),
            from_pairing: AtomicU32::new(0),
            to_pairing: AtomicU32::new(0),
            tcp: Mutex::default(),
            sent: Mutex::default(),
            received: Mutex::default(),
            dead: std::array::from_fn(|_| AtomicBool::new(false)),
            clock: AtomicU32::new(0),
            broken: Mutex::default(),
        });
        world.start(classes);
        world
    }

    /// As `link::start`.
    fn start(self: &Arc<Self>, classes: &[RecvParams; 2]) {
        let [small, large] = classes;
        let halves = [RecvHalf::new(small), RecvHalf::new(large)];
        let sender = |class: usize, p: &RecvParams| {
            SendHalf::new(p.queue, entry(class, halves[class].first()), p.segments).unwrap()
        };
        let classes = [sender(0, small), sender(1, large)];
        // SAFETY: zeroes are a valid state of plain integers.
        let mut receive: RecvState = unsafe { std::mem::zeroed() };
        receive.classes = halves;
        // SAFETY: no other thread has the slots yet.
        unsafe { self.to.receive.alone() }.set(receive);
        // SAFETY: as above.
        unsafe { self.from.send.alone() }.set(SendState {
            classes,
            data_position: 0,
            control_position: 0,
        });
        Me::new(self, 7, None).give_back().expect("immortal");
    }

    /// The same after the switch, with nothing on TCP before it.
    pub fn paired_on_device(classes: &[RecvParams; 2]) -> Arc<Self> {
        let world = Self::new(classes);
        handover_state::acknowledge(&world.ring);
        handover_state::publish_switch_offset(&world.ring, 0);
        world.from.set_send_mode(SendMode::Device);
        world.to.set_receive_mode(ReceiveMode::Device);
        world
    }

    fn tcp<T>(&self, f: impl FnOnce(&mut Tcp) -> T) -> T {
        f(&mut self.tcp.lock().unwrap())
    }

    fn accepted(&self, bytes: &[u8]) {
        self.sent.lock().unwrap().extend(bytes);
    }

    /// All that was accepted has arrived, once, in order.
    pub fn check(&self) {
        let broken = *self.broken.lock().unwrap();
        assert_eq!(broken, None, "an honest connection was reset");
        assert_eq!(*self.sent.lock().unwrap(), *self.received.lock().unwrap());
    }

    /// Whether any byte went over the device.
    pub fn device_used(&self) -> bool {
        // SAFETY: all threads have ended.
        unsafe { self.from.send.alone() }.view().total() > 0
    }

    /// The sender's end mark stands: the receiver reads the channel to its end first.
    pub fn sender_left_first(&self) -> bool {
        handover_state::end(&self.ring).is_some()
    }
}

/// One thread of the program's, of either side.
pub struct Me<'a> {
    world: &'a World,
    tid: u32,
    inside: Cell<u32>,
    lives: Cell<Option<u32>>,
}

impl Os<AtomicU32> for Me<'_> {
    fn entering(&self) {
        self.inside.set(self.inside.get() + 1);
    }
    fn left(&self) {
        self.inside.set(self.inside.get() - 1);
    }
    fn inside(&self) -> u32 {
        self.inside.get()
    }
    fn pause(&self) {}
    fn yield_now(&self) {
        thread::yield_now();
    }
    fn sleep(&self, word: &AtomicU32, expected: u32) -> bool {
        let sleeps = word.load(SeqCst) == expected;
        thread::yield_now();
        sleeps
    }
    fn wake(&self, _word: &AtomicU32) {}
    fn alive(&self, tid: u32) -> bool {
        !self.world.dead[tid as usize].load(SeqCst)
    }
}

impl<'a> Me<'a> {
    /// A thread that dies after so many steps.
    pub fn new(world: &'a World, tid: u32, lives: Option<u32>) -> Self {
        Self { world, tid, inside: Cell::new(0), lives: Cell::new(lives) }
    }

    /// A place for the scheduler, and to die.
    fn step(&self) -> Lived<()> {
        self.world.clock.load(SeqCst);
        match self.lives.get() {
            Some(0) => {
                self.world.dead[self.tid as usize].store(true, SeqCst);
                Err(Died)
            }
            Some(n) => {
                self.lives.set(Some(n - 1));
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// As `pairing::take`.
    fn try_pairing(&self, word: &AtomicU32) -> bool {
        matches!(lock::try_acquire(word, self.tid, self), Some(Taken::Clean | Taken::Broken))
    }
}

mod receiving;
mod sending;
