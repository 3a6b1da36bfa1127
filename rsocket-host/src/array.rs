//! Arrays in memory of their own, never allocated: for signal handlers, and for the child of a
//! process with many threads.
//!
//! There is no destructor, since a thread may be cancelled while it sleeps with one alive, and
//! `exec` does not come back. The caller that made an array calls [`Array::release`]. Must not know
//! what is in them. Entry points: [`Array::mapped`], [`Array::lent`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

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
