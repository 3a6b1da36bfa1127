//! The waiters of a datagram socket: signals the wakers that were left there, and knows which
//! sockets epoll sets are to hear of.
//!
//! Must not know what a socket is ready for. Entry points: [`wake`], [`collect`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::conn::fork_group::MAX_SLOTS;
use crate::conn::slot::SlotId;
use crate::device::shm::park::{MARK_READY, WAKER};
use crate::device::shm::waker;

/// Slots of which an epoll set is to hear.
static READY: [AtomicU64; MAX_SLOTS / 64] = [const { AtomicU64::new(0) }; MAX_SLOTS / 64];
static ANY_READY: AtomicBool = AtomicBool::new(false);

/// Signals the wakers that were left here. Called with no lock held.
pub(super) fn wake(id: SlotId, waiters: &[u64]) {
    for word in waiters {
        if word & MARK_READY != 0
            && let Some(bits) = READY.get(id.raw() as usize / 64)
        {
            // Release: pair with the acquires in collect().
            bits.fetch_or(1 << (id.raw() % 64), Ordering::Release);
            ANY_READY.store(true, Ordering::Release);
        }
        waker::wake(word & WAKER);
    }
}

/// Takes the slots of which epoll sets are to hear.
pub(crate) fn collect(f: &mut dyn FnMut(SlotId)) {
    if !ANY_READY.load(Ordering::Relaxed) || !ANY_READY.swap(false, Ordering::Acquire) {
        return;
    }
    for (i, word) in READY.iter().enumerate() {
        if word.load(Ordering::Relaxed) == 0 {
            continue;
        }
        let mut bits = word.swap(0, Ordering::Acquire);
        while bits != 0 {
            let raw = i as u32 * 64 + bits.trailing_zeros();
            bits &= bits - 1;
            SlotId::from_raw(raw).into_iter().for_each(&mut *f);
        }
    }
}
