//! From a descriptor to the rsocket behind it.

use core::ffi::c_int;

use rsocket_edge::conn::slot::SlotId;
use rsocket_edge::descriptors;
use rsocket_edge::descriptors::Entry;
use rsocket_edge::native;
use rsocket_host::failure::Failure;
use rsocket_host::sys;

/// An rsocket of any kind.
///
/// # Errors
/// `EBADF` for a descriptor that is none.
#[inline]
pub(crate) fn rsocket(fd: c_int) -> Result<SlotId, Failure> {
    match descriptors::entry(fd) {
        Entry::Connection(slot) | Entry::Listener(slot) => Ok(slot),
        Entry::Foreign | Entry::Set => Err(Failure::BadDescriptor),
    }
}

/// An rsocket that bytes can be asked of.
///
/// # Errors
/// `EBADF`, or `ENOTCONN` for one that is not connected.
#[inline]
pub(crate) fn connection(fd: c_int) -> Result<SlotId, Failure> {
    let slot = rsocket(fd)?;
    native::before_data(slot)?;
    Ok(slot)
}

/// Enters a descriptor that the kernel has just handed out.
///
/// # Errors
/// `EMFILE` where the number is higher than the table goes; then the slot is given back, and the
/// descriptor is the caller's to close.
pub(crate) fn enter(fd: c_int, slot: SlotId) -> Result<(), Failure> {
    descriptors::fresh(fd);
    let entry = Entry::Connection(slot);
    descriptors::put(fd, entry);
    if descriptors::entry(fd) == entry {
        return Ok(());
    }
    descriptors::let_go(fd, entry, fd);
    Err(Failure::NoDescriptors)
}

/// Closes a descriptor past libc, where a preload library may watch.
pub(crate) fn close(fd: c_int) {
    sys::close(fd);
}
