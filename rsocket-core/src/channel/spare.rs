//! Arenas' descriptors that can be spared: where they stand below the program's limit, and it has
//! none left, they are closed.
//!
//! An arena stays mapped without its descriptor. But it cannot be shown any more to peers and
//! siblings that do not have it yet. So no further connection gets a channel in it, and before
//! `exec` its connections go back to TCP (`link::outlasts_exec`). For that reason one that siblings
//! might look for is put into the fd stash first. Must not know when descriptors are needed. Entry
//! point: [`give_way`].
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::Ordering;

use super::arenas::{close_descriptor, each_own, keep_for_siblings};
use super::arenas_lock::{self, ArenasGuard};
use super::{fd_stash, loan};
use crate::conn::arena_record::ArenaRecord;
use crate::sys;

/// Closes what can be spared; how many there were.
pub fn give_way() -> usize {
    let Some(held) = arenas_lock::alone() else { return 0 };
    let mut closed = 0;
    if !loan::any(&held) {
        each_own(|_, r| closed += usize::from(spared(&held, r)));
    }
    closed
}

fn spared(held: &ArenasGuard, r: &ArenaRecord) -> bool {
    let fd = r.fd.load(Ordering::Relaxed);
    if fd < 0 || !sys::is_below_limit(fd) {
        return false;
    }
    let has_siblings = fd_stash::ends() != [-1, -1];
    if has_siblings && r.live.load(Ordering::Relaxed) != 0 {
        keep_for_siblings(r);
        if r.in_fd_stash.load(Ordering::Relaxed) == 0 {
            return false;
        }
    }
    close_descriptor(held, r);
    true
}
