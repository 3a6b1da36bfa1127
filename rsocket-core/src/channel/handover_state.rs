//! The words by which the two ends of a direction agree on where its bytes travel.
//!
//! One function for each meaning, so that every ordering has one place. Values that mean "byte
//! number N" are stored as N + 1, because 0 is "not said". Another reason is that a peer can turn
//! any word to 0.

use core::sync::atomic::Ordering;

use crate::device::shm::direction::Direction;
use crate::device::shm::layout::ALONE;

/// Receiver: no thread on this side is inside the kernel on the direction; it may switch. Release:
/// pairs with the acquire in [`acknowledged`].
pub fn acknowledge(d: &Direction) {
    d.receiver().acknowledged.store(1, Ordering::Release);
}

/// Sender: whether the receiver acknowledged.
#[inline]
pub fn acknowledged(d: &Direction) -> bool {
    d.receiver().acknowledged.load(Ordering::Acquire) == 1
}

/// Sender: `n` bytes of the stream are TCP's, the rest the device's. Release: pairs with the
/// acquire in [`switch_offset`]; it follows the last byte that went into TCP.
pub fn publish_switch_offset(d: &Direction, n: u64) {
    d.sender().switch_offset.store(n.wrapping_add(1), Ordering::Release);
}

/// Receiver: where TCP ends, once the sender has said it.
#[inline]
pub fn switch_offset(d: &Direction) -> Option<u64> {
    d.sender().switch_offset.load(Ordering::Acquire).checked_sub(1)
}

/// In the end word: the receiver spoke first. The rest of the word says how many bytes it had read.
/// The rest is 0 when the receiver reads what is in the channel itself, and only asks the sender to
/// put nothing more there ([`want_end`]).
const RETURN: u64 = 1 << 63;

/// The side that goes back first decides from which byte on TCP carries the rest: one word, decided
/// once. A receiver that only asked ([`want_end`]) has decided nothing. AcqRel: the loser sees what
/// the winner did before.
fn decide(d: &Direction, word: u64) -> bool {
    let end = &d.sender().end;
    [0, RETURN].into_iter().any(|undecided| {
        let seen = end.compare_exchange(undecided, word, Ordering::AcqRel, Ordering::Acquire);
        seen.is_ok() || seen == Err(word)
    })
}

/// Receiver: the sender is to go back at its next call. What it has put into the channel by then
/// the receiver reads there. Nothing happens when either side has gone back. Release: pairs with
/// [`is_asked_back`].
pub fn want_end(d: &Direction) {
    let _ = d.sender().end.compare_exchange(0, RETURN, Ordering::Release, Ordering::Relaxed);
}

/// Whether neither side has said anything of a fallback.
pub fn is_undecided(d: &Direction) -> bool {
    d.sender().end.load(Ordering::Acquire) == 0
}

/// Receiver: whether either side has said anything of a fallback. Relaxed: a caller that goes by it
/// asks again ([`end`]).
#[inline(always)]
pub fn is_decided(d: &Direction) -> bool {
    d.sender().end.load(Ordering::Relaxed) != 0
}

/// Sender: whether the receiver wants TCP to carry what comes next, whatever becomes of what it has
/// not read.
#[inline]
pub fn is_asked_back(d: &Direction) -> bool {
    d.sender().end.load(Ordering::Acquire) & RETURN != 0
}

/// Sender: the device ends after `m` bytes, the rest is TCP's. False when the receiver went back
/// first: then [`return_wanted`] says what it had read. Pairs with [`end`], after the last message.
#[must_use]
pub fn publish_end(d: &Direction, m: u64) -> bool {
    decide(d, m.wrapping_add(1) & !RETURN)
}

/// Receiver: where the device ends, once the sender has said it.
#[inline]
pub fn end(d: &Direction) -> Option<u64> {
    let word = d.sender().end.load(Ordering::Acquire);
    if word & RETURN != 0 { None } else { word.checked_sub(1) }
}

/// Receiver: `r` bytes of the device's were read; the rest is to come by TCP. False when the sender
/// went back first: then [`end`] says where the device ends. Pairs with [`return_wanted`].
#[must_use]
pub fn want_return(d: &Direction, r: u64) -> bool {
    decide(d, r.wrapping_add(1) | RETURN)
}

/// Sender: how many bytes the receiver had read when it asked for the rest by TCP. `None`, too,
/// when it asked for what comes next alone.
#[inline]
pub fn return_wanted(d: &Direction) -> Option<u64> {
    let word = d.sender().end.load(Ordering::Acquire);
    if word & RETURN != 0 { (word & !RETURN).checked_sub(1) } else { None }
}

/// Sender: how many bytes TCP had taken when the unread residual bytes began to be sent, if it has
/// begun. Relaxed: only holders of the send lock touch it.
#[must_use]
pub fn residual_base(d: &Direction) -> Option<u64> {
    d.sender().returned.load(Ordering::Relaxed).checked_sub(1)
}

/// Sender: the residual bytes begin after `put` bytes of TCP's.
pub fn begin_residual(d: &Direction, put: u64) {
    d.sender().returned.store(put.wrapping_add(1), Ordering::Relaxed);
}

/// Whether the reader of a direction has closed. Acquire: pairs with [`close`].
#[inline]
pub fn receiver_closed(d: &Direction) -> bool {
    d.receiver().receiver_closed.load(Ordering::Acquire) != 0
}

/// Whether the writer of a direction has closed.
pub fn sender_closed(d: &Direction) -> bool {
    d.sender().sender_closed.load(Ordering::Acquire) != 0
}

/// This side is done with the channel: it neither reads nor writes any more. Release: a process
/// that sees it may use the channel anew.
pub fn close(incoming: &Direction, outgoing: &Direction) {
    incoming.receiver().receiver_closed.store(1, Ordering::Release);
    outgoing.sender().sender_closed.store(1, Ordering::Release);
}

/// Reader: it takes nothing more of this direction, though the channel is still in use. Release:
/// pairs with the acquire in [`receiver_closed`].
pub fn stop_reading(d: &Direction) {
    d.receiver().receiver_closed.store(1, Ordering::Release);
}

/// Where the other side of a direction last waited; 0 when unknown. Relaxed: only steers spinning.
#[inline]
pub fn receiver_cpu(d: &Direction) -> u32 {
    d.receiver().receiver_cpu.load(Ordering::Relaxed) & !ALONE
}

/// As [`receiver_cpu`], where the receiver's thread waits for this process alone; else 0.
#[inline]
pub fn lone_receiver_cpu(d: &Direction) -> u32 {
    let said = d.receiver().receiver_cpu.load(Ordering::Relaxed);
    if said & ALONE != 0 { said & !ALONE } else { 0 }
}

/// As [`receiver_cpu`].
#[inline]
pub fn sender_cpu(d: &Direction) -> u32 {
    d.sender().sender_cpu.load(Ordering::Relaxed)
}

/// Says where this side runs, in both of its directions. Also whether its thread waits for the
/// peer's process alone, if that is known here. Stores only what changed, since the other side
/// polls the neighbouring words.
#[inline]
pub fn say_cpu(incoming: &Direction, outgoing: &Direction, cpu: u32, alone: Option<bool>) {
    let receiver = &incoming.receiver().receiver_cpu;
    let before = receiver.load(Ordering::Relaxed);
    let alone = alone.map_or(before & ALONE, |alone| if alone { ALONE } else { 0 });
    if before != cpu | alone {
        receiver.store(cpu | alone, Ordering::Relaxed);
    }
    let sender = &outgoing.sender().sender_cpu;
    if sender.load(Ordering::Relaxed) != cpu {
        sender.store(cpu, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use core::ptr::NonNull;

    use super::*;
    use crate::device::shm::layout::DIRECTION_LEN;

    /// A direction in memory of its own, whatever becomes of that.
    fn direction() -> Direction {
        let words = vec![0_u128; DIRECTION_LEN / 16 + 4096 / 16].leak();
        let at = words.as_mut_ptr().cast::<u8>();
        let base = NonNull::new(at.wrapping_add(at.align_offset(4096))).expect("memory");
        // SAFETY: page-aligned, long enough, never freed, and used for nothing else.
        unsafe { Direction::from_base(base) }
    }

    #[test]
    fn a_wish_decides_nothing() {
        let d = direction();
        want_end(&d);
        assert!(is_asked_back(&d) && !is_undecided(&d));
        assert_eq!((end(&d), return_wanted(&d)), (None, None));
        assert!(publish_end(&d, 7));
        assert_eq!((end(&d), is_asked_back(&d)), (Some(7), false));
        want_end(&d);
        assert!(!want_return(&d, 3), "the sender was first");
        assert_eq!(end(&d), Some(7));
    }

    #[test]
    fn the_receiver_may_ask_for_more() {
        let d = direction();
        want_end(&d);
        assert!(want_return(&d, 3));
        want_end(&d);
        assert_eq!((return_wanted(&d), is_asked_back(&d)), (Some(3), true));
        assert!(!publish_end(&d, 7), "the receiver was first");
    }
}
