//! The first bytes of a connection that a process in a sandbox reads and writes.
//!
//! A process that enters a sandbox leaves its connections to the kernel and forgets them. Its
//! siblings may attach one of them when the process has ended (sshd after the log-in). Between
//! hosts the two ends then know each other by the first bytes that they have seen
//! ([`rsocket_edge::socket::fingerprint_bytes`]). The sandboxed process has moved some of those
//! bytes. So there these functions replace the next definitions of `read` and `write`. They look at
//! what was moved: in memory, without a system call. Bytes that go by other calls are missing,
//! which makes the ends strangers, and the connection TCP's.
//!
//! Must not know sandboxes. Entry point: [`begin`].

use core::ffi::{c_int, c_void};
use core::mem::transmute;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering::Relaxed};

use libc::{size_t, ssize_t};
use rsocket_edge::conn::slot::SlotId;
use rsocket_edge::socket;

use crate::edge::one;
use crate::real;

/// The descriptor, -1 for none, and the connection that it stood for. One is enough: a process with
/// more forgets the others. Relaxed, all of them: set before the program goes on in its sandbox.
static FD: AtomicI32 = AtomicI32::new(-1);
static SLOT: AtomicU32 = AtomicU32::new(0);
/// What stood there before.
static READ: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
static WRITE: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// From here on what this process reads and writes of the connection is looked at, though the
/// process has forgotten it.
pub(crate) fn begin(fd: c_int, slot: SlotId) {
    if !socket::watching() || FD.load(Relaxed) >= 0 {
        return;
    }
    // In the child of a process that did the same they stand there already.
    if READ.load(Relaxed).is_null() {
        READ.store(real::read::NEXT.load(Relaxed), Relaxed);
        WRITE.store(real::write::NEXT.load(Relaxed), Relaxed);
    }
    SLOT.store(slot.raw(), Relaxed);
    FD.store(fd, Relaxed);
    real::read::NEXT.store(read as real::read::Type as *mut (), Relaxed);
    real::write::NEXT.store(write as real::write::Type as *mut (), Relaxed);
}

fn saw(fd: c_int, received: bool, at: *const c_void, r: ssize_t) {
    if fd == FD.load(Relaxed)
        && let Ok(n @ 1..) = usize::try_from(r)
        && let Some(slot) = SlotId::from_raw(SLOT.load(Relaxed))
    {
        socket::fingerprint_bytes(slot, received, &one(at.cast(), n), n);
    }
}

unsafe extern "C-unwind" fn read(fd: c_int, to: *mut c_void, size: size_t) -> ssize_t {
    // SAFETY: begin() stored the next definition of this name before this function could be called;
    // the arguments are the caller's promise.
    let r = unsafe { transmute::<*mut (), real::read::Type>(READ.load(Relaxed))(fd, to, size) };
    saw(fd, true, to, r);
    r
}

unsafe extern "C-unwind" fn write(fd: c_int, from: *const c_void, size: size_t) -> ssize_t {
    // SAFETY: as in read().
    let r = unsafe { transmute::<*mut (), real::write::Type>(WRITE.load(Relaxed))(fd, from, size) };
    saw(fd, false, from, r);
    r
}
