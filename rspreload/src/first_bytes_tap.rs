//! The first bytes of a connection that a process in a sandbox reads and writes.
//!
//! A process that enters a sandbox leaves its connections to the kernel and forgets them. Its
//! siblings may attach one of them when the process has ended (sshd after the log-in). Between
//! hosts the two ends then know each other by the first bytes that they have seen
//! ([`rsocket_edge::socket::fingerprint_bytes`]). The sandboxed process has moved some of those
//! bytes. So there two functions (`hooks/first_bytes_tap.rs`) replace the next definitions of
//! `read` and `write`. They show what was moved: in memory, without a system call. Bytes that go by
//! other calls are missing, which makes the ends strangers, and the connection TCP's.
//!
//! Must not know sandboxes. Entry points: [`install`], [`begin`], [`saw`].

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering::Relaxed};

use libc::{iovec, ssize_t};
use rsocket_edge::conn::slot::SlotId;
use rsocket_edge::socket;

use crate::real;

/// The descriptor, -1 for none, and the connection that it stood for. One is enough: a process with
/// more forgets the others. Relaxed, all of them: set before the program goes on in its sandbox.
static FD: AtomicI32 = AtomicI32::new(-1);
static SLOT: AtomicU32 = AtomicU32::new(0);
/// What is to stand there, of `read` and of `write`.
static TAPS: [AtomicPtr<()>; 2] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 2];
/// What stood there before.
static READ: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
static WRITE: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// From the constructor: functions that call [`read_before`] and [`write_before`], and then
/// [`saw`].
///
/// # Safety
/// They keep the contracts of read(2) and write(2).
pub(crate) unsafe fn install(read: real::read::Type, write: real::write::Type) {
    let [reads, writes] = &TAPS;
    reads.store(read as *mut (), Relaxed);
    writes.store(write as *mut (), Relaxed);
}

/// The next definition of `read`, once [`begin`] has replaced it.
pub(crate) fn read_before() -> *mut () {
    READ.load(Relaxed)
}

/// The next definition of `write`.
pub(crate) fn write_before() -> *mut () {
    WRITE.load(Relaxed)
}

/// From here on what this process reads and writes of the connection is looked at, though the
/// process has forgotten it.
pub(crate) fn begin(fd: c_int, slot: SlotId) {
    let [reads, writes] = TAPS.each_ref().map(|tap| tap.load(Relaxed));
    if !socket::watching() || FD.load(Relaxed) >= 0 || reads.is_null() {
        return;
    }
    // In the child of a process that did the same they stand there already.
    if READ.load(Relaxed).is_null() {
        READ.store(real::read::NEXT.load(Relaxed), Relaxed);
        WRITE.store(real::write::NEXT.load(Relaxed), Relaxed);
    }
    SLOT.store(slot.raw(), Relaxed);
    FD.store(fd, Relaxed);
    real::read::NEXT.store(reads, Relaxed);
    real::write::NEXT.store(writes, Relaxed);
}

/// So much of them was moved, or it failed.
pub(crate) fn saw(fd: c_int, received: bool, bytes: &[iovec], r: ssize_t) {
    if fd == FD.load(Relaxed)
        && let Ok(n @ 1..) = usize::try_from(r)
        && let Some(slot) = SlotId::from_raw(SLOT.load(Relaxed))
    {
        socket::fingerprint_bytes(slot, received, bytes, n);
    }
}
