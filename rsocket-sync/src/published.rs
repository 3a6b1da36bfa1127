//! A place for something that lives for ever, and that any thread may look for without a lock.
//!
//! What was published stays where it is when the place is emptied, or gets another: a thread may be
//! about to look at it. Must not know what it is. Entry point: [`Published`].

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// The place.
#[derive(Debug)]
pub struct Published<T: 'static>(AtomicPtr<T>);

impl<T> Published<T> {
    /// Empty.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }
}

impl<T> Default for Published<T> {
    fn default() -> Self {
        Self::new()
    }
}

// Sync: any thread may get what another has published.
impl<T: Sync> Published<T> {
    /// What was published, if anything.
    #[inline(always)]
    #[must_use]
    pub fn get(&self) -> Option<&'static T> {
        // Acquire: pairs with the releases below.
        // SAFETY: null, or out of a reference that holds for ever: nothing else is stored.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Whether something was published. Relaxed: says nothing of what it is.
    #[inline(always)]
    #[must_use]
    pub fn is_there(&self) -> bool {
        !self.0.load(Ordering::Relaxed).is_null()
    }

    /// This is found from now on.
    #[inline]
    pub fn publish(&self, value: &'static T) {
        // Release: pairs with the acquire in get().
        self.0.store(ptr::from_ref(value).cast_mut(), Ordering::Release);
    }

    /// This is found from now on if nothing is yet; what is found.
    pub fn offer(&self, value: &'static T) -> &'static T {
        let new = ptr::from_ref(value).cast_mut();
        // AcqRel: pairs with the acquire in get(), and with itself.
        match self.0.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => value,
            Err(_) => self.get().unwrap_or(value),
        }
    }

    /// Nothing is found from now on. Writes nothing where that is so already: in the child of a
    /// fork a page that is not written is not copied.
    pub fn withdraw(&self) {
        if self.is_there() {
            // Release: what was done before is seen by a thread that finds nothing.
            self.0.store(ptr::null_mut(), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_offer_is_found_until_it_is_withdrawn() {
        static VALUES: [u32; 3] = [1, 2, 3];
        let place = Published::new();
        assert_eq!((place.get(), place.is_there()), (None, false));
        assert_eq!((place.offer(&VALUES[0]), place.offer(&VALUES[1])), (&1, &1));
        place.publish(&VALUES[2]);
        assert_eq!((place.get(), place.is_there()), (Some(&3), true));
        place.withdraw();
        assert_eq!((place.get(), place.offer(&VALUES[1])), (None, &2));
    }
}
