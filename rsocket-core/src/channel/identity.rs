//! The names of processes and of arenas: random bits, which no other process or arena has.
//!
//! A process's own lies in a page that the kernel empties in every forked child. Must not know to
//! whom a name is said. Entry points: [`Id`], [`process_id`]; [`forked`].

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{AtomicU64, Ordering};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::failure::Failure;
use crate::host::raw;
use crate::sync::published::Published;
use crate::sys;
use crate::sys::settle::Settle;

/// The name of a process, or of an arena: random bits. Not a pid: processes of two pid namespaces
/// may share a network namespace, and pids come back.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct Id(pub [u64; 2]);

impl Id {
    /// A new one. Neither half is 0.
    ///
    /// # Errors
    /// `EAGAIN` when the kernel has no random bits yet.
    pub fn random() -> Result<Self, Failure> {
        Ok(Self([nonzero()?, nonzero()?]))
    }
}

/// Random bits, but not the one value that stands for "none".
fn nonzero() -> Result<u64, Failure> {
    Ok(raw::random()?.max(1))
}

/// The two halves of this process's id; 0 is "not yet drawn". Each half is drawn once, by the
/// thread that comes first, so that all readers see the same pair.
type Halves = [AtomicU64; 2];

/// Where the halves live: a page that the kernel empties in every forked child, also where the fork
/// went past libc (raw `clone`). A `vfork` child shares it with its parent, as it shares everything
/// else.
static PAGE: Published<Halves> = Published::new();
/// Instead of the page where the kernel cannot do that; then [`forked`] has to be called.
static SPARE: Halves = [const { AtomicU64::new(0) }; 2];

fn halves() -> &'static Halves {
    PAGE.get().unwrap_or_else(|| {
        // A page that comes too late stays, unused.
        let mine = sys::emptied_in_copies().and_then(|page| page.first_chunk());
        PAGE.offer(mine.unwrap_or(&SPARE))
    })
}

/// This process's name for its peers: 128 random bits, others in every forked child.
///
/// # Errors
/// `EAGAIN` when the kernel has no random bits yet.
pub fn process_id() -> Result<Id, Failure> {
    let mut id = Id::default();
    for (half, out) in halves().iter().zip(&mut id.0) {
        // Relaxed everywhere: a half is one word and stands for nothing but itself.
        *out = match half.load(Ordering::Relaxed) {
            0 => {
                let new = nonzero()?;
                half.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed)
                    .err()
                    .unwrap_or(new)
            }
            drawn => drawn,
        };
    }
    Ok(id)
}

/// In a forked child, before anything else of ours: the parent's name is not ours.
pub fn forked() {
    // None is made for it: a process that has no name yet needs none to forget.
    PAGE.get().unwrap_or(&SPARE).iter().for_each(|half| half.settle(0));
}
