//! Who this process is to the kernel: its user, its pid namespace, and the number by which any
//! process of the host knows it.
//!
//! Must not know to whom that is told. Entry points: [`user`], [`changes_user`], [`pid_namespace`],
//! [`own_pidfd`], [`number`].
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;

use rustix::process::{PidfdFlags, getegid, geteuid, getgid, getpid, getuid, pidfd_open};

use super::files;

/// `statfs::f_type` of pidfds since their inodes have numbers of their own (Linux 6.9).
const PIDFS: i64 = 0x5049_4446;

/// The effective user.
#[must_use]
pub fn user() -> u32 {
    geteuid().as_raw()
}

/// Whether the effective user or group is another one than the real one.
#[must_use]
pub fn changes_user() -> bool {
    getuid() != geteuid() || getgid() != getegid()
}

/// The inode of this process's pid namespace; 0 where the kernel does not tell.
#[must_use]
pub fn pid_namespace() -> u64 {
    files::status(c"/proc/self/ns/pid").map_or(0, |s| s.inode())
}

/// A pidfd of this process.
#[must_use]
pub fn own_pidfd() -> Option<OwnedFd> {
    pidfd_open(getpid(), PidfdFlags::empty()).ok()
}

/// The number of a process, given its pidfd, which is closed; 0 where numbers of inodes say
/// nothing.
#[must_use]
#[allow(clippy::unnecessary_cast, reason = "the type is the architecture's")]
pub fn number(pidfd: OwnedFd) -> u64 {
    let is_its_own = rustix::fs::fstatfs(&pidfd).is_ok_and(|s| s.f_type as i64 == PIDFS);
    let inode = files::status_of(&pidfd).map_or(0, |s| s.inode());
    super::discard(pidfd);
    if is_its_own { inode } else { 0 }
}
