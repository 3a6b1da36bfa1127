//! One at a time inside librdmacm, never cancelled there, and what a fork does to it all.
//!
//! Knows nothing of connections. Entry points: [`enter`] around calls of librdmacm, [`uncancelled`]
//! around those of the data path, [`keep`] for a descriptor that a library has in a field, the fork
//! steps.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::cell::Cell;
use core::ffi::c_int;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::os::fd::{FromRawFd, OwnedFd};

use super::{CmError, Missing};
use rsocket_host::failure::Failure;
use rsocket_host::sys;
use rsocket_host::sys::settle::Settle;
use rsocket_sync::lock::{Holding, OwnedLock};

/// Held inside librdmacm.
static GATE: OwnedLock = OwnedLock::new();

/// The library's own locks may be held for ever: a fork came while a thread was inside. Relaxed:
/// set in a child that has one thread, or by the thread that then looks.
static BROKEN: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    // Not in the libc crate.
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// While it lives, the calling thread is not cancelled.
pub(super) struct Uncancelled {
    before: c_int,
}

/// Keeps the calling thread from being cancelled.
#[inline]
pub(super) fn uncancelled() -> Uncancelled {
    let mut before = 0;
    // SAFETY: the pointer is valid. It changes the calling thread's state only.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
    Uncancelled { before }
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: as above; the state is the thread's earlier one.
        unsafe { pthread_setcancelstate(self.before, core::ptr::null_mut()) };
    }
}

/// While it lives, the calling thread is the only one inside librdmacm.
pub(super) struct Inside {
    // First: the lock is given back before the thread can be cancelled.
    _held: Holding<'static>,
    _uncancelled: Uncancelled,
}

/// No thread dies inside: a broken lock is that of a child that was made without the steps below.
fn breaks() {
    BROKEN.store(true, Ordering::Relaxed);
}

/// Goes in, waiting for the thread that is inside: for as long as its system call takes.
///
/// # Errors
/// `EAGAIN` in a signal handler that interrupted this thread inside; [`Missing::Forked`].
pub(super) fn enter() -> Result<Inside, CmError> {
    let uncancelled = uncancelled();
    let held = GATE.hold_or(breaks).ok_or(CmError::Os(Failure::Blocked))?;
    let inside = Inside { _held: held, _uncancelled: uncancelled };
    if BROKEN.load(Ordering::Relaxed) {
        return Err(Missing::Forked.into());
    }
    Ok(inside)
}

thread_local! {
    /// The gate, from [`fork_prepare`] to [`fork_parent`]. Without a destructor: a thread that ends
    /// in between has died inside.
    static FORKING: Cell<Option<ManuallyDrop<Holding<'static>>>> = const { Cell::new(None) };
}

/// `pthread_atfork`, before: waits until no other thread is inside.
pub fn fork_prepare() {
    // Not in a handler that interrupted the section: the lock is the section's, in the child too.
    if let Some(held) = GATE.hold_or(breaks) {
        let _ = FORKING.try_with(|kept| kept.set(Some(ManuallyDrop::new(held))));
    }
}

/// `pthread_atfork`, in the parent; also when the fork failed.
pub fn fork_parent() {
    if let Ok(Some(held)) = FORKING.try_with(Cell::take) {
        drop(ManuallyDrop::into_inner(held));
    }
}

/// `pthread_atfork`, in the child: the parent's descriptors are closed here, so that its
/// connections end when it does, and RDMA starts afresh. To be called after
/// [`rsocket_host::thread::forked`].
pub fn fork_child() {
    // The parent's: it is not given back here.
    let _ = FORKING.try_with(Cell::take);
    GATE.reset();
    for place in &KEPT {
        let fd = place.load(Ordering::Relaxed);
        place.settle(0);
        if fd > 0 {
            sys::close_private(fd);
        }
    }
}

/// The private descriptors that a child of a fork closes; 0 for none, which stdin is never moved
/// to. Relaxed everywhere: a place belongs to the caller that put a number there, and the child has
/// one thread.
static KEPT: [AtomicI32; 128] = [const { AtomicI32::new(0) }; 128];

/// Moves a descriptor, whose number a library keeps in `field`, to a private number. With `ours`, a
/// child of a fork closes it.
///
/// # Errors
/// There are no descriptors left; nothing has changed.
pub(super) fn keep(field: &mut c_int, ours: bool) -> Result<(), Failure> {
    if sys::is_private(*field) {
        return Ok(());
    }
    let number = sys::private_copy(sys::borrow(*field))?;
    let old = core::mem::replace(field, number);
    // SAFETY: the library opened the descriptor for the object that the field is part of. The
    // library names it by the field only, and the field has the other number now.
    sys::discard(unsafe { OwnedFd::from_raw_fd(old) });
    if ours {
        let taken = |place: &AtomicI32| {
            place.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        // Full: children keep what finds no place.
        let _ = KEPT.iter().any(taken);
    }
    Ok(())
}

/// Closes a descriptor that was [kept](keep), before the library frees the object: it then closes
/// -1.
pub(super) fn let_go(field: &mut c_int) {
    if !sys::is_private(*field) {
        return;
    }
    let number = core::mem::replace(field, -1);
    for place in &KEPT {
        let _ = place.compare_exchange(number, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
    sys::close_private(number);
}

/// The calling thread's error number as the library left it.
pub(super) fn last_error() -> Failure {
    // A library that failed without saying why.
    match Failure::last() {
        e if e.code() == 0 => Failure::Device,
        e => e,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_enters_twice() {
        let first = enter().ok();
        assert!(first.is_some());
        assert_eq!(enter().err(), Some(CmError::Os(Failure::Blocked)));
        drop(first);
        assert!(enter().is_ok());
    }

    #[test]
    fn a_kept_descriptor_is_private_until_let_go() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let mut field = std::os::fd::IntoRawFd::into_raw_fd(reader);
        assert_eq!(keep(&mut field, true), Ok(()));
        assert!(sys::is_private(field));
        let number = field;
        let_go(&mut field);
        assert_eq!((field, sys::is_private(number)), (-1, false));
        assert_eq!(rustix::io::write(&writer, b"x"), Err(rustix::io::Errno::PIPE));
    }
}
