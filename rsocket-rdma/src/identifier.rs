//! What librdmacm knows a connection by, and the channel of its events: their owners, and which
//! threads may call.
//!
//! Knows no event. Entry points: [`CmId`], which [`super::cm`] makes, and [`Identifier::call`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::ffi::c_int;
use core::fmt;
use std::sync::Arc;

use super::contexts::{Device, hide};
use super::ffi::{self, Library, Loaded};
use super::private::Parameters;
use super::{CmError, gate};
use rsocket_host::failure::Failure;
use rsocket_host::sys;

/// An event channel of librdmacm, shared by its [`EventChannel`](super::EventChannel) and its
/// identifiers.
pub(super) struct Channel {
    pub(super) raw: *mut ffi::rdma_event_channel,
    pub(super) loaded: &'static Loaded,
    pub(super) pid: u32,
}

// SAFETY: librdmacm's functions on a channel may be called from any thread; ours call them inside
// the gate.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.pid != sys::pid() {
            return;
        }
        // In a handler that interrupted the gate it is leaked.
        let Ok(_inside) = gate::enter() else { return };
        // SAFETY: the last owner gives it up. Its number is private: let_go closes it, the library
        // -1.
        unsafe {
            gate::let_go(&mut (*self.raw).fd);
            (self.loaded.table.rdma_destroy_event_channel)(self.raw);
        }
    }
}

/// An identifier of librdmacm, shared by a [`CmId`] and its pair.
pub(super) struct Identifier {
    pub(super) raw: *mut ffi::rdma_cm_id,
    pub(super) channel: Arc<Channel>,
    pub(super) parameters: Parameters,
}

// SAFETY: what it points to is touched inside the gate only.
unsafe impl Send for Identifier {}
// SAFETY: as above.
unsafe impl Sync for Identifier {}

impl Identifier {
    pub(super) fn of(
        raw: *mut ffi::rdma_cm_id,
        channel: &Arc<Channel>,
        parameters: Parameters,
    ) -> Self {
        Self { raw, channel: Arc::clone(channel), parameters }
    }

    pub(super) fn loaded(&self) -> &'static Loaded {
        self.channel.loaded
    }

    /// False in a child of a fork.
    pub(super) fn mine(&self) -> bool {
        self.channel.pid == sys::pid()
    }

    /// Calls into librdmacm with the identifier, the only thread to do so.
    ///
    /// # Errors
    /// There is no way in; or what the call returned was not 0, then the error number.
    pub(super) fn call(
        &self,
        what: impl FnOnce(&Library, *mut ffi::rdma_cm_id) -> c_int,
    ) -> Result<(), CmError> {
        if !self.mine() {
            return Err(CmError::Os(Failure::BadDescriptor));
        }
        let inside = gate::enter()?;
        let loaded = self.loaded();
        let result = what(&loaded.table, self.raw);
        let error = gate::last_error();
        // SAFETY: the identifier is alive while this is, and the gate is held.
        unsafe { hide((*self.raw).verbs, loaded, &inside) };
        if result == 0 { Ok(()) } else { Err(CmError::Os(error)) }
    }

    /// The device that it is bound to, opened for this process.
    pub(super) fn device(&self) -> Result<Option<&'static Device>, CmError> {
        if !self.mine() {
            return Err(CmError::Os(Failure::BadDescriptor));
        }
        let inside = gate::enter()?;
        // SAFETY: the identifier is alive; its context lives as long as it is bound.
        unsafe {
            let verbs = (*self.raw).verbs;
            if verbs.is_null() {
                Ok(None)
            } else {
                Device::of(verbs, self.loaded(), &inside).map(Some)
            }
        }
    }
}

impl Drop for Identifier {
    fn drop(&mut self) {
        // In a child, and in a handler that interrupted the gate, it is leaked.
        if self.mine()
            && let Ok(_inside) = gate::enter()
        {
            // SAFETY: the last owner gives it up; the pair went first.
            unsafe { (self.loaded().table.rdma_destroy_id)(self.raw) };
        }
    }
}

/// A connection to be, or a listener, or what ends a connection. Dropped, it ends (the pair may
/// keep it alive).
pub struct CmId {
    pub(super) id: Arc<Identifier>,
}

impl fmt::Debug for CmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmId").finish_non_exhaustive()
    }
}
