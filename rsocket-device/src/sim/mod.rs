//! Two connected ends in one process, with a clock of their own and every misfortune that a network
//! can have, from a seed. For tests only: it allocates.
//!
//! Knows nothing of protocols. Entry points: [`pair`] to make two ends, [`World::step`] to let the
//! next thing happen. Nothing happens by itself, and the same seed gives the same history. When
//! `step` says that nothing is left while an end still waits, that is a deadlock.

use core::cell::RefCell;
use core::ffi::c_int;
use std::rc::Rc;

use super::{Completion, MemoryError, PostError, QueuePair};
use rsocket_wire::proto::control::Mode;
use rsocket_wire::sge::Sge;
use rsocket_wire::word::Word;

mod world;

pub use world::World;
use world::{End, Flight};

/// How the world treats what is posted.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// How words travel.
    pub mode: Mode,
    /// Where all chance comes from.
    pub seed: u64,
    /// Work requests that an end can have under way.
    pub send_queue: u16,
    /// Receives that an end can have posted.
    pub recv_queue: u16,
    /// A post takes 1 to this many ticks, in order.
    pub delay: u64,
    /// How long a sender waits when the other end has no receive posted.
    pub rnr_delay: u64,
    /// Percent of steps after which an armed end gets an event without a cause.
    pub spurious: u8,
    /// Percent of events that never come. A device must not do this; tests do it to see that they
    /// would notice.
    pub lost: u8,
    /// Whether posts outlive a poster that dies ([`World::kill`]).
    pub survives: bool,
}

impl Default for Weather {
    fn default() -> Self {
        Self {
            mode: Mode::Immediate,
            seed: 1,
            send_queue: 384,
            recv_queue: 1024,
            delay: 10,
            rnr_delay: 100,
            spurious: 0,
            lost: 0,
            survives: false,
        }
    }
}

/// One end.
#[derive(Debug)]
pub struct SimPair {
    world: Rc<RefCell<World>>,
    side: usize,
}

/// Two connected ends and the world that they live in.
#[must_use]
pub fn pair(weather: Weather) -> (Rc<RefCell<World>>, SimPair, SimPair) {
    let world = Rc::new(RefCell::new(World::new(weather)));
    let [a, b] = [0, 1].map(|side| SimPair { world: Rc::clone(&world), side });
    (world, a, b)
}

impl SimPair {
    /// 0 or 1, as [`World::kill`] takes it.
    #[must_use]
    pub const fn side(&self) -> usize {
        self.side
    }

    fn with<T>(&self, f: impl FnOnce(&mut End) -> T) -> T {
        f(self.world.borrow_mut().end(self.side))
    }

    fn post(
        &self,
        bytes: &[u8],
        target: Sge,
        word: Option<Word>,
        token: u64,
    ) -> Result<(), PostError> {
        let mut world = self.world.borrow_mut();
        let capacity = world.weather.send_queue;
        let due = world.next_due(self.side);
        let end = world.end(self.side);
        if end.closed || end.ended {
            return Err(PostError::Ended);
        }
        if end.unreported >= capacity {
            return Err(PostError::Full);
        }
        end.unreported += 1;
        let target = Sge { len: u32::try_from(bytes.len()).unwrap_or(u32::MAX), ..target };
        end.flights.push_back(Flight { due, target, bytes: bytes.to_vec(), word, token });
        Ok(())
    }
}

impl QueuePair for SimPair {
    // The weather decides; the rule is the weaker one.
    const SURVIVES: bool = false;

    fn mode(&self) -> Mode {
        self.world.borrow().weather.mode
    }

    fn register(&mut self, len: u32) -> Result<Sge, MemoryError> {
        Ok(self.world.borrow_mut().register(self.side, len))
    }

    unsafe fn expose(&mut self, at: *mut u8, len: u32) -> Result<Sge, MemoryError> {
        // SAFETY: the caller's promise is the same.
        Ok(unsafe { self.world.borrow_mut().expose(self.side, at, len) })
    }

    fn withdraw(&mut self, name: Sge) {
        self.with(|end| end.withdraw(name));
    }

    fn load(&self, addr: u64, into: &mut [u8]) -> Result<(), MemoryError> {
        self.with(|end| {
            let from = end.memory(addr, into.len()).ok_or(MemoryError::Range)?;
            into.copy_from_slice(from);
            Ok(())
        })
    }

    fn store(&mut self, addr: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        self.with(|end| {
            let to = end.memory(addr, bytes.len()).ok_or(MemoryError::Range)?;
            to.copy_from_slice(bytes);
            Ok(())
        })
    }

    fn post_receives(&mut self, count: u16) -> Result<(), PostError> {
        let mut world = self.world.borrow_mut();
        let capacity = world.weather.recv_queue;
        let end = world.end(self.side);
        if end.closed || end.ended {
            return Err(PostError::Ended);
        }
        let had_none = end.receives == 0;
        end.receives =
            end.receives.checked_add(count).filter(|n| *n <= capacity).ok_or(PostError::Full)?;
        if had_none {
            world.retry(self.side);
        }
        Ok(())
    }

    fn room(&self) -> u16 {
        let capacity = self.world.borrow().weather.send_queue;
        self.with(|end| if end.closed || end.ended { 0 } else { capacity - end.unreported })
    }

    fn post_write(
        &mut self,
        bytes: &[u8],
        target: Sge,
        word: Option<Word>,
        token: u64,
    ) -> Result<(), PostError> {
        if word.is_some() && self.mode() == Mode::Message {
            return Err(PostError::Unsupported);
        }
        self.post(bytes, target, word, token)
    }

    fn post_send(&mut self, word: Word, token: u64) -> Result<(), PostError> {
        self.post(&[], Sge::default(), Some(word), token)
    }

    fn poll(&mut self, into: &mut [Completion]) -> usize {
        self.with(|end| {
            let mut count = 0;
            for slot in into {
                let Some(completion) = end.completions.pop_front() else { break };
                if matches!(completion, Completion::Sent { .. } | Completion::Failed { .. }) {
                    end.unreported -= 1;
                }
                *slot = completion;
                count += 1;
            }
            count
        })
    }

    fn arm(&mut self) {
        self.with(|end| end.armed = true);
    }

    fn take_event(&mut self) -> bool {
        self.with(|end| core::mem::take(&mut end.event))
    }

    fn event_fd(&self) -> Option<c_int> {
        None
    }

    fn close(&mut self) {
        self.with(|end| end.closed = true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{self, Rig};

    struct SimRig(Weather, Option<Rc<RefCell<World>>>);

    impl Rig for SimRig {
        type Pair = SimPair;

        fn pair(&mut self) -> (SimPair, SimPair) {
            let (world, a, b) = pair(self.0);
            self.1 = Some(world);
            (a, b)
        }

        fn settle(&mut self) {
            while self.1.as_ref().unwrap().borrow_mut().step() {}
        }

        fn kill(&mut self, pair: SimPair) {
            self.1.as_ref().unwrap().borrow_mut().kill(pair.side);
        }
    }

    #[test]
    fn keeps_the_contract() {
        for mode in [Mode::Immediate, Mode::Message] {
            for seed in 0..20 {
                for survives in [false, true] {
                    let weather =
                        Weather { mode, seed, survives, spurious: 5, ..Weather::default() };
                    conformance::all(&mut SimRig(weather, None));
                }
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_history() {
        let history = |seed| {
            let (world, mut a, mut b) = pair(Weather { seed, delay: 1000, ..Weather::default() });
            b.post_receives(5).unwrap();
            for i in 1..=5 {
                a.post_message(&[], Sge::default(), Word(i), 0).unwrap();
            }
            let mut times = Vec::new();
            while world.borrow_mut().step() {
                times.push(world.borrow().now());
            }
            times
        };
        assert_eq!(history(7), history(7));
        assert_ne!(history(7), history(8));
    }
}
