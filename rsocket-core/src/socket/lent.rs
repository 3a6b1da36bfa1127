//! A descriptor that is closed while another thread of the process sleeps in a call on it: the kernel leaves that thread
//! asleep and the connection open until its call is over, and so do we.
//!
//! The closing thread lends the sleepers a private copy of the descriptor, which counts as the program's in place of the one
//! that it closes. Whoever of them is the last to finish closes it, and with it the connection. Every sleeping call is
//! entered here; since a thread may leave its call by a jump out of a signal handler, or end in it, an entry counts
//! only while the kernel says that the thread sleeps where it said.
//!
//! Must not know what is waited for. Entry points: [`asleep`] and [`awake`] around a call's sleeps, [`descriptor`] after each,
//! [`lend`] before a descriptor is closed.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::io::Write;
use std::os::fd::RawFd;

use super::slot::SlotId;
use super::{family, life};
use crate::attach::sandbox;
use crate::sync::lock::{OwnedLock, Taken};
use crate::sync::thread::tid;
use crate::sys;

/// Calls that may be entered at a time. Any other is as one on a descriptor that was closed before it: it ends.
const CALLS: usize = 256;
/// Descriptors that may be lent at a time.
const LOANS: usize = 16;

/// A call: slot above thread. 0 is free. Changed under [`LOCK`], as all of this is.
static SLEEPERS: [AtomicU64; CALLS] = [const { AtomicU64::new(0) }; CALLS];
/// How many of them were ever used, from the first on: most processes need few, and every close looks at them.
static USED: AtomicUsize = AtomicUsize::new(0);
/// A loan: slot above descriptor. 0 is free.
static LENT: [AtomicU64; LOANS] = [const { AtomicU64::new(0) }; LOANS];
/// How many loans there are, for those who look without the lock.
static COUNT: AtomicU32 = AtomicU32::new(0);
static LOCK: OwnedLock = OwnedLock::new();

/// `None` from a signal handler that interrupted a holder of the lock.
fn locked<R>(f: impl FnOnce() -> R) -> Option<R> {
    if matches!(LOCK.lock(tid()), Taken::Own) {
        return None;
    }
    let r = f();
    LOCK.unlock(tid());
    Some(r)
}

fn word(id: SlotId, low: u32) -> u64 {
    u64::from(id.raw()) << 32 | u64::from(low)
}

/// Whether the call is one on this slot.
fn is_of(call: u64, id: SlotId) -> bool {
    (call >> 32) as u32 == id.raw()
}

fn replace(table: &[AtomicU64], from: u64, to: u64) -> bool {
    table.iter().any(|w| w.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok())
}

/// The calls, with what is free between them.
fn calls() -> &'static [AtomicU64] {
    // Relaxed: whoever has not the lock may miss a call that is just being entered.
    SLEEPERS.get(..USED.load(Ordering::Relaxed)).unwrap_or(&SLEEPERS)
}

/// False if there is no room. The caller holds the lock.
fn enter(call: u64) -> bool {
    let Some(place) = SLEEPERS.iter().position(|w| w.load(Ordering::Relaxed) == 0) else { return false };
    if let Some(w) = SLEEPERS.get(place) {
        w.store(call, Ordering::Relaxed);
    }
    USED.fetch_max(place + 1, Ordering::Relaxed);
    true
}

/// A call of this thread is about to sleep on the connection. True if [`awake`] must be called when the call is over.
#[must_use]
pub(crate) fn asleep(id: SlotId) -> bool {
    watch_thread() && locked(|| enter(word(id, tid()))).unwrap_or(false)
}

/// Makes sure that [`thread_ends`] is called when this thread does, be it cancelled in its call. False if that cannot be had
/// without allocating, which this may not: it may be a signal handler's call.
fn watch_thread() -> bool {
    // 0 not asked for, 1 none to be had, else two more than the key.
    static KEY: AtomicU32 = AtomicU32::new(0);
    const NONE: u32 = 1;
    if KEY.load(Ordering::Relaxed) == 0 {
        let mut key = 0;
        // SAFETY: `key` is ours to be written; the destructor is a function of this library, which is never unloaded.
        let made = unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) } == 0;
        let new = if made && key < AT_ONCE { key + 2 } else { NONE };
        // A second one that another thread has made at the same moment stays unused.
        let _ = KEY.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed);
    }
    match KEY.load(Ordering::Relaxed) {
        0 | NONE => false,
        // SAFETY: the key was made above, and any value but null will do.
        key => unsafe { libc::pthread_setspecific(key - 2, core::ptr::without_provenance(1)) == 0 },
    }
}

/// Keys below this one have a place in each thread from its beginning (glibc's first level).
const AT_ONCE: libc::pthread_key_t = 32;

/// The thread ends: what it was inside, it is so no more.
extern "C" fn thread_ends(_: *mut core::ffi::c_void) {
    let me = tid();
    for call in calls() {
        let call = call.load(Ordering::Relaxed);
        if call as u32 == me
            && let Some(id) = SlotId::from_raw((call >> 32) as u32)
        {
            awake(id);
        }
    }
}

/// The call is over: the last one closes what was lent.
pub(crate) fn awake(id: SlotId) {
    let over = locked(|| {
        replace(calls(), word(id, tid()), 0);
        let others = calls().iter().any(|w| is_of(w.load(Ordering::Relaxed), id));
        if others { None } else { take_back(id) }
    });
    if let Some(Some(fd)) = over {
        close(id, fd);
    }
}

/// What was lent of the slot, which is so no more.
fn take_back(id: SlotId) -> Option<RawFd> {
    let loan = LENT.iter().find(|w| is_of(w.load(Ordering::Relaxed), id))?.swap(0, Ordering::Relaxed);
    COUNT.fetch_sub(1, Ordering::Relaxed);
    Some(loan as u32 as RawFd)
}

fn close(id: SlotId, fd: RawFd) {
    let errno = sys::errno();
    life::closing(id, fd);
    sys::close_private(fd);
    sys::set_errno(errno);
}

/// By which descriptor a call that has slept goes on: the program's own, or what was lent for it.
#[inline]
pub(crate) fn descriptor(id: SlotId, fd: RawFd) -> RawFd {
    // Relaxed: a sleeper that does not see the loan was not waited for, and finds its connection ended.
    if COUNT.load(Ordering::Relaxed) == 0 {
        return fd;
    }
    let loan = LENT.iter().map(|w| w.load(Ordering::Relaxed)).find(|w| is_of(*w, id));
    loan.map_or(fd, |loan| loan as u32 as RawFd)
}

/// Before the program's descriptor is closed: whether others sleep in calls on it. Then it counts as open, and the loan in
/// its place.
#[must_use]
pub(crate) fn lend(id: SlotId, fd: RawFd) -> bool {
    if calls().is_empty() || family::descriptors(id) != 1 || fd < 0 {
        return false;
    }
    locked(|| {
        let me = tid();
        let others = calls()
            .iter()
            .map(|w| w.load(Ordering::Relaxed))
            .filter(|call| is_of(*call, id) && *call as u32 != me);
        let mut any = false;
        for call in others {
            match sleeps(call as u32) {
                true => any = true,
                // It has left its call, if it lives at all.
                false => {
                    replace(calls(), call, 0);
                }
            }
        }
        if !any {
            return false;
        }
        let Ok(copy) = sys::private_copy(sys::borrow(fd)) else { return false };
        if !replace(&LENT, 0, word(id, copy as u32)) {
            sys::close_private(copy);
            return false;
        }
        COUNT.fetch_add(1, Ordering::Relaxed);
        family::moved_to(id, copy);
        true
    })
    .unwrap_or(false)
}

/// Whether the thread is inside the kernel in ppoll(2), where all sleeps of ours are.
fn sleeps(thread: u32) -> bool {
    let mut path = [0_u8; 48];
    let mut rest: &mut [u8] = &mut path;
    if write!(rest, "/proc/self/task/{thread}/syscall\0").is_err() {
        return false;
    }
    let mut text = [0_u8; 16];
    let Ok(path) = core::ffi::CStr::from_bytes_until_nul(&path) else { return false };
    let Some(text) = sandbox::read_file(path, &mut text) else { return false };
    let number = text.split(|b| *b == b' ').next();
    let number = number.and_then(|t| core::str::from_utf8(t).ok()).and_then(|t| t.parse::<i64>().ok());
    number == Some(libc::SYS_ppoll)
}

/// In the child of a fork: the calls were those of the parent's threads, and what was lent to them is closed here.
pub(crate) fn fork_child() {
    LOCK.reset();
    calls().iter().for_each(|w| w.store(0, Ordering::Relaxed));
    USED.store(0, Ordering::Relaxed);
    for w in &LENT {
        let loan = w.swap(0, Ordering::Relaxed);
        if let Some(id) = SlotId::from_raw((loan >> 32) as u32) {
            COUNT.fetch_sub(1, Ordering::Relaxed);
            close(id, loan as u32 as RawFd);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn knows_who_sleeps() {
        let (to, from) = std::sync::mpsc::channel();
        let (go, end) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let sleeper = std::thread::spawn(move || {
            to.send(tid()).unwrap();
            let mut fds = [libc::pollfd {
                fd: std::os::fd::AsRawFd::as_raw_fd(&end),
                events: libc::POLLIN,
                revents: 0,
            }];
            sys::wait(&mut fds, None, core::ptr::null()).unwrap();
        });
        let thread = from.recv().unwrap();
        while !sleeps(thread) {
            std::thread::yield_now();
        }
        assert!(!sleeps(tid()));
        drop(go);
        sleeper.join().unwrap();
        assert!(!sleeps(thread));
    }

    #[test]
    fn entries_come_and_go() {
        let id = SlotId::from_raw(12345).unwrap();
        assert_eq!(descriptor(id, 7), 7);
        assert!(asleep(id) && asleep(id));
        // Two calls: one in a handler above the other.
        awake(id);
        assert!(SLEEPERS.iter().any(|w| is_of(w.load(Ordering::Relaxed), id)));
        awake(id);
        assert!(!SLEEPERS.iter().any(|w| is_of(w.load(Ordering::Relaxed), id)));
        assert_eq!(take_back(id), None);
    }
}
