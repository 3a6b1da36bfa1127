//! State that processes share and edit under a lock: two copies, and the number of the valid one.
//!
//! A holder that is killed inside leaves the old state or the new one, never half. Knows nothing of what the state
//! means, nor how it is repaired ([`super::guard`]). Entry point: [`Guarded`].

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering, compiler_fence};

use crate::sync::lock::OwnedLock;

/// A state that processes share: two copies and the number of the valid one.
#[repr(C, align(64))]
pub struct Guarded<T> {
    /// Held to copy, edit and publish; never across a sleep.
    pub lock: OwnedLock,
    current: AtomicU32,
    /// Nonzero: the last edit was a small one ([`Self::amend`]), so that the spare copy differs from the valid one by that
    /// edit alone.
    near: AtomicU32,
    copies: [UnsafeCell<T>; 2],
}

// SAFETY: the copies are only touched by whoever holds `lock`; T is plain integers.
unsafe impl<T: Copy + Send> Sync for Guarded<T> {}

impl<T: Copy> Guarded<T> {
    /// A copy of the valid state.
    ///
    /// # Safety
    /// The caller holds `lock`, or is alone with the slot; and the state was set before.
    #[inline]
    pub unsafe fn load(&self) -> T {
        // Relaxed: the lock's acquire pairs with the release of whoever published.
        let i = self.current.load(Ordering::Relaxed) & 1;
        // SAFETY: under the lock nobody writes the valid copy; the index is 0 or 1.
        unsafe { *self.copies.get_unchecked(i as usize).get() }
    }

    /// Writes the spare copy; nobody sees it before [`Self::flip`].
    ///
    /// # Safety
    /// The caller holds `lock`, or is alone with the slot.
    #[inline]
    pub unsafe fn stage(&self, value: T) {
        self.apart();
        let i = (self.current.load(Ordering::Relaxed) & 1) ^ 1;
        // SAFETY: the spare copy belongs to the holder of the lock.
        unsafe { *self.copies.get_unchecked(i as usize).get() = value };
    }

    /// The valid state where it lies.
    ///
    /// # Safety
    /// As [`Self::load`]; and while the reference lives nobody stages, drafts or flips.
    #[inline]
    pub unsafe fn view(&self) -> &T {
        let i = self.current.load(Ordering::Relaxed) & 1;
        // SAFETY: under the lock nobody writes the valid copy; the index is 0 or 1.
        unsafe { &*self.copies.get_unchecked(i as usize).get() }
    }

    /// The spare copy as the valid one is now, to be edited where it lies; nobody sees it before [`Self::flip`], and what was
    /// not flipped is forgotten. After the flip it is the valid state, to be read only.
    ///
    /// # Safety
    /// As [`Self::load`]; and while the reference lives nobody else stages, drafts or views.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn draft(&self) -> &mut T {
        self.apart();
        let i = (self.current.load(Ordering::Relaxed) & 1) as usize;
        // SAFETY: the indices are 0 and 1; the valid copy is not written under the lock, the spare belongs to its holder.
        unsafe {
            let spare = self.copies.get_unchecked(i ^ 1).get();
            *spare = *self.copies.get_unchecked(i).get();
            &mut *spare
        }
    }

    /// As [`Self::draft`], for an edit of a kind that is known to be small, and ends with [`Self::flip_amended`]. Where the last
    /// edit was of this kind too, only that is done again to the spare copy, by `follow(spare, valid)`, which sees the states
    /// before and after it; a type has one such kind. Any other edit, one that was given up and one whose author died make the
    /// next copy a whole one: the mark of a small edit stands only after its end.
    ///
    /// # Safety
    /// As [`Self::draft`].
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn amend(&self, follow: impl FnOnce(&mut T, &T)) -> &mut T {
        // Relaxed: the lock orders it.
        if self.near.load(Ordering::Relaxed) == 0 {
            // SAFETY: the caller's promises.
            return unsafe { self.draft() };
        }
        self.apart();
        let i = (self.current.load(Ordering::Relaxed) & 1) as usize;
        // SAFETY: as in draft().
        unsafe {
            let spare = &mut *self.copies.get_unchecked(i ^ 1).get();
            follow(spare, &*self.copies.get_unchecked(i).get());
            spare
        }
    }

    /// From here on the copies may differ in anything. A thread that is killed has done its stores in the order of its
    /// instructions, so that only the compiler must be kept from moving later ones before this.
    #[inline(always)]
    fn apart(&self) {
        self.near.store(0, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    /// Makes the spare copy the valid one, after [`Self::amend`] and an edit of that kind.
    #[inline(always)]
    pub fn flip_amended(&self) {
        self.flip();
        // Release: the mark comes after the edit, and after the number of the copy that has it.
        self.near.store(1, Ordering::Release);
    }

    /// Makes the spare copy the valid one.
    #[inline]
    pub fn flip(&self) {
        // Release: pairs with the acquire of the lock in a holder that breaks it after our death, so
        // that it sees the whole copy that the index names.
        self.current.store((self.current.load(Ordering::Relaxed) & 1) ^ 1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_is_forgotten_unless_it_is_flipped() {
        let g = Guarded {
            lock: OwnedLock::new(),
            current: AtomicU32::new(0),
            near: AtomicU32::new(0),
            copies: [UnsafeCell::new(1), UnsafeCell::new(2)],
        };
        // SAFETY: one thread; each draft is used at once.
        unsafe {
            *g.draft() += 10;
            assert_eq!((*g.view(), g.load()), (1, 1));
            assert_eq!(*g.draft(), 1, "made anew");
            *g.draft() += 20;
            g.flip();
            assert_eq!((*g.view(), *g.draft()), (21, 21));
        }
    }

    #[test]
    fn small_edits_are_done_again_and_all_others_copied() {
        let g = Guarded {
            lock: OwnedLock::new(),
            current: AtomicU32::new(0),
            near: AtomicU32::new(0),
            copies: [UnsafeCell::new([1, 1]), UnsafeCell::new([2, 2])],
        };
        // A small edit is one of the first number.
        let follow = |spare: &mut [i32; 2], valid: &[i32; 2]| spare[0] = valid[0];
        let never = |_: &mut [i32; 2], _: &[i32; 2]| panic!("a whole copy is needed");
        // SAFETY: one thread; each draft is used at once.
        unsafe {
            g.amend(never)[0] = 3;
            g.flip_amended();
            assert_eq!(*g.amend(follow), [3, 1]);
            assert_eq!(*g.amend(never), [3, 1], "the last one was given up");
            g.draft()[1] = 4;
            g.flip();
            g.amend(never)[0] = 5;
            g.flip_amended();
            for n in 6..9 {
                g.amend(follow)[0] = n;
                g.flip_amended();
                assert_eq!(*g.view(), [n, 4]);
            }
            g.stage([9, 9]);
            g.flip();
            assert_eq!(*g.amend(never), [9, 9]);
        }
    }
}
