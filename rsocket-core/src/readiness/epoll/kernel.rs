//! The kernel's half of a mirrored set. It has raw epoll calls (never libc's, which are hooked),
//! and the tokens by which a returned event is recognised as ours.
//!
//! **Tokens.** The program's data pass through the kernel unchanged, so an event of ours must be
//! told from any data a program may choose. A token is a 40-bit random tag of its set over a 24-bit
//! serial. Bits 63:62 are `10`, which no user-space pointer and no small number has. A foreign
//! member's data would have to hit the random tag. Data that are random themselves have one chance
//! in 2^38; pointers, indices and descriptor numbers have none. Whatever carries the tag but no
//! living serial belonged to a member that was removed, and is swallowed.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::mem::MaybeUninit;
use std::os::fd::RawFd;

use libc::epoll_event;

use crate::failure::Failure;
use crate::given::Places;
use crate::host::{kernel as facts, loaded};
use crate::readiness::source::Events;
use crate::sync::stack;
use crate::sys::event_set::{self, Event, EventFlags};
use crate::sys::files::{self, For};
use crate::sys::{self, sandbox};

/// Serials below this bit.
pub(crate) const SERIAL_BITS: u32 = 24;
/// The serial of the set's waker.
pub(crate) const WAKER: u32 = 0;
/// The serial of the eventfd beside it.
pub(crate) const EVENT: u32 = (1 << SERIAL_BITS) - 1;

/// Flags of a member that are the program's way of being told, not conditions.
pub(crate) const EXCLUSIVE: u32 = 1 << 28;
pub(crate) const WAKEUP: u32 = 1 << 29;
pub(crate) const ONESHOT: u32 = 1 << 30;
pub(crate) const EDGE: u32 = 1 << 31;

/// Pieces of the text about an epoll object that are read at most: it grows with its members.
const MOST_READS: u32 = 64;

/// A fresh random tag, in place.
pub(crate) fn tag(salt: u64) -> u64 {
    let seed = loaded::seed().map_or(0, |[a, b]| a.rotate_left(17) ^ b);
    let mut z = (seed ^ sys::now_ns().rotate_left(32) ^ salt).wrapping_add(0x9e37_79b9_7f4a_7c15);
    // splitmix64's finaliser.
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) & !(0b11 << 62) | 0b10 << 62) >> SERIAL_BITS << SERIAL_BITS
}

/// Adds a descriptor.
pub(crate) fn add(set: RawFd, fd: RawFd, events: u32, data: u64) -> Result<(), Failure> {
    event_set::add(set, fd, data, EventFlags::from_bits_retain(events))
}

/// Changes an entry. One that was added as exclusive cannot be changed: it is replaced.
pub(crate) fn change(set: RawFd, fd: RawFd, events: u32, data: u64) -> Result<(), Failure> {
    match event_set::change(set, fd, data, EventFlags::from_bits_retain(events)) {
        Err(Failure::Invalid) => {
            remove(set, fd)?;
            add(set, fd, events & !EXCLUSIVE, data)
        }
        other => other,
    }
}

/// Removes an entry.
pub(crate) fn remove(set: RawFd, fd: RawFd) -> Result<(), Failure> {
    event_set::remove(set, fd)
}

/// Whether a one-shot entry has fired and was not set again. Only the kernel knows, and tells it in
/// a text alone; its lines are `tfd: NUMBER events: HEX ...`. What cannot be read counts as armed:
/// an event may then be told twice, but none is lost.
pub(crate) fn disarmed(set: RawFd, fd: RawFd) -> bool {
    !sandbox::entered() && stack::on_own(|| reads_as_disarmed(set, fd))
}

fn reads_as_disarmed(set: RawFd, fd: RawFd) -> bool {
    use std::io::Write;
    let mut path = [0_u8; 48];
    let mut rest: &mut [u8] = &mut path;
    // Not of `self`: that is the thread that the process began with, which may have left.
    if write!(rest, "/proc/thread-self/fdinfo/{set}\0").is_err() {
        return false;
    }
    let Ok(path) = core::ffi::CStr::from_bytes_until_nul(&path) else { return false };
    let Ok(file) = files::open(path, For::Reading) else { return false };
    let mut text = [0_u8; 4096];
    let mut kept = 0;
    let mut found = false;
    for _ in 0..MOST_READS {
        let Some(room) = text.get_mut(kept..) else { break };
        let Ok(n @ 1..) = files::read(&file, room) else { break };
        let filled = text.get(..kept + n).unwrap_or_default();
        let whole = filled.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let lines = filled.get(..whole).unwrap_or_default().split(|b| *b == b'\n');
        if let Some(armed) = lines.filter_map(|line| armed(line, fd)).next() {
            found = !armed;
            break;
        }
        kept = filled.len() - whole;
        text.copy_within(whole..whole + kept, 0);
    }
    sys::discard(file);
    found
}

/// Whether the entry of `fd` waits for anything, if the line is about it. An entry that does always
/// has `EPOLLERR`.
fn armed(line: &[u8], fd: RawFd) -> Option<bool> {
    let mut words = core::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let named = words.next()? == "tfd:" && words.next()?.parse::<RawFd>().ok()? == fd;
    let events = words.nth(1).filter(|_| named)?;
    Some(u32::from_str_radix(events, 16).ok()? & Events::ERR.bits() != 0)
}

/// What is there now, at most `limit` events, without waiting and without a cancellation point (a
/// lock may be held).
pub(crate) fn events_now(
    set: RawFd,
    to: Places<'_, epoll_event>,
    limit: usize,
) -> Result<usize, Failure> {
    const { assert!(size_of::<Event>() == size_of::<epoll_event>()) };
    let (at, limit) = (to.as_ptr().cast::<MaybeUninit<Event>>(), limit.min(to.len()));
    if limit == 0 {
        return Ok(0);
    }
    // SAFETY: both types are the kernel's struct epoll_event, and there are as many places.
    let buffer = unsafe { core::slice::from_raw_parts_mut(at, limit) };
    event_set::now(set, buffer)
}

/// Whether something is there. It stays there: no edge and no one-shot entry is used up. In a
/// sandbox, which may forbid the question, there is nothing.
pub(crate) fn has_events(set: RawFd) -> bool {
    !sandbox::inside() && facts::poll_now(set, Events::IN).contains(Events::IN)
}

/// What the kernel is asked about a socket that is wholly on its device. That is the end of the
/// connection, urgent data, which only TCP carries, and bytes that came around the library.
pub(crate) fn detector(wanted: Events) -> u32 {
    (Events::RDHUP | Events::IN | wanted & Events::PRI).bits() | EDGE
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn sees_that_a_one_shot_has_fired() {
        let set = event_set::new().unwrap();
        let mut fds = vec![];
        // More lines than one piece holds.
        for i in 0..200 {
            let waker = event_set::new_counter().unwrap();
            event_set::raise(waker);
            add(set, waker, Events::IN.bits() | ONESHOT, i).unwrap();
            fds.push(waker);
        }
        let mut event = epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one.
        let place = unsafe { Places::new(&raw mut event, 1) };
        for _ in 0..150 {
            assert_eq!(events_now(set, place, 1), Ok(1));
            let event = place.get(0).unwrap();
            let at = fds[event.u64 as usize];
            assert!(disarmed(set, at));
            change(set, at, ONESHOT, 0).unwrap();
            assert!(!disarmed(set, at));
        }
        assert!(!disarmed(set, set));
        assert!(!disarmed(-1, 0));
    }

    #[test]
    fn tags_look_like_no_pointer() {
        let (a, b) = (tag(1), tag(2));
        assert_ne!(a, b);
        for t in [a, b] {
            assert_eq!(t >> 62, 0b10);
            assert_eq!(t & ((1 << SERIAL_BITS) - 1), 0);
        }
    }
}
