//! What each descriptor number of this process stands for: the table of whichever library this is
//! part of.
//!
//! The one place here that knows which numbers are sockets; everything below is told a slot and its
//! number.
//!
//! A flat array in `.bss` (untouched pages cost nothing), one word for each number: 0 for "nothing
//! of ours", else a kind and a slot. Must not know what a slot is. Entry points: [`connection`] on
//! the data path, [`put`], [`forget`] and [`fresh`] where descriptors come and go.
//!
//! **Orderings.** All accesses are relaxed. A word is the whole message: slots live in memory that
//! was mapped before the word was written. A thread that uses a descriptor has learnt its number
//! from the thread that got it, through synchronisation of the program's own. A thread that guesses
//! numbers races with the kernel just the same.
//!
//! **Whose table.** A `vfork` child runs in this memory but has a descriptor table of its own: what
//! it closes is not closed here. Before a word that is ours changes, [`mine`] compares the process
//! with the table's owner (127 ns, only on a hit). The owner is the process that tracked the first
//! socket; a forked child takes over in its `pthread_atfork` step ([`inherit`]). A child made by a
//! raw `clone` stays foreign: what it had stays as it was, and what it makes is never tracked. But
//! its table is a copy, in which it forgets what it closes ([`forget_copy`]), since something else
//! will have that number. A page that the kernel empties in every copy of this memory says that the
//! table is a copy.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::conn::listeners;
use crate::conn::slot::SlotId;
use crate::handover::back;
use crate::reason::Reason;
use crate::sync::published::Published;
use crate::sys::{self, MAX_FDS, sandbox};
use crate::{readiness, socket};

static TABLE: [AtomicU32; MAX_FDS] = [const { AtomicU32::new(0) }; MAX_FDS];

/// One more than the highest number ever tracked; 0 while nothing was. Bounds the walks over the
/// table.
static END: AtomicU32 = AtomicU32::new(0);

/// The process that the table describes; 0 until something is tracked.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// A word that is 1 in the memory of the table's owner, which a `vfork` child shares, and 0 in a
/// copy of it. There is none until something is tracked, or where the kernel cannot do that.
static ORIGINAL: Published<AtomicU64> = Published::new();

const KIND: u32 = 0b11 << 30;
const CONNECTION: u32 = 0b01 << 30;
const LISTENER: u32 = 0b10 << 30;
const SET: u32 = 0b11 << 30;

/// What a number stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Nothing that we know.
    Foreign,
    /// A TCP socket that is, or may become, a connection.
    Connection(SlotId),
    /// A TCP socket that listens.
    Listener(SlotId),
    /// An epoll instance.
    Set,
}

impl Entry {
    fn from_word(word: u32) -> Self {
        match (word & KIND, SlotId::from_raw(word & !KIND)) {
            (CONNECTION, Some(slot)) => Self::Connection(slot),
            (LISTENER, Some(slot)) => Self::Listener(slot),
            (SET, _) => Self::Set,
            _ => Self::Foreign,
        }
    }

    /// None if the slot's number does not fit: then the descriptor is not tracked.
    fn word(self) -> Option<u32> {
        let with = |kind, slot: SlotId| (slot.raw() & KIND == 0).then_some(kind | slot.raw());
        match self {
            Self::Foreign => Some(0),
            Self::Connection(slot) => with(CONNECTION, slot),
            Self::Listener(slot) => with(LISTENER, slot),
            Self::Set => Some(SET),
        }
    }
}

#[inline(always)]
fn word(fd: c_int) -> Option<&'static AtomicU32> {
    // A negative number becomes a huge one, which is outside.
    TABLE.get(fd as u32 as usize)
}

/// Whether a number stands for anything of ours. The one look-up of the miss path: a bounds check,
/// a load, a test.
#[inline(always)]
pub fn tracked(fd: c_int) -> bool {
    word(fd).is_some_and(|w| w.load(Relaxed) != 0)
}

/// The connection behind a number.
#[inline(always)]
pub fn connection(fd: c_int) -> Option<SlotId> {
    let found = word(fd)?.load(Relaxed);
    if found & KIND == CONNECTION { SlotId::from_raw(found & !KIND) } else { None }
}

/// [`connection`] as a function pointer, for the readiness layer.
pub fn find(fd: c_int) -> Option<SlotId> {
    connection(fd)
}

/// A number for the connection, other than `but`. A walk over the table.
fn another(id: SlotId, but: c_int) -> Option<c_int> {
    (0..end()).find(|fd| *fd != but && connection(*fd) == Some(id))
}

/// What a number stands for.
#[inline(always)]
pub fn entry(fd: c_int) -> Entry {
    match word(fd).map_or(0, |w| w.load(Relaxed)) {
        0 => Entry::Foreign,
        found => Entry::from_word(found),
    }
}

/// Whether anything was ever tracked here.
#[inline(always)]
pub fn any() -> bool {
    END.load(Relaxed) != 0
}

/// One more than the highest number that may be tracked.
pub fn end() -> c_int {
    c_int::try_from(END.load(Relaxed)).unwrap_or(c_int::MAX)
}

/// Whether this process owns the table. False in a `vfork` child. In a sandbox the process may not
/// ask. What is left in the table is so little that it does no harm to forget it.
pub fn mine() -> bool {
    sandbox::inside() || OWNER.load(Relaxed) == process()
}

/// As [`mine`], and takes ownership if no process has it: for the hooks that are about to track
/// something. In a sandbox nothing new is tracked.
pub fn claim() -> bool {
    if sandbox::inside() {
        return false;
    }
    let me = process();
    match OWNER.compare_exchange(0, me, Relaxed, Relaxed) {
        Ok(_) => {
            if let Some(word) = sys::emptied_in_copies().and_then(|page| page.first()) {
                ORIGINAL.publish(word);
            }
            mark_original();
            true
        }
        Err(owner) => owner == me,
    }
}

/// In a forked child: the copied table is its own.
pub fn inherit() {
    if OWNER.load(Relaxed) != 0 {
        OWNER.store(process(), Relaxed);
        mark_original();
    }
}

fn mark_original() {
    if let Some(word) = ORIGINAL.get() {
        word.store(1, Relaxed);
    }
}

/// Where the table is not [`mine`], and is a copy of the owner's memory: forgets a number that is
/// about to be, or was, closed. No other layer is told: to the layers above this process holds
/// nothing.
pub fn forget_copy(fd: c_int) {
    if ORIGINAL.get().is_some_and(|word| word.load(Relaxed) == 0) {
        forget(fd);
    }
}

fn process() -> u32 {
    sys::pid()
}

/// Says what a number stands for from now on. The caller has checked [`mine`].
pub fn put(fd: c_int, entry: Entry) {
    if let (Some(w), Some(value)) = (word(fd), entry.word()) {
        if end() == 0 {
            listeners::know_numbers(another);
        }
        END.fetch_max((fd as u32).saturating_add(1), Relaxed);
        w.store(value, Relaxed);
    }
}

/// Forgets a number, and says what it stood for. The caller has checked [`mine`].
pub fn forget(fd: c_int) -> Entry {
    word(fd).map_or(Entry::Foreign, |w| Entry::from_word(w.swap(0, Relaxed)))
}

/// For every number that the kernel has just handed out. A live entry there is stale (libc closed
/// the descriptor where no hook sees it) and goes. The old descriptor is gone already, which the
/// layers above are told by -1 in its place.
#[inline(always)]
pub fn fresh(fd: c_int) {
    if tracked(fd) {
        stale(fd);
    }
}

#[cold]
fn stale(fd: c_int) {
    if mine() {
        sys::keeping_errno(|| let_go(fd, forget(fd), -1));
    } else {
        forget_copy(fd);
    }
}

/// Tells the layers above that one descriptor of what `entry` says goes away. `fd` is its number
/// while it is still open, else -1; `number` is where it stood.
pub fn let_go(number: c_int, entry: Entry, fd: c_int) {
    if sandbox::inside() {
        return;
    }
    match entry {
        Entry::Foreign => {}
        Entry::Set => readiness::epoll::closed(number),
        Entry::Connection(slot) | Entry::Listener(slot) => {
            if let Some(other) = readiness::epoll::outlives_in_kernel(slot, number) {
                back::refuse(slot, other, Reason::OddUse);
            }
            readiness::epoll::member_closing(number);
            socket::closing(slot, fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_entries_agree() {
        let slot = SlotId::from_raw(77).unwrap();
        for e in [Entry::Foreign, Entry::Connection(slot), Entry::Listener(slot), Entry::Set] {
            assert_eq!(Entry::from_word(e.word().unwrap()), e);
        }
        assert_eq!(Entry::Connection(SlotId::from_raw(1 << 30).unwrap()).word(), None);
    }

    #[test]
    fn numbers_outside_are_foreign() {
        for fd in [-1, c_int::MIN, c_int::MAX, MAX_FDS as c_int] {
            assert_eq!(connection(fd), None);
            put(fd, Entry::Set);
            assert_eq!(entry(fd), Entry::Foreign);
            assert_eq!(forget(fd), Entry::Foreign);
        }
    }

    #[test]
    fn another_process_does_not_own_the_table() {
        assert!(claim() && mine());
        put(800_000, Entry::Set);
        forget_copy(800_000);
        assert_eq!(entry(800_000), Entry::Set, "not in the original");
        // SAFETY: the child makes only calls that are async-signal-safe. No fork handler is
        // registered here, so that it is to the table what a raw clone or a vfork child is.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = i32::from(mine()) + 2 * i32::from(claim());
            forget_copy(800_000);
            let code = code + 8 * i32::from(entry(800_000) == Entry::Foreign);
            inherit();
            // SAFETY: ends the child.
            unsafe { libc::_exit(code + 4 * i32::from(mine())) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 12, "foreign before it inherits, its own after");
        assert!(mine());
        assert_eq!(forget(800_000), Entry::Set);
    }

    #[test]
    fn what_is_put_is_found() {
        let slot = SlotId::from_raw(5).unwrap();
        put(900_000, Entry::Connection(slot));
        assert_eq!(connection(900_000), Some(slot));
        put(900_000, Entry::Listener(slot));
        assert_eq!(connection(900_000), None);
        assert_eq!(forget(900_000), Entry::Listener(slot));
        assert_eq!(entry(900_000), Entry::Foreign);
        assert!(end() > 900_000 && any());
    }
}
