//! A function that code above this room installs, to be called from here.
//!
//! Must not know what it does. Entry point: [`Listener`].

use core::marker::PhantomData;
use core::sync::atomic::{AtomicPtr, Ordering};

/// A function of this type, or none.
pub(crate) struct Listener<F>(AtomicPtr<()>, PhantomData<F>);

/// Pointers to functions: as large as an address, and never null.
///
/// # Safety
/// To be implemented for function pointers alone.
pub(crate) unsafe trait Function: Copy {
    /// Where it is.
    fn address(self) -> *mut ();
}

impl<F: Function> Listener<F> {
    pub(crate) const fn nobody() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()), PhantomData)
    }

    /// Release: pairs with the acquire in get().
    pub(crate) fn install(&self, f: F) {
        self.0.store(f.address(), Ordering::Release);
    }

    #[inline]
    pub(crate) fn get(&self) -> Option<F> {
        let p = self.0.load(Ordering::Acquire);
        // SAFETY: only install() stores here, and it takes such a function, whose address is as
        // large as it and not null.
        (!p.is_null()).then(|| unsafe { core::mem::transmute_copy::<*mut (), F>(&p) })
    }
}
