//! State that processes share and edit under a lock: two copies, and the number of the valid one.
//!
//! A holder that is killed inside leaves the old state or the new one, never half. Knows nothing of
//! what the state means, nor how it is repaired. Entry point: [`Guarded::lock`].

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering, compiler_fence};

use rsocket_host::thread::tid;

use super::lock::{OwnedLock, Taken};

/// A state that processes share: two copies and the number of the valid one.
#[repr(C, align(64))]
pub struct Guarded<T> {
    /// Held to copy, edit and publish; never across a sleep.
    lock: OwnedLock,
    current: AtomicU32,
    /// Nonzero: the last edit was a small one ([`Self::amend`]), so that the spare copy differs
    /// from the valid one by that edit alone.
    near: AtomicU32,
    copies: [UnsafeCell<T>; 2],
}

// SAFETY: the copies are only touched by the thread that holds `lock`; T is plain integers.
unsafe impl<T: Copy + Send> Sync for Guarded<T> {}

impl<T: Copy> Guarded<T> {
    /// Takes the lock, and has `repair` look after what a holder left that died. `None` when this
    /// very thread holds it: we are in a signal handler that interrupted it, and must not wait for
    /// ourselves. May wait for the holder, spinning and then asleep; no section is long.
    #[inline(always)]
    pub fn lock(&self, repair: impl FnOnce(&mut Held<'_, T>)) -> Option<Locked<'_, T>> {
        let me = tid();
        let taken = self.lock.lock(me);
        if taken == Taken::Own {
            return None;
        }
        let mut locked = Locked { held: Held(self), me };
        if taken == Taken::Broken {
            repair(&mut locked);
        }
        Some(locked)
    }

    /// Waits until the thread that is inside has come out.
    pub fn wait_for_holder(&self) {
        drop(self.lock(|_| ()));
    }

    /// Makes the lock free, whichever thread held it: only for memory that no other thread can
    /// reach.
    pub fn free(&self) {
        self.lock.reset();
    }

    /// What the lock gives, without it.
    ///
    /// # Safety
    /// While the answer lives the caller is alone with the state. Either no other thread can reach
    /// it, or all threads that can reach it keep to another lock, which the caller holds.
    pub const unsafe fn alone(&self) -> Held<'_, T> {
        Held(self)
    }

    #[inline(always)]
    fn current(&self) -> usize {
        // Relaxed: the lock's acquire pairs with the release of the thread that published.
        (self.current.load(Ordering::Relaxed) & 1) as usize
    }

    /// From here on the copies may differ in anything. A thread that is killed has done its stores
    /// in the order of its instructions. So only the compiler must be kept from moving later stores
    /// before this one.
    #[inline(always)]
    fn apart(&self) {
        self.near.store(0, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    /// Makes the copy of this number the valid one.
    #[inline(always)]
    fn flip(&self, to: usize) {
        // Release: pairs with the acquire of the lock in a holder that breaks it after our death.
        // Such a holder then sees the whole copy that the index names.
        self.current.store(to as u32, Ordering::Release);
    }
}

/// The same for a state that has one owner, who needs no lock.
pub struct Own<T>(Guarded<T>);

impl<T: Copy> Own<T> {
    /// With this value.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self(Guarded {
            lock: OwnedLock::new(),
            current: AtomicU32::new(0),
            near: AtomicU32::new(0),
            copies: [UnsafeCell::new(value), UnsafeCell::new(value)],
        })
    }

    /// The valid state.
    #[inline(always)]
    pub fn view(&self) -> &T {
        // SAFETY: no other thread has the lock, and a draft borrows this (hold); the index is 0 or
        // 1.
        unsafe { &*self.0.copies.get_unchecked(self.0.current()).get() }
    }

    /// What a lock gives.
    #[inline(always)]
    pub const fn hold(&mut self) -> Held<'_, T> {
        Held(&self.0)
    }
}

/// The lock of a state, held by this thread. Dropped, it gives it back.
pub struct Locked<'a, T: Copy> {
    held: Held<'a, T>,
    me: u32,
}

impl<T: Copy> Locked<'_, T> {
    /// Gives the lock back, and calls `then` before handlers run that came meanwhile. `then` does
    /// what must not be left out, such as waking the peer: a handler may jump out of the call.
    #[inline(always)]
    pub fn unlock_then<R>(self, then: impl FnOnce() -> R) -> R {
        let this = core::mem::ManuallyDrop::new(self);
        this.held.0.lock.unlock_then(this.me, then)
    }
}

impl<T: Copy> Drop for Locked<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.held.0.lock.unlock(self.me);
    }
}

impl<'a, T: Copy> Deref for Locked<'a, T> {
    type Target = Held<'a, T>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.held
    }
}

impl<T: Copy> DerefMut for Locked<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.held
    }
}

/// A state that no other thread touches while this lives.
pub struct Held<'a, T: Copy>(&'a Guarded<T>);

impl<'a, T: Copy> Held<'a, T> {
    /// The same for a shorter time.
    #[inline(always)]
    pub fn reborrow(&mut self) -> Held<'_, T> {
        Held(self.0)
    }

    /// The valid state.
    #[inline(always)]
    pub fn view(&self) -> &T {
        // SAFETY: no other thread touches the copies, and a draft borrows this; the index is 0 or
        // 1.
        unsafe { &*self.0.copies.get_unchecked(self.0.current()).get() }
    }

    /// The spare copy as the valid one is now, to be edited where it lies. No other thread sees it
    /// before [`Draft::flip`], and what was not flipped is forgotten.
    #[inline(always)]
    pub fn draft(&mut self) -> Draft<'_, T> {
        self.reborrow().into_draft()
    }

    /// As [`Self::draft`], to the end of the lock's time.
    #[inline(always)]
    fn into_draft(self) -> Draft<'a, T> {
        self.0.apart();
        let i = self.0.current();
        // SAFETY: no other thread touches the copies; the indices are 0 and 1.
        let spare = unsafe {
            let spare = self.0.copies.get_unchecked(i ^ 1).get();
            *spare = *self.0.copies.get_unchecked(i).get();
            &mut *spare
        };
        Draft { of: self.0, number: i ^ 1, spare }
    }

    /// As [`Self::draft`], for an edit of a kind that is known to be small, and ends with
    /// [`Draft::flip_amended`]. Where the last edit was of this kind too, only that edit is done
    /// again to the spare copy, by `follow(spare, valid)`. `follow` sees the states before and
    /// after that edit. A type has one such kind. Any other edit, one that was given up and one
    /// whose author died make the next copy a whole one. The reason: the mark of a small edit
    /// stands only after its end.
    #[inline(always)]
    pub fn amend(&mut self, follow: impl FnOnce(&mut T, &T)) -> Draft<'_, T> {
        self.reborrow().into_amended(follow)
    }

    /// As [`Self::amend`], to the end of the lock's time.
    #[inline(always)]
    pub fn into_amended(self, follow: impl FnOnce(&mut T, &T)) -> Draft<'a, T> {
        // Relaxed: the lock orders it.
        if self.0.near.load(Ordering::Relaxed) == 0 {
            return self.into_draft();
        }
        self.0.apart();
        let i = self.0.current();
        // SAFETY: as in draft().
        let spare = unsafe {
            let spare = &mut *self.0.copies.get_unchecked(i ^ 1).get();
            follow(spare, &*self.0.copies.get_unchecked(i).get());
            spare
        };
        Draft { of: self.0, number: i ^ 1, spare }
    }

    /// Puts another state into the place of this one.
    #[inline]
    pub fn set(&mut self, value: T) {
        self.0.apart();
        // SAFETY: as in draft().
        unsafe { *self.0.copies.get_unchecked(self.0.current() ^ 1).get() = value };
        self.0.flip(self.0.current() ^ 1);
    }

    /// The spare copy is valid: its author has told the peer, and died before [`Draft::flip`].
    pub fn roll_forward(&mut self) {
        self.0.flip(self.0.current() ^ 1);
    }
}

/// A state that is being edited. Dropped, it is forgotten.
pub struct Draft<'a, T: Copy> {
    of: &'a Guarded<T>,
    number: usize,
    spare: &'a mut T,
}

impl<'a, T: Copy> Draft<'a, T> {
    /// Makes it the valid state.
    #[inline(always)]
    pub fn flip(self) -> &'a T {
        self.of.flip(self.number);
        self.spare
    }

    /// As [`Self::flip`], after [`Held::amend`] and an edit of that kind.
    #[inline(always)]
    pub fn flip_amended(self) -> &'a T {
        self.of.flip(self.number);
        // Release: the mark comes after the edit, and after the number of the copy that has it.
        self.of.near.store(1, Ordering::Release);
        self.spare
    }

    /// Nothing was edited: the state as it is.
    #[inline(always)]
    pub fn unchanged(self) -> &'a T {
        self.spare
    }
}

impl<T: Copy> Deref for Draft<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        self.spare
    }
}

impl<T: Copy> DerefMut for Draft<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        self.spare
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guarded<T>(valid: T, spare: T) -> Guarded<T> {
        Guarded {
            lock: OwnedLock::new(),
            current: AtomicU32::new(0),
            near: AtomicU32::new(0),
            copies: [UnsafeCell::new(valid), UnsafeCell::new(spare)],
        }
    }

    #[test]
    fn a_draft_is_forgotten_unless_it_is_flipped() {
        let g = guarded(1, 2);
        let mut g = g.lock(|_| panic!("nobody died")).unwrap();
        *g.draft() += 10;
        assert_eq!(*g.view(), 1);
        let mut draft = g.draft();
        assert_eq!(*draft, 1, "made anew");
        *draft += 20;
        assert_eq!(*draft.flip(), 21);
        assert_eq!((*g.view(), *g.draft()), (21, 21));
        g.set(7);
        assert_eq!(*g.view(), 7);
    }

    #[test]
    fn a_lock_is_given_back_once() {
        let g = guarded(1, 1);
        let held = g.lock(|_| ()).unwrap();
        assert!(g.lock(|_| ()).is_none(), "a thread meets itself");
        drop(held);
        assert_eq!(g.lock(|_| ()).unwrap().unlock_then(|| g.lock.owner()), 0);
        g.wait_for_holder();
        assert_eq!(g.lock.owner(), 0);
    }

    #[test]
    fn small_edits_are_done_again_and_all_others_copied() {
        let g = guarded([1, 1], [2, 2]);
        let mut g = g.lock(|_| ()).unwrap();
        // A small edit is one of the first number.
        let follow = |spare: &mut [i32; 2], valid: &[i32; 2]| spare[0] = valid[0];
        let never = |_: &mut [i32; 2], _: &[i32; 2]| panic!("a whole copy is needed");
        let mut draft = g.amend(never);
        draft[0] = 3;
        draft.flip_amended();
        assert_eq!(*g.amend(follow), [3, 1]);
        assert_eq!(*g.amend(never), [3, 1], "the last one was given up");
        let mut draft = g.draft();
        draft[1] = 4;
        draft.flip();
        let mut draft = g.amend(never);
        draft[0] = 5;
        draft.flip_amended();
        for n in 6..9 {
            let mut draft = g.amend(follow);
            draft[0] = n;
            draft.flip_amended();
            assert_eq!(*g.view(), [n, 4]);
        }
        g.set([9, 9]);
        assert_eq!(*g.amend(never), [9, 9]);
    }
}
