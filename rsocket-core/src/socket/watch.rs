//! The watchers that want to see the bytes of the program's calls. They are the packet tap, and
//! ends on other hosts that must know a connection by its first bytes.
//!
//! Must not know what they do with them. Entry point: [`fingerprint_bytes`], after a call that libc
//! has done, if there is a watcher ([`crate::conn::watchers`]).

use crate::attach::reach;
use crate::conn::fork_group::slot;
use crate::conn::prefix::SEEN;
use crate::conn::slot::SlotId;
use crate::conn::watchers::tapped;
use crate::tap;

/// Whether peers on other hosts may come by RDMA.
#[inline]
#[must_use]
pub fn fingerprints() -> bool {
    reach::possible()
}

/// libc's call has moved the first `n` bytes of this list over TCP: to the peer, or (`received`)
/// from it.
#[cold]
pub fn fingerprint_bytes(id: SlotId, received: bool, list: &[libc::iovec], n: usize) {
    let Some(s) = slot(id) else { return };
    if tapped() {
        tap::moved(id, s, received, list, n);
    }
    let Some(prefix) = s.fingerprint.get(usize::from(received)) else { return };
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

/// libc's call has moved bytes over TCP that the library did not see.
pub fn forget_fingerprint(id: SlotId, received: bool) {
    if let Some(prefix) = slot(id).and_then(|s| s.fingerprint.get(usize::from(received))) {
        prefix.freeze();
    }
}
