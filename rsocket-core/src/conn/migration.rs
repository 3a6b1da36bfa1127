//! Upstream's fork mode, as far as a connection's owners share it.
//!
//! Must not know how a connection gets on ([`crate::fork_safe`]). Entry point: [`Migration`].
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::fork_mode::{Happening, State};
use super::name::Name;
use crate::sys;

/// What a connection of fork mode has, in memory that its owners share. All zeroes: it is none.
#[repr(C)]
#[derive(Default)]
pub struct Migration {
    /// A [`State`].
    state: AtomicU32,
    /// The bridge's number in its process, plus one.
    pub(crate) bridge: AtomicU32,
    /// The bridge's process.
    pub(crate) pid: AtomicU32,
    /// Its channel.
    pub(crate) record: AtomicU32,
    pub(crate) channel: AtomicU32,
    _pad: AtomicU32,
    /// Monotonic nanoseconds since when this state lasts.
    pub(crate) since: AtomicU64,
    /// Where the bridge waits for the program's descriptor, and from where that comes.
    pub(crate) door: Name,
    pub(crate) tied: Name,
}

impl Migration {
    /// As for a connection that is none of fork mode's.
    pub fn reset(&self) {
        self.state.store(State::Over as u32, Ordering::Relaxed);
        self.since.store(0, Ordering::Relaxed);
        self.door.set(None);
        self.tied.set(None);
    }

    /// Whether the connection is fork mode's, or was.
    pub(crate) fn was_begun(&self) -> bool {
        self.since.load(Ordering::Relaxed) != 0
    }

    /// Where it stands.
    pub(crate) fn state(&self) -> State {
        // SeqCst: pairs with shift(); see `rival` in fork_safe.
        State::from_raw(self.state.load(Ordering::SeqCst))
    }

    /// Goes on from `from`, if it is still there and expects that.
    pub(crate) fn shift(&self, from: State, what: Happening) -> Option<State> {
        let next = from.after(what)?;
        let (from, to) = (from as u32, next as u32);
        self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).ok()?;
        Some(next)
    }

    /// Nanoseconds since when this state lasts.
    pub(crate) fn waited(&self) -> u64 {
        sys::now_ns().saturating_sub(self.since.load(Ordering::Relaxed))
    }

    /// It is fork mode's from now on.
    pub(crate) fn begin(&self, state: State) {
        self.since.store(sys::now_ns(), Ordering::Relaxed);
        self.state.store(state as u32, Ordering::SeqCst);
    }
}
