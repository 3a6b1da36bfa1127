//! How many threads want a CPU, beside how many CPUs there are (`proc_loadavg(5)`).
//!
//! A moment's picture, and the whole machine's, also inside a container. Must not know who asks, or
//! how often. Entry points: [`most_wait`], [`all_busy`]. Blocks as long as the kernel takes to make
//! two short texts, about a microsecond.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::sys::small_file::{number, read_file};

/// Whether more threads wait for a CPU just now than have one. `None` where /proc or /sys does not
/// say.
#[must_use]
pub fn most_wait() -> Option<bool> {
    Some(now()? > 2 * u64::from(cpus()?))
}

/// Whether more threads than there are CPUs want one just now, the caller among them: were it to
/// sleep, none would be idle. `None` as above.
#[must_use]
pub fn all_busy() -> Option<bool> {
    Some(now()? > u64::from(cpus()?))
}

/// How many want a CPU now.
fn now() -> Option<u64> {
    let mut buffer = [0; 64];
    runnable(read_file(c"/proc/loadavg", &mut buffer)?)
}

/// The fourth field's first number: `0.20 0.18 0.12 1/80 11206`.
fn runnable(text: &[u8]) -> Option<u64> {
    let field = text.split(|b| *b == b' ').nth(3)?;
    number(field.split(|b| *b == b'/').next()?)
}

/// How many CPUs are online; asked once, since they seldom change.
fn cpus() -> Option<u32> {
    static CPUS: AtomicU32 = AtomicU32::new(0);
    // Relaxed: a number of its own, which every thread would find the same.
    match CPUS.load(Relaxed) {
        0 => {
            let mut buffer = [0; 256];
            let n = online(read_file(c"/sys/devices/system/cpu/online", &mut buffer)?)?;
            CPUS.store(n, Relaxed);
            Some(n)
        }
        n => Some(n),
    }
}

/// The length of a list of ranges (`0-3,6,8-11`), at least 1.
fn online(text: &[u8]) -> Option<u32> {
    let mut all = 0_u64;
    for range in text.trim_ascii_end().split(|b| *b == b',') {
        let mut ends = range.split(|b| *b == b'-');
        let first = number(ends.next()?)?;
        let last = ends.next().map_or(Some(first), number)?;
        all = all.saturating_add(last.checked_sub(first)?).saturating_add(1);
    }
    u32::try_from(all).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        assert_eq!(runnable(b"0.20 0.18 0.12 13/80 11206\n"), Some(13));
        for cut in [&b""[..], b"0.20 0.18 0.12", b"0.20 0.18 0.12 /80 1", b"a b c d e"] {
            assert_eq!(runnable(cut), None);
        }
        let lists: [(&[u8], _); 6] = [
            (b"0\n", Some(1)),
            (b"0-1\n", Some(2)),
            (b"0-3,6,8-11\n", Some(9)),
            (b"", None),
            (b"3-1\n", None),
            (b"0-18446744073709551615,1\n", None),
        ];
        for (text, number) in lists {
            assert_eq!(online(text), number, "{}", text.escape_ascii());
        }
    }

    #[test]
    fn threads_that_wait_are_seen() {
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|s| {
            for _ in 0..=2 * cpus().unwrap() {
                s.spawn(|| {
                    while !stop.load(Relaxed) {
                        core::hint::spin_loop();
                    }
                });
            }
            while most_wait() != Some(true) || all_busy() != Some(true) {
                std::thread::yield_now();
            }
            stop.store(true, Relaxed);
        });
    }
}
