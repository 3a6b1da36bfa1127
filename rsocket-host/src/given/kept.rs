//! Where a name goes that the kernel writes first.
//!
//! The kernel says the whole length of a name that it has cut, which is more than there is room
//! for (accept(2)). So the room is noted before. Must not know whose name it is. Entry point:
//! [`Answer::kept`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use libc::socklen_t;

use super::{Answer, Bytes};
use crate::address::SockAddr;

/// The place, and how much room there was.
#[derive(Clone, Copy, Debug)]
pub struct Kept<'a> {
    answer: Answer<'a>,
    room: socklen_t,
}

impl<'a> Answer<'a> {
    /// Notes how much room there is. Nothing has been written yet.
    #[must_use]
    pub fn kept(self) -> Kept<'a> {
        Kept { answer: self, room: self.length().get().unwrap_or(0) }
    }
}

impl Kept<'_> {
    /// All of the room is there again, for another call.
    pub fn again(self) {
        self.answer.length().set(self.room);
    }

    /// As [`SockAddr::write`], in place of what the kernel has written.
    pub fn name(self, name: &SockAddr) {
        self.again();
        self.answer.name(name);
    }

    /// The family of the name that the kernel has written, if there was room for it.
    #[must_use]
    pub fn family(self) -> Option<i32> {
        let (at, _) = self.answer.as_ptrs();
        let said = self.answer.length().get()?.min(self.room);
        // SAFETY: null, or so many bytes: no more than there is room for, by the promise of
        // Answer::new(), and no more than were written.
        unsafe { Bytes::new(at, said) }.family()
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use super::*;

    /// A place of 24 bytes of which the caller says so many, and the kernel's word of 28.
    fn cut(room: socklen_t, f: impl FnOnce(Kept<'_>)) -> ([u8; 24], socklen_t) {
        let (mut place, mut length) = ([0xaa; 24], room);
        // SAFETY: locals, and no more than there are.
        let kept = unsafe { Answer::new(place.as_mut_ptr().cast(), &raw mut length) }.kept();
        kept.answer.length().set(28);
        f(kept);
        (place, length)
    }

    #[test]
    fn a_name_that_was_cut_is_cut_again() {
        let name = SockAddr(SocketAddr::from(([0x55; 16], 0x5555)));
        let (place, length) = cut(16, |kept| kept.name(&name));
        assert_eq!(length, 28);
        assert!(place[16..].iter().all(|b| *b == 0xaa) && place[8..16] != [0xaa; 8]);
        let (place, length) = cut(0, |kept| kept.name(&name));
        assert_eq!((place, length), ([0xaa; 24], 28));
    }

    #[test]
    fn a_family_is_told_where_there_was_room_for_it() {
        cut(2, |kept| assert_eq!(kept.family(), Some(0xaaaa)));
        cut(1, |kept| assert_eq!(kept.family(), None));
        let (_, length) = cut(7, |kept| kept.again());
        assert_eq!(length, 7);
    }
}
