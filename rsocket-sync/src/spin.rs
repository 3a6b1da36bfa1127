//! Spinning before sleeping: as long as it has paid lately, never against a peer on the same CPU.
//!
//! A sleep and a wake-up cost as much as hundreds of cache-line hand-overs, so a short spin decides
//! every round trip. But a spin that fails is CPU thrown away. A spin on the CPU that the peer
//! needs keeps away the very thing it waits for. [`Adaptive`] is a plain number for the caller to
//! keep; it knows neither what is waited for nor what sleeping is.
#![forbid(unsafe_code)]

use rsocket_host::{sys, thread};

use super::backoff::{self, Backoff};
use super::saturation::{self, Saturation};

/// Where the cap ends up after failures.
const LEAST_NS: u32 = 2_000;

/// What it is at most before anything is known. Where spinning has paid, it is the whole of what is
/// configured. That should be longer than a wake-up takes. Otherwise two ends that both sleep do
/// not come out of it, since each has given up before the other is awake.
pub const FIRST_NS: u32 = 10_000;

/// Once even the shortest spin has failed and a long sleep followed, one wait in so many is begun
/// with a spin. That spin is a long one. Also what the number of [`Adaptive`] is at most while it
/// counts them.
const RESTS: u32 = 16;

/// What a wake-up takes, about; in a trial the peer's comes first.
const WAKE_UP_NS: u32 = 30_000;

/// Of the shortest spins one in so many is a long one instead. Two ends that both sleep find each
/// other only if one of them is awake for as long as the other's wake-up takes.
const TRIALS: u32 = 16;

/// The number of an [`Adaptive`] whose next spin is that one.
const TRIAL: u32 = u32::MAX - 1;

/// Its number after the CPU was given away and was away for long, once. The number is one less each
/// time that this happens in a row, down to [`LAST_LATE`]. From there on there is a back-off each
/// time. A machine that is itself held up by others, as a virtual one is, is late now and then
/// whatever we do. There a sleeper would be late too.
const LATE: u32 = TRIAL - 1;
const LAST_LATE: u32 = LATE - 7;

/// Its number with all of the short ones ahead; it is one less with each, down to [`LAST_SHORT`].
const SHORT: u32 = RESTS + TRIALS;

/// Its number with one short spin ahead.
const LAST_SHORT: u32 = RESTS + 1;

/// Looks between two readings of the clock, where a look is a few reads of memory.
pub const CHEAP_LOOKS: u32 = 32;

/// The same, where a look asks a device's queue.
pub const DEAR_LOOKS: u32 = 4;

/// What a spin lasts at most where every CPU has other work. That is less than a sleep and a
/// wake-up take of the CPU's time, and enough for a peer that is about to answer.
const SATURATED_NS: u32 = 5_000;

/// How often the only CPU is given away before the thread sleeps. The first in turn may be a third
/// thread, or this one itself. The scheduler runs no peer that had more of the CPU than this
/// thread. A few turns in vain make up for that. A thread that sleeps instead leaves the debt to
/// the peer, which then cannot give way to it, and both sleep every time.
const TURNS: u32 = 40;

/// Where they take so long, in ticks of [`sys::ticks`], a sleeper has the CPU back sooner: about a
/// millisecond.
const LONG_TURNS: u64 = 3_000_000;

/// How a spin ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spun {
    /// What was waited for is there.
    Ready,
    /// It is not, and the time is over.
    TimeOut,
    /// It is not, and the peer runs on this very CPU: it was given the CPU once.
    SameCpu,
    /// It is there, but the CPU was away for long meanwhile: a sleeper would have had it sooner.
    Late,
    /// It is not, and others want this CPU.
    Wanted,
}

impl Spun {
    /// Whether what was waited for is there.
    #[must_use]
    pub const fn found(self) -> bool {
        matches!(self, Self::Ready | Self::Late)
    }
}

/// What a spin goes by: clocks, the CPU, and what is known of it. Tests have one of their own.
trait Machine {
    fn cpu(&self) -> u32;
    fn yield_now(&self);
    fn now_ns(&self) -> u64;
    fn ticks(&self) -> u64;
    fn backoff(&self, cpu: u32) -> &Backoff;
    fn saturation(&self) -> &Saturation;
    /// Whether more threads wait for a CPU just now than have one.
    fn is_saturated(&self) -> bool;
}

/// This one.
struct Real;

impl Machine for Real {
    #[inline]
    fn cpu(&self) -> u32 {
        thread::cpu()
    }
    fn yield_now(&self) {
        thread::yield_now();
    }
    #[inline]
    fn now_ns(&self) -> u64 {
        sys::now_ns()
    }
    #[inline]
    fn ticks(&self) -> u64 {
        sys::ticks()
    }
    #[inline]
    fn backoff(&self, cpu: u32) -> &Backoff {
        backoff::of(cpu)
    }
    #[inline]
    fn saturation(&self) -> &Saturation {
        saturation::machine()
    }
    fn is_saturated(&self) -> bool {
        saturation::asked()
    }
}

/// Gives the CPU to the peer, which runs on this one, and looks.
fn yield_once<M: Machine>(machine: &M, backoff: &Backoff, mut ready: impl FnMut() -> bool) -> Spun {
    let began = machine.ticks();
    machine.yield_now();
    match (ready(), backoff.was_late(began, machine.ticks())) {
        (true, false) => Spun::Ready,
        (true, true) => Spun::Late,
        (false, false) => Spun::SameCpu,
        (false, true) => Spun::Wanted,
    }
}

/// How long the next spin may last, learnt from the last ones. 0 means that nothing is known, so
/// that fresh shared memory is a fresh state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Adaptive(u32);

impl Adaptive {
    /// As if nothing had been learnt.
    #[must_use]
    pub const fn new() -> Self {
        Self(0)
    }

    /// What the next spin may last, in nanoseconds, where `cap_ns` is configured.
    #[must_use]
    pub fn limit(self, cap_ns: u32) -> u32 {
        match self.0 {
            0 => FIRST_NS.min(cap_ns),
            1..=SHORT => LEAST_NS.min(cap_ns),
            TRIAL => cap_ns.saturating_add(cap_ns.min(WAKE_UP_NS)),
            learnt => learnt.min(cap_ns),
        }
    }

    /// The plain number, and back.
    #[must_use]
    pub const fn to_raw(self) -> u32 {
        self.0
    }

    /// From [`Adaptive::to_raw`]; any number is valid.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// Whether the last spins brought what was waited for; then the next wait does not
    /// [rest](Self::rests).
    #[must_use]
    pub const fn pays(self) -> bool {
        matches!(self.0, u32::MAX | LAST_LATE..=LATE)
    }

    /// Spins until `ready` says so, for at most `cap_ns` (0: one look and no more), with so many
    /// `looks` for each reading of the clock. `peer_cpu` is where the peer last said it runs
    /// ([`thread::cpu`] there; 0 when unknown). Where others want the CPU ([`super::backoff`])
    /// there is one look; where they want all CPUs ([`super::saturation`]) a spin is brief.
    pub fn spin(
        &mut self,
        cap_ns: u32,
        looks: u32,
        peer_cpu: impl Fn() -> u32,
        mut ready: impl FnMut() -> bool,
    ) -> Spun {
        if ready() {
            return Spun::Ready;
        }
        if cap_ns == 0 {
            return Spun::TimeOut;
        }
        self.spin_by(&Real, (cap_ns, looks), peer_cpu, ready)
    }

    /// The same after the first look, by this machine's clock and CPUs.
    fn spin_by<M: Machine>(
        &mut self,
        machine: &M,
        (cap_ns, looks): (u32, u32),
        peer_cpu: impl Fn() -> u32,
        mut ready: impl FnMut() -> bool,
    ) -> Spun {
        let saturated = machine.saturation().holds(|| machine.ticks());
        let limit = u64::from(self.limit_where(saturated, cap_ns));
        if limit == 0 {
            return self.in_vain(machine, saturated, cap_ns);
        }
        let (mut start, mut seen) = (0, 0);
        loop {
            let cpu = machine.cpu();
            let backoff = machine.backoff(cpu);
            if backoff.holds(|| machine.ticks()) {
                return Spun::Wanted;
            }
            if cpu == peer_cpu() {
                return yield_once(machine, backoff, ready);
            }
            for _ in 0..looks {
                if ready() {
                    if seen != 0 && backoff.was_late(seen, machine.ticks()) {
                        return Spun::Late;
                    }
                    self.0 = u32::MAX;
                    return Spun::Ready;
                }
                core::hint::spin_loop();
            }
            let (now, ticks) = (machine.now_ns(), machine.ticks());
            if start == 0 {
                // The clock is read only now: most spins that succeed end before this.
                start = now;
            } else if backoff.was_late(seen, ticks) {
                return Spun::Wanted;
            } else if now.wrapping_sub(start) >= limit {
                return self.in_vain(machine, saturated, cap_ns);
            }
            seen = ticks;
        }
    }

    /// What the next spin may last, in nanoseconds. On a saturated machine the shortest ones are
    /// none at all.
    fn limit_where(self, saturated: bool, cap_ns: u32) -> u32 {
        match self.0 {
            1..=SHORT if saturated => 0,
            _ if saturated => self.limit(cap_ns).min(SATURATED_NS),
            _ => self.limit(cap_ns),
        }
    }

    /// A spin is over, or was left out, and nothing has come. On a saturated machine the next ones
    /// are short ones at once.
    fn in_vain<M: Machine>(&mut self, machine: &M, saturated: bool, cap_ns: u32) -> Spun {
        self.failed(cap_ns);
        if saturated && self.0 != TRIAL {
            self.0 = self.0.min(SHORT);
        }
        machine.saturation().in_vain(machine.ticks(), || machine.is_saturated());
        Spun::TimeOut
    }

    /// In place of a spin, gives the CPU to others a few times. The case is one CPU for this thread
    /// and for all that could make `ready` true (a device's own threads, a peer in another
    /// process). These turns are a sleep and a wake-up less if they are enough. They are not enough
    /// where others take the CPU for long. Where they did so lately it is not tried. `began` is the
    /// time now, in ticks.
    pub fn give_way(&mut self, began: u64, cap_ns: u32, ready: impl FnMut() -> bool) -> bool {
        self.give_way_by(&Real, began, cap_ns, ready)
    }

    #[inline]
    fn give_way_by<M: Machine>(
        &mut self,
        machine: &M,
        began: u64,
        cap_ns: u32,
        mut ready: impl FnMut() -> bool,
    ) -> bool {
        let backoff = machine.backoff(machine.cpu());
        if backoff.holds(|| began) {
            return false;
        }
        for _ in 0..TURNS {
            machine.yield_now();
            let ready = ready();
            let gone = machine.ticks().wrapping_sub(began);
            let late = gone > LONG_TURNS;
            if ready && !late {
                self.0 = u32::MAX;
                return true;
            }
            if ready || late {
                self.late(backoff, gone, began.wrapping_add(gone));
                return ready;
            }
        }
        self.failed(cap_ns);
        false
    }

    /// The CPU was away for long. If it is others that want it, a sleeper has it sooner: that is so
    /// when it is away each time.
    fn late(&mut self, backoff: &Backoff, gone: u64, now: u64) {
        match self.0 {
            u32::MAX => self.0 = LATE,
            LAST_LATE => backoff.back_off(gone, now),
            late @ LAST_LATE..=LATE => self.0 = late - 1,
            // Where it has not paid before, once is enough.
            _ => self.0 = LAST_LATE,
        }
    }

    /// The spin did not pay: the next one is half as long, or, if that one was the shortest,
    /// perhaps a long one.
    pub fn failed(&mut self, cap_ns: u32) {
        self.0 = match self.0 {
            1..=RESTS | TRIAL => SHORT,
            LAST_SHORT => TRIAL,
            short @ LAST_SHORT..=SHORT => short - 1,
            _ => Some(self.limit(cap_ns) / 2).filter(|half| *half > LEAST_NS).unwrap_or(SHORT),
        };
    }

    /// Told how long the sleep after a failed spin lasted, or one without a spin. A sleep that a
    /// full spin would have covered restores the full length. A longer one after the shortest spin
    /// lets the next ones [rest](Self::rests).
    pub fn slept(&mut self, ns: u64, cap_ns: u32) {
        if ns <= u64::from(cap_ns) {
            self.0 = u32::MAX;
        } else if self.0 > RESTS && self.0 <= SHORT {
            self.0 = RESTS;
        }
    }

    /// Whether this wait is not worth a spin, to be asked once before each. Only for a caller that
    /// tells [`Self::slept`], which finds out when spinning would pay again.
    pub fn rests(&mut self) -> bool {
        match self.0 {
            // Now and then it is tried.
            1 => self.0 = TRIAL,
            2..=RESTS => {
                self.0 -= 1;
                return true;
            }
            _ => {}
        }
        false
    }
}

#[cfg(test)]
#[path = "spin_tests.rs"]
mod simulated;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learns_and_forgets() {
        let mut a = Adaptive::new();
        assert_eq!((a.limit(5_000), a.limit(50_000)), (5_000, FIRST_NS));
        assert_eq!(a.limit(10_000), 10_000);
        // On a machine with other work it is not tried, now and then, and nothing is learnt.
        let spun = || a.spin(10_000, CHEAP_LOOKS, || 0, || false);
        assert!(std::iter::repeat_with(spun).any(|spun| spun == Spun::TimeOut));
        assert_eq!(a.limit(10_000), 5_000);
        for _ in 0..5 {
            a.failed(10_000);
        }
        assert_eq!(a.limit(10_000), LEAST_NS);
        assert!(!a.rests(), "it was not said that sleeps are long");
        a.slept(50_000, 10_000);
        for _ in 1..RESTS {
            assert!(a.rests());
            a.slept(50_000, 10_000);
        }
        assert!(!a.rests(), "now and then it is tried");
        assert_eq!(a.limit(10_000), 20_000, "for as long as the peer may need to wake up");
        a.failed(10_000);
        assert_eq!(a.limit(10_000), LEAST_NS);
        a.slept(50_000, 10_000);
        assert!(a.rests());
        a.slept(9_000, 10_000);
        assert!(!a.rests(), "a sleep that a spin would have covered ends the rest");
        assert_eq!((a.limit(10_000), a.limit(50_000)), (10_000, 50_000));
        let mut looks = 0;
        a.failed(10_000);
        assert_eq!(
            a.spin(
                10_000,
                DEAR_LOOKS,
                || 0,
                || {
                    looks += 1;
                    looks > 3
                }
            ),
            Spun::Ready
        );
        assert_eq!(a.limit(10_000), 10_000);
        assert_eq!(a.spin(0, CHEAP_LOOKS, || 0, || false), Spun::TimeOut);
        assert_eq!(a.limit(500), 500);
    }

    #[test]
    fn one_of_many_short_spins_is_a_long_one() {
        let mut a = Adaptive::new();
        let next = |a: &mut Adaptive, cap| {
            a.failed(cap);
            a.limit(cap)
        };
        for cap in [50_000, 5_000, 1_500] {
            while next(&mut a, cap) > LEAST_NS {}
            let long = core::iter::repeat_with(|| next(&mut a, cap)).position(|ns| ns > LEAST_NS);
            assert!(long.is_some_and(|n| n < TRIALS as usize), "{cap}: {long:?}");
            assert!(!a.rests());
            let short = core::iter::repeat_with(|| next(&mut a, cap)).position(|ns| ns > LEAST_NS);
            assert_eq!(short, Some(TRIALS as usize), "{cap}");
            assert_eq!(next(&mut a, cap), LEAST_NS.min(cap));
        }
        // However little is configured, it is no rest, and no more than twice that.
        for cap in [1, 10, 40] {
            assert!((0..100).all(|_| next(&mut a, cap) <= 2 * cap && !a.rests()));
        }
        assert_eq!(a.spin(50_000, CHEAP_LOOKS, || 0, || true), Spun::Ready);
    }

    #[test]
    fn yields_to_a_neighbour() {
        let mut a = Adaptive::new();
        // Wherever we are moved to meanwhile, the "peer" is there too.
        let spun = a.spin(1_000_000_000, CHEAP_LOOKS, thread::cpu, || false);
        // The second one where the machine has other work.
        assert!(matches!(spun, Spun::SameCpu | Spun::Wanted), "{spun:?}");
    }
}
