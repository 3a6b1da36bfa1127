//! A model test of which thread hears of a device's news while threads go to sleep on a bridged
//! connection (`bridge::arm`, `bridge::cq_ownership`, `Service::look`). It has the library's own
//! waiter slots, and a completion queue that raises one event for each arming. Run as `shm_models`,
//! which says what such models prove.
#![cfg(shuttle)]

use rsocket_core::device::shm::layout::SLEEPERS;
use rsocket_core::device::shm::park::Sleepers;
use shuttle::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst, fence};
use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard};
use shuttle::thread;

/// The waker of the thread that sleeps.
const WAKER: u64 = 1;

/// What a thread goes to sleep by: first the one, then the other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    ArmThenEnlist,
    EnlistThenArm,
}

/// What the kernel knows: the completion queue, its descriptor, and the descriptor of the waker.
#[derive(Default)]
struct Kernel {
    completions: u32,
    data: u32,
    room: u32,
    armed: bool,
    event: bool,
    woken: bool,
    napper_woken: bool,
    /// The descriptor is in the service thread's set.
    watched: bool,
    over: bool,
}

struct Bridge {
    kernel: Mutex<Kernel>,
    changed: Condvar,
    lock: Mutex<()>,
    armed: AtomicU32,
    heard: AtomicU32,
    delivered: AtomicU32,
    room: AtomicU32,
    napper: AtomicU64,
    /// In the device's memory, of what a call has left there; and the mark that says so, if the
    /// threads heed it.
    left: AtomicU32,
    keeps: AtomicU32,
    heeded: bool,
    /// Threads that have not got what they wait for.
    waiting: AtomicU32,
    any: AtomicU32,
    words: [AtomicU64; SLEEPERS],
}

impl Bridge {
    /// The service thread hears of it, and the device is armed.
    fn new(waiting: u32) -> Arc<Self> {
        Arc::new(Self::made(waiting, true))
    }

    fn made(waiting: u32, heeded: bool) -> Self {
        let kernel = Kernel { armed: true, watched: true, ..Kernel::default() };
        Self {
            kernel: Mutex::new(kernel),
            changed: Condvar::new(),
            lock: Mutex::new(()),
            armed: AtomicU32::new(1),
            heard: AtomicU32::new(1),
            delivered: AtomicU32::new(0),
            room: AtomicU32::new(0),
            napper: AtomicU64::new(0),
            left: AtomicU32::new(0),
            keeps: AtomicU32::new(0),
            heeded,
            waiting: AtomicU32::new(waiting),
            any: AtomicU32::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        }
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

    fn others(&self, waker: u64) -> bool {
        self.sleepers().any_but(|word| word == waker)
    }

    /// The device has something to say.
    fn completes(&self, data: u32) {
        self.kernel(|k| {
            k.completions += 1;
            k.data += data;
            k.room += u32::from(data == 0);
            k.event |= std::mem::take(&mut k.armed);
        });
    }

    /// The thread that holds the lock arms the device.
    fn arm(&self) {
        self.kernel(|k| k.armed = true);
    }

    /// Takes the device's news: whether there were any, and what has come.
    fn poll(&self) -> (bool, u32) {
        self.kernel(|k| {
            self.room.fetch_add(std::mem::take(&mut k.room), SeqCst);
            (std::mem::take(&mut k.completions) > 0, std::mem::take(&mut k.data))
        })
    }

    /// Moves what there is; whether there was any.
    fn run(&self) -> bool {
        let (some, data) = self.poll();
        let data = data + self.left.swap(0, SeqCst);
        if data > 0 {
            self.delivered.fetch_add(data, SeqCst);
            self.sleepers().wake_with(None, |_| self.kernel(|k| k.woken = true));
        }
        // Behind what it is about: a thread that sees no mark looks at the channel.
        self.keeps.store(0, SeqCst);
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

    /// `cq_ownership::again`.
    fn again(&self) {
        if self.heard.load(SeqCst) == 0 {
            self.heard.store(1, SeqCst);
            self.hears(true);
        }
    }

    /// `cq_ownership::as_needed`.
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

    /// `cq_ownership::taken`.
    fn taken(&self) {
        if self.napper.load(SeqCst) != 0 && self.napper.swap(0, SeqCst) != 0 {
            self.kernel(|k| k.napper_woken = true);
        }
    }

    /// `Service::look`.
    fn look(&self) {
        let lock = self.lock.lock().unwrap();
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
        drop(lock);
        self.taken();
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

    /// `bridge::arm`.
    fn arm_once(&self) {
        fence(SeqCst);
        if self.armed.load(SeqCst) != 0 && !self.kept() {
            return;
        }
        let _lock = self.lock.lock().unwrap();
        let armed = self.armed.swap(1, SeqCst) != 0;
        if !armed {
            self.arm();
        }
        if !armed || self.kept() {
            self.run();
        }
    }

    /// `deferred::any`.
    fn kept(&self) -> bool {
        self.heeded && self.keeps.load(SeqCst) != 0
    }

    /// `Bridge::in_turn`.
    fn in_turn(&self) -> Option<MutexGuard<'_, ()>> {
        if self.kept() { Some(self.lock.lock().unwrap()) } else { self.lock.try_lock().ok() }
    }

    /// `bridge::pump`.
    fn pump(&self) {
        if let Some(_lock) = self.in_turn() {
            self.run();
        }
    }

    /// A call with room for one, when two have come: from the channel, or past it, and then the
    /// other stays if it may (`deferred::may_stay`).
    fn take_one(&self) {
        let _lock = self.lock.lock().unwrap();
        if self.delivered.load(SeqCst) > 0 {
            self.delivered.fetch_sub(1, SeqCst);
            return;
        }
        let (_, data) = self.poll();
        self.left.store(data - 1, SeqCst);
        self.keeps.store(1, SeqCst);
        fence(SeqCst);
        if self.others(0) {
            self.run();
        }
    }

    /// `CqOwnership::settle`.
    fn settle(&self, waker: u64) {
        if self.heard.load(SeqCst) == 0 {
            return;
        }
        let _lock = self.lock.lock().unwrap();
        if self.heard.swap(0, SeqCst) == 0 {
            return;
        }
        fence(SeqCst);
        if self.others(waker) {
            self.heard.store(1, SeqCst);
        } else {
            self.hears(false);
        }
    }

    /// `CqOwnership::heard`, for a thread that looks itself when it goes on, or wants it done now.
    fn hear(&self, now: bool) {
        let lock = self.lock.lock().unwrap();
        self.take_event();
        if now {
            self.run();
        }
        while self.others(0) {
            self.arm();
            self.armed.store(1, SeqCst);
            if !self.run() {
                break;
            }
        }
        drop(lock);
        self.taken();
    }

    /// `bypass::send_on` with its `nap`, which ends by itself in the library: a thread that waits
    /// for the room that comes with the device's news. Without `waker` no other thread can wake it.
    fn send(&self, waker: bool) {
        let has_room = || {
            let _lock = self.lock.lock().unwrap();
            self.room.load(SeqCst) > 0
        };
        loop {
            self.arm_once();
            if has_room() {
                break;
            }
            self.settle(0);
            self.napper.store(u64::from(waker), SeqCst);
            fence(SeqCst);
            let mut event = false;
            if (!waker || self.armed.load(SeqCst) != 0) && !has_room() {
                event = self.sleep(|k| k.napper_woken || k.event).event;
            }
            self.napper.store(0, SeqCst);
            self.kernel(|k| k.napper_woken = false);
            if event {
                self.hear(true);
            }
        }
        self.done();
    }

    /// One thread less that waits.
    fn done(&self) {
        if self.waiting.fetch_sub(1, SeqCst) == 1 {
            self.kernel(|k| k.over = true);
        }
    }

    /// `wait::sleep`, again and again until the data are there. With `hearing` the thread waits for
    /// the device itself.
    fn receive(&self, order: Order, hearing: bool) {
        let there = || {
            self.pump();
            self.delivered.load(SeqCst) > 0
        };
        while !there() {
            if order == Order::ArmThenEnlist {
                self.arm_once();
            }
            let slot = self.sleepers().arm(WAKER).unwrap();
            if order == Order::EnlistThenArm {
                self.arm_once();
            }
            if there() {
                self.sleepers().disarm(slot, WAKER);
                break;
            }
            if hearing {
                self.settle(WAKER);
            } else if self.heard.load(SeqCst) == 0 {
                // cq_ownership::by_service
                let _lock = self.lock.lock().unwrap();
                self.again();
            }
            let event = self.sleep(|k| k.woken || hearing && k.event).event;
            self.sleepers().disarm(slot, WAKER);
            self.kernel(|k| k.woken = false);
            if hearing && event {
                self.hear(false);
            }
        }
        self.done();
    }
}

/// A post of ours is reported, and then the peer's data come.
fn model(order: Order, hearing: bool) {
    let bridge = Bridge::new(1);
    let (device, service) = (Arc::clone(&bridge), Arc::clone(&bridge));
    let threads = [
        thread::spawn(move || [0, 1].into_iter().for_each(|data| device.completes(data))),
        thread::spawn(move || service.serve()),
    ];
    bridge.receive(order, hearing);
    threads.into_iter().for_each(|t| t.join().unwrap());
}

/// As [`model`], with a thread that waits for the room of which the report tells.
fn model_of_two(waker: bool) {
    let bridge = Bridge::new(2);
    let (device, service, sender) = (Arc::clone(&bridge), Arc::clone(&bridge), Arc::clone(&bridge));
    let threads = [
        thread::spawn(move || [0, 1].into_iter().for_each(|data| device.completes(data))),
        thread::spawn(move || service.serve()),
        thread::spawn(move || sender.send(waker)),
    ];
    bridge.receive(Order::EnlistThenArm, true);
    threads.into_iter().for_each(|t| t.join().unwrap());
}

/// Two bytes come at once. A call takes one, and a thread that waits gets the other.
fn model_of_a_rest(hearing: bool) {
    let bridge = Bridge::new(1);
    let (device, service) = (Arc::clone(&bridge), Arc::clone(&bridge));
    let threads = [
        thread::spawn(move || {
            device.completes(2);
            device.take_one();
        }),
        thread::spawn(move || service.serve()),
    ];
    bridge.receive(Order::EnlistThenArm, hearing);
    threads.into_iter().for_each(|t| t.join().unwrap());
}

/// As [`model_of_a_rest`], but no thread sleeps. The call that takes the first byte is followed by
/// a look for the other, while another thread is at the bridge.
fn model_of_a_look(heeded: bool) {
    let bridge = Arc::new(Bridge::made(1, heeded));
    bridge.completes(2);
    bridge.take_one();
    let other = Arc::clone(&bridge);
    let other = thread::spawn(move || other.pump());
    bridge.pump();
    assert_eq!(bridge.delivered.load(SeqCst), 1, "the other is there");
    other.join().unwrap();
}

/// A sleeper that no other thread wakes deadlocks, which the scheduler reports.
fn explore(model: fn()) {
    explore_at_most(
        std::env::var("SHM_MODEL_RUNS").ok().and_then(|v| v.parse().ok()).unwrap_or(RUNS),
        model,
    );
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

/// Why the waker comes first: the thread that takes the event away arms again only for the threads
/// whose wakers it sees.
#[test]
#[should_panic(expected = "deadlock")]
fn a_device_that_is_armed_before_the_waker_is_there_may_be_left_unarmed() {
    explore_at_most(RUNS, || model(Order::ArmThenEnlist, true));
}

#[test]
fn who_waits_for_room_hears_of_events_that_others_took() {
    explore(|| model_of_two(true));
}

/// Why it has a waker: a thread that receives takes the event, and the room with it.
#[test]
#[should_panic(expected = "deadlock")]
fn without_a_waker_it_sleeps_on() {
    explore_at_most(RUNS, || model_of_two(false));
}

#[test]
fn who_sleeps_finds_what_a_call_has_left() {
    explore(|| model_of_a_rest(true));
    explore(|| model_of_a_rest(false));
}

#[test]
fn who_looks_finds_what_a_call_has_left() {
    explore(|| model_of_a_look(true));
}

/// Why there is a mark: a thread that looks passes by where another thread is at the bridge, and
/// would say that there is nothing.
#[test]
#[should_panic(expected = "the other is there")]
fn what_is_left_without_a_mark_may_not_be_found() {
    explore_at_most(RUNS, || model_of_a_look(false));
}
