//! Who hears of a connection: code above this room installs a function, and is told with no lock
//! held.
//!
//! Must not know what the listeners do. Entry points: [`set_listeners`], [`show_changes`] and
//! [`know_numbers`]; then [`mode_changed`], [`starved`], [`changed`] and [`number_of`].

use core::marker::PhantomData;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::os::fd::RawFd;

use super::slot::{Slot, SlotId};

/// A function of this type, or nobody.
struct Listener<F>(AtomicPtr<()>, PhantomData<F>);

/// Pointers to functions: as large as an address, and never null.
///
/// # Safety
/// To be implemented for function pointers alone.
unsafe trait Function: Copy {
    /// Where it is.
    fn address(self) -> *mut ();
}

// SAFETY: a function pointer.
unsafe impl Function for fn(SlotId) {
    fn address(self) -> *mut () {
        self as *mut ()
    }
}

// SAFETY: a function pointer.
unsafe impl Function for fn(&Slot) {
    fn address(self) -> *mut () {
        self as *mut ()
    }
}

// SAFETY: a function pointer.
unsafe impl Function for fn(SlotId, RawFd) -> Option<RawFd> {
    fn address(self) -> *mut () {
        self as *mut ()
    }
}

impl<F: Function> Listener<F> {
    const fn nobody() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()), PhantomData)
    }

    /// Release: pairs with the acquire in get().
    fn install(&self, f: F) {
        self.0.store(f.address(), Ordering::Release);
    }

    #[inline]
    fn get(&self) -> Option<F> {
        let p = self.0.load(Ordering::Acquire);
        // SAFETY: only install() stores here, and it takes such a function, whose address is as
        // large as it and not null.
        (!p.is_null()).then(|| unsafe { core::mem::transmute_copy::<*mut (), F>(&p) })
    }
}

static MODE: Listener<fn(SlotId)> = Listener::nobody();
static STARVED: Listener<fn(SlotId)> = Listener::nobody();
static NUMBERS: Listener<fn(SlotId, RawFd) -> Option<RawFd>> = Listener::nobody();
static CHANGED: Listener<fn(&Slot)> = Listener::nobody();

/// Installs who hears that what the kernel must be asked about a connection changed, and who hears
/// that a send found no room.
pub fn set_listeners(mode_changed: fn(SlotId), starved: fn(SlotId)) {
    MODE.install(mode_changed);
    STARVED.install(starved);
}

/// Installs who shows what becomes of connections.
pub(crate) fn show_changes(changed: fn(&Slot)) {
    CHANGED.install(changed);
}

/// Installs who knows which descriptor numbers of this process are a connection's.
pub(crate) fn know_numbers(number: fn(SlotId, RawFd) -> Option<RawFd>) {
    NUMBERS.install(number);
}

/// A descriptor number of this process for the connection, other than `but`.
pub(crate) fn number_of(id: SlotId, but: RawFd) -> Option<RawFd> {
    NUMBERS.get().and_then(|f| f(id, but))
}

/// What the kernel must be asked about the connection has changed.
pub(crate) fn mode_changed(id: SlotId) {
    if let Some(f) = MODE.get() {
        f(id);
    }
}

/// A send has found no room.
pub(crate) fn starved(id: SlotId) {
    if let Some(f) = STARVED.get() {
        f(id);
    }
}

/// A mode or the phase of the connection has changed.
#[inline]
pub(crate) fn changed(s: &Slot) {
    if let Some(f) = CHANGED.get() {
        f(s);
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn only_who_is_installed_hears() {
        static HEARD: AtomicU32 = AtomicU32::new(0);
        let listener: Listener<fn(SlotId)> = Listener::nobody();
        assert!(listener.get().is_none());
        listener.install(|id| HEARD.store(id.raw(), Ordering::Relaxed));
        if let Some(f) = listener.get() {
            f(SlotId::from_raw(7).unwrap());
        }
        assert_eq!(HEARD.load(Ordering::Relaxed), 7);
    }
}
