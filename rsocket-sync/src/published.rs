//! A reference to what lives as long as the process, and may not be there yet.
//!
//! Only such references go in, so that what comes out is always valid: no reader needs a promise of
//! its own. Must not know what they refer to. Entry point: [`Published`].

use core::marker::PhantomData;
use core::sync::atomic::{AtomicPtr, Ordering};

use rsocket_host::sys::settle::Settle;

/// A place for one. All zero without, so that a table of them costs nothing until it is touched.
#[repr(transparent)]
pub struct Published<T: 'static>(AtomicPtr<T>, PhantomData<&'static T>);

impl<T: 'static> Published<T> {
    /// Nothing yet.
    #[must_use]
    pub const fn nothing() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()), PhantomData)
    }

    /// What is there, as whoever put it there had made it.
    #[inline(always)]
    pub fn get(&self) -> Option<&'static T> {
        // Acquire: pairs with the release in put().
        // SAFETY: null, or from a reference that lives for ever: put() alone stores here.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Whether something is there. Relaxed: says nothing of what it is.
    #[inline(always)]
    pub fn is_there(&self) -> bool {
        !self.0.load(Ordering::Relaxed).is_null()
    }

    /// From now on it is this.
    #[inline]
    pub fn put(&self, what: &'static T) {
        // Release: pairs with the acquire in get().
        self.0.store(core::ptr::from_ref(what).cast_mut(), Ordering::Release);
    }

    /// Nothing any more; who has it already may keep it.
    #[inline]
    pub fn clear(&self) {
        // Release: what was done before is seen by who sees this through another word.
        self.0.store(core::ptr::null_mut(), Ordering::Release);
    }

    /// As [`Self::clear`] in the child of a fork, where most places are empty already.
    pub fn settle(&self) {
        self.0.settle(core::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_is_there() {
        static PLACE: Published<u32> = Published::nothing();
        static ONE: u32 = 1;
        assert!(PLACE.get().is_none() && !PLACE.is_there());
        PLACE.put(&ONE);
        assert!(PLACE.is_there() && PLACE.get() == Some(&1));
        PLACE.clear();
        assert!(PLACE.get().is_none());
        PLACE.settle();
        assert!(!PLACE.is_there());
    }
}
