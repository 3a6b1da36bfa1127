//! How much memory the process's cgroups leave: where little is left, it is not decent to attach
//! (`life-of-a-connection §8`).
//!
//! Must not know connections. Entry points: [`memory_pressure`], [`memory_left`].

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::CWD;

use crate::stack;
use crate::sys::sandbox::entered;
use crate::sys::small_file::{field, number, open, read_file};
use crate::sys::{self, discard};

/// When the memory cgroup was last looked at (ns), with a [`Memory`] in the two lowest bits. 0:
/// never.
static PRESSURE: AtomicU64 = AtomicU64::new(0);

/// What the memory cgroups allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
enum Memory {
    /// No cgroup, or none that this process can see.
    Unknown = 0,
    /// No limit.
    Unlimited = 1,
    /// A limit, and room below it.
    Room = 2,
    /// A limit, and hardly any room below it.
    Near = 3,
}

/// Whether the process's memory cgroup, or one above it, is near its limit. Looks at most once a
/// second, and where there is no limit, every half minute.
#[must_use]
pub fn memory_pressure() -> bool {
    let now = sys::now_ns() & !3;
    // Relaxed: the word stands for itself; two threads that look at the same time only look twice.
    let last = PRESSURE.load(Ordering::Relaxed);
    let seconds = if last & 3 >= Memory::Room as u64 { 1 } else { 30 };
    if last != 0 && now.saturating_sub(last) < seconds * 1_000_000_000 {
        return last & 3 == Memory::Near as u64;
    }
    let memory = stack::on_own(look_at_cgroups);
    PRESSURE.store(now | memory as u64, Ordering::Relaxed);
    memory == Memory::Near
}

/// What [`memory_left`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// There is no limit, as far as this process can see.
    Unlimited,
    /// There is a limit, and room below it.
    Room,
    /// There is a limit, and hardly any room below it.
    Nothing,
}

/// Whether a connection may make another few megabytes memory. Where there is a limit, this looks
/// at the cgroup anew, since others may have taken theirs a moment ago. Once the limit was near,
/// the second of [`memory_pressure`] has to pass.
#[must_use]
pub fn memory_left() -> Left {
    // Relaxed, all three: as in memory_pressure().
    if entered() {
        // To look could be deadly.
        return Left::Unlimited;
    }
    if PRESSURE.load(Ordering::Relaxed) & 3 == Memory::Room as u64 {
        PRESSURE.store(0, Ordering::Relaxed);
    }
    match memory_pressure() {
        true => Left::Nothing,
        false if PRESSURE.load(Ordering::Relaxed) & 3 == Memory::Room as u64 => Left::Room,
        false => Left::Unlimited,
    }
}

/// The names of the two kinds of memory cgroup.
struct Kind {
    mounts: [&'static CStr; 2],
    limit: &'static CStr,
    usage: &'static CStr,
    /// Page cache that the kernel would give up first; lines of `memory.stat`.
    cache: [&'static [u8]; 2],
}

const V2: Kind = Kind {
    mounts: [c"/sys/fs/cgroup", c"/sys/fs/cgroup/unified"],
    limit: c"memory.max",
    usage: c"memory.current",
    cache: [b"active_file ", b"inactive_file "],
};
const V1: Kind = Kind {
    mounts: [c"/sys/fs/cgroup/memory", c"/sys/fs/cgroup"],
    limit: c"memory.limit_in_bytes",
    usage: c"memory.usage_in_bytes",
    cache: [b"total_active_file ", b"total_inactive_file "],
};

/// The path of the process's memory cgroup: version 1's when there is one, since the controller
/// then belongs to it.
fn own_cgroup(text: &[u8]) -> Option<(&'static Kind, &[u8])> {
    let lines = || text.split(|b| *b == b'\n');
    let v1 = lines().find_map(|line| {
        let mut parts = line.splitn(3, |b| *b == b':').skip(1);
        let memory = parts.next()?.split(|b| *b == b',').any(|c| c == b"memory");
        memory.then(|| parts.next()).flatten()
    });
    match v1 {
        Some(path) => Some((&V1, path)),
        None => lines().find_map(|line| line.strip_prefix(b"0::")).map(|path| (&V2, path)),
    }
}

fn look_at_cgroups() -> Memory {
    let mut buf = [0; 2048];
    let Some((kind, path)) = read_file(c"/proc/self/cgroup", &mut buf).and_then(own_cgroup) else {
        return Memory::Unknown;
    };
    for mount in kind.mounts {
        let Ok(root) = open(CWD, mount) else { continue };
        let memory = look_below(&root, kind, path);
        discard(root);
        if memory != Memory::Unknown {
            return memory;
        }
    }
    Memory::Unknown
}

/// Looks at the cgroup and at all those above it, as far as they are visible. In a container the
/// path may be the host's, and only the root exists. The worst counts.
fn look_below(root: &OwnedFd, kind: &Kind, path: &[u8]) -> Memory {
    let mut path = path;
    let mut worst = Memory::Unknown;
    loop {
        path = path.strip_prefix(b"/").unwrap_or(path);
        let mut name = [0; 512];
        let whole = if path.is_empty() { &b"."[..] } else { path };
        // A name that does not fit is skipped; its parents are still looked at.
        if let Some(to) = name.get_mut(..whole.len()).filter(|to| to.len() < 512) {
            to.copy_from_slice(whole);
            if let Some(dir) =
                CStr::from_bytes_until_nul(&name).ok().and_then(|n| open(root.as_fd(), n).ok())
            {
                worst = worst.max(look_at(&dir, kind));
                discard(dir);
            }
        }
        if path.is_empty() {
            return worst;
        }
        let cut = path.iter().rposition(|b| *b == b'/').unwrap_or(0);
        path = path.get(..cut).unwrap_or(&[]);
    }
}

fn look_at(dir: &OwnedFd, kind: &Kind) -> Memory {
    let mut buf = [0; 32];
    let Some(text) = read_at(dir, kind.limit, &mut buf) else { return Memory::Unknown };
    // "max" is no number. Version 1 has no word for it, but a number that no machine reaches.
    let Some(limit) = number(text).filter(|l| *l < 1 << 60) else { return Memory::Unlimited };
    let Some(usage) = read_at(dir, kind.usage, &mut buf).and_then(number) else {
        return Memory::Unknown;
    };
    if !near(limit, usage, 0) {
        return Memory::Room;
    }
    // Full of page cache is the normal state of a file server, so the details are worth their price
    // here.
    let mut stat = [0; 4096];
    let text = read_at(dir, c"memory.stat", &mut stat).unwrap_or(&[]);
    let cache = kind.cache.iter().filter_map(|key| field(text, key)).fold(0, u64::saturating_add);
    if near(limit, usage, cache) { Memory::Near } else { Memory::Room }
}

/// Less than a tenth of the limit is left (at least 4 MiB, at most 256), page cache not counted.
const fn near(limit: u64, usage: u64, cache: u64) -> bool {
    let tenth = limit / 10;
    let margin = if tenth < 4 << 20 {
        4 << 20
    } else if tenth > 256 << 20 {
        256 << 20
    } else {
        tenth
    };
    usage.saturating_sub(cache) > limit.saturating_sub(margin)
}

fn read_at<'a>(dir: &OwnedFd, name: &CStr, buf: &'a mut [u8]) -> Option<&'a [u8]> {
    let fd = open(dir.as_fd(), name).ok()?;
    let read = rustix::io::read(&fd, &mut *buf);
    discard(fd);
    buf.get(..read.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_lines() {
        let v1 = b"9:name=systemd:/\n4:cpu,memory:/a/b:c\n0::/x\n";
        let (kind, path) = own_cgroup(v1).unwrap();
        assert_eq!((kind.limit, path), (V1.limit, &b"/a/b:c"[..]));
        let (kind, path) = own_cgroup(b"0::/user.slice\n").unwrap();
        assert_eq!((kind.limit, path), (V2.limit, &b"/user.slice"[..]));
        assert!(own_cgroup(b"").is_none() && own_cgroup(b"rubbish\n:\n").is_none());
    }

    #[test]
    fn near_the_limit() {
        let mib = 1 << 20;
        assert!(!near(1000 * mib, 899 * mib, 0) && near(1000 * mib, 901 * mib, 0));
        assert!(!near(1000 * mib, 999 * mib, 100 * mib));
        assert!(near(3 * mib, mib, 0), "a cgroup this small has no room for us");
        assert!(!near(9_223_372_036_854_771_712, 1 << 40, 0));
        assert!(!near(u64::MAX, 0, 0) && near(0, 1, 0));
    }

    #[test]
    fn a_tree_of_cgroups() {
        let root = std::env::temp_dir().join(format!("rsockets-cgroup-{}", std::process::id()));
        let set = |at: &str, max: &str, current: &str, stat: &str| {
            let dir = root.join(at);
            std::fs::create_dir_all(&dir).unwrap();
            for (name, text) in
                [("memory.max", max), ("memory.current", current), ("memory.stat", stat)]
            {
                std::fs::write(dir.join(name), text).unwrap();
            }
        };
        set("a/b", "max\n", "500000000\n", "");
        let open_root = || OwnedFd::from(std::fs::File::open(&root).unwrap());
        assert_eq!(look_below(&open_root(), &V2, b"/a/b"), Memory::Unlimited);
        assert_eq!(look_below(&open_root(), &V2, b"/elsewhere"), Memory::Unknown);
        set("a", "1000000000\n", "600000000\n", "");
        assert_eq!(look_below(&open_root(), &V2, b"/a/b"), Memory::Room);
        set("a", "1000000000\n", "990000000\n", "anon 1\ninactive_file 300000000\nactive_file 5\n");
        assert_eq!(look_below(&open_root(), &V2, b"/a/b"), Memory::Room);
        set("a", "1000000000\n", "990000000\n", "anon 1\ninactive_file 3000\n");
        assert_eq!(look_below(&open_root(), &V2, b"/a/b"), Memory::Near);
        let long = [b"/a".as_slice(), &[b'x'; 600]].concat();
        assert_eq!(look_below(&open_root(), &V2, &long), Memory::Unknown);
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn this_process() {
        let first = memory_pressure();
        assert_eq!(memory_pressure(), first);
        assert_eq!(memory_left() == Left::Nothing, first);
    }
}
