//! The listeners of a connection: code above this room installs a function, and is told with no
//! lock held.
//!
//! Must not know what the listeners do. Entry points: [`set_listeners`] and [`know_numbers`]; then
//! [`mode_changed`], [`starved`], [`error_taken`], [`found_unread`] and [`number_of`].

use std::os::fd::RawFd;

use super::id::SlotId;
use super::listener::{Function, Listener};
use super::slot::Slot;

// SAFETY: a function pointer.
unsafe impl Function for fn(SlotId) {
    fn address(self) -> *mut () {
        self as *mut ()
    }
}

// SAFETY: a function pointer.
unsafe impl Function for fn(SlotId, RawFd) {
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

static MODE: Listener<fn(SlotId)> = Listener::nobody();
static STARVED: Listener<fn(SlotId)> = Listener::nobody();
static ERROR_TAKEN: Listener<fn(SlotId)> = Listener::nobody();
static UNREAD: Listener<fn(SlotId)> = Listener::nobody();
static NUMBERS: Listener<fn(SlotId, RawFd) -> Option<RawFd>> = Listener::nobody();

/// Who listens, each to one kind of news of a connection.
#[derive(Clone, Copy)]
pub struct Listeners {
    /// What the kernel must be asked about it has changed.
    pub mode_changed: fn(SlotId),
    /// A send found no room.
    pub starved: fn(SlotId),
    /// A call took its error.
    pub error_taken: fn(SlotId),
    /// A call found what is still there after it, bytes or the end, of which an epoll set may not
    /// have heard.
    pub found_unread: fn(SlotId),
}

/// Installs them.
pub fn set_listeners(all: Listeners) {
    MODE.install(all.mode_changed);
    STARVED.install(all.starved);
    ERROR_TAKEN.install(all.error_taken);
    UNREAD.install(all.found_unread);
}

/// Installs the function that knows which descriptor numbers of this process are a connection's.
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

/// A call has taken the error that ended the connection: no other call will be told it.
#[cold]
pub(crate) fn error_taken(id: SlotId) {
    if let Some(f) = ERROR_TAKEN.get() {
        f(id);
    }
}

/// A call of the program has found bytes or an end, and there may be more of it. The peer publishes
/// that first, and sets the ready bit then: an epoll set that is asked in between is told here.
#[inline]
pub(crate) fn found_unread(id: SlotId, s: &Slot) {
    if s.sets_may_be_deaf()
        && let Some(f) = UNREAD.get()
    {
        f(id);
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU32, Ordering};

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
