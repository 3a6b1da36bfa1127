//! Model tests of the sleeper's handshake and of the lock: the library's own code over a
//! scheduler's atomics. Run with
//! `RUSTFLAGS="--cfg shuttle" cargo test -p rsocket-core --test shm_models`.
//!
//! The scheduler interleaves every step but treats all orderings as sequentially consistent. So it
//! proves the protocols, not the choice of orderings. The code argues for the orderings, and the
//! two-process tests exercise them.
#![cfg(shuttle)]

use std::cell::Cell;

use rsocket_core::device::shm::layout::{SLEEPERS, WOKEN_WORDS};
use rsocket_core::device::shm::park::{Announce, MARK_READY, Sleepers, hear};
use rsocket_core::sync::lock::{self, Os, Taken};
use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::thread;

/// Explores a model by random walks and by the schedules that find rare bugs soonest.
fn explore(model: fn()) {
    let runs = std::env::var("SHM_MODEL_RUNS").ok().and_then(|v| v.parse().ok()).unwrap_or(2000);
    shuttle::check_random(model, runs);
    shuttle::check_pct(model, runs, 3);
}

/// A waker in the model: a count of bytes that can be slept on. A sleeper that no other thread
/// wakes deadlocks, which the scheduler reports.
struct Waker {
    bytes: Mutex<u32>,
    woken: Condvar,
}

impl Waker {
    fn wake(&self) {
        *self.bytes.lock().unwrap() += 1;
        self.woken.notify_all();
    }

    fn sleep(&self) {
        let mut bytes = self.bytes.lock().unwrap();
        while *bytes == 0 {
            bytes = self.woken.wait(bytes).unwrap();
        }
        *bytes = 0;
    }
}

struct House {
    any: AtomicU32,
    words: [AtomicU64; SLEEPERS],
    ready: AtomicU64,
    woken: [AtomicU64; WOKEN_WORDS],
    published: AtomicU32,
    wakers: Vec<Waker>,
}

impl House {
    fn new(wakers: usize) -> Arc<Self> {
        Arc::new(Self {
            any: AtomicU32::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            ready: AtomicU64::new(0),
            woken: std::array::from_fn(|_| AtomicU64::new(0)),
            published: AtomicU32::new(0),
            wakers: (0..wakers)
                .map(|_| Waker { bytes: Mutex::new(0), woken: Condvar::new() })
                .collect(),
        })
    }

    fn sleepers(&self) -> Sleepers<'_, AtomicU32, AtomicU64> {
        Sleepers::new(&self.any, &self.words)
    }

    fn publish(&self) {
        self.published.fetch_add(1, SeqCst);
        let wake = |id: u64| self.wakers[id as usize - 1].wake();
        self.sleepers().wake_with(Some(self.announce(1)), wake);
    }

    fn announce(&self, bit: u64) -> Announce<'_, AtomicU64> {
        Announce { word: &self.ready, bit, woken: &self.woken }
    }

    /// Waits until that many words have been published, as a blocking receive does.
    fn wait_for(&self, waker: usize, count: u32) {
        let id = waker as u64 + 1;
        while self.published.load(SeqCst) < count {
            let slot = self.sleepers().arm(id).expect("as many words as sleepers");
            if self.published.load(SeqCst) < count {
                self.wakers[waker].sleep();
            }
            self.sleepers().disarm(slot, id);
        }
    }
}

#[test]
fn no_wake_up_is_lost() {
    explore(|| {
        let house = House::new(1);
        let other = Arc::clone(&house);
        let sender = thread::spawn(move || (0..3).for_each(|_| other.publish()));
        (1..=3).for_each(|n| house.wait_for(0, n));
        sender.join().unwrap();
    });
}

#[test]
fn two_senders_and_two_receivers() {
    explore(|| {
        let house = House::new(2);
        let mut threads = vec![];
        for _ in 0..2 {
            let house = Arc::clone(&house);
            threads.push(thread::spawn(move || (0..2).for_each(|_| house.publish())));
        }
        for waker in 0..2 {
            let house = Arc::clone(&house);
            threads.push(thread::spawn(move || (1..=4).for_each(|n| house.wait_for(waker, n))));
        }
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
}

/// An epoll set: it stays armed across looks, and finds by the ready bit what there is.
#[test]
fn a_set_sees_its_ready_bit() {
    explore(|| {
        let house = House::new(1);
        let other = Arc::clone(&house);
        let sender = thread::spawn(move || (0..3).for_each(|_| other.publish()));
        let id = 1 | MARK_READY;
        let mut slot = house.sleepers().arm(id).unwrap();
        let mut seen = house.published.load(SeqCst);
        while seen < 3 {
            house.wakers[0].sleep();
            hear(&house.woken);
            // The waker may have been woken once for two wake-ups; the bit tells all that came
            // before.
            if house.ready.swap(0, SeqCst) == 1 {
                if !house.sleepers().armed(slot, id) {
                    slot = house.sleepers().arm(id).unwrap();
                }
                seen = house.published.load(SeqCst);
            }
        }
        sender.join().unwrap();
    });
}

/// Two channels of one set, a sender for each, one waker. A sender that finds it waking does not
/// wake it, and still the set hears of each channel.
#[test]
fn a_set_hears_of_each_channel_by_one_ring() {
    explore(|| {
        let house = House::new(1);
        let second = House::new(0);
        let id = 1 | MARK_READY;
        let armed = |channel: &House| channel.sleepers().arm(id).unwrap();
        let mut slots = [armed(&house), armed(&second)];
        let senders = [(Arc::clone(&house), 1), (Arc::clone(&second), 2)].map(|(channel, bit)| {
            let house = Arc::clone(&house);
            thread::spawn(move || {
                for _ in 0..2 {
                    channel.published.fetch_add(1, SeqCst);
                    channel
                        .sleepers()
                        .wake_with(Some(house.announce(bit)), |_| house.wakers[0].wake());
                }
            })
        });
        let channels = [&house, &second];
        let mut seen = channels.map(|channel| channel.published.load(SeqCst));
        while seen != [2, 2] {
            house.wakers[0].sleep();
            hear(&house.woken);
            let bits = house.ready.swap(0, SeqCst);
            for (i, channel) in channels.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1) {
                if !channel.sleepers().armed(slots[i], id) {
                    slots[i] = armed(channel);
                }
                seen[i] = channel.published.load(SeqCst);
            }
        }
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    });
}

/// What the lock's model shares: which threads are dead.
struct Machine {
    dead: [AtomicBool; 8],
}

/// The kernel of the lock's model. A sleep ends whenever the scheduler likes, as by time-out, so
/// that every moment for finding a holder dead is tried.
struct Me<'a> {
    machine: &'a Machine,
    inside: Cell<u32>,
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
        !self.machine.dead[tid as usize].load(SeqCst)
    }
}

/// A doubly buffered state as the slots have it: two words that belong together, and an index.
struct State {
    lock: AtomicU32,
    index: AtomicU32,
    ring: AtomicU32,
    buffers: [[AtomicU32; 2]; 2],
    machine: Machine,
}

impl State {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            lock: AtomicU32::new(0),
            index: AtomicU32::new(0),
            ring: AtomicU32::new(0),
            buffers: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU32::new(0))),
            machine: Machine { dead: std::array::from_fn(|_| AtomicBool::new(false)) },
        })
    }

    fn me(&self) -> Me<'_> {
        Me { machine: &self.machine, inside: Cell::new(0) }
    }

    fn read(&self) -> [u32; 2] {
        let now = &self.buffers[self.index.load(SeqCst) as usize & 1];
        [now[0].load(SeqCst), now[1].load(SeqCst)]
    }

    /// Takes the lock, adds one to both words, gives it back; dies after `steps` steps. True when
    /// it lived.
    fn step(&self, tid: u32, mut steps: u32) -> bool {
        let me = self.me();
        let taken = lock::acquire(&self.lock, tid, &me);
        assert_ne!(taken, Taken::Own);
        let mut alive = || {
            let lives = steps > 0;
            steps = steps.saturating_sub(1);
            if !lives {
                self.machine.dead[tid as usize].store(true, SeqCst);
            }
            lives
        };
        let [mut value, twin] = self.read();
        assert_eq!(value, twin, "never half");
        if taken == Taken::Broken && self.ring.load(SeqCst) == value + 1 {
            // The completion was published: roll forward, as the slot's code does.
            self.index.store(self.index.load(SeqCst) ^ 1, SeqCst);
            value += 1;
            assert_eq!(self.read(), [value, value], "rolled forward to the whole of it");
        }
        assert_eq!(self.ring.load(SeqCst), value, "state and ring agree");
        let index = self.index.load(SeqCst);
        let spare = &self.buffers[(index ^ 1) as usize & 1];
        if !alive() {
            return false;
        }
        spare[0].store(value + 1, SeqCst);
        if !alive() {
            return false;
        }
        spare[1].store(value + 1, SeqCst);
        if !alive() {
            return false;
        }
        self.ring.store(value + 1, SeqCst);
        if !alive() {
            return false;
        }
        self.index.store(index ^ 1, SeqCst);
        if !alive() {
            return false;
        }
        lock::release(&self.lock, tid, &me);
        assert_eq!(me.inside(), 0);
        true
    }
}

/// The victim dies at this step; two others go on, and must find the old or the new.
fn dying_at(steps: u32) {
    let state = State::new();
    let (first, second) = (Arc::clone(&state), Arc::clone(&state));
    let victim = thread::spawn(move || first.step(1, steps));
    let third = thread::spawn(move || assert!(second.step(2, 99)));
    assert!(state.step(3, 99));
    third.join().unwrap();
    assert_eq!(victim.join().unwrap(), steps >= 5);
    let taken = lock::acquire(&state.lock, 4, &state.me());
    let [a, b] = state.read();
    assert_eq!(a, b);
    // Two threads that lived, and the victim where it had published.
    let ring = state.ring.load(SeqCst);
    assert_eq!(ring, 2 + u32::from(steps >= 3), "died after step {steps}");
    assert!(a == ring || (taken == Taken::Broken && a + 1 == ring));
}

#[test]
fn whole_states_whatever_dies() {
    explore(|| dying_at(0));
    explore(|| dying_at(1));
    explore(|| dying_at(2));
    explore(|| dying_at(3));
    explore(|| dying_at(4));
    explore(|| dying_at(5));
}

/// Real sleeping: no time-outs, so that a lost wake-up of the lock is a deadlock.
struct Sleepy {
    gate: Arc<(Mutex<u32>, Condvar)>,
    inside: Cell<u32>,
}

impl Os<AtomicU32> for Sleepy {
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
    fn yield_now(&self) {}
    fn sleep(&self, word: &AtomicU32, expected: u32) -> bool {
        let guard = self.gate.0.lock().unwrap();
        if word.load(SeqCst) == expected {
            drop(self.gate.1.wait(guard).unwrap());
        }
        false
    }
    fn wake(&self, _word: &AtomicU32) {
        let _guard = self.gate.0.lock().unwrap();
        self.gate.1.notify_one();
    }
    fn alive(&self, _tid: u32) -> bool {
        true
    }
}

#[test]
fn a_waiting_taker_is_woken() {
    explore(|| {
        let word = Arc::new(AtomicU32::new(0));
        let value = Arc::new(AtomicU32::new(0));
        let gate = Arc::new((Mutex::new(0), Condvar::new()));
        let threads: Vec<_> = (1..=3)
            .map(|tid| {
                let (word, value, gate) =
                    (Arc::clone(&word), Arc::clone(&value), Arc::clone(&gate));
                thread::spawn(move || {
                    let me = Sleepy { gate, inside: Cell::new(0) };
                    for _ in 0..2 {
                        assert_eq!(lock::acquire(&*word, tid, &me), Taken::Clean);
                        let v = value.load(SeqCst);
                        thread::yield_now();
                        value.store(v + 1, SeqCst);
                        lock::release(&*word, tid, &me);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(value.load(SeqCst), 6);
        assert_eq!(word.load(SeqCst), 0);
    });
}
