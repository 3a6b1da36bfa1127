//! Arrays in memory of their own, never allocated: for signal handlers, and for the child of a
//! process with many threads.
//!
//! There is no destructor, since a thread may be cancelled while it sleeps with one alive, and
//! `exec` does not come back. The caller that made an array calls [`Array::release`]. Must not know
//! what is in them. Entry points: [`Array::mapped`], [`Array::lent`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::mem::MaybeUninit;
use core::ops::{Deref, DerefMut};
use core::ptr::{NonNull, null_mut};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::{stack, sys};

/// An array of `T`, at first all copies of one value.
#[derive(Debug)]
pub struct Array<T> {
    at: NonNull<T>,
    len: usize,
    /// It is a stack of the library's own.
    lent: bool,
}

impl<T: Copy> Array<T> {
    const ALIGNED: () = assert!(align_of::<T>() <= sys::PAGE_SIZE);

    /// In a mapping of its own. `None` where there is no memory.
    #[must_use]
    pub fn mapped(len: usize, value: T) -> Option<Self> {
        let bytes = len.checked_mul(size_of::<T>())?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh anonymous mapping touches nothing that exists.
        let at = unsafe { mmap_anonymous(null_mut(), bytes, prot, MapFlags::PRIVATE) }.ok()?;
        Some(Self::filled(NonNull::new(at.cast())?, len, value, false))
    }

    /// In the memory of a stack of the library's own, if it is large enough, else mapped.
    #[must_use]
    pub fn lent(len: usize, value: T) -> Option<Self> {
        if len.checked_mul(size_of::<T>())? > stack::LENT {
            return Self::mapped(len, value);
        }
        Some(Self::filled(NonNull::new(stack::lend()?.cast())?, len, value, true))
    }

    /// `at` was just got: aligned to a page, and room for `len`.
    fn filled(at: NonNull<T>, len: usize, value: T, lent: bool) -> Self {
        let () = Self::ALIGNED;
        for i in 0..len {
            // SAFETY: inside what was just got.
            unsafe { at.add(i).write(value) };
        }
        Self { at, len, lent }
    }

    /// Gives the memory back.
    pub fn release(self) {
        if self.lent {
            stack::take_back(self.at.as_ptr().cast());
        } else {
            // SAFETY: mapped with this length; `self` is consumed, so no code uses it any more.
            let _ = unsafe { munmap(self.at.as_ptr().cast(), self.len * size_of::<T>()) };
        }
    }
}

impl<T> Deref for Array<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements were written there, and the borrow of self keeps them ours.
        unsafe { core::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Array<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in deref().
        unsafe { core::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

/// A list that grows. Its first `FEW` values stand in itself, those up to `MOST` in the memory of a
/// stack of the library's own. The caller that fills one calls [`Few::empty`].
#[derive(Debug)]
pub struct Few<T, const FEW: usize, const MOST: usize> {
    few: [MaybeUninit<T>; FEW],
    /// Lent, or null.
    more: *mut T,
    len: usize,
}

impl<T: Copy, const FEW: usize, const MOST: usize> Few<T, FEW, MOST> {
    const FITS: () = assert!(
        FEW <= MOST
            && (MOST - FEW) * size_of::<T>() <= stack::LENT
            && align_of::<T>() <= sys::PAGE_SIZE
    );

    /// Without a value.
    #[inline]
    #[must_use]
    pub const fn new() -> Self {
        let () = Self::FITS;
        Self { few: [const { MaybeUninit::uninit() }; FEW], more: null_mut(), len: 0 }
    }

    /// Where the value of this number stands, or would: aligned, and with room for it.
    #[inline]
    fn place(&mut self, n: usize) -> Option<*mut T> {
        if let Some(place) = self.few.get_mut(n) {
            return Some(place.as_mut_ptr());
        }
        if self.more.is_null() {
            self.more = stack::lend()?.cast();
        }
        (n < MOST).then(|| self.more.wrapping_add(n - FEW))
    }

    /// Whether there is room for one more.
    #[inline]
    pub fn has_room(&mut self) -> bool {
        self.place(self.len).is_some()
    }

    /// Adds one, if there is room for it.
    #[inline]
    pub fn add(&mut self, value: T) -> bool {
        let Some(place) = self.place(self.len) else { return false };
        // SAFETY: a place of ours, aligned and with room for it.
        unsafe { place.write(value) };
        self.len += 1;
        true
    }

    /// Hands out each in order, and gives the memory back.
    #[inline]
    pub fn empty(&mut self, mut each: impl FnMut(T)) {
        for n in 0..self.len {
            if let Some(place) = self.place(n) {
                // SAFETY: add() has written the first `len` places.
                each(unsafe { place.read() });
            }
        }
        self.len = 0;
        if !self.more.is_null() {
            stack::take_back(core::mem::replace(&mut self.more, null_mut()).cast());
        }
    }
}

impl<T: Copy, const FEW: usize, const MOST: usize> Default for Few<T, FEW, MOST> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_list_grows_up_to_its_most() {
        let mut list = Few::<u32, 2, 5>::new();
        for round in 0..3 {
            let added = (0..7).filter(|n| list.has_room() && list.add(*n)).count();
            // Under Miri there is no stack to be lent.
            assert_eq!(added, if cfg!(miri) { 2 } else { 5 }, "{round}");
            let mut seen = Vec::new();
            list.empty(|n| seen.push(n));
            assert!(seen.into_iter().eq(0..added as u32));
        }
    }

    #[test]
    fn copies_of_a_value_wherever_they_are() {
        for len in [1, 100, stack::LENT / 4, stack::LENT / 4 + 1] {
            let arrays = [Array::lent(len, 7_u32).unwrap(), Array::mapped(len, 7).unwrap()];
            for mut array in arrays {
                assert!(array.len() == len && array.iter().all(|n| *n == 7));
                array.fill(8);
                assert_eq!(array.last(), Some(&8));
                array.release();
            }
        }
        assert!(Array::mapped(usize::MAX / 4, 0_u64).is_none());
    }
}
