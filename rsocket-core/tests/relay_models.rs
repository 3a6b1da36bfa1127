//! A model test of who hears of a device's news while threads go to sleep on a relayed connection (`relay::arm`,
//! `relay::hearing`, `Service::look`): the library's own sleeper words, and a completion queue that raises one event for
//! each arming. Run as `shm_models`, which says what such models prove.
#![cfg(shuttle)]

use rsocket_core::device::shm::layout::SLEEPERS;
use rsocket_core::device::shm::park::Sleepers;
use shuttle::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst, fence};
use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard};
use shuttle::thread;

/// The bell of the thread that sleeps.
const BELL: u64 = 1;

/// What a thread goes to sleep by: first the one, then the other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    ArmThenEnlist,
    EnlistThenArm,
}

/// What the kernel knows: the completion queue, its descriptor, and the descriptor of the bell.
#[derive(Default)]
struct Kernel {
    completions: u32,
    data: u32,
    armed: bool,
    event: bool,
    rung: bool,
    /// The descriptor is in the service thread's set.
    watched: bool,
    over: bool,
}

struct Relay {
    kernel: Mutex<Kernel>,
    changed: Condvar,
    lock: Mutex<()>,
    armed: AtomicU32,
    heard: AtomicU32,
    delivered: AtomicU32,
    any: AtomicU32,
    words: [AtomicU64; SLEEPERS],
}

impl Relay {
    /// The service thread hears of it, and the device is armed.
    fn new() -> Arc<Self> {
        let kernel = Kernel { armed: true, watched: true, ..Kernel::default() };
        Arc::new(Self {
            kernel: Mutex::new(kernel),
            changed: Condvar::new(),
            lock: Mutex::new(()),
            armed: AtomicU32::new(1),
            heard: AtomicU32::new(1),
            delivered: AtomicU32::new(0),
            any: AtomicU32::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        })
    }

    fn kernel<R>(&self, f: impl FnOnce(&mut Kernel) -> R) -> R {
        let r = f(&mut self.kernel.lock().unwrap());
        self.changed.notify_all();
        r
    }

    fn sleep(&self, until: impl Fn(&Kernel) -> bool) -> MutexGuard<'_, Kernel> {
        let mut kernel = self.kernel.lock().unwrap();
        while !until(&kernel) {
            kernel = self.changed.wait(kernel).unwrap();
        }
        kernel
    }

    fn sleepers(&self) -> Sleepers<'_, AtomicU32, AtomicU64> {
        Sleepers::new(&self.any, &self.words)
    }

    fn others(&self, bell: u64) -> bool {
        self.sleepers().any_but(|word| word == bell)
    }

    /// The device has something to say.
    fn completes(&self, data: u32) {
        self.kernel(|k| {
            k.completions += 1;
            k.data += data;
            k.event |= std::mem::take(&mut k.armed);
        });
    }

    /// Whoever holds the lock arms the device.
    fn arm(&self) {
        self.kernel(|k| k.armed = true);
    }

    /// Moves what there is; whether there was any.
    fn run(&self) -> bool {
        let (some, data) =
            self.kernel(|k| (std::mem::take(&mut k.completions) > 0, std::mem::take(&mut k.data)));
        if data > 0 {
            self.delivered.fetch_add(data, SeqCst);
            self.sleepers().wake_with(None, |_| self.kernel(|k| k.rung = true));
        }
        some
    }

    fn take_event(&self) {
        self.kernel(|k| k.event = false);
        self.armed.store(0, SeqCst);
        fence(SeqCst);
    }

    fn hears(&self, so: bool) {
        self.kernel(|k| k.watched = so);
    }

    /// `hearing::again`.
    fn again(&self) {
        if self.heard.load(SeqCst) == 0 {
            self.heard.store(1, SeqCst);
            self.hears(true);
        }
    }

    /// `hearing::as_needed`.
    fn as_needed(&self) -> bool {
        let heard = self.heard.swap(0, SeqCst) != 0;
        fence(SeqCst);
        if self.others(0) {
            self.heard.store(u32::from(heard), SeqCst);
            self.again();
            return true;
        }
        if heard {
            self.hears(false);
        }
        false
    }

    /// `Service::look`.
    fn look(&self) {
        let _lock = self.lock.lock().unwrap();
        self.take_event();
        loop {
            self.run();
            if self.as_needed() {
                self.arm();
                self.armed.store(1, SeqCst);
            }
            if !self.run() {
                break;
            }
        }
    }

    fn serve(&self) {
        loop {
            let over = self.sleep(|k| k.over || k.watched && k.event).over;
            if over {
                return;
            }
            self.look();
        }
    }

    /// `relay::arm`.
    fn arm_once(&self) {
        fence(SeqCst);
        if self.armed.load(SeqCst) != 0 {
            return;
        }
        let _lock = self.lock.lock().unwrap();
        if self.armed.swap(1, SeqCst) == 0 {
            self.arm();
            self.run();
        }
    }

    /// `relay::pump`.
    fn pump(&self) {
        if let Ok(_lock) = self.lock.try_lock() {
            self.run();
        }
    }

    /// `Hearing::settle`.
    fn settle(&self) {
        if self.heard.load(SeqCst) == 0 {
            return;
        }
        let _lock = self.lock.lock().unwrap();
        if self.heard.swap(0, SeqCst) == 0 {
            return;
        }
        fence(SeqCst);
        if self.others(BELL) {
            self.heard.store(1, SeqCst);
        } else {
            self.hears(false);
        }
    }

    /// `Hearing::heard`, for a thread that looks itself when it goes on.
    fn hear(&self) {
        let _lock = self.lock.lock().unwrap();
        self.take_event();
        while self.others(0) {
            self.arm();
            self.armed.store(1, SeqCst);
            if !self.run() {
                break;
            }
        }
    }

    /// `wait::sleep`, again and again until the data are there. With `hearing` the thread waits for the device itself.
    fn receive(&self, order: Order, hearing: bool) {
        let there = || {
            self.pump();
            self.delivered.load(SeqCst) > 0
        };
        while !there() {
            if order == Order::ArmThenEnlist {
                self.arm_once();
            }
            let slot = self.sleepers().arm(BELL).unwrap();
            if order == Order::EnlistThenArm {
                self.arm_once();
            }
            if there() {
                self.sleepers().disarm(slot, BELL);
                break;
            }
            if hearing {
                self.settle();
            } else if self.heard.load(SeqCst) == 0 {
                // hearing::by_service
                let _lock = self.lock.lock().unwrap();
                self.again();
            }
            let event = self.sleep(|k| k.rung || hearing && k.event).event;
            self.sleepers().disarm(slot, BELL);
            self.kernel(|k| k.rung = false);
            if hearing && event {
                self.hear();
            }
        }
        self.kernel(|k| k.over = true);
    }
}

/// A post of ours is reported, and then the peer's data come.
fn model(order: Order, hearing: bool) {
    let relay = Relay::new();
    let (device, service) = (Arc::clone(&relay), Arc::clone(&relay));
    let threads = [
        thread::spawn(move || [0, 1].into_iter().for_each(|data| device.completes(data))),
        thread::spawn(move || service.serve()),
    ];
    relay.receive(order, hearing);
    threads.into_iter().for_each(|t| t.join().unwrap());
}

/// A sleeper that nobody wakes deadlocks, which the scheduler reports.
fn explore(model: fn()) {
    explore_at_most(std::env::var("SHM_MODEL_RUNS").ok().and_then(|v| v.parse().ok()).unwrap_or(RUNS), model);
}

/// As many as it takes to find the order that deadlocks, however little is asked for.
const RUNS: usize = 20_000;

fn explore_at_most(runs: usize, model: fn()) {
    shuttle::check_random(model, runs);
    shuttle::check_pct(model, runs, 3);
}

#[test]
fn who_sleeps_hears_of_the_device() {
    explore(|| model(Order::EnlistThenArm, true));
}

#[test]
fn who_is_rung_by_the_service_thread_is_rung() {
    explore(|| model(Order::EnlistThenArm, false));
}

/// Why the bell comes first: who takes the event away arms again for those alone whose bells it sees.
#[test]
#[should_panic(expected = "deadlock")]
fn a_device_that_is_armed_before_the_bell_is_there_may_be_left_unarmed() {
    explore_at_most(RUNS, || model(Order::ArmThenEnlist, true));
}
