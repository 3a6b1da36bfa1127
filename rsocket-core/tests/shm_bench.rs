//! What the raw direction costs between two pinned processes: no protocol, no socket. Not run by
//! default: `cargo test --release -p rsocket-core --test shm_bench -- --ignored --nocapture`.
#![cfg(not(shuttle))]
#![allow(missing_docs)]

use std::time::Instant;

use rsocket_core::copy::CopyHint;
use rsocket_core::device::shm::arena::Arena;
use rsocket_core::device::shm::direction::Direction;
use rsocket_core::device::shm::layout::{CREDITS, LARGE, LARGE_ZONE, SEGMENTS, SMALL};
use rsocket_core::device::shm::waker;
use rsocket_core::sync::lock::OwnedLock;
use rsocket_core::sync::spin::{Adaptive, CHEAP_LOOKS, Spun};
use rsocket_core::sync::thread;

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// Runs one side in a child on another CPU (or the same), the other here; gives the seconds.
fn both(cpus: (usize, usize), theirs: impl FnOnce(), mine: impl FnOnce()) -> f64 {
    // SAFETY: the child runs the closure and leaves by _exit; the closures neither allocate nor
    // lock.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        thread::forked();
        waker::forked();
        pin(cpus.1);
        theirs();
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) }
    }
    pin(cpus.0);
    let start = Instant::now();
    mine();
    // SAFETY: our child; no status wanted.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    start.elapsed().as_secs_f64()
}

/// The best and the middle of many short batches: the machine is shared, and changes its mind.
struct Batches {
    seconds: Vec<f64>,
    start: Instant,
}

impl Batches {
    fn new() -> Self {
        Self { seconds: Vec::with_capacity(1000), start: Instant::now() }
    }

    fn cut(&mut self) {
        let now = Instant::now();
        self.seconds.push((now - self.start).as_secs_f64());
        self.start = now;
    }

    /// Best and median.
    fn ends(mut self) -> (f64, f64) {
        self.seconds.sort_by(f64::total_cmp);
        let middle = self.seconds.len() / 2;
        (
            self.seconds.first().copied().unwrap_or(0.0),
            self.seconds.get(middle).copied().unwrap_or(0.0),
        )
    }
}

fn directions() -> (Direction, Direction) {
    let (arena, _fd) = Arena::create(1).unwrap();
    let channel = arena.channel(0).unwrap();
    (channel.direction(0), channel.direction(1))
}

struct Options {
    size: usize,
    fence: bool,
    lock: bool,
    spinner: bool,
}

/// One message: payload into the small zone, its word, and the look for sleepers.
fn send(d: Direction, i: u32, from: &[u8], o: &Options, lock: &OwnedLock) {
    let tid = thread::tid();
    if o.lock {
        let _ = lock.lock(tid);
    }
    // SAFETY: the slice is readable for its length.
    let ok = unsafe {
        d.write(
            u64::from(i % 4) * SMALL as u64,
            from.as_ptr(),
            o.size.min(from.len()),
            CopyHint::Ordinary,
        )
    };
    assert!(ok);
    d.publish_data(i, o.size as u32);
    if o.lock {
        lock.unlock(tid);
    }
    if o.fence {
        d.data_waiters().wake(None);
    }
}

fn receive(
    d: Direction,
    i: u32,
    to: &mut [u8],
    o: &Options,
    lock: &OwnedLock,
    spin: &mut Adaptive,
) {
    if o.spinner {
        while spin.spin(10_000, CHEAP_LOOKS, || 0, || d.poll_data(i).is_some()) != Spun::Ready {}
    } else {
        while d.poll_data(i).is_none() {}
    }
    let tid = thread::tid();
    if o.lock {
        let _ = lock.lock(tid);
    }
    let len = d.poll_data(i).unwrap_or(0) as usize;
    // SAFETY: the slice is writable for its length.
    let ok = unsafe {
        d.read(
            u64::from(i % 4) * SMALL as u64,
            len.min(to.len()),
            to.as_mut_ptr(),
            CopyHint::Ordinary,
        )
    };
    assert!(ok);
    if o.lock {
        lock.unlock(tid);
    }
}

fn ping_pong(name: &str, o: &Options) {
    const N: u32 = 1_000_000;
    let (there, back) = directions();
    let locks = [OwnedLock::new(), OwnedLock::new(), OwnedLock::new(), OwnedLock::new()];
    let mut buffers = [[1_u8; SMALL]; 2];
    let [mine, theirs] = &mut buffers;
    let mut batches = Batches::new();
    both(
        (0, 1),
        || {
            let mut spin = Adaptive::new();
            for i in 0..N {
                receive(there, i, theirs, o, &locks[0], &mut spin);
                send(back, i, theirs, o, &locks[1]);
            }
        },
        || {
            let mut spin = Adaptive::new();
            for i in 0..N {
                send(there, i, mine, o, &locks[2]);
                receive(back, i, mine, o, &locks[3], &mut spin);
                if i % 10_000 == 9_999 {
                    batches.cut();
                }
            }
        },
    );
    let (best, middle) = batches.ends();
    println!(
        "ping-pong {:5} B, {name}: {:.0} ns round trip, median {:.0}",
        o.size,
        best * 1e5,
        middle * 1e5
    );
}

fn blocking(cpus: (usize, usize)) {
    const N: u32 = 30_000;
    let (there, back) = directions();
    let wait = |d: Direction, i: u32| {
        while d.poll_data(i).is_none() {
            let Some(waker) = waker::borrow() else { continue };
            if let Some(slot) = d.data_waiters().arm(waker.id()) {
                if d.poll_data(i).is_none() {
                    let mut fds =
                        [libc::pollfd { fd: waker.fd(), events: libc::POLLIN, revents: 0 }];
                    let _ = rsocket_core::sys::wait(&mut fds, None, std::ptr::null());
                    waker.drain();
                }
                d.data_waiters().disarm(slot, waker.id());
            }
            waker::give_back(waker);
        }
    };
    let seconds = both(
        cpus,
        || {
            for i in 0..N {
                wait(there, i);
                back.publish_data(i, 1);
                back.data_waiters().wake(None);
            }
        },
        || {
            for i in 0..N {
                there.publish_data(i, 1);
                there.data_waiters().wake(None);
                wait(back, i);
            }
        },
    );
    println!("bell round trip, CPUs {cpus:?}: {:.1} us", seconds / f64::from(N) * 1e6);
}

/// Pieces of one size through the four large segments; the credit ring gives each back.
/// `user` is the size of the program's own buffers, which it fills and empties again and again.
fn bulk(cpus: (usize, usize), piece: usize, user: usize, hint: CopyHint) {
    let total: u64 = 4 << 30;
    let pieces = (total / piece as u64) as u32;
    let slots = (SEGMENTS * LARGE / piece) as u32;
    // Credits come back a quarter of the buffer at a time.
    let quarter = (slots / 4).max(1);
    let (d, _) = directions();
    let mut buffers = [vec![1_u8; user], vec![1_u8; user]];
    let [mine, theirs] = &mut buffers;
    let offset = |i: u32| LARGE_ZONE as u64 + u64::from(i % slots) * piece as u64;
    let one_core = cpus.0 == cpus.1;
    let idle = || if one_core { thread::yield_now() } else { std::hint::spin_loop() };
    let mut batches = Batches::new();
    let batch = (64 << 20) / piece as u32;
    both(
        cpus,
        || {
            d.receiver().receiver_cpu.store(thread::cpu(), std::sync::atomic::Ordering::Relaxed);
            for i in 0..pieces {
                while d.poll_data(i).is_none() {
                    idle();
                }
                let at = i as usize * piece % user;
                // SAFETY: at + piece <= user, since both are powers of two.
                let _ = unsafe { d.read(offset(i), piece, theirs.as_mut_ptr().add(at), hint) };
                if (i + 1) % quarter == 0 {
                    d.publish_control(i / quarter, 1);
                }
            }
        },
        || {
            for i in 0..pieces {
                if i >= slots && i % quarter == 0 {
                    while d.poll_control((i - slots) / quarter).is_none() {
                        idle();
                    }
                }
                let at = i as usize * piece % user;
                // SAFETY: as above.
                let _ = unsafe { d.write(offset(i), mine.as_ptr().add(at), piece, hint) };
                d.publish_data(i, piece as u32);
                d.data_waiters().wake(None);
                if (i + 1) % batch == 0 {
                    batches.cut();
                }
            }
        },
    );
    let (best, middle) = batches.ends();
    let rate = |seconds: f64| f64::from(1 << 26) / seconds / 1e9;
    println!(
        "bulk, CPUs {cpus:?}, {:4} KiB pieces, {:4} KiB user buffer, {hint:?}: {:.1} GB/s, median {:.1}",
        piece >> 10,
        user >> 10,
        rate(best),
        rate(middle)
    );
}

/// 64-byte messages one way, 64 bytes apart in the small zone, credits in quarters.
fn messages(fence: bool, backoff: bool) {
    const N: u32 = 20_000_000;
    const QUARTER: u32 = CREDITS / 4;
    let (d, _) = directions();
    let from = [1_u8; 64];
    // A slot for each word: none is written again before its credit is back.
    let offset = |i: u32| LARGE_ZONE as u64 + u64::from(i % 256) * 64;
    let mut batches = Batches::new();
    both(
        (0, 1),
        || {
            let mut to = [0_u8; 64];
            for i in 0..N {
                if d.poll_data(i).is_none() {
                    loop {
                        if backoff {
                            (0..20).for_each(|_| std::hint::spin_loop());
                        }
                        if d.poll_data(i).is_some() {
                            break;
                        }
                    }
                }
                // SAFETY: 64 bytes.
                let _ = unsafe { d.read(offset(i), 64, to.as_mut_ptr(), CopyHint::Ordinary) };
                if (i + 1) % QUARTER == 0 {
                    d.publish_control(i / QUARTER, 1);
                }
            }
        },
        || {
            for i in 0..N {
                if i >= CREDITS && i % QUARTER == 0 {
                    while d.poll_control((i - CREDITS) / QUARTER).is_none() {}
                }
                // SAFETY: 64 bytes.
                let _ = unsafe { d.write(offset(i), from.as_ptr(), 64, CopyHint::Ordinary) };
                d.publish_data(i, 64);
                if fence {
                    d.data_waiters().wake(None);
                }
                if (i + 1) % 100_000 == 0 {
                    batches.cut();
                }
            }
        },
    );
    let (best, middle) = batches.ends();
    println!(
        "messages of 64 B one way, fence {fence}, receiver back-off {backoff}: {:.1} million/s, median {:.1}",
        0.1 / best,
        0.1 / middle
    );
}

fn one_thread() {
    pin(0);
    let (d, _) = directions();
    let lock = OwnedLock::new();
    let tid = thread::tid();
    let time = |name: &str, f: &mut dyn FnMut(u32)| {
        let n = 5_000_000;
        let start = Instant::now();
        (0..n).for_each(|i| f(std::hint::black_box(i)));
        println!(
            "one thread, {name}: {:.1} ns",
            start.elapsed().as_secs_f64() / f64::from(n) * 1e9
        );
    };
    time("nothing", &mut |_| {});
    time("lock and unlock", &mut |_| {
        let _ = lock.lock(tid);
        lock.unlock(tid);
    });
    time("fence and look for sleepers", &mut |_| {
        d.data_waiters().wake(None);
    });
    time("publish and poll", &mut |i| {
        d.publish_data(i, i);
        std::hint::black_box(d.poll_data(i));
    });
    time("thread::cpu", &mut |_| {
        std::hint::black_box(thread::cpu());
    });
    time("thread::tid", &mut |_| {
        std::hint::black_box(thread::tid());
    });
    time("clock", &mut |_| {
        std::hint::black_box(rsocket_core::sys::now_ns());
    });
    time("pause", &mut |_| std::hint::spin_loop());
    let waker = waker::borrow().unwrap();
    let start = Instant::now();
    for _ in 0..100_000 {
        waker::wake(waker.id());
        waker.drain();
    }
    println!("one thread, ring and drain: {:.2} us", start.elapsed().as_secs_f64() * 10.0);
    let start = Instant::now();
    let wakers: Vec<_> = (0..500).filter_map(|_| waker::borrow_for_set()).collect();
    println!(
        "one thread, a new bell: {:.2} us",
        start.elapsed().as_secs_f64() / wakers.len() as f64 * 1e6
    );
    wakers.into_iter().for_each(waker::forget);
}

#[test]
#[ignore = "a benchmark"]
fn figures() {
    one_thread();
    for _ in 0..2 {
        let plain = Options { size: 64, fence: false, lock: false, spinner: false };
        ping_pong("bare", &plain);
        ping_pong("fence", &Options { fence: true, ..plain });
        ping_pong("fence, lock", &Options { fence: true, lock: true, ..plain });
        ping_pong(
            "fence, lock, spinner",
            &Options { fence: true, lock: true, spinner: true, ..plain },
        );
        ping_pong("fence, lock", &Options { fence: true, lock: true, size: 8, ..plain });
        ping_pong("fence, lock", &Options { fence: true, lock: true, size: 1024, ..plain });
    }
    blocking((0, 1));
    blocking((0, 0));
    for (fence, backoff) in [(false, false), (true, false), (true, true)] {
        messages(fence, backoff);
    }
    for user in [256 << 10, 1 << 20] {
        for piece in [4, 16, 64, 256] {
            bulk((0, 1), piece << 10, user, CopyHint::Bulk);
            bulk((0, 1), piece << 10, user, CopyHint::Ordinary);
        }
    }
    bulk((0, 0), 64 << 10, 1 << 20, CopyHint::Bulk);
    bulk((0, 0), 64 << 10, 1 << 20, CopyHint::Ordinary);
}
