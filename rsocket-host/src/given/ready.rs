//! What `poll` and `select` are asked about, as the program gave it. Must not know what is ready.
//! Entry points: [`Polled`], [`Sets`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::ffi::{c_int, c_ulong};

use libc::{fd_set, pollfd};

use super::Places;

/// The list of a `poll`.
#[derive(Clone, Copy, Debug)]
pub struct Polled<'a>(Places<'a, pollfd>);

impl Polled<'_> {
    /// # Safety
    /// `list` is null or points to `len` entries, for the time of the call. Of each entry the
    /// descriptor and what is asked have been written.
    #[must_use]
    pub const unsafe fn new(list: *mut pollfd, len: usize) -> Self {
        // SAFETY: the caller's promise; of an entry no other field is read.
        Self(unsafe { Places::new(list, len) })
    }

    /// How many entries there are, of null none.
    #[inline]
    #[must_use]
    pub const fn len(self) -> usize {
        self.0.len()
    }

    /// Whether there is no entry.
    #[inline]
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The descriptor of this entry.
    #[inline]
    #[must_use]
    pub fn fd(self, i: usize) -> Option<c_int> {
        // SAFETY: as in place().
        self.place(i).map(|at| unsafe { (&raw const (*at).fd).read_unaligned() })
    }

    /// What is asked about it.
    #[inline]
    #[must_use]
    pub fn events(self, i: usize) -> Option<i16> {
        // SAFETY: as in place().
        self.place(i).map(|at| unsafe { (&raw const (*at).events).read_unaligned() })
    }

    /// Gives the answer; nothing beyond the end.
    #[inline]
    pub fn answer(self, i: usize, revents: i16) {
        if let Some(at) = self.place(i) {
            // SAFETY: as in place().
            unsafe { (&raw mut (*at).revents).write_unaligned(revents) };
        }
    }

    /// Where the entry of this number is: inside the list, which is there by the promise of new().
    #[inline]
    fn place(self, i: usize) -> Option<*mut pollfd> {
        (i < self.len()).then(|| self.as_ptr().wrapping_add(i))
    }

    /// To be passed on.
    #[inline]
    #[must_use]
    pub const fn as_ptr(self) -> *mut pollfd {
        self.0.as_ptr()
    }
}

impl<'a> From<&'a mut [pollfd]> for Polled<'a> {
    fn from(all: &'a mut [pollfd]) -> Self {
        Self(all.into())
    }
}

const BITS: usize = c_ulong::BITS as usize;

/// A program's set, of any length.
#[derive(Clone, Copy, Debug)]
pub struct Bits<'a>(Places<'a, c_ulong>);

impl Bits<'_> {
    /// How many words it has: none where there is no set.
    #[inline]
    #[must_use]
    pub const fn words(self) -> usize {
        self.0.len()
    }

    /// The word of this number, of what lies beyond the end 0.
    #[inline]
    #[must_use]
    pub fn word(self, i: usize) -> c_ulong {
        self.0.get(i).unwrap_or(0)
    }

    /// Writes it; nothing beyond the end.
    #[inline]
    pub fn set_word(self, i: usize, word: c_ulong) {
        self.0.set(i, word);
    }

    /// Whether a descriptor is in it.
    #[inline]
    #[must_use]
    pub fn has(self, fd: usize) -> bool {
        self.word(fd / BITS) >> (fd % BITS) & 1 == 1
    }

    /// To be passed on.
    #[inline]
    #[must_use]
    pub const fn as_ptr(self) -> *mut c_ulong {
        self.0.as_ptr()
    }
}

/// The three sets of one `select`, of descriptors below a number.
#[derive(Clone, Copy, Debug)]
pub struct Sets<'a> {
    nfds: c_int,
    sets: [Bits<'a>; 3],
}

impl<'a> Sets<'a> {
    /// Those to read, to write, and of exceptions.
    ///
    /// # Safety
    /// Each set is null or valid for `nfds` bits, rounded up to whole words, for the time of the
    /// call.
    #[must_use]
    pub unsafe fn new(nfds: c_int, sets: [*mut fd_set; 3]) -> Self {
        let words = usize::try_from(nfds).unwrap_or(0).div_ceil(BITS);
        // SAFETY: the caller's promise.
        Self { nfds, sets: sets.map(|at| Bits(unsafe { Places::new(at.cast(), words) })) }
    }

    /// The number that was given.
    #[inline]
    #[must_use]
    pub const fn nfds(&self) -> c_int {
        self.nfds
    }

    /// What is to be readable, writable, and to have urgent data.
    #[inline]
    #[must_use]
    pub const fn each(&self) -> [Bits<'a>; 3] {
        self.sets
    }

    /// The descriptors below `end` that stand in any of them.
    #[inline]
    pub fn members(&self, end: c_int) -> impl Iterator<Item = c_int> + Clone + use<'a> {
        let sets = self.sets;
        // From 0 on.
        let stands = move |fd: &c_int| sets.iter().any(|set| set.has(fd.cast_unsigned() as usize));
        (0..self.nfds.min(end)).filter(stands)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_any_set_are_found() {
        // SAFETY: an fd_set is plain bits, for which zero is a value; FD_SET stays inside it.
        let (mut a, mut b) =
            unsafe { (core::mem::zeroed::<fd_set>(), core::mem::zeroed::<fd_set>()) };
        // SAFETY: as above.
        unsafe {
            libc::FD_SET(3, &raw mut a);
            libc::FD_SET(64, &raw mut a);
            libc::FD_SET(130, &raw mut b);
            libc::FD_SET(200, &raw mut b);
        }
        // SAFETY: both sets have room for 150 bits.
        let sets = unsafe { Sets::new(150, [&raw mut a, core::ptr::null_mut(), &raw mut b]) };
        assert_eq!(sets.members(700).collect::<Vec<_>>(), [3, 64, 130]);
        assert_eq!(sets.members(100).collect::<Vec<_>>(), [3, 64]);
        let [a, none, _] = sets.each();
        assert_eq!((a.words(), a.word(0), a.word(3), none.words()), (3, 8, 0, 0));
        a.set_word(0, 1);
        a.set_word(3, 1);
        assert!(a.has(0) && !a.has(3) && !a.has(192));
    }

    #[test]
    fn a_poll_is_answered_where_it_asks() {
        let mut all = [pollfd { fd: 4, events: libc::POLLIN, revents: 7 }; 2];
        let list = Polled::from(&mut all[..1]);
        list.answer(0, libc::POLLHUP);
        list.answer(1, libc::POLLHUP);
        assert_eq!((list.fd(0), list.events(0), list.fd(1)), (Some(4), Some(libc::POLLIN), None));
        assert_eq!(all.map(|p| p.revents), [libc::POLLHUP, 7]);
        // SAFETY: null.
        let none = unsafe { Polled::new(core::ptr::null_mut(), 3) };
        assert!(none.is_empty() && none.as_ptr().is_null() && none.fd(0).is_none());
    }
}
