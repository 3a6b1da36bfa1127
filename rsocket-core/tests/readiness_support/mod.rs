//! A simulated device beside real TCP pairs, for the readiness tests: slots are plain structs,
//! wakers are eventfds, and "the peer" is the test itself.
#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used)]

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use rsocket_core::given::In;
use rsocket_core::readiness::epoll::{Change, Ctl, Pwait, Registry, Wait};
use rsocket_core::readiness::source::{Events, Look, Meant, Progress, SlotId, Source, Waker};

/// What the simulated socket is just now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The kernel's alone.
    Plain,
    /// These directions are still asked of the kernel.
    Between(Events),
    /// Wholly on the device.
    Settled,
}

/// One slot.
pub struct State {
    pub mode: Mode,
    pub epoch: u32,
    pub received: u64,
    pub consumed: u64,
    pub full: bool,
    pub room: u64,
    pub recheck_after: Option<Duration>,
    /// A sibling holds the socket too.
    pub related: bool,
    /// The next look finds that the switch is complete.
    pub settle_at_look: bool,
    /// How long that look takes.
    pub look_takes: Duration,
    /// No waiter slot is free.
    pub crowded: bool,
    /// What `heard` hides from the program.
    pub hide: Events,
    /// What the kernel has said.
    pub told: Events,
    sleep_in: Vec<(u64, bool)>,
    sleep_out: Vec<(u64, bool)>,
}

pub const SLOTS: usize = 20_000;
static STATES: [Mutex<State>; SLOTS] = [const {
    Mutex::new(State {
        mode: Mode::Plain,
        epoch: 0,
        received: 0,
        consumed: 0,
        full: false,
        room: 0,
        recheck_after: None,
        related: false,
        settle_at_look: false,
        look_takes: Duration::ZERO,
        crowded: false,
        hide: Events::empty(),
        told: Events::empty(),
        sleep_in: Vec::new(),
        sleep_out: Vec::new(),
    })
}; SLOTS];
static NEXT: AtomicU32 = AtomicU32::new(1);
static BY_FD: [AtomicU32; 65536] = [const { AtomicU32::new(0) }; 65536];
static READY: Mutex<Vec<SlotId>> = Mutex::new(Vec::new());
static WAKERS: [AtomicI32; 4096] = [const { AtomicI32::new(-1) }; 4096];
static NEXT_WAKER: AtomicU32 = AtomicU32::new(1);
static FREE_WAKERS: Mutex<Vec<u64>> = Mutex::new(Vec::new());
pub static LOOKS: AtomicU64 = AtomicU64::new(0);
pub static RINGS: AtomicU64 = AtomicU64::new(0);
/// Microseconds that `spin` spins.
pub static SPIN_US: AtomicU64 = AtomicU64::new(0);
/// What a peer does as soon as a look at the ready bits has found a set's waker still armed.
pub static MEANWHILE: Mutex<Option<Box<dyn FnOnce() + Send>>> = Mutex::new(None);
/// For how many ticks a look at all ready bits serves.
pub static BITS_SERVE: AtomicU64 = AtomicU64::new(0);

pub static SETS: Registry<Fake> = Registry::new(Fake);

pub struct Fake;

#[derive(Clone, Copy)]
pub struct FakeWaker(u64);

impl Waker for FakeWaker {
    fn fd(&self) -> RawFd {
        WAKERS[self.0 as usize].load(SeqCst)
    }
    fn id(&self) -> u64 {
        self.0
    }
    fn drain(&self) {
        let mut b = [0_u8; 8];
        let _ = rustix::io::read(rsocket_core::sys::borrow(self.fd()), &mut b);
    }
}

fn waker() -> FakeWaker {
    if let Some(id) = FREE_WAKERS.lock().unwrap().pop() {
        return FakeWaker(id);
    }
    let id = NEXT_WAKER.fetch_add(1, SeqCst);
    // SAFETY: no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
    WAKERS[id as usize].store(fd, SeqCst);
    FakeWaker(u64::from(id))
}

pub fn wake(id: u64) {
    RINGS.fetch_add(1, SeqCst);
    let fd = WAKERS[id as usize].load(SeqCst);
    let _ = rustix::io::write(rsocket_core::sys::borrow(fd), &1_u64.to_ne_bytes());
}

pub fn state<R>(slot: SlotId, f: impl FnOnce(&mut State) -> R) -> R {
    f(&mut STATES[slot.raw() as usize].lock().unwrap())
}

pub fn find(fd: RawFd) -> Option<SlotId> {
    usize::try_from(fd).ok().and_then(|fd| SlotId::from_raw(BY_FD.get(fd)?.load(SeqCst)))
}

impl State {
    fn disarm(&mut self, waker: u64) {
        self.sleep_in.retain(|(b, _)| *b != waker);
        self.sleep_out.retain(|(b, _)| *b != waker);
    }

    fn ready(&self) -> Events {
        let mut on = Events::IN | Events::OUT;
        match self.mode {
            Mode::Plain => on = Events::empty(),
            Mode::Between(ask) => on -= ask,
            Mode::Settled => {}
        }
        let mut ready = Events::empty();
        if self.received > self.consumed {
            ready |= Events::IN;
        }
        if !self.full {
            ready |= Events::OUT;
        }
        ready & on
    }
}

impl Source for Fake {
    type Waker = FakeWaker;
    fn look(&self, slot: SlotId, _: RawFd) -> Look {
        LOOKS.fetch_add(1, SeqCst);
        let turn = state(slot, |s| {
            let turn = core::mem::take(&mut s.settle_at_look);
            if turn {
                (s.mode, s.epoch) = (Mode::Settled, s.epoch + 1);
            }
            turn
        });
        if turn {
            std::thread::sleep(state(slot, |s| s.look_takes));
            // From inside, perhaps under the set's lock.
            SETS.mode_changed(slot);
        }
        state(slot, |s| {
            let ask = match s.mode {
                Mode::Plain => Events::IN | Events::OUT,
                Mode::Between(ask) => ask,
                Mode::Settled => Events::empty(),
            };
            Look { ready: s.ready(), ask }
        })
    }
    fn heard(&self, slot: SlotId, _: RawFd, kernel: Events) -> Events {
        state(slot, |s| {
            s.told |= kernel;
            let mut seen = kernel & (Events::HUP | Events::ERR | Events::RDHUP | Events::PRI);
            if kernel.intersects(Events::RDHUP | Events::HUP | Events::ERR) {
                seen |= Events::IN;
            }
            if let Mode::Between(ask) = s.mode {
                seen |= kernel & ask;
            }
            seen - s.hide
        })
    }
    fn arm(&self, slot: SlotId, interest: Events, waker: u64, mark: bool) -> bool {
        state(slot, |s| {
            if s.ready().intersects(interest) || s.crowded {
                s.disarm(waker);
                return false;
            }
            let word = (waker, mark);
            // As the real one: the data words whatever the interest, and never twice.
            if !s.sleep_in.contains(&word) {
                s.sleep_in.push(word);
            }
            if interest.contains(Events::OUT) && !s.sleep_out.contains(&word) {
                s.sleep_out.push(word);
            }
            true
        })
    }
    fn arm_edge(&self, slot: SlotId, seen: u64, waker: u64, mark: bool) -> bool {
        state(slot, |s| {
            if s.received != seen || s.crowded {
                s.disarm(waker);
                return false;
            }
            if !s.sleep_in.contains(&(waker, mark)) {
                s.sleep_in.push((waker, mark));
            }
            true
        })
    }
    fn disarm(&self, slot: SlotId, waker: u64) {
        state(slot, |s| s.disarm(waker));
    }
    fn collect_ready(&self, f: &mut dyn FnMut(SlotId, Meant<'_>)) {
        let all = READY.lock().unwrap().clone();
        for slot in all {
            f(slot, &|waker, _| {
                if state(slot, |s| s.sleep_in.contains(&(waker, true))) {
                    if let Some(act) = MEANWHILE.lock().unwrap().take() {
                        act();
                    }
                    return false;
                }
                let mut ready = READY.lock().unwrap();
                let before = ready.len();
                ready.retain(|s| *s != slot);
                ready.len() != before
            });
        }
    }
    fn bits_serve(&self) -> u64 {
        BITS_SERVE.load(SeqCst)
    }
    fn settled(&self, slot: SlotId) -> bool {
        state(slot, |s| s.mode == Mode::Settled)
    }
    fn recheck_after(&self, slot: SlotId) -> Option<Duration> {
        state(slot, |s| s.recheck_after)
    }
    fn another_name(&self, slot: SlotId, closing: RawFd) -> Option<RawFd> {
        (0..2048).find(|fd| *fd != closing && BY_FD[*fd as usize].load(SeqCst) == slot.raw())
    }
    fn may_be_taken(&self, slot: SlotId) -> bool {
        state(slot, |s| s.related && s.mode == Mode::Plain)
    }
    fn spin(&self, probe: &mut dyn FnMut() -> bool, _: &[SlotId]) -> bool {
        let start = std::time::Instant::now();
        while start.elapsed() < Duration::from_micros(SPIN_US.load(SeqCst)) {
            if probe() {
                return true;
            }
        }
        false
    }
    fn mode_epoch(&self, slot: SlotId) -> u32 {
        state(slot, |s| s.epoch)
    }
    fn on_device(&self, slot: SlotId) -> bool {
        state(slot, |s| s.mode != Mode::Plain)
    }
    fn progress(&self, slot: SlotId) -> Progress {
        state(slot, |s| Progress { received: s.received, room: s.room })
    }
    fn borrow_waker(&self, _: usize) -> Option<FakeWaker> {
        Some(waker())
    }
    fn borrow_set_waker(&self) -> Option<FakeWaker> {
        Some(waker())
    }
    fn give_back_waker(&self, waker: FakeWaker) {
        FREE_WAKERS.lock().unwrap().push(waker.0);
    }
    fn give_back_set_waker(&self, waker: FakeWaker) {
        FREE_WAKERS.lock().unwrap().push(waker.0);
    }
    fn forget_waker(&self, _: FakeWaker) {}
    fn wake(&self, waker: u64) {
        wake(waker);
    }
}

/// A connection: `here` is the tracked end, `there` the peer's.
pub struct Conn {
    pub here: TcpStream,
    pub there: Option<TcpStream>,
    pub slot: SlotId,
}

pub fn new_slot(fd: RawFd) -> SlotId {
    let slot = SlotId::from_raw(NEXT.fetch_add(1, SeqCst)).unwrap();
    BY_FD[fd as usize].store(slot.raw(), SeqCst);
    slot
}

pub fn alias_fd(fd: RawFd, slot: SlotId) {
    BY_FD[fd as usize].store(slot.raw(), SeqCst);
}

pub fn forget_fd(fd: RawFd) {
    SETS.member_closing(fd);
    BY_FD[fd as usize].store(0, SeqCst);
}

pub fn tcp_pair() -> (TcpStream, TcpStream) {
    let l = TcpListener::bind("127.0.0.1:0").unwrap();
    let a = TcpStream::connect(l.local_addr().unwrap()).unwrap();
    let (b, _) = l.accept().unwrap();
    a.set_nonblocking(true).unwrap();
    (a, b)
}

impl Conn {
    pub fn new() -> Self {
        let (here, there) = tcp_pair();
        let slot = new_slot(here.as_raw_fd());
        Self { here, there: Some(there), slot }
    }

    pub fn settled() -> Self {
        let c = Self::new();
        c.mode(Mode::Settled);
        c
    }

    pub fn fd(&self) -> RawFd {
        self.here.as_raw_fd()
    }

    pub fn mode(&self, mode: Mode) {
        state(self.slot, |s| {
            s.mode = mode;
            s.epoch += 1;
        });
        SETS.mode_changed(self.slot);
    }

    /// As [`Self::mode`], by another process, which does not say so here.
    pub fn taken(&self, mode: Mode) {
        state(self.slot, |s| (s.mode, s.epoch) = (mode, s.epoch + 1));
    }

    pub fn related(&self, so: bool) {
        state(self.slot, |s| s.related = so);
    }

    /// The peer's bytes, over the device.
    pub fn deliver(&self, n: u64) {
        let rings = state(self.slot, |s| {
            s.received += n;
            core::mem::take(&mut s.sleep_in)
        });
        self.wake(rings);
    }

    pub fn consume(&self, n: u64) {
        state(self.slot, |s| s.consumed += n);
    }

    /// A send found no room.
    pub fn fill(&self) {
        state(self.slot, |s| s.full = true);
        SETS.starved(self.slot);
    }

    /// The peer makes room.
    pub fn relieve(&self) {
        let rings = state(self.slot, |s| {
            if s.full {
                s.room += 1;
            }
            s.full = false;
            core::mem::take(&mut s.sleep_out)
        });
        self.wake(rings);
    }

    /// As [`Self::deliver`], by a peer that has found two sets' wakers. The peer is held up when it
    /// has woken the one at `first`; it goes on as [`MEANWHILE`] says.
    pub fn deliver_in_two_steps(&self, n: u64, first: usize) {
        let (now, later) = state(self.slot, |s| {
            s.received += n;
            let now = s.sleep_in.remove(first);
            (now, s.sleep_in.first().copied().unwrap())
        });
        wake_slot(self.slot, vec![now]);
        let slot = self.slot;
        *MEANWHILE.lock().unwrap() = Some(Box::new(move || {
            state(slot, |s| s.sleep_in.retain(|word| *word != later));
            wake_slot(slot, vec![later]);
        }));
    }

    fn wake(&self, rings: Vec<(u64, bool)>) {
        wake_slot(self.slot, rings);
    }

    pub fn armed(&self) -> bool {
        state(self.slot, |s| !s.sleep_in.is_empty())
    }
}

fn wake_slot(slot: SlotId, rings: Vec<(u64, bool)>) {
    for (waker, mark) in rings {
        let mut ready = READY.lock().unwrap();
        if mark && !ready.contains(&slot) {
            ready.push(slot);
        }
        drop(ready);
        wake(waker);
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        forget_fd(self.fd());
    }
}

/// A set.
pub struct Ep(pub RawFd);

unsafe extern "C-unwind" fn real_ctl(ep: i32, op: i32, fd: i32, ev: *mut libc::epoll_event) -> i32 {
    // SAFETY: passed on.
    unsafe { libc::epoll_ctl(ep, op, fd, ev) }
}

pub static REAL_WAITS: AtomicU64 = AtomicU64::new(0);

unsafe extern "C-unwind" fn real_wait(
    ep: i32,
    ev: *mut libc::epoll_event,
    max: i32,
    ms: i32,
    mask: *const libc::sigset_t,
) -> i32 {
    REAL_WAITS.fetch_add(1, SeqCst);
    // SAFETY: passed on.
    unsafe { libc::epoll_pwait(ep, ev, max, ms, mask) }
}

impl Ep {
    pub fn new() -> Self {
        // SAFETY: no pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        assert!(fd >= 0);
        SETS.created(fd);
        Self(fd)
    }

    pub fn ctl(&self, op: i32, fd: RawFd, events: u32, data: u64) -> Result<(), i32> {
        let event = libc::epoll_event { events, u64: data };
        // SAFETY: a valid event, and the kernel's own call.
        let (event, real) = unsafe { (In::new(&event), Ctl::new(real_ctl)) };
        SETS.ctl(Change { epfd: self.0, op, fd, event }, find, real).map_err(|e| e.code())
    }

    pub fn add(&self, fd: RawFd, events: u32, data: u64) {
        self.ctl(libc::EPOLL_CTL_ADD, fd, events, data).unwrap();
    }

    /// Events as (events, data), sorted by data.
    pub fn wait(&self, max: usize, timeout: Option<Duration>) -> Vec<(u32, u64)> {
        self.try_wait(max, timeout).unwrap()
    }

    pub fn try_wait(&self, max: usize, timeout: Option<Duration>) -> Result<Vec<(u32, u64)>, i32> {
        let mut ev = vec![libc::epoll_event { events: 0, u64: 0 }; max];
        let (events, mask) = (ev.as_mut_ptr(), std::ptr::null());
        // SAFETY: room for max, no mask, and the kernel's own call.
        let (wait, real) = unsafe {
            (Wait::new(self.0, events, max as i32, timeout, mask), Pwait::new(real_wait))
        };
        let n = SETS.wait(wait, real);
        let mut got: Vec<_> =
            ev.into_iter().take(n.map_err(|e| e.code())?).map(|e| (e.events, e.u64)).collect();
        got.sort_by_key(|e| e.1);
        Ok(got)
    }

    pub fn now(&self) -> Vec<(u32, u64)> {
        self.wait(64, Some(Duration::ZERO))
    }

    /// Nothing is expected, not even a little later.
    pub fn soon(&self) -> Vec<(u32, u64)> {
        self.wait(64, Some(Duration::from_millis(100)))
    }
    /// Something is expected.
    pub fn told(&self) -> Vec<(u32, u64)> {
        self.wait(64, Some(LONG))
    }
}

impl Drop for Ep {
    fn drop(&mut self) {
        SETS.closed(self.0);
        // SAFETY: ours.
        unsafe { libc::close(self.0) };
    }
}

/// As long as what is expected is waited for: others use the machine, too.
pub const LONG: Duration = Duration::from_secs(20);

/// CPU time of this thread.
pub fn cpu() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

pub const IN: u32 = libc::EPOLLIN as u32;
pub const OUT: u32 = libc::EPOLLOUT as u32;
pub const RDHUP: u32 = libc::EPOLLRDHUP as u32;
pub const HUP: u32 = libc::EPOLLHUP as u32;
pub const ERR: u32 = libc::EPOLLERR as u32;
pub const ET: u32 = libc::EPOLLET as u32;
pub const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
pub const ADD: i32 = libc::EPOLL_CTL_ADD;
pub const MOD: i32 = libc::EPOLL_CTL_MOD;
pub const DEL: i32 = libc::EPOLL_CTL_DEL;
