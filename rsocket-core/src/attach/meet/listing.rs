//! Looking through the directory for an offer that may be the other end's.
//!
//! A look is bounded: it goes through so many names, and where there are many, the process does not
//! look again at once. A process that fills the directory costs its neighbours some system calls,
//! and the chance to meet. Must not know what is said there. Entry points: [`look`], [`refuse`],
//! [`put_off`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::mem::MaybeUninit;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::FileType;

use super::names::Name;
use super::place;
use crate::failure::Failure;
use crate::host::raw;
use crate::stats::{self, Counter};
use crate::sys;
use crate::sys::files::{self, For};

/// Names that one look goes through.
const MOST: u32 = 2048;
/// So many names are no crowd.
const FREE: u32 = 256;
/// So long the process does not look again, for each name beyond those: it spends less than a tenth
/// of its time here.
const REST_NS: u64 = 2_500;
/// In a crowd one thread looks at a time; if it is not done by then, another one may.
const LONGEST_NS: u64 = 10_000_000;
static PACE: PollBackoff = PollBackoff { next: AtomicU64::new(0) };

/// How much a process looks at.
struct PollBackoff {
    /// When the next look may begin; 0 where there was no crowd. Relaxed: a word that stands for
    /// itself.
    next: AtomicU64,
}

impl PollBackoff {
    /// Whether a look may begin at this time.
    fn begins(&self, now: u64) -> bool {
        let next = self.next.load(Ordering::Relaxed);
        if next == 0 {
            return true;
        }
        let until = now.saturating_add(LONGEST_NS);
        now >= next
            && self.next.compare_exchange(next, until, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// It has ended at this time, and went through so many names.
    fn ended(&self, now: u64, names: u32) {
        let next = match names.checked_sub(FREE) {
            None | Some(0) => 0,
            Some(many) => now.saturating_add(u64::from(many) * REST_NS),
        };
        self.next.store(next, Ordering::Relaxed);
    }
}

/// Digests of a name and of the timestamp for which it was the wrong one, and until when it is not
/// tried again. The process behind it may have been too slow to know. Relaxed: words that stand for
/// themselves; a name whose words are lost is tried again.
static WRONG: [[AtomicU64; 2]; 256] = [const { [const { AtomicU64::new(0) }; 2] }; 256];
const AGAIN_NS: u64 = 200_000_000;
/// The same of a name that is likely to be the right one.
const AGAIN_SOON_NS: u64 = 5_000_000;

fn digest(name: &Name, stamp: u32) -> u64 {
    (name.random ^ u64::from(stamp).rotate_left(32)) | 1
}

/// What a look has brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// An offer that may be the right one.
    pub offer: Option<Name>,
    /// Another name of our kind, whichever it is: for a caller that looks whether a process is
    /// behind it.
    pub other: Option<Name>,
}

/// The name was not the offer of the connection with this timestamp.
pub fn refuse(name: &Name, stamp: u32) {
    refuse_until(name, stamp, sys::now_ns().saturating_add(AGAIN_NS));
}

/// The same where the name may be the right one all the same: its process went away before it
/// answered, as one does that was called at before it knew of the caller.
pub fn put_off(name: &Name, stamp: u32) {
    refuse_until(name, stamp, sys::now_ns().saturating_add(AGAIN_SOON_NS));
}

fn refuse_until(name: &Name, stamp: u32, time: u64) {
    let digest = digest(name, stamp);
    if let Some([place, until]) = WRONG.get(digest as usize >> 1 & 255) {
        place.store(digest, Ordering::Relaxed);
        until.store(time, Ordering::Relaxed);
    }
}

fn is_refused(name: &Name, stamp: u32, now: u64) -> bool {
    let digest = digest(name, stamp);
    WRONG.get(digest as usize >> 1 & 255).is_some_and(|[place, until]| {
        place.load(Ordering::Relaxed) == digest && now < until.load(Ordering::Relaxed)
    })
}

/// Looks for the offer of the connection with this timestamp, whose other end, as far as is seen
/// here, has this port. A name that says the port comes before names that do not. Without `others`
/// the latter do not count: a process that calls at a wrong offer uses up proofs of both processes.
/// Among equals chance decides. `None` where the process has looked too much already.
///
/// # Errors
/// The kernel's: the directory is not ours to read, or is no more.
pub fn look(stamp: u32, port: u16, others: bool) -> Result<Option<Looked>, Failure> {
    if !PACE.begins(sys::now_ns()) {
        return Ok(None);
    }
    let place = place::directory().ok_or(Failure::Invalid)?;
    let directory = files::open_in(place, c".", For::Listing)?;
    let mut choice = Choice::new(stamp, port, others);
    let seen = each_name(&directory, raw::random()?, |name, chance| choice.weigh(name, chance));
    sys::discard(directory);
    PACE.ended(sys::now_ns(), seen);
    stats::add(Counter::MeetNames, u64::from(seen));
    Ok(Some(choice.looked))
}

/// Calls `f` with each name of our kind, and a number that is another one each time.
fn each_name(directory: &OwnedFd, seed: u64, mut f: impl FnMut(Name, u64)) -> u32 {
    let mut space = [MaybeUninit::uninit(); 16 << 10];
    let (mut seen, mut chance) = (0, seed);
    files::each_entry(directory.as_fd(), &mut space, |name, kind| {
        seen += 1;
        if matches!(kind, FileType::Socket | FileType::Unknown)
            && let Some(name) = Name::parse(name.to_bytes())
        {
            // Knuth's, of the upper half of which the choice is made.
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            f(name, chance >> 33);
        }
        if seen < MOST { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    seen
}

/// One of the best, each with the same chance.
struct Choice {
    stamp: u32,
    port: u16,
    /// Whether names of other ports count.
    others: bool,
    /// The best rank so far.
    best: usize,
    /// How many there were of each rank.
    equals: [u64; 3],
    looked: Looked,
}

impl Choice {
    const fn new(stamp: u32, port: u16, others: bool) -> Self {
        let looked = Looked { offer: None, other: None };
        Self { stamp, port, others, best: 0, equals: [0; 3], looked }
    }

    fn weigh(&mut self, name: Name, chance: u64) {
        let rank = match (name.fits(self.stamp), name.port == self.port) {
            (true, _) if is_refused(&name, self.stamp, sys::now_ns()) => return,
            (true, true) => 2,
            (true, false) if !self.others => return,
            (true, false) => 1,
            (false, _) => 0,
        };
        let Some(equals) = self.equals.get_mut(rank) else { return };
        *equals += 1;
        if !chance.is_multiple_of(*equals) {
            return;
        }
        if rank == 0 {
            self.looked.other = Some(name);
        } else if rank >= self.best {
            self.best = rank;
            self.looked.offer = Some(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::dialled::Bounds;

    fn name(first: u32, port: u16, random: u64) -> Name {
        Name::new(Bounds { first, more: 0 }, port, random)
    }

    fn chosen(names: &[Name], stamp: u32, port: u16, seed: u64) -> Looked {
        choose(names, Choice::new(stamp, port, true), seed)
    }

    fn choose(names: &[Name], mut choice: Choice, seed: u64) -> Looked {
        let mut chance = seed;
        for n in names {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            choice.weigh(*n, chance >> 33);
        }
        choice.looked
    }

    /// Names that 64 threads go through in a second, each of which looks as soon as it may; a look
    /// takes so long.
    fn gone_through(names: u32, takes: u64) -> u64 {
        let pace = PollBackoff { next: AtomicU64::new(0) };
        let mut ends = [0_u64; 64];
        let mut seen = 0;
        for now in (0..1_000_000_000).step_by(20_000) {
            for end in &mut ends {
                if *end != 0 && *end <= now {
                    pace.ended(*end, names);
                    (*end, seen) = (0, seen + u64::from(names));
                }
                if *end == 0 && pace.begins(now) {
                    *end = now + takes;
                }
            }
        }
        seen
    }

    #[test]
    fn a_crowd_costs_little() {
        // All of them have begun before there was known to be one.
        let first = 64 * u64::from(MOST);
        let most = 1_000_000_000 / REST_NS * 9 / 8;
        assert!(gone_through(MOST, 500_000) <= first + most);
        assert!(gone_through(MOST, 9_000_000) <= first + most);
        // Few names are looked at as often as the threads want.
        assert!(gone_through(FREE, 500_000) > 64 * 1900 * u64::from(FREE));
    }

    #[test]
    fn the_one_with_the_port_is_first() {
        let names = [name(64, 7, 1), name(64, 9, 2), name(640, 9, 3), name(64, 8, 4)];
        for seed in 0..50 {
            let looked = chosen(&names, 65, 9, seed);
            assert_eq!((looked.offer, looked.other), (Some(names[1]), Some(names[2])));
        }
        assert_eq!(chosen(&names, 12_800, 9, 1).offer, None);
    }

    #[test]
    fn others_are_left_alone_at_first() {
        let names = [name(64, 7, 1), name(640, 9, 3), name(64, 8, 4)];
        for seed in 0..50 {
            let looked = choose(&names, Choice::new(65, 9, false), seed);
            assert_eq!((looked.offer, looked.other), (None, Some(names[1])));
        }
        assert!(chosen(&names, 65, 9, 1).offer.is_some());
    }

    #[test]
    fn among_equals_chance_decides() {
        let names: Vec<_> = (0..4).map(|n| name(64, 7, 100 + n)).collect();
        let mut found = [0; 4];
        for seed in 0..4000 {
            let offer = chosen(&names, 64, 9, seed * 77).offer.unwrap();
            found[names.iter().position(|n| *n == offer).unwrap()] += 1;
        }
        assert!(found.iter().all(|n| (800..1200).contains(n)), "{found:?}");
    }

    #[test]
    fn a_wrong_one_is_not_tried_again() {
        let names = [name(64, 9, 0x5151), name(64, 7, 0x6262)];
        refuse(&names[0], 70);
        for seed in 0..20 {
            assert_eq!(chosen(&names, 70, 9, seed).offer, Some(names[1]));
            assert_eq!(chosen(&names, 71, 9, seed).offer, Some(names[0]), "of another connection");
        }
    }

    #[test]
    fn one_that_may_be_right_is_tried_again_soon() {
        let (wrong, gone) = (name(64, 9, 0x7171), name(64, 9, 0x8282));
        let before = sys::now_ns();
        refuse(&wrong, 70);
        put_off(&gone, 70);
        let after = sys::now_ns();
        for (name, wait) in [(wrong, AGAIN_NS), (gone, AGAIN_SOON_NS)] {
            assert!(is_refused(&name, 70, before + wait - 1));
            assert!(!is_refused(&name, 70, after + wait));
        }
    }
}
