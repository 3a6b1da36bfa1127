//! The device contract as tests, generic over the device. The numbers are those of the rules in
//! [`device`](super).
//!
//! Test support: it panics where a device breaks a rule. Entry point: [`all`], from a test of the
//! device, with a [`Rig`] that makes pairs of it.
#![forbid(unsafe_code)]

use super::{Completion, HALF, MemoryError, PostError, QueuePair};
use rsocket_wire::proto::control::Mode;
use rsocket_wire::sge::Sge;
use rsocket_wire::word::Word;

/// What the tests need from a device beside the device.
pub trait Rig {
    /// The device.
    type Pair: QueuePair;

    /// Two connected ends, with room for at least 8 posts and 8 receives each.
    fn pair(&mut self) -> (Self::Pair, Self::Pair);

    /// Waits until nothing of the last pair is under way any more, except what waits for a receive.
    fn settle(&mut self);

    /// Ends the process of this end, or does what comes nearest to it.
    fn kill(&mut self, pair: Self::Pair);

    /// Whether a word without a receive waits (rule 6), or ends the pair.
    fn holds_words_back(&self) -> bool {
        true
    }
}

/// Every rule that a device can be asked about from outside.
pub fn all<R: Rig>(rig: &mut R) {
    memory_is_zero_and_stays(rig);
    words_follow_their_bytes(rig);
    if rig.holds_words_back() {
        words_wait_for_receives(rig);
        closing_waits_for_receives(rig);
    } else {
        words_without_receives_end_the_pair(rig);
    }
    room_is_what_it_says(rig);
    stray_writes_end_the_pair(rig);
    empty_writes_name_no_memory(rig);
    armed_ends_are_woken(rig);
    closing_comes_after_what_was_posted(rig);
    death_cuts_no_hole(rig);
}

/// Everything that can be polled.
fn drain(pair: &mut impl QueuePair) -> Vec<Completion> {
    let mut seen = Vec::new();
    let mut batch = [Completion::None; 3];
    loop {
        let count = pair.poll(&mut batch);
        seen.extend_from_slice(&batch[..count]);
        if count == 0 {
            return seen;
        }
    }
}

fn words(seen: &[Completion]) -> Vec<u32> {
    seen.iter()
        .filter_map(|c| if let Completion::Word(word) = c { Some(word.0) } else { None })
        .collect()
}

fn tokens(seen: &[Completion]) -> Vec<u64> {
    let token = |c: &Completion| match c {
        Completion::Sent { token } if *token != HALF => Some(*token),
        _ => None,
    };
    seen.iter().filter_map(token).collect()
}

fn loaded(pair: &impl QueuePair, addr: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    pair.load(addr, &mut bytes).expect("registered memory can be loaded");
    bytes
}

/// Rules 1 and 2.
fn memory_is_zero_and_stays<R: Rig>(rig: &mut R) {
    let (mut a, _b) = rig.pair();
    let first = a.register(5000).expect("memory");
    let second = a.register(64).expect("memory");
    assert_eq!((first.len, second.len), (5000, 64));
    assert_eq!(loaded(&a, first.addr, 5000), [0; 5000]);
    a.store(first.addr + 4000, b"mine").expect("registered memory can be stored to");
    assert_eq!(loaded(&a, first.addr + 4000, 4), b"mine");
    assert_eq!(loaded(&a, second.addr, 64), [0; 64]);
    let mut byte = [0];
    assert_eq!(a.load(first.addr.wrapping_sub(1), &mut byte), Err(MemoryError::Range));
    assert_eq!(a.load(first.addr + 4999, &mut [0; 2]), Err(MemoryError::Range));
    assert_eq!(a.store(u64::MAX, &[1, 2]), Err(MemoryError::Range));
}

/// Rules 3, 4 and 7.
fn words_follow_their_bytes<R: Rig>(rig: &mut R) {
    let (mut a, mut b) = rig.pair();
    let place = b.register(64).expect("memory");
    b.post_receives(3).expect("receives");
    let mut bytes = *b"one";
    a.post_write(b"early", Sge { addr: place.addr + 32, ..place }, None, 1).expect("room");
    a.post_message(&bytes, place, Word(3), 2).expect("room");
    bytes.fill(0);
    a.post_message(b"two", Sge { addr: place.addr + 3, ..place }, Word(4), 3).expect("room");
    a.post_message(&[], Sge::default(), Word(5), 4).expect("room");
    rig.settle();
    assert_eq!(words(&drain(&mut b)), [3, 4, 5]);
    assert_eq!(loaded(&b, place.addr, 6), b"onetwo");
    assert_eq!(loaded(&b, place.addr + 32, 5), b"early");
    let seen = drain(&mut a);
    assert_eq!(tokens(&seen), [1, 2, 3, 4]);
    let halves = seen.iter().filter(|c| **c == Completion::Sent { token: HALF }).count();
    assert_eq!(halves, if a.mode() == Mode::Message { 2 } else { 0 });
    assert!(drain(&mut a).is_empty() && drain(&mut b).is_empty(), "nothing is reported twice");
}

/// Rules 6, 7 and 10.
fn words_wait_for_receives<R: Rig>(rig: &mut R) {
    let (mut a, mut b) = rig.pair();
    let place = b.register(64).expect("memory");
    b.post_receives(1).expect("receives");
    a.post_message(&[], Sge::default(), Word(1), 1).expect("room");
    a.post_message(&[], Sge::default(), Word(2), 2).expect("room");
    a.post_write(b"behind", place, None, 3).expect("room");
    rig.settle();
    assert_eq!(words(&drain(&mut b)), [1]);
    a.post_message(&[], Sge::default(), Word(4), 4).expect("room");
    rig.settle();
    assert!(drain(&mut b).is_empty(), "what is behind waits too");
    assert_eq!(tokens(&drain(&mut a)), [1], "what waits was not carried out");
    a.arm();
    assert!(drain(&mut a).is_empty());
    b.post_receives(1).expect("receives");
    rig.settle();
    assert!(a.take_event(), "what waited is reported");
    assert_eq!(words(&drain(&mut b)), [2]);
    assert_eq!(loaded(&b, place.addr, 6), b"behind");
    assert_eq!(tokens(&drain(&mut a)), [2, 3]);
    b.post_receives(1).expect("receives");
    rig.settle();
    assert_eq!(words(&drain(&mut b)), [4]);
    assert_eq!(tokens(&drain(&mut a)), [4]);
}

/// Rule 6, where the transport has no way to say "not yet".
fn words_without_receives_end_the_pair<R: Rig>(rig: &mut R) {
    let (mut a, mut b) = rig.pair();
    b.post_receives(1).expect("receives");
    a.post_message(&[], Sge::default(), Word(1), 1).expect("room");
    rig.settle();
    a.post_message(&[], Sge::default(), Word(2), 2).expect("room");
    rig.settle();
    assert_eq!(drain(&mut b), [Completion::Word(Word(1)), Completion::Ended]);
    assert_eq!(drain(&mut a).last(), Some(&Completion::Ended));
}

/// Rules 3 and 8.
fn room_is_what_it_says<R: Rig>(rig: &mut R) {
    let (mut a, mut b) = rig.pair();
    let place = b.register(64).expect("memory");
    let room = a.room();
    assert!(room >= 8);
    for token in 0..u64::from(room) {
        a.post_write(&[1], place, None, token).expect("what room promised");
    }
    while a.post_write(&[1], place, None, 0).is_ok() {}
    assert_eq!(a.post_message(&[1], place, Word(1), 0), Err(PostError::Full));
    rig.settle();
    assert!(tokens(&drain(&mut a)).len() >= usize::from(room));
    assert!(a.room() >= room, "room comes back with completions");
    assert!(drain(&mut b).is_empty(), "a write without a word is silent");
}

/// Rules 5 and 11.
fn stray_writes_end_the_pair<R: Rig>(rig: &mut R) {
    type Stray = fn(Sge) -> Sge;
    let strays: [Stray; 4] = [
        |place| Sge { addr: place.addr + 61, ..place },
        |place| Sge { addr: place.addr.wrapping_sub(1), ..place },
        |place| Sge { addr: u64::MAX - 1, ..place },
        |place| Sge { rkey: place.rkey ^ 0x8000_0000, ..place },
    ];
    for stray in strays {
        let (mut a, mut b) = rig.pair();
        let place = b.register(64).expect("memory");
        b.post_receives(4).expect("receives");
        a.post_message(b"good", place, Word(1), 1).expect("room");
        // Some devices see at once that it goes nowhere, others when it gets there.
        let _ = a.post_message(b"stray", stray(place), Word(2), 2);
        rig.settle();
        let seen = drain(&mut b);
        assert_eq!(words(&seen), [1]);
        assert_eq!(seen.last(), Some(&Completion::Ended));
        assert_eq!(loaded(&b, place.addr, 4), b"good");
        assert_eq!(loaded(&b, place.addr + 4, 60), [0; 60]);
        assert_eq!(drain(&mut a).last(), Some(&Completion::Ended));
        assert_eq!(a.post_message(&[1], place, Word(3), 3), Err(PostError::Ended));
        assert_eq!(b.post_send(Word(3), 3), Err(PostError::Ended));
        assert!(drain(&mut a).is_empty() && drain(&mut b).is_empty(), "the end is the last thing");
    }
}

/// Rule 5, second half.
fn empty_writes_name_no_memory<R: Rig>(rig: &mut R) {
    let (mut a, mut b) = rig.pair();
    b.post_receives(1).expect("receives");
    let nowhere = Sge { addr: 0xdead_beef, rkey: 77, len: 12 };
    a.post_message(&[], nowhere, Word(0x8000_0010), 1).expect("room");
    rig.settle();
    assert_eq!(words(&drain(&mut b)), [0x8000_0010]);
    assert_eq!(tokens(&drain(&mut a)), [1]);
}

/// Rule 10.
fn armed_ends_are_woken<R: Rig>(rig: &mut R) {
    let (mut a, mut b) = rig.pair();
    b.post_receives(3).expect("receives");
    assert!(!b.take_event(), "nobody armed");
    b.arm();
    assert!(drain(&mut b).is_empty());
    a.post_message(&[], Sge::default(), Word(1), 1).expect("room");
    rig.settle();
    assert!(b.take_event());
    assert!(!b.take_event(), "an event is taken once");
    assert_eq!(words(&drain(&mut b)), [1]);
    b.arm();
    a.close();
    rig.settle();
    assert!(b.take_event(), "the end is an event");
}

/// Rules 11 and 12.
fn closing_comes_after_what_was_posted<R: Rig>(rig: &mut R) {
    let (mut a, mut b) = rig.pair();
    let place = b.register(8).expect("memory");
    b.post_receives(4).expect("receives");
    a.post_message(b"last", place, Word(4), 1).expect("room");
    a.close();
    assert!(a.post_message(&[], place, Word(1), 2).is_err());
    rig.settle();
    let seen = drain(&mut b);
    assert_eq!(seen, [Completion::Word(Word(4)), Completion::Ended]);
    assert_eq!(loaded(&b, place.addr, 4), b"last");
}

/// Rules 6 and 11.
fn closing_waits_for_receives<R: Rig>(rig: &mut R) {
    let (mut a, mut b) = rig.pair();
    b.post_receives(1).expect("receives");
    a.post_message(&[], Sge::default(), Word(1), 1).expect("room");
    a.post_message(&[], Sge::default(), Word(2), 2).expect("room");
    a.close();
    rig.settle();
    assert_eq!(drain(&mut b), [Completion::Word(Word(1))], "the end waits for what waits");
    assert_eq!(drain(&mut a), [Completion::Sent { token: 1 }]);
    b.post_receives(1).expect("receives");
    rig.settle();
    assert_eq!(drain(&mut b), [Completion::Word(Word(2)), Completion::Ended]);
    assert_eq!(drain(&mut a), [Completion::Sent { token: 2 }, Completion::Ended]);
}

/// Rule 12.
fn death_cuts_no_hole<R: Rig>(rig: &mut R) {
    let (mut a, mut b) = rig.pair();
    b.post_receives(4).expect("receives");
    for word in 1..=4 {
        a.post_message(&[], Sge::default(), Word(word), 0).expect("room");
    }
    rig.kill(a);
    rig.settle();
    let seen = drain(&mut b);
    let arrived = words(&seen);
    assert_eq!(arrived, [1, 2, 3, 4][..arrived.len()]);
    assert!(arrived.len() == 4 || !R::Pair::SURVIVES);
    assert_eq!(seen.last(), Some(&Completion::Ended));
}
