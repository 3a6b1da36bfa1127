//! epoll over sockets of both kinds: a mirror of each of the kernel's epoll objects.
//!
//! **Who answers.** A set in which no member was ever on device is the kernel's: its calls go there
//! untouched. The mirror, which each set has from its making on, then only counts the threads that
//! sleep on the set and notes its tracked sockets. When a member's socket goes on device
//! ([`mode_changed`]), its kernel entry is changed: once while both answer, and once more when the
//! device answers alone. The entry then only listens for the end of the connection and stays so
//! until close. From then on ADD, MOD and DEL of that member touch the mirror alone. One waker per
//! set stands for all its members in the kernel's object, so that nesting, and polling the epoll
//! descriptor, keep working.
//!
//! **A wait** looks at what is awake in user space (`wait`). It asks the kernel on a time basis,
//! now and then while it spins, and always before sleeping. It judges every return of the kernel
//! before the program sees it: one descriptor yields at most one event for each call. What is
//! asleep costs nothing: its peer signals the waker and sets a bit.
//!
//! **Locks.** Each set has one small lock, never held across a sleep. The registry's lock comes
//! before a set's, and no two sets' locks are held together except around a fork. [`mode_changed`],
//! [`starved`] and [`member_closing`] take a set's lock: call them with no lock held that a
//! [`Source`] function waits for. Called from inside such a function, or by a signal handler that
//! interrupted one, they are put off until the set's lock is released.
//!
//! **Limits.** After a fork both processes have a mirror of their own over one kernel object. The
//! child's is dormant until it waits on the set, changes or polls it ([`fork`]). A set that a child
//! uses beside its parent, with members that are on device, misbehaves as such sets mostly do.
//! Events may be seen by one of the two.

mod behind;
mod ctl;
mod fork;
mod gather;
mod judge;
mod kernel;
mod lock;
mod news;
mod outliving;
mod peek;
mod registry;
mod set;
mod siblings;
mod wait;

use core::sync::atomic::{AtomicBool, Ordering};
use std::os::fd::RawFd;

pub use crate::given::epoll::{Change, Ctl, Pwait, Wait};
pub use registry::Registry;

use super::Finder;
use super::source::{SlotId, Sockets};
use crate::failure::Failure;

/// The sets of this process.
pub static REGISTRY: Registry<Sockets> = Registry::new(Sockets);

/// `epoll_create` or `epoll_create1` gave this number.
pub fn created(epfd: RawFd) {
    REGISTRY.created(epfd);
}

/// One descriptor of a set is about to be closed. Nothing for numbers that are not sets.
pub fn closed(epfd: RawFd) {
    REGISTRY.closed(epfd);
}

/// `new` is one more descriptor of the set `old`. Nothing when `old` is not a set.
pub fn duplicated(old: RawFd, new: RawFd) {
    REGISTRY.duplicated(old, new);
}

/// Whether the number stands for an epoll set.
#[must_use]
#[inline]
pub fn is_set(epfd: RawFd) -> bool {
    REGISTRY.is_set(epfd)
}

/// For a caller that is about to poll the descriptor itself: whether the kernel alone cannot
/// answer. If it can, the descriptor turns readable all the same when that changes during the poll
/// and something is ready.
#[must_use]
pub fn polled(epfd: RawFd) -> bool {
    REGISTRY.polled(epfd)
}

/// How many threads sleep in the kernel on this set. The switch of a socket need not wait for them:
/// [`mode_changed`] changes the kernel's entry under their feet, and they judge what they are
/// given.
#[must_use]
pub fn sleepers(epfd: RawFd) -> u32 {
    REGISTRY.sleepers(epfd)
}

/// As `epoll_ctl`.
///
/// # Errors
/// As the kernel.
pub fn ctl(change: Change<'_>, find: Finder, real: Ctl) -> Result<(), Failure> {
    if KERNELS.load(Ordering::Relaxed) {
        return real.change(&change);
    }
    REGISTRY.ctl(change, find, real)
}

/// As `epoll_pwait`. A cancellation point; no lock is held across it.
///
/// # Errors
/// As the kernel.
pub fn wait(wait: Wait<'_>, real: Pwait) -> Result<usize, Failure> {
    REGISTRY.wait(wait, real)
}

/// A descriptor of a tracked socket is about to be closed: it leaves all sets, but where its file
/// has another name ([`outliving`]).
#[inline]
pub fn member_closing(fd: RawFd) {
    REGISTRY.member_closing(fd);
}

/// Before [`member_closing`]: another number of the connection, if it is a member that outlives
/// this one and whose events the kernel tells. That it goes on to do if the connection stays on
/// TCP.
#[must_use]
#[inline]
pub fn outlives_in_kernel(slot: SlotId, closing: RawFd) -> Option<RawFd> {
    if REGISTRY.housed(closing) { REGISTRY.outlives_in_kernel(slot, closing) } else { None }
}

/// The socket's `on_device`, `ask` or `settled` has changed (and already says so).
pub fn mode_changed(slot: SlotId) {
    REGISTRY.mode_changed(slot);
}

/// A send on this socket has found no room (`EAGAIN`, or less taken than offered): an
/// edge-triggered member must hear when there is room again. One relaxed load when the socket is in
/// no set.
#[inline]
pub fn starved(slot: SlotId) {
    REGISTRY.starved(slot);
}

/// SO_RCVLOWAT was set on this socket: the kernel tells edge-triggered members once more of what
/// there is, if it is enough now.
pub fn said_anew(slot: SlotId) {
    REGISTRY.said_anew(slot);
}

/// A call has taken the error of this socket: a reset is an edge, also for a set that is asked only
/// after that.
pub fn error_taken(slot: SlotId) {
    REGISTRY.error_taken(slot);
}

/// A sandbox is ahead: the kernel answers for every set again, whose members the program finds as
/// it made them.
pub fn dissolve() {
    REGISTRY.dissolve();
}

/// Every connection is going back to TCP, and the program waits past us. As [`dissolve`]; and the
/// kernel alone is told what the program changes from here on.
pub fn leave_to_kernel() {
    // Relaxed, here and where it is read: a thread that sees it late goes by a mirror that is
    // dissolved next, or was empty.
    KERNELS.store(true, Ordering::Relaxed);
    REGISTRY.dissolve();
}

/// Set by [`leave_to_kernel`], for good; a child inherits it.
static KERNELS: AtomicBool = AtomicBool::new(false);

/// A call of the program has found bytes of this socket, or its end, and they may still be there.
/// The next wait judges that, though the peer has not said so yet.
pub fn found_unread(slot: SlotId) {
    REGISTRY.found_unread(slot);
}

/// Before a fork: takes all locks, so that the child's mirrors are whole.
pub fn fork_prepare() {
    REGISTRY.fork_prepare();
}

/// After it, in the parent.
pub fn fork_parent() {
    REGISTRY.fork_parent();
}

/// After it, in the child.
pub fn forked() {
    REGISTRY.forked();
}
