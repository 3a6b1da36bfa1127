//! Which files have no waits of their own, as other processes of this user have found: a file in
//! the user's own directory.
//!
//! A look through everything that is mapped takes milliseconds, and a program that runs as briefly
//! as curl would pay them each time. An entry is a sum of the file's number, size and time of
//! change, which nobody can set, and of this library, whose next build may judge otherwise. So
//! whatever changes is looked at again. The file is read and written, never mapped: another process
//! may cut it. Where it cannot be had, everything is looked at. Must not know what is looked for.
//! Entry point: [`LookedAt::open`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing))]

use std::os::fd::{OwnedFd, RawFd};

use crate::config::policy;
use crate::fnv;
use crate::host::loaded;
use crate::own_directory;
use crate::sys::files::{self, For, Status};
use crate::sys::{self, identity};

const NAME: &[u8] = b"looked-at";
/// The file has so many buckets of so many entries, an entry being eight bytes, and 0 is none.
const BUCKETS: u64 = 1024;
const ENTRIES: usize = 8;
const BUCKET: usize = 8 * ENTRIES;
const BYTES: u64 = BUCKETS * BUCKET as u64;

/// What a file is known by. It is known anew with each change of its contents, and to each build of
/// this library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry(u64);

/// See the head of this file.
pub(super) struct LookedAt {
    /// A private descriptor: a program that closes what it does not know, and opens a file there,
    /// would have that written to.
    file: Option<RawFd>,
    /// The sum of this library.
    library: u64,
}

impl LookedAt {
    /// Opens the file of this user, or makes it. A few system calls.
    pub(super) fn open() -> Self {
        let library = loaded::own_file().and_then(|path| files::status(path).ok());
        let file = library.filter(|_| !policy::sandboxed()).and_then(|_| own_directory::find(at));
        Self { file, library: library.map_or(0, |st| sum(&st.identity(), fnv::EMPTY)) }
    }

    /// What that part of a file is known by. `how` tells apart ways to look at it.
    pub(super) fn entry(&self, file: &Status, part: [u64; 2], how: u64) -> Entry {
        let [from, to] = part;
        Entry(sum(&[from, to, how], sum(&file.identity(), self.library)).max(1))
    }

    pub(super) fn has(&self, entry: Entry) -> bool {
        self.bucket(entry).is_some_and(|bucket| bucket.contains(&entry.0))
    }

    /// Notes what has none. On a full bucket another entry gives way.
    pub(super) fn note(&self, entry: Entry) {
        let (Some(bucket), Some(file)) = (self.bucket(entry), self.file) else { return };
        let free = bucket.iter().position(|e| *e == 0 || *e == entry.0);
        let place = free.unwrap_or((entry.0 >> 32) as usize % ENTRIES);
        let at = begin_of_bucket(entry) + 8 * place as u64;
        let _ = files::write_at(sys::borrow(file), at, &entry.0.to_ne_bytes());
    }

    /// What stands on the entry's bucket. A file that is shorter has nothing there.
    fn bucket(&self, entry: Entry) -> Option<[u64; ENTRIES]> {
        let mut bytes = [0; BUCKET];
        files::read_at(sys::borrow(self.file?), begin_of_bucket(entry), &mut bytes).ok()?;
        let (entries, _) = bytes.as_chunks::<8>();
        let mut bucket = [0; ENTRIES];
        for (to, from) in bucket.iter_mut().zip(entries) {
            *to = u64::from_ne_bytes(*from);
        }
        Some(bucket)
    }
}

impl Drop for LookedAt {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            sys::close_private(file);
        }
    }
}

/// The file in that directory, if it is the user's alone and may be as long as it can become.
fn at(directory: &OwnedFd, _: &mut own_directory::Path) -> Option<RawFd> {
    if !sys::file_may_reach(BYTES) {
        return None;
    }
    let file = files::open_in(directory, NAME, For::OwnChange)
        .or_else(|_| files::open_in(directory, NAME, For::New))
        // Another process has made it in between.
        .or_else(|_| files::open_in(directory, NAME, For::OwnChange))
        .ok()?;
    let fd = sys::make_private(file).ok()?;
    // Asked last: before the number was private, the program may have closed it and opened a file
    // of its own there, which must not be written to.
    let (named, open) = (files::status_in(directory, NAME), files::status_of(sys::borrow(fd)));
    let place = |st: Status| {
        let [file_system, inode, ..] = st.identity();
        (file_system, inode)
    };
    let ours = |st: Status| st.is_regular() && st.is_private_to(identity::user());
    if let (Ok(open), Ok(named)) = (open, named)
        && ours(open)
        && place(open) == place(named)
    {
        return Some(fd);
    }
    sys::close_private(fd);
    None
}

fn begin_of_bucket(entry: Entry) -> u64 {
    entry.0 % BUCKETS * BUCKET as u64
}

/// The hash of numbers, behind what was hashed to `before`.
fn sum(numbers: &[u64], before: u64) -> u64 {
    fnv::hash(before, numbers.iter().flat_map(|n| n.to_le_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_memory() -> LookedAt {
        let file = files::in_memory("looked-at").unwrap();
        LookedAt { file: Some(sys::make_private(file).unwrap()), library: 1 }
    }

    #[test]
    fn what_was_noted_is_there_and_nothing_else() {
        let table = in_memory();
        let status = files::status(c"/proc/self/exe").unwrap();
        let entry = |from, how| table.entry(&status, [from, 9], how);
        assert!(!table.has(entry(0, 0)));
        table.note(entry(0, 0));
        assert!(table.has(entry(0, 0)) && !table.has(entry(0, 1)) && !table.has(entry(1, 0)));
        let other_build = LookedAt { file: None, library: 2 };
        assert_ne!(other_build.entry(&status, [0, 9], 0), entry(0, 0));
    }

    #[test]
    fn a_full_bucket_keeps_the_newest() {
        let table = in_memory();
        for n in 0..100 {
            let entry = Entry(7 + n * BUCKETS + (n << 32));
            table.note(entry);
            table.note(entry);
            assert!(table.has(entry));
        }
        let file = sys::borrow(table.file.unwrap());
        assert!(files::status_of(file).unwrap().size() <= 8 * BUCKET as u64);
    }

    #[test]
    fn a_file_that_changes_is_another() {
        let path = std::env::temp_dir().join(format!("looked-at-{}", std::process::id()));
        std::fs::write(&path, "one").unwrap();
        let table = LookedAt { file: None, library: 0 };
        let entry = || table.entry(&files::status(path.as_path()).unwrap(), [0, 0], 0);
        let before = entry();
        assert_eq!(before, entry());
        std::fs::write(&path, "three").unwrap();
        let after = entry();
        std::fs::remove_file(&path).unwrap();
        assert_ne!(before, after);
    }
}
