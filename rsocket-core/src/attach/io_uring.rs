//! io_uring, as far as sockets are concerned: the library does not see the bytes that a ring moves.
//! Must not know how a ring is made.
//!
//! Entry points: [`refused`], [`open_from_now_on`], [`open`].

use core::sync::atomic::{AtomicBool, Ordering};

use crate::config::policy;

/// The process has, or may have, a ring. Never taken back; a child inherits it.
static OPEN: AtomicBool = AtomicBool::new(false);

/// Whether a ring that the program wants to make shall fail, as on a kernel that has none. The
/// administrator chooses that (`RSOCKET_IO_URING`). It holds where anything but TCP is allowed.
#[must_use]
pub fn refused() -> bool {
    if !policy::shm_allowed() && !policy::rdma_allowed() {
        return false;
    }
    if open() {
        return false;
    }
    let refused = !policy::rings_allowed();
    if refused {
        crate::log_info!(
            "io_uring is refused: RSOCKET_IO_URING=tcp allows it, and keeps the process on TCP"
        );
    }
    refused
}

/// A ring is about to be made. True the first time: then what is attached has to go back to TCP.
pub fn open_from_now_on() -> bool {
    // SeqCst: pairs with open(), so that a connection that is not seen attached does not attach any
    // more.
    let first = !OPEN.swap(true, Ordering::SeqCst);
    if first {
        crate::log_info!("the process has an io_uring: its connections stay on TCP");
    }
    first
}

/// Whether the process has, or may have, a ring.
#[must_use]
#[inline]
pub fn open() -> bool {
    OPEN.load(Ordering::SeqCst)
}
