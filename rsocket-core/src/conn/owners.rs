//! Which processes of a fork group hold a connection. Each process that has an entry in the fork
//! group's table has one bit. A number counts the processes that found no entry.
//!
//! A bit may be that of a dead process, which no process cleared: a thread that asks looks at the
//! bit's process too. The processes beyond the table cannot be looked at, so one of them that is
//! killed is counted until the slot is used anew. Both cost a slot, never a byte.
//!
//! Must not know what the processes are, nor which of them live ([`crate::conn::fork_group`]).
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Words of bits.
const WORDS: usize = 4;
/// Processes of a fork group that are told apart, counted with [`ON_THE_WAY`].
pub(crate) const ENTRIES: usize = WORDS * 64;
/// What stands for a process that found no entry.
pub(crate) const BEYOND: usize = ENTRIES;
/// The entry of copies of a descriptor that are on their way in messages
/// ([`crate::handover::fds_in_flight`]).
pub(crate) const ON_THE_WAY: usize = ENTRIES - 1;

/// The owners of one connection. All zeroes: none.
///
/// All that decides which owner is the last is sequentially consistent. An owner that hands on adds
/// the other before it removes itself, and an owner that is removed reads the rest after that.
#[repr(C)]
#[derive(Debug)]
pub struct Owners {
    bits: [AtomicU64; WORDS],
    /// Processes beyond the table.
    beyond: AtomicU32,
}

/// Some entries of the table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entries([u64; WORDS]);

impl Entries {
    /// One more; none beyond the table.
    pub fn add(&mut self, entry: usize) {
        if let Some(word) = self.0.get_mut(entry / 64) {
            *word |= 1 << (entry % 64);
        }
    }

    /// Whether it is one.
    #[must_use]
    pub fn has(&self, entry: usize) -> bool {
        self.0.get(entry / 64).is_some_and(|word| word >> (entry % 64) & 1 == 1)
    }
}

/// The owners at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    bits: [u64; WORDS],
    beyond: u32,
}

impl Owners {
    fn word(&self, entry: usize) -> Option<&AtomicU64> {
        self.bits.get(entry / 64)
    }

    /// One more owner. To be said once only of a process beyond the table.
    pub fn add(&self, entry: usize) {
        match self.word(entry) {
            Some(word) => drop(word.fetch_or(1 << (entry % 64), Ordering::SeqCst)),
            None => drop(self.beyond.fetch_add(1, Ordering::SeqCst)),
        }
    }

    /// One less; false if it was none.
    pub fn remove(&self, entry: usize) -> bool {
        match self.word(entry) {
            Some(word) => {
                let bit = 1 << (entry % 64);
                word.fetch_and(!bit, Ordering::SeqCst) & bit != 0
            }
            None => {
                let less = |n: u32| n.checked_sub(1);
                self.beyond.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
            }
        }
    }

    /// Without all of these.
    pub fn remove_all(&self, entries: &Entries) {
        for (word, gone) in self.bits.iter().zip(entries.0) {
            // A line that is not written stays where it is.
            if word.load(Ordering::Acquire) & gone != 0 {
                word.fetch_and(!gone, Ordering::SeqCst);
            }
        }
    }

    /// Whether it is one; of those beyond the table, whether any is.
    #[must_use]
    pub fn has(&self, entry: usize) -> bool {
        match self.word(entry) {
            Some(word) => word.load(Ordering::Acquire) >> (entry % 64) & 1 == 1,
            None => self.beyond.load(Ordering::Acquire) != 0,
        }
    }

    /// There is no owner from now on.
    pub fn clear(&self) {
        self.bits.iter().for_each(|word| word.store(0, Ordering::Release));
        self.beyond.store(0, Ordering::Release);
    }

    /// Each word for itself: one that goes from one word to another may be missed, but then this
    /// answers otherwise the next time.
    #[must_use]
    pub fn see(&self) -> Seen {
        Seen {
            bits: self.bits.each_ref().map(|word| word.load(Ordering::SeqCst)),
            beyond: self.beyond.load(Ordering::SeqCst),
        }
    }
}

impl Seen {
    /// Whether there was no owner at all.
    #[cfg(test)]
    #[must_use]
    pub fn nobody(&self) -> bool {
        *self == Self::default()
    }

    /// How many were beyond the table.
    #[must_use]
    pub fn beyond(&self) -> u32 {
        self.beyond
    }

    /// The entries of the others.
    pub fn entries(self) -> impl Iterator<Item = usize> {
        self.bits.into_iter().enumerate().flat_map(|(i, mut bits)| {
            core::iter::from_fn(move || {
                let lowest = (bits != 0).then_some(bits.trailing_zeros() as usize)?;
                bits &= bits - 1;
                Some(i * 64 + lowest)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nobody() -> Owners {
        Owners { bits: [const { AtomicU64::new(0) }; WORDS], beyond: AtomicU32::new(0) }
    }

    #[test]
    fn each_entry_is_told_apart() {
        let h = nobody();
        for entry in [0, 63, 64, 200, ON_THE_WAY] {
            assert!(!h.has(entry));
            h.add(entry);
            h.add(entry);
            assert!(h.has(entry));
        }
        assert_eq!(h.see().entries().collect::<Vec<_>>(), [0, 63, 64, 200, ON_THE_WAY]);
        assert!(h.remove(64) && !h.remove(64) && !h.has(64) && h.has(63));
        assert!(!h.has(BEYOND) && h.see().beyond() == 0);
        h.clear();
        assert!(h.see().nobody());
    }

    #[test]
    fn those_beyond_the_table_are_counted() {
        let h = nobody();
        assert!(!h.remove(BEYOND), "never below nothing");
        h.add(BEYOND);
        h.add(BEYOND);
        assert!(h.remove(BEYOND) && h.has(BEYOND) && !h.see().nobody());
        assert_eq!(h.see().entries().count(), 0);
        assert!(h.remove(BEYOND) && !h.has(BEYOND) && h.see().nobody());
    }
}
