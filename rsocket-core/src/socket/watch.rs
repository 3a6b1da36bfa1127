//! Who wants to see the bytes of the program's calls: the packet tap, and ends on other hosts that
//! must know a connection by its first bytes.
//!
//! Must not know what they do with them. Entry points: [`watching`] after a call that libc has
//! done, then [`witnessed`].

use core::sync::atomic::{AtomicU8, Ordering};

use crate::attach::remote;
use crate::conn::family::slot;
use crate::conn::prefix::SEEN;
use crate::conn::slot::SlotId;
use crate::tap;

/// One byte, so that a call looks once.
static WATCHERS: AtomicU8 = AtomicU8::new(0);
/// A peer on another host may have to know us by the first bytes.
pub(crate) const WITNESS: u8 = 1;
/// The packet tap.
pub(crate) const TAP: u8 = 2;

/// Somebody wants to see the bytes.
pub(crate) fn watch(who: u8) {
    WATCHERS.fetch_or(who, Ordering::Relaxed);
}

/// Whether bytes that libc's calls moved over TCP are to be shown to [`witnessed`].
#[inline]
#[must_use]
pub fn watching() -> bool {
    WATCHERS.load(Ordering::Relaxed) != 0
}

/// Whether every byte is wanted, however it travels.
#[inline]
#[must_use]
pub fn tapped() -> bool {
    WATCHERS.load(Ordering::Relaxed) & TAP != 0
}

/// Whether peers on other hosts may come by RDMA.
#[inline]
#[must_use]
pub fn witnessing() -> bool {
    remote::possible()
}

/// libc's call has moved the first `n` bytes of this list over TCP: to the peer, or (`received`)
/// from it.
#[cold]
pub fn witnessed(id: SlotId, received: bool, list: &[libc::iovec], n: usize) {
    let Some(s) = slot(id) else { return };
    if tapped() {
        tap::moved(id, s, received, list, n);
    }
    let Some(prefix) = s.witness.get(usize::from(received)) else { return };
    let mut left = n;
    for v in list {
        if left == 0 || !prefix.wants() {
            return;
        }
        let here = v.iov_len.min(left).min(SEEN);
        // SAFETY: libc's call has just read or written all of these bytes, by the program's
        // promise.
        prefix.add(unsafe { core::slice::from_raw_parts(v.iov_base.cast::<u8>(), here) });
        left -= v.iov_len.min(left);
    }
}

/// libc's call has moved bytes over TCP that nobody saw.
pub fn unwitnessed(id: SlotId, received: bool) {
    if let Some(prefix) = slot(id).and_then(|s| s.witness.get(usize::from(received))) {
        prefix.freeze();
    }
}
