//! The shared memory, the wakers and the lock between real processes.
#![cfg(not(shuttle))]
#![allow(missing_docs)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rsocket_core::copy::CopyHint;
use rsocket_core::device::shm::arena::{Arena, OpenError};
use rsocket_core::device::shm::direction::Direction;
use rsocket_core::device::shm::layout::{
    BUFFER_LEN, CHANNEL_LEN, CONTROL_RING, DATA_RING, HEADER_LEN, PAGE, arena_len,
};
use rsocket_core::device::shm::park::Sleepers;
use rsocket_core::device::shm::waker::{self, Woke};
use rsocket_core::failure::Failure;
use rsocket_core::sync::lock::{OwnedLock, Taken};
use rsocket_core::sync::thread;
use rsocket_core::wire::sge::Sge;
use rustix::fs::{MemfdFlags, SealFlags};

/// A forked child that runs one closure and ends; killed and collected when the test is done with
/// it.
struct Child(libc::pid_t);

impl Child {
    fn start(work: impl FnOnce()) -> Self {
        // SAFETY: the child runs only code that neither allocates nor takes a lock of this process,
        // and leaves by _exit. A panic may do either, and then the parent's test fails by time or
        // status.
        match unsafe { libc::fork() } {
            0 => {
                thread::forked();
                let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_ok();
                // SAFETY: ends the child without running the parent's exit handlers.
                unsafe { libc::_exit(i32::from(!ok)) }
            }
            pid => {
                assert!(pid > 0);
                Self(pid)
            }
        }
    }

    fn kill(&self) {
        // SAFETY: a plain call; the child is ours and not collected yet.
        assert_eq!(unsafe { libc::kill(self.0, libc::SIGKILL) }, 0);
    }

    /// True when it ended well.
    fn collect(self) -> bool {
        let mut status = 0;
        // SAFETY: status is valid for the call.
        let pid = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        let ok = pid == self.0 && status == 0;
        std::mem::forget(self);
        ok
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: plain calls on a child that is not collected yet.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

fn until(mut there: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    let mut looks = 0_u32;
    while !there() {
        looks += 1;
        if looks.is_multiple_of(64) {
            assert!(start.elapsed().as_secs() < 20, "waited too long");
            std::thread::yield_now();
        }
    }
}

fn put(d: Direction, offset: u64, bytes: &[u8], hint: CopyHint) -> bool {
    // SAFETY: the slice is readable for its length, and private.
    unsafe { d.write(offset, bytes.as_ptr(), bytes.len(), hint) }
}

fn get(d: Direction, offset: u64, bytes: &mut [u8], hint: CopyHint) -> bool {
    // SAFETY: the slice is writable for its length, and private.
    unsafe { d.read(offset, bytes.len(), bytes.as_mut_ptr(), hint) }
}

fn sealed(size: u64, seals: SealFlags) -> std::os::fd::OwnedFd {
    let fd =
        rustix::fs::memfd_create(c"test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, size).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

const ALL: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

#[test]
fn an_arena_opens_as_it_was_made() {
    let (arena, fd) = Arena::create(3).unwrap();
    let again = Arena::open(&fd).unwrap();
    assert_eq!(arena.id(), again.id());
    assert_ne!(arena.id(), [0, 0]);
    assert_eq!((again.channels(), arena.channels()), (3, 3));
    assert!(arena.channel(2).is_some() && arena.channel(3).is_none());
    assert!(rustix::fs::ftruncate(&fd, 0).is_err(), "sealed");
    assert!(rustix::fs::fcntl_add_seals(&fd, SealFlags::WRITE).is_err(), "sealed against sealing");
    // What one mapping writes, the other reads: channel 2, both directions, apart.
    for which in 0..2 {
        let (w, r) = (
            arena.channel(2).unwrap().direction(which),
            again.channel(2).unwrap().direction(which),
        );
        assert!(put(w, BUFFER_LEN as u64 - 5, b"hello", CopyHint::Ordinary));
        w.publish_data(7, which);
        assert_eq!(r.poll_data(7), Some(which));
        let mut bytes = [0; 5];
        assert!(get(r, BUFFER_LEN as u64 - 5, &mut bytes, CopyHint::Ordinary));
        assert_eq!(&bytes, b"hello");
    }
    arena.channel(2).unwrap().wipe();
    assert_eq!(again.channel(2).unwrap().direction(1).poll_data(7), None);
    let parts = arena.into_parts();
    // SAFETY: the parts of this very process, not unmapped.
    let arena = unsafe { Arena::from_parts(parts.0, parts.1, parts.2) }.unwrap();
    let channel = again.channel(2).unwrap();
    let there = channel.announce(1);
    there.word.fetch_or(there.bit, Ordering::Release);
    there.woken[0].store(7, Ordering::Relaxed);
    assert_eq!([0, 1].map(|side| arena.ready(side).woken[0].load(Ordering::Relaxed)), [0, 7]);
    assert_eq!(arena.ready(1).bits[0].swap(0, Ordering::Acquire), 4);
    assert_eq!(arena.ready(0).bits[0].load(Ordering::Relaxed), 0);
    // SAFETY: no handle is used after this.
    unsafe {
        arena.unmap();
        again.unmap();
    }
}

#[test]
fn what_is_not_an_arena_is_refused() {
    let size = arena_len(1).unwrap() as u64;
    assert!(matches!(Arena::create(0), Err(Failure::Invalid)));
    assert!(matches!(Arena::create(1025), Err(Failure::Invalid)));
    let open = |fd: BorrowedFd<'_>| Arena::open(fd).map(|_| ()).unwrap_err();
    let (pipe, _) = rustix::pipe::pipe().unwrap();
    assert_eq!(open(pipe.as_fd()), OpenError::NotMemfd);
    let null = std::fs::File::open("/dev/zero").unwrap();
    assert_eq!(open(null.as_fd()), OpenError::NotMemfd);
    assert_eq!(open(sealed(size, SealFlags::empty()).as_fd()), OpenError::NotSealed);
    assert_eq!(
        open(sealed(size, SealFlags::GROW | SealFlags::SHRINK).as_fd()),
        OpenError::NotSealed
    );
    assert_eq!(open(sealed(size, SealFlags::GROW | SealFlags::SEAL).as_fd()), OpenError::NotSealed);
    for wrong in
        [0, 1, PAGE as u64, HEADER_LEN as u64, size - 1, size + 1, size + CHANNEL_LEN as u64 / 2]
    {
        assert_eq!(open(sealed(wrong, ALL).as_fd()), OpenError::Size, "{wrong}");
    }
    assert_eq!(
        open(sealed(HEADER_LEN as u64 + 1025 * CHANNEL_LEN as u64, ALL).as_fd()),
        OpenError::Size
    );
    assert_eq!(open(sealed(size, ALL).as_fd()), OpenError::Magic);
    // A peer that changes its header afterwards only changes what the next one to open it sees.
    let (_arena, fd) = Arena::create(2).unwrap();
    let poke = |at: u64, value: u32| {
        rustix::io::pwrite(&fd, &value.to_ne_bytes(), at).unwrap();
    };
    poke(12, 1);
    assert_eq!(open(fd.as_fd()), OpenError::Header);
    poke(12, 2);
    assert!(Arena::open(&fd).is_ok());
    poke(16, 4096);
    assert_eq!(open(fd.as_fd()), OpenError::Header);
    poke(8, 77);
    assert_eq!(open(fd.as_fd()), OpenError::Version);
    poke(0, 0);
    assert_eq!(open(fd.as_fd()), OpenError::Magic);
}

#[test]
/// More messages than that go on into further pages of the message ring.
fn a_little_traffic_touches_two_pages_a_direction() {
    let (arena, fd) = Arena::create(16).unwrap();
    let pages = || rustix::fs::fstat(&fd).unwrap().st_blocks as usize * 512 / PAGE;
    assert_eq!(pages(), 1, "the header");
    let d = arena.channel(9).unwrap().direction(0);
    for i in 0..250 {
        assert!(put(d, u64::from(i % 4) * 1024, &[1; 64], CopyHint::Ordinary));
        d.publish_data(i, 64);
        d.publish_control(i, 1);
        d.post_entry(i as usize % 8, Sge { addr: 0, rkey: i, len: 1024 });
    }
    assert_eq!(pages(), 3);
}

#[test]
fn offsets_are_checked() {
    let (arena, _fd) = Arena::create(1).unwrap();
    let d = arena.channel(0).unwrap().direction(1);
    let end = BUFFER_LEN as u64;
    let mut b = [0; 16];
    for hint in [CopyHint::Ordinary, CopyHint::Bulk] {
        assert!(put(d, end - 16, &b, hint) && put(d, end, &[], hint));
        assert!(
            !put(d, end - 15, &b, hint)
                && !put(d, end + 1, &[], hint)
                && !put(d, u64::MAX, &b, hint)
        );
        assert!(!get(d, end - 15, &mut b, hint) && !get(d, u64::MAX - 3, &mut b, hint));
        assert!(get(d, end - 16, &mut b, hint));
    }
    assert_eq!(d.take_entry(8), Sge::default());
    d.post_entry(8, Sge { addr: 1, rkey: 1, len: 1 });
    let sge = Sge { addr: 5, rkey: 6, len: 7 };
    d.post_entry(3, sge);
    assert_eq!(d.peek_entry(3), sge);
    assert_eq!(d.take_entry(3), sge);
    assert_eq!(d.take_entry(3), Sge::default());
}

#[test]
fn rings_across_laps_and_the_end_of_numbers() {
    let (arena, fd) = Arena::create(1).unwrap();
    const N: u32 = 100_000;
    for start in [0, u32::MAX - N / 2] {
        arena.channel(0).unwrap().wipe();
        let child = Child::start(|| {
            let d = Arena::open(&fd).unwrap().channel(0).unwrap().direction(0);
            for i in 0..N {
                // One control word for each half ring of data is the receiver's credit.
                if i >= DATA_RING && i % (DATA_RING / 2) == 0 {
                    let lap = i / (DATA_RING / 2) - 2;
                    until(|| d.poll_control(start.wrapping_add(lap)).is_some());
                    assert_eq!(d.poll_control(start.wrapping_add(lap)), Some(lap));
                }
                assert!(!d.data_published(start.wrapping_add(i)));
                d.publish_data(start.wrapping_add(i), i ^ 0xabcd);
                assert!(d.data_published(start.wrapping_add(i)));
            }
        });
        let d = arena.channel(0).unwrap().direction(0);
        for i in 0..N {
            let at = start.wrapping_add(i);
            until(|| d.poll_data(at).is_some());
            assert_eq!(d.poll_data(at), Some(i ^ 0xabcd));
            assert!(d.data_ready(at, DATA_RING) >= 1);
            assert_eq!(d.poll_data(at.wrapping_add(DATA_RING)), None, "the next lap is another");
            if (i + 1) % (DATA_RING / 2) == 0 {
                let lap = i / (DATA_RING / 2);
                assert!(!d.control_published(start.wrapping_add(lap)));
                d.publish_control(start.wrapping_add(lap), lap);
                assert_eq!(
                    d.poll_control(start.wrapping_add(lap).wrapping_sub(CONTROL_RING)),
                    None
                );
            }
        }
        assert!(child.collect());
    }
}

#[test]
fn holes_are_never_entries() {
    let (arena, fd) = Arena::create(1).unwrap();
    let d = arena.channel(0).unwrap().direction(0);
    (0..DATA_RING).for_each(|i| d.publish_data(i, i));
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&fd, flags, 0, arena_len(1).unwrap() as u64).unwrap();
    for i in 0..2 * DATA_RING {
        assert_eq!(d.poll_data(i), None);
        assert_eq!(d.poll_control(i.wrapping_sub(DATA_RING)), None);
    }
    assert_eq!(arena.channels(), 1);
}

/// Numbers without a pattern, the same in both processes.
fn mix(n: u64) -> u64 {
    let n = (n ^ n >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (n ^ n >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ n >> 32
}

#[test]
fn copies_of_all_sizes_arrive_before_their_word() {
    let (arena, fd) = Arena::create(1).unwrap();
    const ROUNDS: u32 = 3000;
    let payload: Vec<u8> = (0..400_000_u64).map(|i| mix(i) as u8).collect();
    let mut seen = vec![0_u8; 400_000];
    let plan = |i: u32| {
        let r = mix(u64::from(i));
        let size = match r % 4 {
            0 => mix(r) % 300,
            1 => mix(r) % 9000,
            2 => 4096 + mix(r) % 256,
            _ => mix(r) % 200_000,
        };
        let room = BUFFER_LEN as u64 / 2 - size;
        // Halves of the buffer in turn, so that the writer may be one message ahead.
        let to = u64::from(i % 2) * (BUFFER_LEN as u64 / 2) + mix(r ^ 1) % room;
        let hint = if r >> 8 & 1 == 0 { CopyHint::Bulk } else { CopyHint::Ordinary };
        (size as usize, to, (mix(r ^ 2) % 200_000) as usize, hint)
    };
    let child = Child::start(|| {
        let d = Arena::open(&fd).unwrap().channel(0).unwrap().direction(0);
        for i in 0..ROUNDS {
            let (size, to, from, hint) = plan(i);
            if i >= 2 {
                until(|| d.poll_control(i - 2).is_some());
            }
            assert!(put(d, to, &payload[from..from + size], hint));
            d.publish_data(i, size as u32);
        }
    });
    let d = arena.channel(0).unwrap().direction(0);
    for i in 0..ROUNDS {
        let (size, to, from, hint) = plan(i);
        until(|| d.poll_data(i).is_some());
        assert_eq!(d.poll_data(i), Some(size as u32));
        let at = (i % 67) as usize;
        assert!(get(d, to, &mut seen[at..at + size], hint));
        assert!(seen[at..at + size] == payload[from..from + size], "message {i} of {size} bytes");
        d.publish_control(i, 0);
    }
    assert!(child.collect());
}

fn sleep_on(waker: &waker::WakerRef) -> bool {
    let mut fds = [libc::pollfd { fd: waker.fd(), events: libc::POLLIN, revents: 0 }];
    let time = libc::timespec { tv_sec: 10, tv_nsec: 0 };
    rsocket_core::sys::wait(&mut fds, Some(&time), std::ptr::null()).unwrap() == 1
}

/// Waits for a word by the whole handshake: arm, look, sleep, disarm.
fn wait_by_waker(sleepers: Sleepers<'_>, mut there: impl FnMut() -> bool) {
    while !there() {
        let waker = waker::borrow().unwrap();
        let slot = sleepers.arm(waker.id()).unwrap();
        if !there() {
            assert!(sleep_on(&waker), "a lost wake-up");
        }
        waker.drain();
        sleepers.disarm(slot, waker.id());
        waker::give_back(waker);
    }
}

#[test]
fn sleeping_and_waking_loses_nothing() {
    let (arena, fd) = Arena::create(1).unwrap();
    const N: u32 = 20_000;
    let child = Child::start(|| {
        waker::forked();
        let channel = Arena::open(&fd).unwrap().channel(0).unwrap();
        let (there, back) = (channel.direction(0), channel.direction(1));
        for i in 0..N {
            wait_by_waker(there.data_waiters(), || there.poll_data(i).is_some());
            back.publish_data(i, i);
            back.data_waiters().wake(None);
        }
    });
    let channel = arena.channel(0).unwrap();
    let (there, back) = (channel.direction(0), channel.direction(1));
    for i in 0..N {
        // Irregular pauses, so that the peer is met before, in and after its handshake.
        for _ in 0..mix(u64::from(i)) % 400 {
            std::hint::spin_loop();
        }
        there.publish_data(i, i);
        there.data_waiters().wake(None);
        wait_by_waker(back.data_waiters(), || back.poll_data(i).is_some());
    }
    assert!(child.collect());
}

#[test]
fn a_killed_sleeper_is_noticed() {
    let (arena, _fd) = Arena::create(1).unwrap();
    let d = arena.channel(0).unwrap().direction(0);
    let child = Child::start(|| {
        waker::forked();
        let waker = waker::borrow().unwrap();
        d.data_waiters().arm(waker.id()).unwrap();
        d.publish_control(0, 0);
        sleep_on(&waker);
    });
    until(|| d.poll_control(0).is_some());
    child.kill();
    drop(child);
    let mut id = 0;
    d.publish_data(0, 0);
    assert!(d.data_waiters().wake_with(None, |waker| id = waker));
    assert_eq!(waker::try_wake(id), Woke::Gone);
    assert!(!d.data_waiters().wake(None), "its word is free again");
}

#[test]
fn a_child_leaves_its_parents_wakers_alone() {
    let (arena, _fd) = Arena::create(1).unwrap();
    let d = arena.channel(0).unwrap().direction(0);
    let (mine, set) = (waker::borrow().unwrap(), waker::borrow_for_set().unwrap());
    let child = Child::start(|| {
        let before = (mine.fd(), set.fd());
        waker::forked();
        assert!(mine.stale() && mine.fd() == -1);
        assert!(!rsocket_core::sys::is_private(before.0));
        assert_eq!(set.fd(), before.1, "a set's bell is the set's business");
        waker::forget(set);
        assert!(set.stale());
        waker::give_back(mine);
        let own = waker::borrow().unwrap();
        assert_ne!(own.id(), mine.id());
        assert_eq!(waker::try_wake(own.id()), Woke::Yes);
        assert_eq!(waker::try_wake(mine.id()), Woke::Yes, "the parent's is there still");
        assert_eq!(waker::try_wake(set.id()), Woke::Yes);
        d.publish_data(0, 0);
    });
    assert!(child.collect());
    assert!(d.poll_data(0).is_some());
    for waker in [mine, set] {
        assert!(!waker.stale() && sleep_on(&waker) && waker.drain());
        waker::give_back(waker);
    }
}

/// Shared between siblings, as a slot is.
struct Shared {
    lock: OwnedLock,
    inside: AtomicU32,
    total: AtomicU32,
}

fn shared() -> &'static Shared {
    let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    // SAFETY: a fresh anonymous mapping of one page, never unmapped; zeroes are valid for all of
    // Shared.
    unsafe {
        let page = rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            PAGE,
            protection,
            rustix::mm::MapFlags::SHARED,
        );
        &*page.unwrap().cast::<Shared>()
    }
}

#[test]
fn the_lock_of_a_killed_process_is_broken() {
    let s = shared();
    for _ in 0..5 {
        s.inside.store(0, Ordering::SeqCst);
        let child = Child::start(|| {
            assert!(matches!(s.lock.lock(thread::tid()), Taken::Clean));
            s.inside.store(1, Ordering::SeqCst);
            loop {
                std::thread::sleep(std::time::Duration::from_secs(1));
            }
        });
        until(|| s.inside.load(Ordering::SeqCst) == 1);
        let me = thread::tid();
        assert_eq!(s.lock.try_lock(me), None);
        child.kill();
        // Not collected yet: a corpse holds nothing all the same.
        assert_eq!(s.lock.lock(me), Taken::Broken);
        s.lock.unlock(me);
    }
}

#[test]
fn processes_take_turns() {
    let s = shared();
    const N: u32 = 30_000;
    let work = || {
        for _ in 0..N {
            assert_eq!(s.lock.lock(thread::tid()), Taken::Clean);
            s.total.store(s.total.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            s.lock.unlock(thread::tid());
        }
    };
    let children = [Child::start(work), Child::start(work), Child::start(work)];
    work();
    assert!(children.into_iter().all(Child::collect));
    assert_eq!(s.total.load(Ordering::Relaxed), 4 * N);
    assert_eq!(s.lock.owner(), 0);
}

#[test]
fn a_live_holder_is_waited_for() {
    let s = shared();
    let child = Child::start(|| {
        assert_eq!(s.lock.lock(thread::tid()), Taken::Clean);
        s.inside.store(1, Ordering::SeqCst);
        std::thread::sleep(std::time::Duration::from_millis(60));
        s.inside.store(2, Ordering::SeqCst);
        s.lock.unlock(thread::tid());
    });
    until(|| s.inside.load(Ordering::SeqCst) == 1);
    assert_eq!(s.lock.lock(thread::tid()), Taken::Clean);
    assert_eq!(s.inside.load(Ordering::SeqCst), 2);
    s.lock.unlock(thread::tid());
    assert!(child.collect());
}

/// The lock that the signal handler below meets, and what it met.
static MET: Shared =
    Shared { lock: OwnedLock::new(), inside: AtomicU32::new(0), total: AtomicU32::new(0) };

extern "C" fn meet(_: libc::c_int) {
    let me = thread::tid();
    match MET.lock.lock(me) {
        Taken::Own => {
            MET.inside.fetch_add(1, Ordering::Relaxed);
        }
        Taken::Clean => {
            MET.total.fetch_add(1, Ordering::Relaxed);
            MET.lock.unlock(me);
        }
        // SAFETY: ends the child, which the parent takes for a failure.
        Taken::Broken => unsafe { libc::_exit(9) },
    }
}

#[test]
fn a_signal_handler_meets_its_own_thread() {
    // In a child, so that the signal finds the one thread there is.
    let child = Child::start(|| {
        let me = thread::tid();
        // SAFETY: a handler that calls nothing but atomics and system calls, and a timer for it.
        unsafe {
            libc::signal(libc::SIGALRM, meet as extern "C" fn(libc::c_int) as libc::sighandler_t);
            let every = libc::timeval { tv_sec: 0, tv_usec: 50 };
            let timer = libc::itimerval { it_interval: every, it_value: every };
            libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut());
        }
        until(|| {
            assert_eq!(MET.lock.lock(me), Taken::Clean);
            MET.lock.unlock(me);
            MET.inside.load(Ordering::Relaxed) > 20 && MET.total.load(Ordering::Relaxed) > 20
        });
        assert_eq!((MET.lock.owner(), thread::held()), (0, 0));
    });
    assert!(child.collect());
}

#[test]
fn no_descriptor_is_left_open_by_open() {
    let (_arena, fd) = Arena::create(1).unwrap();
    let raw = fd.as_raw_fd();
    let again = Arena::open(&fd).unwrap();
    drop(fd);
    // The mapping outlives the descriptor.
    again.channel(0).unwrap().direction(0).publish_data(0, 1);
    assert!(raw >= 0);
}

/// What a vfork child does.
extern "C" fn ring_in_a_child(waker: *mut core::ffi::c_void) -> libc::c_int {
    // SAFETY: the test's own, which waits for our end.
    let waker = unsafe { &*waker.cast::<waker::WakerRef>() };
    libc::c_int::from(thread::as_guest(|| waker::try_wake(waker.id())) != Woke::Yes)
}

/// Its descriptors are gone with it, and their numbers are the next ones' in its parent.
#[test]
fn what_a_vfork_child_opens_is_not_its_parents() {
    let (mut one, other) = (waker::borrow_for_set().unwrap(), waker::borrow_for_set().unwrap());
    let mut stack = vec![0_u128; 16 << 10];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: as vfork, but for the stack, which is ours until the child has ended; so is the
    // argument.
    let child = unsafe {
        let top = stack.as_mut_ptr_range().end;
        libc::clone(ring_in_a_child, top.cast(), flags, (&raw mut one).cast())
    };
    let mut status = -1;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert!(one.drain());
    assert_eq!(waker::try_wake(other.id()), Woke::Yes);
    assert!(other.drain());
    assert_eq!(waker::try_wake(one.id()), Woke::Yes);
    assert!(one.drain(), "another bell was rung");
    waker::forget(one);
    waker::forget(other);
}
