//! How long a connection that may not use TCP has been waited for: one word of its slot.
//!
//! Must not know what is said when the wait was too long. Entry points: [`Waited`], [`is_overdue`].
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use super::slot::Slot;

/// In [`Slot::waiting_since`]: it has been said that the wait was too long, or in vain.
pub(crate) const OVERDUE: u64 = u64::MAX;

/// At most so much of the time between two looks counts, in milliseconds. Where a process or a
/// machine has stood still, its peer may have done so, too.
const MOST_MS: i32 = 1000;

/// What was found out when a stage of the wait was over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Nothing yet.
    First = 0,
    /// A thread other than the caller may still accept the connection.
    Queued = 1,
    /// Such a thread has done so since.
    Accepted = 2,
}

/// How long a connection has been waited for, as [`Slot::waiting_since`] has it. The lower 30 bits
/// are the time that counts, the next two the stage. The upper half is when it was last looked at.
/// Both times are in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Waited {
    pub(crate) ms: u32,
    pub(crate) stage: Stage,
    pub(crate) seen: u32,
}

impl Waited {
    const MOST: u32 = (1 << 30) - 1;

    pub(crate) fn from_raw(raw: u64) -> Self {
        let stage = match raw >> 30 & 3 {
            1 => Stage::Queued,
            2 => Stage::Accepted,
            _ => Stage::First,
        };
        Self { ms: raw as u32 & Self::MOST, stage, seen: (raw >> 32) as u32 }
    }

    pub(crate) fn to_raw(self) -> u64 {
        u64::from(self.seen) << 32 | (self.stage as u64) << 30 | u64::from(self.ms.min(Self::MOST))
    }

    /// Whether it is time to say that TCP, at least, has connected.
    pub(crate) fn is_long(self) -> bool {
        self.ms >= NEWS_MS || self.stage != Stage::First
    }

    /// The same at a later look. (Another thread's may be the later one.)
    pub(crate) fn at(self, now: u32) -> Self {
        match now.wrapping_sub(self.seen).cast_signed().min(MOST_MS) {
            since @ 1.. => {
                Self { ms: self.ms.saturating_add(since.cast_unsigned()), seen: now, ..self }
            }
            _ => self,
        }
    }
}

/// Whether it has been said already that a connection was waited for in vain.
pub(crate) fn is_overdue(s: &Slot) -> bool {
    // Relaxed here and below: the word stands for itself.
    s.waiting_since.load(Ordering::Relaxed) == OVERDUE
}

/// How long the program is kept waiting, in milliseconds, before it is told that TCP alone has
/// connected.
const NEWS_MS: u32 = 1000;
