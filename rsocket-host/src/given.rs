//! What a C caller gave: pointers that the contract of its call vouches for.
//!
//! Each type is made once, where the call comes in, and making it is the promise; what is done with
//! it further down needs none. `'a` is the time of the call. Null is one of the values, and nothing
//! need be aligned. Must not know what a call does. Entry points: [`In`], [`Place`], [`Places`],
//! [`Strings`]; for names and options [`Bytes`] and [`Answer`]; for waits [`Polled`] and
//! [`Sets`], and [`epoll`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::ffi::c_void;
use core::marker::PhantomData;

use libc::{sa_family_t, sockaddr, sockaddr_storage, socklen_t};

use crate::address::SockAddr;
use crate::failure::Failure;
use crate::probe::present;

pub mod epoll;
mod kept;
mod ready;
mod strings;

pub use kept::Kept;
pub use ready::{Bits, Polled, Sets};
pub use strings::{Strings, string};

/// A value to be read: a pointer, as an array of pointers has them.
#[derive(Debug)]
#[repr(transparent)]
pub struct In<'a, T>(*const T, PhantomData<&'a T>);

impl<T> Clone for In<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<'_, T> {}

impl<T: Copy> In<'_, T> {
    /// None.
    pub const NULL: Self = Self(core::ptr::null(), PhantomData);

    /// # Safety
    /// `at` is null or points to a `T`, for the time of the call.
    #[must_use]
    pub const unsafe fn new(at: *const T) -> Self {
        Self(at, PhantomData)
    }

    /// The value, if the pointer is not null.
    #[inline]
    #[must_use]
    pub fn get(self) -> Option<T> {
        // SAFETY: not null, so it points to a value, by the promise of new().
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }

    /// The value, or none for null, of a call that answers bad pointers as the kernel does.
    ///
    /// # Errors
    /// `EFAULT`: no memory is there.
    #[inline]
    pub fn read(self) -> Result<Option<T>, Failure> {
        let nowhere = !self.0.is_null() && !present(self.0, 1);
        if nowhere { Err(Failure::BadAddress) } else { Ok(self.get()) }
    }

    /// To be passed on.
    #[inline]
    #[must_use]
    pub const fn as_ptr(self) -> *const T {
        self.0
    }
}

/// An array that is read and written, or of which so much as is written is read.
#[derive(Debug)]
pub struct Places<'a, T> {
    at: *mut T,
    len: usize,
    time: PhantomData<&'a mut T>,
}

impl<T> Clone for Places<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Places<'_, T> {}

impl<T: Copy> Places<'_, T> {
    /// # Safety
    /// `at` is null or has room for `len` of these, for the time of the call; those that are read
    /// have been written.
    #[must_use]
    pub const unsafe fn new(at: *mut T, len: usize) -> Self {
        // Of null there is none.
        let len = if at.is_null() { 0 } else { len };
        Self { at, len, time: PhantomData }
    }

    /// Whether there is none.
    #[inline]
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.at.is_null()
    }

    /// How many there are, of null none.
    #[inline]
    #[must_use]
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether there is no element.
    #[inline]
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The element of this number.
    #[inline]
    #[must_use]
    pub fn get(self, i: usize) -> Option<T> {
        // SAFETY: inside the array, which is there by the promise of new().
        (i < self.len).then(|| unsafe { self.at.add(i).read_unaligned() })
    }

    /// Where the element of this number is.
    #[inline]
    #[must_use]
    pub fn at(self, i: usize) -> Option<*mut T> {
        (i < self.len).then(|| self.at.wrapping_add(i))
    }

    /// The first so many of them.
    #[inline]
    #[must_use]
    pub fn first(self, most: usize) -> Self {
        Self { len: self.len.min(most), ..self }
    }

    /// Writes one; nothing beyond the end.
    #[inline]
    pub fn set(self, i: usize, value: T) {
        if i < self.len {
            // SAFETY: as in get().
            unsafe { self.at.add(i).write_unaligned(value) }
        }
    }

    /// To be passed on.
    #[inline]
    #[must_use]
    pub const fn as_ptr(self) -> *mut T {
        self.at
    }
}

impl<'a, T> From<&'a mut [T]> for Places<'a, T> {
    fn from(all: &'a mut [T]) -> Self {
        Self { at: all.as_mut_ptr(), len: all.len(), time: PhantomData }
    }
}

/// One value that is read and written.
#[derive(Debug)]
pub struct Place<'a, T>(Places<'a, T>);

impl<T> Clone for Place<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Place<'_, T> {}

impl<'a, T: Copy> Place<'a, T> {
    /// # Safety
    /// `at` is null or points to a `T`, for the time of the call.
    #[must_use]
    pub const unsafe fn new(at: *mut T) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { Places::new(at, 1) })
    }

    /// Whether there is none.
    #[inline]
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The value, if the pointer is not null.
    #[inline]
    #[must_use]
    pub fn get(self) -> Option<T> {
        self.0.get(0)
    }

    /// Writes it, if the pointer is not null.
    #[inline]
    pub fn set(self, value: T) {
        self.0.set(0, value);
    }

    /// The same value, to be read only.
    #[inline]
    #[must_use]
    pub const fn to_read(self) -> In<'a, T> {
        In(self.0.as_ptr(), PhantomData)
    }

    /// To be passed on.
    #[inline]
    #[must_use]
    pub const fn as_ptr(self) -> *mut T {
        self.0.as_ptr()
    }
}

/// Bytes of some length that are read: the value of an option, a name.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a> {
    at: *const c_void,
    length: socklen_t,
    time: PhantomData<&'a [u8]>,
}

impl Bytes<'_> {
    /// # Safety
    /// `at` is null or points to `length` bytes, for the time of the call.
    #[must_use]
    pub const unsafe fn new(at: *const c_void, length: socklen_t) -> Self {
        Self { at, length, time: PhantomData }
    }

    /// Where they are said to be.
    #[must_use]
    pub const fn as_ptr(self) -> *const c_void {
        self.at
    }

    /// How many.
    #[must_use]
    pub const fn length(self) -> socklen_t {
        self.length
    }

    /// Whether no memory is there, and this is not null. Of a name the kernel reads 128 bytes at
    /// most.
    #[inline]
    #[must_use]
    pub fn are_nowhere(self) -> bool {
        let most = (self.length as usize).min(size_of::<sockaddr_storage>());
        !self.at.is_null() && !present(self.at.cast::<u8>(), most)
    }

    /// Their beginning as a value of a type of which any bytes are one; `None` where they are too
    /// few, or no memory is there.
    fn first<T: Numbers>(self) -> Option<T> {
        let long = self.length as usize >= size_of::<T>();
        let enough = long && !self.at.is_null() && present(self.at.cast::<T>(), 1);
        // SAFETY: as many bytes are there, by the promise of new(), and any are a value.
        enough.then(|| unsafe { self.at.cast::<T>().read_unaligned() })
    }

    /// An option's integer.
    ///
    /// # Errors
    /// `EFAULT` where no memory is, `EINVAL` where there is less.
    pub fn integer(self) -> Result<i32, Failure> {
        let nowhere = self.at.is_null() || self.are_nowhere();
        self.first().ok_or(if nowhere { Failure::BadAddress } else { Failure::Invalid })
    }

    /// The first of them.
    #[must_use]
    pub fn byte(self) -> Option<u8> {
        self.first()
    }

    /// The seconds with which a `timeval` begins.
    #[must_use]
    pub fn seconds(self) -> Option<i64> {
        self.first()
    }

    /// As [`SockAddr::read`].
    ///
    /// # Errors
    /// As there, and `EFAULT` where no memory is.
    pub fn name(self) -> Result<SockAddr, Failure> {
        if self.are_nowhere() {
            return Err(Failure::BadAddress);
        }
        // SAFETY: the promise of new().
        unsafe { SockAddr::read(self.at.cast(), self.length) }
    }

    /// What family the name is of.
    #[must_use]
    pub fn family(self) -> Option<i32> {
        self.first::<sa_family_t>().map(i32::from)
    }
}

/// Integers.
///
/// # Safety
/// Any bytes are a value.
unsafe trait Numbers: Copy {}
// SAFETY: an integer.
unsafe impl Numbers for u8 {}
// SAFETY: an integer.
unsafe impl Numbers for i32 {}
// SAFETY: an integer.
unsafe impl Numbers for i64 {}
// SAFETY: an integer.
unsafe impl Numbers for sa_family_t {}

/// Where an answer goes whose length the caller limits, and is told: the value of an option, a
/// name.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    at: *mut c_void,
    length: Place<'a, socklen_t>,
}

impl<'a> Answer<'a> {
    /// # Safety
    /// `length` is null or points to the caller's length. `at` is null or has room for as many
    /// bytes as that says; those that are read have been written. Both hold for the time of the
    /// call. Beside a name the kernel may write a number above the room: from there on [`Kept`] is
    /// to be used.
    #[must_use]
    pub const unsafe fn new(at: *mut c_void, length: *mut socklen_t) -> Self {
        // SAFETY: the caller's promise.
        Self { at, length: unsafe { Place::new(length) } }
    }

    /// Where the bytes go, and where their number.
    #[must_use]
    pub const fn as_ptrs(self) -> (*mut c_void, *mut socklen_t) {
        (self.at, self.length.as_ptr())
    }

    /// How much room there is, and later how much was said.
    #[must_use]
    pub const fn length(self) -> Place<'a, socklen_t> {
        self.length
    }

    /// Whether nothing was asked for.
    #[must_use]
    pub fn is_null(self) -> bool {
        self.at.is_null() || self.length.as_ptr().is_null()
    }

    /// How much room there is: none where one of both is null.
    #[must_use]
    pub fn room(self) -> usize {
        if self.at.is_null() { 0 } else { self.length.get().unwrap_or(0) as usize }
    }

    /// Writes these bytes of the value, which begin `from` bytes behind its first. False, and
    /// nothing is written, where they would not lie in the room for it.
    pub fn part(self, from: usize, bytes: &[u8]) -> bool {
        let fits = from.checked_add(bytes.len()).is_some_and(|end| end <= self.room());
        if fits && !self.at.is_null() {
            // SAFETY: not null, and inside the room that there is by the promise of new().
            unsafe {
                let to = self.at.cast::<u8>().add(from);
                core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            }
        }
        fits
    }

    /// Gives the value of an option whole. False, and nothing is given, where there is no room for
    /// all of it.
    pub fn whole(self, value: &[u8]) -> bool {
        let fits = !self.is_null() && self.part(0, value);
        if fits {
            self.length.set(value.len() as socklen_t);
        }
        fits
    }

    /// What the kernel has answered: as many bytes as it says.
    #[must_use]
    pub fn said(self) -> Option<Bytes<'a>> {
        Some(Bytes { at: self.at, length: self.length.get()?, time: PhantomData })
    }

    /// Gives the value of an option: as much of it as there is room for, and says how much that is.
    ///
    /// # Errors
    /// `EFAULT` for null, `EINVAL` for a length that is negative.
    pub fn option(self, value: &[u8]) -> Result<(), Failure> {
        let room = self.length.get().ok_or(Failure::BadAddress)?;
        if self.at.is_null() {
            return Err(Failure::BadAddress);
        }
        if room > i32::MAX.cast_unsigned() {
            return Err(Failure::Invalid);
        }
        let n = (room as usize).min(value.len());
        // SAFETY: not null, and there is room for so many by the promise of new().
        unsafe { core::ptr::copy_nonoverlapping(value.as_ptr(), self.at.cast::<u8>(), n) };
        self.length.set(n as socklen_t);
        Ok(())
    }

    /// As [`SockAddr::write`].
    pub fn name(self, name: &SockAddr) {
        // SAFETY: the promise of new().
        unsafe { name.write(self.at.cast::<sockaddr>(), self.length.as_ptr()) };
    }

    /// There is no name.
    pub fn no_name(self) {
        self.length.set(0);
    }
}

impl<'a, T: Copy> In<'a, T> {
    /// A value of our own.
    #[must_use]
    pub const fn of(value: &'a T) -> Self {
        Self(core::ptr::from_ref(value), PhantomData)
    }
}

impl<'a, T: Copy> Place<'a, T> {
    /// None.
    pub const NULL: Self = Self(Places { at: core::ptr::null_mut(), len: 0, time: PhantomData });

    /// A place of our own.
    #[must_use]
    pub const fn of(value: &'a mut T) -> Self {
        Self(Places { at: core::ptr::from_mut(value), len: 1, time: PhantomData })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_nothing() {
        assert_eq!(In::<u32>::NULL.get(), None);
        // SAFETY: null.
        let (place, strings, bytes) = unsafe {
            let null = core::ptr::null_mut::<u64>();
            (Places::new(null, 3), Strings::new(null.cast()), Bytes::new(null.cast(), 8))
        };
        place.set(0, 1);
        Place::NULL.set(1_u8);
        let mut own = 1_u8;
        Place::of(&mut own).set(2);
        assert_eq!(In::of(&own).get(), Some(2));
        assert!(place.is_null() && place.get(0).is_none() && strings.count() == 0);
        assert_eq!(bytes.integer(), Err(Failure::BadAddress));
        assert_eq!(bytes.family(), None);
    }

    #[test]
    fn an_array_ends_where_it_was_said_to() {
        let mut all = [1_u16, 2, 3];
        // SAFETY: a local.
        let two = unsafe { Places::new(all.as_mut_ptr(), 2) };
        (0..3).for_each(|i| two.set(i, 7));
        assert_eq!([two.get(0), two.get(2)], [Some(7), None]);
        assert!(two.at(1).is_some() && two.at(2).is_none());
        assert_eq!([two.first(1).len(), two.first(9).len()], [1, 2]);
        assert_eq!(all, [7, 7, 3]);
    }

    #[test]
    fn an_answer_is_cut_to_its_room() {
        let (mut room, mut length) = ([9_u8; 4], 3);
        // SAFETY: locals, three bytes of four.
        let answer = unsafe { Answer::new(room.as_mut_ptr().cast(), &raw mut length) };
        assert_eq!(answer.option(&[1, 2, 3, 4]), Ok(()));
        answer.no_name();
        assert_eq!((room, length), ([1, 2, 3, 9], 0));
    }

    #[test]
    fn an_answer_is_whole_or_there_is_none() {
        let (mut room, mut length) = ([9_u8; 8], 4);
        // SAFETY: locals, four bytes of eight; and none.
        let (answer, none) = unsafe {
            let null = core::ptr::null_mut();
            (Answer::new(room.as_mut_ptr().cast(), &raw mut length), Answer::new(null, null.cast()))
        };
        assert!(!answer.whole(&[1; 5]) && answer.part(1, &[2]) && !answer.part(3, &[3, 3]));
        assert!(!answer.part(usize::MAX, &[3]) && !none.whole(&[]) && none.said().is_none());
        assert_eq!(answer.said().and_then(Bytes::byte), Some(9));
        assert_eq!(answer.said().and_then(Bytes::seconds), None);
        assert!(answer.whole(&[7, 0]));
        assert_eq!((none.room(), answer.room(), room), (0, 2, [7, 0, 9, 9, 9, 9, 9, 9]));
    }

    #[test]
    fn pointers_of_an_array() {
        let number = 5_u32;
        let mut all = [&raw const number, core::ptr::null()];
        // SAFETY: such an array.
        let all = unsafe { Places::<In<'_, u32>>::new(all.as_mut_ptr().cast(), 2) };
        assert_eq!(all.get(0).and_then(In::get), Some(5));
        assert_eq!(all.get(1).map(In::get), Some(None));
    }
}
