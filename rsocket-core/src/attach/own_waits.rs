//! Whether the program waits for its sockets by system calls of its own, past every hook. Then they
//! stay on TCP, where such a wait ends.
//!
//! The program's files tell. The library looks once through the instructions of everything that is
//! mapped to be executed, but for libc's own and ours ([`image::waits`]). Where the program
//! listens, the library looks then, so that the children that it forks inherit the answer. Other
//! processes of the user find it in a file ([`super::looked_at`]). Of what is loaded later, the
//! library looks at what is new before the next connection attaches. A hook sees calls of libc's
//! `syscall`. Must not know what hangs on the answer. Entry points: [`concern`], [`listens`],
//! [`seen`], [`files_changed`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing))]

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::looked_at::LookedAt;
use super::reach;
use crate::config::policy;
use crate::conn::fork_group;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::fnv;
use crate::host::image::{self, Owner};
use crate::host::loaded;
use crate::sync::stack;
use crate::sys;
use crate::sys::files::{self, For};

/// Set once a wait was found, or seen. Never taken back; a child inherits it.
static ANY: AtomicBool = AtomicBool::new(false);
/// Counts what changes the files that are mapped.
static FILES: AtomicU32 = AtomicU32::new(1);
/// The count that the last look went by.
static LOOKED_AT: AtomicU32 = AtomicU32::new(0);
/// What was looked at and has no waits: a sum of what [`Mapped`] says of each, and 0 is none. What
/// finds no room is looked at again. Relaxed: each says all by itself.
static CLEAN: [AtomicU64; 512] = [const { AtomicU64::new(0) }; 512];

/// Where it says what is mapped.
const MAPS: &CStr = c"/proc/self/maps";
/// A line of it, and a path in it, is at most so long; a longer one is not looked at.
const LINE: usize = 1024;

/// Libraries whose waits have hooks, or are ours.
const KNOWN: [&[u8]; 9] = [
    b"libc.so",
    b"libc-2",
    b"ld-",
    b"libpthread",
    b"librt",
    b"librspreload",
    b"librsocket",
    b"libasan",
    b"libtsan",
];

/// The program may have loaded a library.
pub fn files_changed() {
    // Relaxed: a count that orders nothing; a thread that misses it by a moment looks when the next
    // connection comes.
    FILES.fetch_add(1, Ordering::Relaxed);
}

/// A wait of the program's own was seen. True the first time: then what is attached has to go back
/// to TCP.
pub fn seen() -> bool {
    // SeqCst: pairs with any(), so that a connection that is not seen attached does not attach any
    // more.
    !ANY.swap(true, Ordering::SeqCst)
}

/// Whether the connection has to stay on TCP for that. Where there is no TCP to stay on, nothing is
/// asked: it would fail instead.
pub(crate) fn concern(s: &Slot) -> bool {
    !s.has(flag::STRICT | flag::RSOCKET) && any()
}

/// To be called before a connection can come. A process that gives its connections to children that
/// it forks pays for the look once.
pub(crate) fn listens(id: SlotId) {
    if fork_group::slot(id).is_some_and(|s| !s.has(flag::STRICT | flag::RSOCKET))
        && (policy::shm_allowed() || reach::possible())
        && !policy::sandboxed()
    {
        any();
    }
}

/// Whether the program has such waits. Reads files where it has not done so since a library was
/// loaded.
fn any() -> bool {
    if ANY.load(Ordering::SeqCst) {
        return true;
    }
    let changes = FILES.load(Ordering::Relaxed);
    // Relaxed: two threads may both look, and find the same.
    if LOOKED_AT.load(Ordering::Relaxed) != changes {
        if stack::on_own(in_mapped_files) {
            crate::log_info!(
                "the program waits by system calls of its own: its connections stay on TCP"
            );
            ANY.store(true, Ordering::SeqCst);
        }
        LOOKED_AT.store(changes, Ordering::Relaxed);
    }
    ANY.load(Ordering::SeqCst)
}

/// Looks through every file that is mapped to be executed.
fn in_mapped_files() -> bool {
    let Ok(maps) = files::open(MAPS, For::Reading) else { return false };
    let places = Places { ours: in_mapped_files as *const () as u64, program: loaded::entry() };
    let known = LookedAt::open();
    let mut found = false;
    image::with_piece(|piece| {
        let mut text = [0_u8; LINE];
        let mut kept = 0;
        while !found
            && let Some(room) = text.get_mut(kept..).filter(|r| !r.is_empty())
            && let Ok(n @ 1..) = files::read(&maps, room)
        {
            let filled = text.get(..kept + n).unwrap_or_default();
            let whole = filled.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
            let lines = filled.get(..whole).unwrap_or_default().split(|b| *b == b'\n');
            found = lines.filter_map(Mapped::parse).any(|m| m.waits(&places, &known, piece));
            kept = kept + n - whole;
            text.copy_within(whole..whole + kept, 0);
        }
    });
    sys::discard(maps);
    found
}

/// Addresses in two of the files: this library's, and the program's.
struct Places {
    ours: u64,
    program: u64,
}

/// A part of a file that is mapped to be executed.
struct Mapped<'a> {
    from: u64,
    to: u64,
    offset: u64,
    /// The sum of the offset, the device and the file's number: which part of which file it is.
    sum: u64,
    path: &'a [u8],
}

impl<'a> Mapped<'a> {
    /// `55d0-55e0 r-xp 00002000 fe:00 1234       /usr/bin/x`, if it is one.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let at = line.iter().position(|b| *b == b'/')?;
        let (head, path) = line.split_at_checked(at)?;
        let mut words = core::str::from_utf8(head).ok()?.split_ascii_whitespace();
        let (from, to) = words.next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (from, to) = (number(from)?, number(to)?);
        let executed = words.next()?.contains('x');
        let sum = fnv::hash(fnv::EMPTY, words.clone().flat_map(str::bytes));
        let offset = number(words.next()?)?;
        executed.then_some(Self { from, to, offset, sum, path })
    }

    fn has(&self, address: u64) -> bool {
        (self.from..self.to).contains(&address)
    }

    /// Whether it is a file of the program's that has waits of its own. What cannot be read has
    /// none.
    fn waits(&self, places: &Places, looked_at: &LookedAt, piece: &mut [u8]) -> bool {
        let name = self.path.rsplit(|b| *b == b'/').next().unwrap_or_default();
        let owner = if self.has(places.program) { Owner::Program } else { Owner::Library };
        let known = || KNOWN.iter().any(|known| name.starts_with(known));
        if self.has(places.ours) || self.is_clean() || matches!(owner, Owner::Library) && known() {
            return false;
        }
        let mut space = [0_u8; LINE];
        let Some(to) = space.get_mut(..self.path.len()) else { return false };
        to.copy_from_slice(self.path);
        let Ok(path) = CStr::from_bytes_until_nul(&space) else { return false };
        let entry = |st: &_| looked_at.entry(st, [self.offset, self.to - self.from], owner as u64);
        if files::status(path).is_ok_and(|st| looked_at.has(entry(&st))) {
            self.note();
            return false;
        }
        let Ok(file) = files::open(path, For::Reading) else { return false };
        // Before it is looked at: what it becomes meanwhile is another.
        let status = files::status_of(&file);
        let found = image::waits(&file, self.offset, self.to - self.from, owner, piece);
        sys::discard(file);
        if !found {
            self.note();
            let _ = status.map(|st| looked_at.note(entry(&st)));
        }
        found
    }

    fn is_clean(&self) -> bool {
        CLEAN
            .iter()
            .map(|place| place.load(Ordering::Relaxed))
            .take_while(|sum| *sum != 0)
            .any(|sum| sum == self.sum)
    }

    fn note(&self) {
        let taken = |place: &AtomicU64| {
            place.compare_exchange(0, self.sum, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let _ = CLEAN.iter().any(taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps() {
        let line = b"7f10-7f20 r-xp 00002000 fe:00 77                         /usr/lib/a b.so";
        let m = Mapped::parse(line).map(|m| (m.from, m.to, m.offset, m.path.to_vec()));
        assert_eq!(m, Some((0x7f10, 0x7f20, 0x2000, b"/usr/lib/a b.so".to_vec())));
        let no: [&[u8]; 4] = [
            b"7f10-7f20 r--p 00002000 fe:00 77 /usr/lib/a.so",
            b"7f10-7f20 r-xp 00000000 00:00 0 [vdso]",
            b"7f10-7f20 r-xp 00000000 00:00 0",
            b"",
        ];
        assert!(no.into_iter().all(|line| Mapped::parse(line).is_none()));
    }

    #[test]
    fn libraries_of_this_system_have_none() {
        // This test itself has some: rustix's. Its own file is not looked at.
        assert!(!in_mapped_files());
    }

    #[test]
    fn what_was_looked_at_is_remembered() {
        let line = |inode| format!("7f10-7f20 r-xp 00002000 fe:00 {inode} /usr/lib/a");
        let (one, other) = (line(771), line(772));
        Mapped::parse(one.as_bytes()).unwrap().note();
        let elsewhere = one.replace("7f", "6f");
        assert!(Mapped::parse(elsewhere.as_bytes()).unwrap().is_clean());
        assert!(!Mapped::parse(other.as_bytes()).unwrap().is_clean());
    }
}
