//! Spins and yields over a simulated machine: what is late never pays, and is not tried again at
//! once.

use core::cell::{Cell, RefCell};
use std::collections::VecDeque;

use super::*;
use crate::backoff::{Backoff, LATE as LATE_TICKS};

/// Ticks in a nanosecond.
const TICKS: u64 = 3;
/// A busy neighbour's slice, in nanoseconds.
const SLICE: u64 = 4_000_000;
/// In time, in nanoseconds: the peer's share of a round.
const TURN: u64 = 2_000;

/// A machine with one clock, which each reading moves on, and a CPU that others take now and then.
#[derive(Default)]
struct Simulated {
    now: Cell<u64>,
    backoff: Backoff,
    saturation: Saturation,
    /// What the kernel would say.
    saturated: Cell<bool>,
    /// Nanoseconds that the next yields take; [`TURN`] when there is none left.
    yields: RefCell<VecDeque<u64>>,
    /// How many there were.
    yielded: Cell<u32>,
    /// Nanoseconds that others take at the next readings of the clock.
    taken: RefCell<VecDeque<u64>>,
}

impl Simulated {
    fn new() -> Self {
        let new = Self::default();
        new.now.set(1_000_000_000);
        new
    }

    fn pass(&self, ns: u64) {
        self.now.set(self.now.get() + ns);
    }
}

impl Machine for Simulated {
    fn cpu(&self) -> u32 {
        1
    }
    fn yield_now(&self) {
        self.yielded.set(self.yielded.get() + 1);
        self.pass(self.yields.borrow_mut().pop_front().unwrap_or(TURN));
    }
    fn now_ns(&self) -> u64 {
        self.pass(self.taken.borrow_mut().pop_front().unwrap_or(0) + 300);
        self.now.get()
    }
    fn ticks(&self) -> u64 {
        self.now.get() * TICKS
    }
    fn backoff(&self, _: u32) -> &Backoff {
        &self.backoff
    }
    fn saturation(&self) -> &Saturation {
        &self.saturation
    }
    fn is_saturated(&self) -> bool {
        self.saturated.get()
    }
}

const CAP: u32 = 50_000;

/// A spin against a peer elsewhere.
fn spin(a: &mut Adaptive, m: &Simulated, ready: impl FnMut() -> bool) -> Spun {
    a.spin_by(m, (CAP, CHEAP_LOOKS), || 0, ready)
}

/// A spin against a peer on this CPU, who answers in a turn.
fn beside(a: &mut Adaptive, m: &Simulated) -> Spun {
    a.spin_by(m, (CAP, CHEAP_LOOKS), || 1, || true)
}

fn give_way(a: &mut Adaptive, m: &Simulated, takes: u64, ready: impl FnMut() -> bool) -> bool {
    m.yields.borrow_mut().extend([takes]);
    let done = a.give_way_by(m, m.ticks(), CAP, ready);
    m.yields.borrow_mut().clear();
    done
}

#[test]
fn an_idle_machine_never_backs_off() {
    let (mut a, m) = (Adaptive::new(), Simulated::new());
    for round in 0..10_000_u32 {
        let mut looks = 0;
        let mut soon = || {
            looks += 1;
            looks > round % 200
        };
        assert_eq!(spin(&mut a, &m, &mut soon), Spun::Ready);
        assert_eq!(beside(&mut a, &m), Spun::Ready);
        m.pass(u64::from(round % 7) * 3_000_000);
    }
    assert!(!m.backoff.holds(|| unreachable!("the clock is not read for it")));
}

#[test]
fn a_late_look_never_pays() {
    for found in [true, false] {
        for taken_at in 1..20 {
            let (mut a, m) = (Adaptive::new(), Simulated::new());
            m.taken
                .borrow_mut()
                .extend((0..=taken_at).map(|i| if i == taken_at { SLICE } else { 0 }));
            let before = a;
            // It comes while the CPU is away.
            let spun = spin(&mut a, &m, || found && m.now.get() > 1_000_000_000 + SLICE);
            assert!(matches!(spun, Spun::Late | Spun::Wanted), "{spun:?}");
            assert_eq!(a, before, "nothing is learnt from it but that");
            assert_eq!(spin(&mut a, &m, || true), Spun::Wanted, "the next one sleeps at once");
        }
    }
}

#[test]
fn a_late_yield_never_pays_and_the_next_waits_sleep() {
    let (mut a, m) = (Adaptive::new(), Simulated::new());
    assert_eq!(beside(&mut a, &m), Spun::Ready);
    let before = a;
    m.yields.borrow_mut().extend([SLICE]);
    assert_eq!(beside(&mut a, &m), Spun::Late);
    assert_eq!(a, before);
    let yielded = m.yielded.get();
    for _ in 0..100 {
        assert_eq!(beside(&mut a, &m), Spun::Wanted);
        m.pass(100_000);
    }
    assert_eq!(m.yielded.get(), yielded);
    m.pass(10 * SLICE);
    assert_eq!(beside(&mut a, &m), Spun::Ready, "it is found out again");
}

#[test]
fn beside_a_busy_loop_little_time_is_lost() {
    let (mut a, m) = (Adaptive::new(), Simulated::new());
    let (began, mut lost) = (m.now.get(), 0);
    while m.now.get() - began < 10_000_000_000 {
        m.yields.borrow_mut().extend([SLICE]);
        if beside(&mut a, &m) == Spun::Wanted {
            m.pass(10_000);
        } else {
            lost += SLICE;
        }
        m.yields.borrow_mut().clear();
    }
    assert!(lost * 50 < 10_000_000_000, "{lost}");
    // The neighbour is gone: at most a second later all is as before.
    m.pass(1_100_000_000);
    assert!((0..100).all(|_| beside(&mut a, &m) == Spun::Ready));
}

#[test]
fn gives_way_as_long_as_that_brings_something() {
    let (mut a, m) = (Adaptive::new(), Simulated::new());
    let mut turns = 0;
    let second = || {
        turns += 1;
        turns == 2
    };
    assert!(give_way(&mut a, &m, TURN, second));
    assert_eq!(a.limit(10_000), 10_000);
    while !a.rests() {
        assert!(!give_way(&mut a, &m, TURN, || false));
        a.slept(500_000, CAP);
    }
    let mut rests = 2;
    while a.rests() {
        rests += 1;
    }
    assert_eq!(rests, RESTS, "now and then it is tried");
    assert!(give_way(&mut a, &m, TURN, || true));
    assert_eq!(a.limit(10_000), 10_000);
    assert!(!m.backoff.holds(|| unreachable!()));
}

#[test]
fn gives_way_no_more_where_others_have_the_cpu_each_time() {
    let (mut a, m) = (Adaptive::new(), Simulated::new());
    assert!(give_way(&mut a, &m, TURN, || true));
    for _ in 0..=LATE - LAST_LATE {
        assert!(
            give_way(&mut a, &m, SLICE, || true) && a.pays(),
            "it may be the machine that was held up"
        );
    }
    assert!(give_way(&mut a, &m, TURN, || true));
    assert_eq!(a.to_raw(), u32::MAX, "one that is in time ends the row");
    for _ in 0..=LATE - LAST_LATE {
        assert!(give_way(&mut a, &m, SLICE, || true));
    }
    assert!(give_way(&mut a, &m, SLICE, || true), "it is there");
    let yielded = m.yielded.get();
    assert!(!give_way(&mut a, &m, SLICE, || true), "but a sleeper would have had it sooner");
    assert_eq!(m.yielded.get(), yielded);
    m.pass(5 * SLICE);
    assert!(
        give_way(&mut a, &m, SLICE, || true) && m.yielded.get() == yielded + 1,
        "it is found out again"
    );
    assert!(!give_way(&mut a, &m, SLICE, || true), "once");
    m.pass(20 * SLICE);
    let mut looks = 0;
    let mut never = || {
        looks += 1;
        false
    };
    assert!(!give_way(&mut a, &m, SLICE, &mut never), "others have the CPU for long");
    m.pass(100 * SLICE);
    assert!(!give_way(&mut a, &m, TURN, &mut never));
    assert_eq!(looks, 1 + TURNS);
}

#[test]
fn what_counts_as_late_is_no_wake_up_and_any_slice() {
    assert!((100_000..=700_000).contains(&(LATE_TICKS / TICKS)));
}

/// How long so many waits in vain spin in all, in nanoseconds, one of them each millisecond.
fn in_vain(a: &mut Adaptive, m: &Simulated, waits: u32) -> u64 {
    let mut spun = 0;
    for _ in 0..waits {
        let began = m.now.get();
        assert_eq!(spin(a, m, || false), Spun::TimeOut);
        spun += m.now.get() - began;
        m.pass(1_000_000);
    }
    spun
}

#[test]
fn on_a_saturated_machine_spins_in_vain_cost_little() {
    let (mut a, m) = (Adaptive::new(), Simulated::new());
    let idle = in_vain(&mut a, &m, 1000);
    m.saturated.set(true);
    in_vain(&mut a, &m, 10);
    assert!(m.saturation.holds(|| m.ticks()));
    let saturated = in_vain(&mut a, &m, 1000);
    assert!(saturated * 5 < idle, "{saturated} {idle}");
    // What comes soon is found all the same, and then a longer spin is tried once.
    while a.to_raw() != u32::MAX {
        let mut looks = 0;
        spin(&mut a, &m, || {
            looks += 1;
            looks > CHEAP_LOOKS * 2
        });
    }
    let first = in_vain(&mut a, &m, 1);
    assert!(first > 5_000 && first < u64::from(SATURATED_NS) * 2, "{first}");
    assert!(in_vain(&mut a, &m, 10) < 1_000);
    // The others are gone.
    m.saturated.set(false);
    m.pass(1_000_000_000);
    assert!(in_vain(&mut a, &m, 1000) > idle * 9 / 10);
}

#[test]
fn a_moment_with_other_work_changes_nothing() {
    let (mut a, m) = (Adaptive::new(), Simulated::new());
    let (mut b, other) = (Adaptive::new(), Simulated::new());
    for round in 0..1000_u32 {
        m.saturated.set(round % 3 == 0);
        assert_eq!(in_vain(&mut a, &m, 2), in_vain(&mut b, &other, 2));
        m.pass(2_000_000);
        other.pass(2_000_000);
        m.saturated.set(false);
        assert_eq!(in_vain(&mut a, &m, 2), in_vain(&mut b, &other, 2));
        m.pass(2_000_000);
        other.pass(2_000_000);
    }
}
