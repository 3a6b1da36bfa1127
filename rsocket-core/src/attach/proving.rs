//! How far the two ends of a connection have come in proving to one another that each has the other
//! end of the connection. They do so over a channel at whose other end any process could be.
//!
//! Where `sock_diag` says nothing at one end or at both, what both know of the SYN does
//! ([`super::meet`]). The end that is sure already proves; the end that is not sure checks. The
//! steps ([`super::meet::pake`] has the mathematics):
//!
//! | an end that | is | and does |
//! | --- | --- | --- |
//! | has begun | [`begin`] | sends its element |
//! | hears an element | [`answer`] | sends its own, and a tag |
//! | has begun, and hears both | [`conclude`] | checks the tag, sends its own |
//! | has answered, and hears a tag | [`check`] | checks it |
//!
//! A peer that was answered has made a guess. Unless the peer proves that the guess was right, the
//! guess costs this process one of [`BUDGET`], even if the peer goes away. (Not if the connection
//! ends before: then the guess is of no use.) Each right proof gives one back. Without any left no
//! peer is answered; with [`RUNS`] under way at a time, peers could make so many more guesses. What
//! a run needs is kept for this process, by the descriptor of the channel, which only the pairing's
//! guard takes away and closes. Must not know slots, phases or what the messages are for. Entry
//! points: the above, [`state`], [`forget`], [`forked`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use super::proof::Proof;
use super::{meet::pake, meet::pake::Run, meet::pake::Side, meet::pake::Tag, meet::pake::Tags};
use super::{meet::who, meet::who::Who};
use crate::host::raw;
use crate::reason::{Reason, refused};
use crate::seqpacket::Channel;
use crate::sys;

/// Wrong guesses that a process bears.
pub const BUDGET: u32 = 16;
/// One wrong guess is forgotten after so many nanoseconds, where none of the budget is left. So a
/// process that makes wrong guesses cannot keep others from being answered for good.
const FORGOTTEN_NS: u64 = 10_000_000_000;
/// Runs that a process can have at a time.
pub const RUNS: usize = 128;

/// What both ends know.
#[derive(Clone, Copy, Debug)]
pub struct Secret<'a> {
    /// Which end this is.
    pub side: Side,
    /// The timestamp of the SYN.
    pub stamp: u32,
    /// Where they meet.
    pub place: &'a [u8],
}

/// How far one run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing was said.
    Nothing,
    /// Our element was sent.
    Begun,
    /// Our tag was sent, theirs is awaited.
    Answered,
    /// Theirs was right.
    Proved,
}

const BEGUN: u32 = 1;
const ANSWERED: u32 = 2;
const PROVED: u32 = 3;
/// As [`ANSWERED`], of a peer that the kernel has named.
const TOLD: u32 = 4;

/// One run. Relaxed but for the descriptor: the words are one pairing's, under its lock.
struct Place {
    /// Of the channel, plus one; 0 for a free place.
    owner: AtomicI32,
    state: AtomicU32,
    /// The scalar, then our element; or, in the first half, the tag that is awaited.
    words: [AtomicU64; 8],
}

static PLACES: [Place; RUNS] = [const {
    Place {
        owner: AtomicI32::new(0),
        state: AtomicU32::new(0),
        words: [const { AtomicU64::new(0) }; 8],
    }
}; RUNS];
/// Places that are taken.
static TAKEN: AtomicU32 = AtomicU32::new(0);
/// Guesses that others have made wrong, or have not shown to be right, less those that were right.
static WRONG: AtomicU32 = AtomicU32::new(0);
/// When the last one was forgotten.
static FORGOT: AtomicU64 = AtomicU64::new(0);

impl Place {
    fn of(channel: &Channel) -> Option<&'static Self> {
        // Most have none, whose number would be that of a free place.
        if channel.fd < 0 {
            return None;
        }
        // Acquire: pairs with the release in free(), so that a place that comes back is empty.
        PLACES.iter().find(|p| p.owner.load(Ordering::Acquire) == channel.fd.wrapping_add(1))
    }

    fn take(channel: &Channel) -> Result<&'static Self, Reason> {
        let owner = channel.fd.wrapping_add(1);
        let mine = |p: &&Self| {
            p.owner.compare_exchange(0, owner, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let place = PLACES.iter().find(mine).ok_or(Reason::TooManyOffers)?;
        TAKEN.fetch_add(1, Ordering::Relaxed);
        Ok(place)
    }

    fn put(&self, at: usize, bytes: &[u8; 32]) {
        for (word, part) in self.words.iter().skip(at).zip(bytes.chunks_exact(8)) {
            let part = part.try_into().map_or(0, u64::from_ne_bytes);
            word.store(part, Ordering::Relaxed);
        }
    }

    fn get(&self, at: usize) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (word, part) in self.words.iter().skip(at).zip(bytes.chunks_exact_mut(8)) {
            part.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        bytes
    }

    fn enter(&self, state: u32) {
        self.state.store(state, Ordering::Relaxed);
    }

    fn free(&self) {
        self.enter(0);
        self.words.iter().for_each(|w| w.store(0, Ordering::Relaxed));
        self.owner.store(0, Ordering::Release);
    }
}

/// How far the run over this channel has come.
#[must_use]
pub fn state(channel: &Channel) -> State {
    if TAKEN.load(Ordering::Relaxed) == 0 {
        return State::Nothing;
    }
    match Place::of(channel).map_or(0, |p| p.state.load(Ordering::Relaxed)) {
        BEGUN => State::Begun,
        ANSWERED | TOLD => State::Answered,
        PROVED => State::Proved,
        _ => State::Nothing,
    }
}

/// The channel is about to be closed, and the connection goes on.
pub fn forget(fd: i32) {
    let answered = |p: &Place| p.state.load(Ordering::Relaxed) == ANSWERED;
    if remove(fd, answered) {
        WRONG.fetch_add(1, Ordering::Relaxed);
    }
}

/// The connection is over that the channel was about.
pub fn over(fd: i32) {
    remove(fd, |_| false);
}

/// Frees the channel's place, of which it is asked something before.
fn remove(fd: i32, asked: impl FnOnce(&Place) -> bool) -> bool {
    if TAKEN.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let Some(place) = Place::of(&Channel { fd }) else { return false };
    let said = asked(place);
    place.free();
    TAKEN.fetch_sub(1, Ordering::Relaxed);
    said
}

/// In the child of a fork: all runs are the parent's.
pub fn forked() {
    if TAKEN.load(Ordering::Relaxed) != 0 {
        TAKEN.store(0, Ordering::Relaxed);
        PLACES.iter().for_each(Place::free);
    }
}

/// Whether another visitor is answered.
#[must_use]
pub fn can_afford() -> bool {
    if WRONG.load(Ordering::Relaxed) < BUDGET {
        return true;
    }
    let (now, last) = (sys::now_ns(), FORGOT.load(Ordering::Relaxed));
    let due = now.saturating_sub(last) >= FORGOTTEN_NS;
    // One of several threads.
    if due && FORGOT.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        earn();
    }
    WRONG.load(Ordering::Relaxed) < BUDGET
}

fn earn() {
    let less = |wrong: u32| wrong.checked_sub(1);
    let _ = WRONG.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
}

fn run(secret: &Secret<'_>) -> Result<Run, Reason> {
    let mut random = [0; 64];
    for part in random.chunks_exact_mut(8) {
        part.copy_from_slice(&raw::random().map_err(refused("random bits"))?.to_ne_bytes());
    }
    Ok(Run::begin(secret.stamp, secret.place, &random))
}

/// A first word, made before there is a channel to say it over, so that the process that is called
/// at hears it at once.
#[derive(Clone, Copy, Debug)]
pub struct FirstWord {
    run: Run,
    who: Who,
}

/// Makes one.
///
/// # Errors
/// `NoEvidence` where too many guesses of others were wrong.
pub fn prepare(secret: &Secret<'_>) -> Result<FirstWord, Reason> {
    if !can_afford() {
        return Err(Reason::NoEvidence);
    }
    Ok(FirstWord { run: run(secret)?, who: Who::own() })
}

impl FirstWord {
    /// Our element, which is to be said over this channel.
    ///
    /// # Errors
    /// `TooManyOffers` where too many runs are under way.
    pub fn over(&self, channel: &Channel) -> Result<Proof, Reason> {
        let place = Place::take(channel)?;
        place.put(0, &self.run.scalar);
        place.put(4, &self.run.element);
        place.enter(BEGUN);
        Ok(Proof::new(self.who, self.run.element, None))
    }
}

/// The first word: our element.
///
/// # Errors
/// As [`prepare`] and [`FirstWord::over`].
pub fn begin(channel: &Channel, secret: &Secret<'_>) -> Result<Proof, Reason> {
    prepare(secret)?.over(channel)
}

/// The tags, where the process that `theirs` names is the process behind the channel.
fn agree(
    run: &Run,
    side: Side,
    own: &Who,
    theirs: &Proof,
    channel: &Channel,
) -> Result<Tags, Reason> {
    if !who::is_behind(&theirs.who, own, channel) {
        crate::log_info!("a proof came that is not of the process which has sent it");
        return Err(Reason::NoEvidence);
    }
    run.agree(side, &theirs.element, (own, &theirs.who)).ok_or(Reason::NoEvidence)
}

/// For a peer that has said its element: our element, and our tag. The peer can try one number by
/// it.
///
/// # Errors
/// As [`begin`]; `NoEvidence` also where the peer is not the process that it names.
pub fn answer(channel: &Channel, secret: &Secret<'_>, theirs: &Proof) -> Result<Proof, Reason> {
    if !can_afford() {
        return Err(Reason::NoEvidence);
    }
    reply(channel, secret, theirs, ANSWERED)
}

/// As [`answer`], for a peer that the kernel has named: it may go away.
///
/// # Errors
/// As [`answer`].
pub fn tell(channel: &Channel, secret: &Secret<'_>, theirs: &Proof) -> Result<Proof, Reason> {
    reply(channel, secret, theirs, TOLD)
}

fn reply(
    channel: &Channel,
    secret: &Secret<'_>,
    theirs: &Proof,
    state: u32,
) -> Result<Proof, Reason> {
    let run = run(secret)?;
    let own = Who::own();
    let tags = agree(&run, secret.side, &own, theirs, channel)?;
    let place = Place::take(channel)?;
    place.put(0, &tags.theirs);
    place.enter(state);
    Ok(Proof::new(own, run.element, Some(tags.ours)))
}

/// For a peer that has answered our element with its element and its tag: our tag, if the peer's
/// tag is right.
///
/// # Errors
/// `NoEvidence`.
pub fn conclude(channel: &Channel, side: Side, theirs: &Proof) -> Result<Proof, Reason> {
    let place = Place::of(channel).ok_or(Reason::NoEvidence)?;
    if place.state.load(Ordering::Relaxed) != BEGUN || !can_afford() {
        return Err(Reason::NoEvidence);
    }
    let run = Run { scalar: place.get(0), element: place.get(4) };
    let own = Who::own();
    let tags = agree(&run, side, &own, theirs, channel)?;
    // From here on it is a guess as well, unless it is right.
    place.enter(ANSWERED);
    heard(place, &tags.theirs, theirs)?;
    Ok(Proof::new(own, run.element, Some(tags.ours)))
}

/// Checks the tag of a peer that was answered.
///
/// # Errors
/// `NoEvidence`.
pub fn check(channel: &Channel, theirs: &Proof) -> Result<(), Reason> {
    let place = Place::of(channel).ok_or(Reason::NoEvidence)?;
    if !matches!(place.state.load(Ordering::Relaxed), ANSWERED | TOLD) {
        return Err(Reason::NoEvidence);
    }
    heard(place, &place.get(0), theirs)
}

fn heard(place: &Place, awaited: &Tag, theirs: &Proof) -> Result<(), Reason> {
    if !theirs.tag().is_some_and(|tag| pake::same(tag, awaited)) {
        crate::log_info!("a proof was wrong");
        return Err(Reason::NoEvidence);
    }
    earn();
    place.enter(PROVED);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// The budget is the process's.
    fn alone() -> MutexGuard<'static, ()> {
        static ONE: Mutex<()> = Mutex::new(());
        let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        WRONG.store(0, Ordering::Relaxed);
        guard
    }

    struct Ends {
        _sockets: (OwnedFd, OwnedFd),
        c: Channel,
        a: Channel,
    }

    fn ends() -> Ends {
        let flags = SocketFlags::CLOEXEC;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .unwrap();
        let channel = |fd: &OwnedFd| Channel { fd: fd.as_raw_fd() };
        let (c, a) = (channel(&pair.0), channel(&pair.1));
        Ends { _sockets: pair, c, a }
    }

    impl Drop for Ends {
        fn drop(&mut self) {
            forget(self.c.fd);
            forget(self.a.fd);
        }
    }

    fn secret(side: Side, stamp: u32) -> Secret<'static> {
        Secret { side, stamp, place: b"a place" }
    }

    const C: Side = Side::Connecting;
    const A: Side = Side::Accepting;

    #[test]
    fn both_are_sure_in_the_end() {
        let _alone = alone();
        let e = ends();
        let first = begin(&e.a, &secret(A, 5)).unwrap();
        assert_eq!((state(&e.a), state(&e.c)), (State::Begun, State::Nothing));
        let second = answer(&e.c, &secret(C, 5), &first).unwrap();
        assert_eq!(state(&e.c), State::Answered);
        let third = conclude(&e.a, A, &second).unwrap();
        assert_eq!(state(&e.a), State::Proved);
        assert_eq!(check(&e.c, &third), Ok(()));
        assert_eq!((state(&e.c), WRONG.load(Ordering::Relaxed)), (State::Proved, 0));
        assert_eq!(check(&e.c, &third), Err(Reason::NoEvidence), "said again");
        assert_eq!(conclude(&e.a, A, &second), Err(Reason::NoEvidence), "said again");
    }

    #[test]
    fn who_is_wrong_learns_nothing_and_costs_a_guess() {
        let _alone = alone();
        let e = ends();
        let first = begin(&e.a, &secret(A, 5)).unwrap();
        let wrong = answer(&e.c, &secret(C, 6), &first).unwrap();
        assert_eq!(conclude(&e.a, A, &wrong), Err(Reason::NoEvidence));
        assert_eq!(check(&e.c, &first), Err(Reason::NoEvidence), "no tag at all");
        assert!(state(&e.c) != State::Proved && state(&e.a) != State::Proved);
        drop(e);
        // One for each end: this process is both.
        assert_eq!(WRONG.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn what_costs_nothing() {
        let _alone = alone();
        let (e, other) = (ends(), ends());
        let first = begin(&e.a, &secret(A, 5)).unwrap();
        let _ = answer(&e.c, &secret(C, 6), &first).unwrap();
        over(e.c.fd);
        // A peer that the kernel has named.
        let first = begin(&other.a, &secret(A, 5)).unwrap();
        let second = tell(&other.c, &secret(C, 5), &first).unwrap();
        assert_eq!(state(&other.c), State::Answered);
        forget(other.c.fd);
        assert_eq!((state(&other.c), WRONG.load(Ordering::Relaxed)), (State::Nothing, 0));
        assert!(conclude(&other.a, A, &second).is_ok());
    }

    #[test]
    fn steps_in_no_order() {
        let _alone = alone();
        let e = ends();
        let other = ends();
        let first = begin(&e.a, &secret(A, 5)).unwrap();
        assert_eq!(check(&e.a, &first), Err(Reason::NoEvidence));
        assert_eq!(conclude(&e.c, C, &first), Err(Reason::NoEvidence));
        // Of another run.
        let second = answer(&other.c, &secret(C, 5), &first).unwrap();
        let again = begin(&other.a, &secret(A, 5)).unwrap();
        assert_ne!(again.element, first.element);
        assert_eq!(conclude(&other.a, A, &second), Err(Reason::NoEvidence));
    }

    #[test]
    fn whoever_stands_in_between_is_seen() {
        let _alone = alone();
        let e = ends();
        let first = begin(&e.a, &secret(A, 5)).unwrap();
        let bridged = Proof::new(Who::new(first.who.process + 1, 0, 1), first.element, None);
        assert_eq!(answer(&e.c, &secret(C, 5), &bridged), Err(Reason::NoEvidence));
        assert_eq!(state(&e.c), State::Nothing);
        // Nor is a process believed that names itself, and passes on what another process said.
        let other = Who::new(0, first.who.namespace, first.who.pid);
        let renamed = Proof::new(other, first.element, None);
        let second = answer(&e.c, &secret(C, 5), &renamed).unwrap();
        assert_eq!(conclude(&e.a, A, &second), Err(Reason::NoEvidence));
    }

    #[test]
    fn a_process_bears_so_many() {
        let _alone = alone();
        for _ in 0..BUDGET {
            let e = ends();
            let first = begin(&e.a, &secret(A, 5)).unwrap();
            // The peer goes away with the tag, and never says its own.
            let _ = answer(&e.c, &secret(C, 6), &first).unwrap();
        }
        let e = ends();
        FORGOT.store(sys::now_ns(), Ordering::Relaxed);
        assert!(!can_afford());
        assert_eq!(begin(&e.a, &secret(A, 5)), Err(Reason::NoEvidence));
        FORGOT.store(0, Ordering::Relaxed);
        assert!(can_afford(), "one is forgotten");
        let first = begin(&e.a, &secret(A, 5)).unwrap();
        assert!(answer(&e.c, &secret(C, 5), &first).is_ok());
        assert_eq!(state(&ends().c), State::Nothing, "none is left behind");
        forget(-1);
        over(-1);
        assert_eq!(state(&e.c), State::Answered, "what has no channel leaves others alone");
    }
}
