//! What happens between the two ends of the simulated device: time, chance, delivery and death.
//!
//! Must not know what the words mean. Entry point: [`World::step`].

use std::collections::VecDeque;

use super::{Completion, Sge, Weather, Word};

/// A post on its way.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) due: u64,
    pub(super) target: Sge,
    pub(super) bytes: Vec<u8>,
    pub(super) word: Option<Word>,
    pub(super) token: u64,
}

/// Memory that has a name.
#[derive(Debug)]
enum Memory {
    Own(Vec<u8>),
    /// The program's.
    Exposed(*mut u8, usize),
    /// It was.
    Withdrawn,
}

impl Memory {
    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Own(bytes) => bytes,
            // SAFETY: it stays and may be written until it is withdrawn (World::expose); in a test
            // no other code looks meanwhile.
            Self::Exposed(at, len) => unsafe { core::slice::from_raw_parts_mut(*at, *len) },
            Self::Withdrawn => &mut [],
        }
    }
}

/// What one end has.
#[derive(Debug, Default)]
pub(super) struct End {
    memory: Vec<(Sge, Memory)>,
    pub(super) flights: VecDeque<Flight>,
    pub(super) completions: VecDeque<Completion>,
    /// Posts whose completion was not polled.
    pub(super) unreported: u16,
    pub(super) receives: u16,
    pub(super) armed: bool,
    pub(super) event: bool,
    /// Closed by its owner; what was posted before still goes.
    pub(super) closed: bool,
    /// [`Completion::Ended`] was put in the queue.
    pub(super) ended: bool,
    /// Its host has lost power.
    unplugged: bool,
    last_due: u64,
}

impl End {
    /// `len` bytes of this end's own memory at `addr`.
    pub(super) fn memory(&mut self, addr: u64, len: usize) -> Option<&mut [u8]> {
        self.memory.iter_mut().find_map(|(name, bytes)| {
            let start = usize::try_from(addr.checked_sub(name.addr)?).ok()?;
            bytes.bytes().get_mut(start..start.checked_add(len)?)
        })
    }

    /// The same as the peer may reach it, by key.
    fn target(&mut self, target: Sge) -> Option<&mut [u8]> {
        let key =
            self.memory.iter().find(|(name, _)| name.rkey == target.rkey).map(|(name, _)| *name)?;
        if target.addr < key.addr || target.end()? > key.end()? {
            return None;
        }
        self.memory(target.addr, target.len as usize)
    }

    pub(super) fn withdraw(&mut self, name: Sge) {
        if let Some((_, memory)) = self.memory.iter_mut().find(|(other, _)| *other == name) {
            *memory = Memory::Withdrawn;
        }
    }
}

/// Two ends, what is under way between them, and the time.
#[derive(Debug)]
pub struct World {
    pub(super) weather: Weather,
    now: u64,
    chance: u64,
    ends: [End; 2],
}

impl World {
    pub(super) fn new(weather: Weather) -> Self {
        Self { weather, now: 0, chance: weather.seed, ends: <[End; 2]>::default() }
    }

    /// Ticks since the beginning.
    #[must_use]
    pub const fn now(&self) -> u64 {
        self.now
    }

    pub(super) fn end(&mut self, side: usize) -> &mut End {
        let [a, b] = &mut self.ends;
        if side == 0 { a } else { b }
    }

    /// A number below `below`, from the seed (`splitmix64`).
    fn below(&mut self, below: u64) -> u64 {
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.chance;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below.max(1)
    }

    fn percent(&mut self, percent: u8) -> bool {
        percent > 0 && self.below(100) < u64::from(percent)
    }

    /// When something that `side` posts now takes effect: later than everything that it posted
    /// before.
    pub(super) fn next_due(&mut self, side: usize) -> u64 {
        let due = self.now + 1 + self.below(self.weather.delay);
        let end = self.end(side);
        end.last_due = end.last_due.max(due);
        end.last_due
    }

    /// # Safety
    /// As for [`QueuePair::expose`](crate::QueuePair::expose).
    pub(super) unsafe fn expose(&mut self, side: usize, at: *mut u8, len: u32) -> Sge {
        self.name(side, len, Memory::Exposed(at, len as usize))
    }

    pub(super) fn register(&mut self, side: usize, len: u32) -> Sge {
        self.name(side, len, Memory::Own(vec![0; len as usize]))
    }

    fn name(&mut self, side: usize, len: u32, memory: Memory) -> Sge {
        let rkey = 0x100 + self.below(1 << 20) as u32;
        let end = self.end(side);
        // Far apart, so that running over the end of one never reaches another.
        let addr = ((side as u64 + 1) << 48) + ((end.memory.len() as u64 + 1) << 36);
        let rkey = rkey << 4 | end.memory.len() as u32;
        let name = Sge { addr, rkey, len };
        end.memory.push((name, memory));
        name
    }

    /// Lets the next thing happen; false when nothing is left to happen by itself.
    pub fn step(&mut self) -> bool {
        for side in 0..2 {
            if self.end(side).armed && self.percent(self.weather.spurious) {
                self.wake(side);
            }
        }
        // Sides whose owner closed them and whose posts are all gone end the pair.
        for side in 0..2 {
            let end = self.end(side);
            if end.closed && !end.ended && end.flights.is_empty() {
                self.finish();
                return true;
            }
        }
        let side = match (self.front_due(0), self.front_due(1)) {
            (None, None) => return false,
            (Some(a), Some(b)) if a == b => self.below(2) as usize,
            (a, b) => usize::from(a.is_none_or(|a| b.is_some_and(|b| b < a))),
        };
        self.deliver(side)
    }

    /// When the oldest post of `side` takes effect; `None` when there is none or it waits for a
    /// receive.
    fn front_due(&self, side: usize) -> Option<u64> {
        let [a, b] = &self.ends;
        let (from, to) = if side == 0 { (a, b) } else { (b, a) };
        from.flights
            .front()
            .filter(|flight| flight.word.is_none() || to.receives > 0 || to.unplugged)
            .map(|flight| flight.due)
    }

    /// `side` had no receives and has posted some. The other end tries again what waited for them,
    /// after the time that it waits between tries.
    pub(super) fn retry(&mut self, side: usize) {
        let due = self.now + self.weather.rnr_delay;
        if let Some(flight) =
            self.end(1 - side).flights.front_mut().filter(|flight| flight.word.is_some())
        {
            flight.due = flight.due.max(due);
        }
    }

    /// Carries out the oldest post of `side`, which does not wait for anything.
    fn deliver(&mut self, side: usize) -> bool {
        let Some(flight) = self.end(side).flights.pop_front() else { return false };
        self.now = self.now.max(flight.due);
        if self.end(1 - side).unplugged {
            self.complete(side, Completion::Failed { token: flight.token });
            self.finish();
            return true;
        }
        if !flight.bytes.is_empty() {
            let Some(place) = self.end(1 - side).target(flight.target) else {
                self.complete(side, Completion::Failed { token: flight.token });
                self.finish();
                return true;
            };
            place.copy_from_slice(&flight.bytes);
        }
        if let Some(word) = flight.word {
            self.end(1 - side).receives -= 1;
            self.complete(1 - side, Completion::Word(word));
        }
        self.complete(side, Completion::Sent { token: flight.token });
        true
    }

    fn complete(&mut self, side: usize, completion: Completion) {
        self.end(side).completions.push_back(completion);
        self.wake(side);
    }

    fn wake(&mut self, side: usize) {
        if self.end(side).armed {
            let comes = !self.percent(self.weather.lost);
            let end = self.end(side);
            end.armed = false;
            end.event |= comes;
        }
    }

    /// Ends the pair at both ends.
    fn finish(&mut self) {
        for side in 0..2 {
            while let Some(flight) = self.end(side).flights.pop_front() {
                self.complete(side, Completion::Failed { token: flight.token });
            }
            if !self.end(side).ended {
                self.end(side).ended = true;
                self.complete(side, Completion::Ended);
            }
        }
    }

    /// The host of `side` is no more, and nothing says so. What the other end has posted, or posts
    /// next, comes back as failed, and that ends the pair there.
    pub fn unplug(&mut self, side: usize) {
        self.end(side).unplugged = true;
    }

    /// The process of `side` is no more. If the weather says that its posts survive, they are
    /// carried out, as far as there are receives for them. Otherwise chance decides how many of
    /// them were.
    pub fn kill(&mut self, side: usize) {
        let all = self.end(side).flights.len();
        let carried = if self.weather.survives { all } else { self.below(all as u64 + 1) as usize };
        for _ in 0..carried {
            if self.front_due(side).is_none() || !self.deliver(side) {
                break;
            }
        }
        self.finish();
    }
}
