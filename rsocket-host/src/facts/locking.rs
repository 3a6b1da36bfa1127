//! `mlockall` of what is mapped (`MCL_CURRENT`): all but the library's large, sparse memory, which
//! the kernel would fill and lock to the last page.
//!
//! The kernel knows no exception. So this module first marks everything as to be locked where it is
//! used (`MCL_ONFAULT`). It then takes our memory out, and locks what is left range by range. Must
//! not know what our memory is for. Entry points: [`lock_all`], [`Ranges`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::ffi::c_int;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::{Resource, getrlimit};

use crate::stack;
use crate::sys;

/// What is not to be filled: calls its argument with the address and length of each range.
pub type Ranges<'a> = &'a dyn Fn(&mut dyn FnMut(usize, usize));

/// The program's call, with flags that say `MCL_CURRENT`; `real` is libc's function. Its result and
/// `errno` are the call's.
pub fn lock_all(flags: c_int, ours: Ranges<'_>, real: &dyn Fn(c_int) -> c_int) -> c_int {
    let errno = sys::errno();
    let marked = real(flags | libc::MCL_ONFAULT);
    if marked != 0 && !(sys::errno() == libc::ENOMEM && fits_without(ours)) {
        // A kernel without MCL_ONFAULT (before 4.4) says EINVAL, and fills.
        let r = if sys::errno() == libc::EINVAL { real(flags) } else { return marked };
        if r == 0 {
            unlock(ours);
        }
        return r;
    }
    unlock(ours);
    let as_used = flags & libc::MCL_ONFAULT;
    if marked != 0 || as_used == 0 {
        stack::on_own(|| lock_others(ours, as_used != 0));
        sys::set_errno(errno);
        if flags & libc::MCL_FUTURE != 0 {
            // What is to come is filled, if the program said so.
            return real(libc::MCL_FUTURE | as_used);
        }
    }
    sys::set_errno(errno);
    0
}

/// An error would mean that it is not locked.
fn unlock(ours: Ranges<'_>) {
    ours(&mut |at, length| {
        // SAFETY: changes what may be swapped, and nothing else.
        let _ = unsafe { libc::syscall(libc::SYS_munlock, at, length) };
    });
}

/// Whether the program would be within its limit without the library's memory.
fn fits_without(ours: Ranges<'_>) -> bool {
    let mut own = 0;
    ours(&mut |_, length| own += length as u64);
    let limit = getrlimit(Resource::Memlock).current.unwrap_or(u64::MAX);
    let mut buffer = [0; 128];
    let pages = sys::small_file::read_file(c"/proc/self/statm", &mut buffer)
        .and_then(|text| core::str::from_utf8(text).ok()?.split(' ').next()?.parse::<u64>().ok());
    pages.is_some_and(|n| n.saturating_mul(sys::PAGE_SIZE as u64).saturating_sub(own) <= limit)
}

/// Locks whatever is mapped, but for ours, and fills it, or locks what is used.
fn lock_others(ours: Ranges<'_>, as_used: bool) {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(CWD, c"/proc/self/maps", flags, Mode::empty()) else {
        return;
    };
    let mut reader = Reader::default();
    let mut buffer = [0; 2048];
    while let Ok(n @ 1..) = rustix::io::read(&file, &mut buffer) {
        for byte in buffer.iter().take(n) {
            if let Some((from, to)) = reader.take(*byte) {
                lock_around(from, to, ours, as_used);
            }
        }
    }
    sys::discard(file);
}

/// Locks the parts of a range that are not ours.
fn lock_around(from: usize, to: usize, ours: Ranges<'_>, as_used: bool) {
    let mut at = from;
    while at < to {
        // The first of ours that ends behind this place.
        let mut next = (to, to);
        ours(&mut |start, length| {
            let end = start.saturating_add(length);
            if end > at && start < next.0 {
                next = (start.max(at), end.min(to));
            }
        });
        lock(at, next.0, as_used);
        at = next.1.max(at + 1);
    }
}

/// Fails where there is nothing to be filled, as within `mlockall`, which says nothing of that.
fn lock(from: usize, to: usize, as_used: bool) {
    // MLOCK_ONFAULT is 1.
    if from < to {
        // SAFETY: changes what may be swapped, and nothing else.
        let _ = unsafe { libc::syscall(libc::SYS_mlock2, from, to - from, c_int::from(as_used)) };
    }
}

/// Finds the addresses at the beginning of each line of `/proc/self/maps`, byte by byte.
#[derive(Default)]
struct Reader {
    number: usize,
    from: usize,
    /// How many numbers of this line are complete.
    known: u8,
}

impl Reader {
    /// The range, with the byte that completes it.
    fn take(&mut self, byte: u8) -> Option<(usize, usize)> {
        match (byte, self.known) {
            (b'\n', _) => *self = Self::default(),
            (b'-', 0) => *self = Self { number: 0, from: self.number, known: 1 },
            (b' ', 1) => {
                self.known = 2;
                return Some((self.from, self.number));
            }
            (_, 0 | 1) => {
                let digit = char::from(byte).to_digit(16).unwrap_or(0);
                self.number = self.number.wrapping_mul(16).wrapping_add(digit as usize);
            }
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        let text = b"1000-2000 rw-p 0 00:00 0 - [x]\n7f00aa-7f00ab r--p 0 08:01 12 /a-b c\n";
        let mut reader = Reader::default();
        let found: Vec<_> = text.iter().filter_map(|b| reader.take(*b)).collect();
        assert_eq!(found, [(0x1000, 0x2000), (0x7f_00aa, 0x7f_00ab)]);
    }
}
