//! What the readiness layer asks of a socket, and of the wakers on which a sleeper sleeps.
//!
//! [`Sockets`] is the real thing: a zero-sized type that delegates to [`crate::socket`] and
//! [`crate::device::shm::waker`]. The tests put a simulated device in its place. Nothing here knows
//! which of poll, select and epoll is asking.
//!
//! **Locks.** All of these may be called while a set's lock is held. They must therefore not wait
//! for a lock whose holder may call `epoll::mode_changed`, `epoll::starved` or
//! `epoll::member_closing`. They may call those three themselves: such a call from inside is put
//! off until the set's lock is released.

use core::time::Duration;
use std::os::fd::RawFd;

pub use crate::conn::slot::SlotId;
pub use crate::host::events::Events;
pub use crate::socket::Meant;

use crate::config::policy;
pub use crate::conn::look::Look;
pub use crate::conn::progress::Progress;
use crate::conn::{fork_group, own_news};
use crate::device::shm::waker::{self, WakerRef};
use crate::failure::Failure;
use crate::socket::{self, soon};

/// A waker as this layer sees it: what to poll, and by which number others wake it.
pub trait Waker: Copy + Send + Sync + 'static {
    /// Readable after a ring.
    fn fd(&self) -> RawFd;
    /// Readable, too, after some rings; -1 if there is none. Never read but by [`Waker::drain`].
    fn event(&self) -> RawFd {
        -1
    }
    /// What is put into waiter slots.
    fn id(&self) -> u64;
    /// Takes all rings out.
    fn drain(&self);
    /// As [`Self::drain`] after a sleep that has heard `fd`, `event` or both.
    fn take_rung(&self, _rang: [bool; 2]) {
        self.drain();
    }
    /// Makes room for the next ring, after an edge has told of those that are there: enough where
    /// only edges wake. Each that comes from here on is one; and if it fills the waker, its edge is
    /// still to be told.
    fn make_room(&self) {
        self.drain();
    }
}

impl Waker for WakerRef {
    fn fd(&self) -> RawFd {
        Self::fd(self)
    }
    fn event(&self) -> RawFd {
        Self::event(self)
    }
    fn id(&self) -> u64 {
        Self::id(self)
    }
    fn drain(&self) {
        let _ = Self::drain(self);
    }
    fn take_rung(&self, rang: [bool; 2]) {
        let _ = Self::take_rung(self, rang, u32::MAX);
    }
    fn make_room(&self) {
        let _ = self.take(1);
    }
}

/// Everything that is asked about sockets. See the functions of the same names in
/// [`crate::socket`].
pub trait Source: Sync + 'static {
    /// The wakers that go with it.
    type Waker: Waker;

    /// What the device says is ready, and what must be asked of the kernel. No system call in the
    /// middle of a life.
    fn look(&self, slot: SlotId, fd: RawFd) -> Look;
    /// There will be a [`Source::look`] soon, after one at others: a hint.
    fn foresee(&self, _slot: SlotId) {}
    /// Translates what the kernel said about the TCP descriptor into what the program may see.
    fn heard(&self, slot: SlotId, fd: RawFd, kernel: Events) -> Events;
    /// Puts the waker into the waiter slots of the directions of `interest`, unless it is there
    /// already. False when one of them is ready by level meanwhile. False also when there is no
    /// free word: the caller then sleeps for a short time only. After false the waker is in no word
    /// of this slot.
    fn arm(&self, slot: SlotId, interest: Events, waker: u64, mark_ready: bool) -> bool;
    /// As [`Source::arm`] for the receiving direction, but unread bytes do not count: false only
    /// when `progress().received` is no longer `seen`.
    fn arm_edge(&self, slot: SlotId, seen: u64, waker: u64, mark_ready: bool) -> bool;
    /// Takes the waker out of all of the slot's waiter slots.
    fn disarm(&self, slot: SlotId, waker: u64);
    /// Tells of all ready bits that peers have set for sockets of this process. The owner of an
    /// armed waker asks the second argument whether it is meant, before it looks at the socket.
    fn collect_ready(&self, f: &mut dyn FnMut(SlotId, Meant<'_>));
    /// For how many ticks a look at all ready bits serves the calls that may wait. 0: the bits are
    /// few, each call looks at them.
    fn bits_serve(&self) -> u64 {
        0
    }
    /// A set's waker was drained, and nothing is collected: it has to be woken again from here on.
    fn hear(&self) {}
    /// A set has a member on a device, from now on: [`Source::own_news`] is heeded.
    fn heed(&self) {}
    /// When this process last told the kernel what another member may have by now, on the clock of
    /// `sys::ticks`; 0 for not at all.
    fn own_news(&self) -> u64 {
        0
    }
    /// Whether a set of this process has its waker in the slot's words, or had it there and has not
    /// taken the ready bit yet.
    fn sets_may_be_deaf(&self, _slot: SlotId) -> bool {
        false
    }
    /// Both directions are wholly on the device: `ask` stays empty until a fallback.
    fn settled(&self, slot: SlotId) -> bool;
    /// While this is some duration a waiter must look again after it at the latest.
    fn recheck_after(&self, slot: SlotId) -> Option<Duration>;
    /// A sibling holds the socket, which is TCP's alone, and may take it to a device: of that no
    /// set of this process is told.
    fn may_be_taken(&self, _slot: SlotId) -> bool {
        false
    }
    /// Another number of this process for the socket, one of whose is about to be closed.
    fn another_name(&self, _slot: SlotId, _closing: RawFd) -> Option<RawFd> {
        None
    }
    /// How much has come by TCP, in numbers that change with each arrival; `before`: when the
    /// receiving direction left TCP.
    fn arrived(&self, _slot: SlotId, _fd: RawFd, _before: bool) -> u64 {
        0
    }
    /// Whether bytes that TCP has now came around the library: the device brings all that the peer
    /// sends, and the peer has not gone back.
    fn astray(&self, _slot: SlotId) -> bool {
        false
    }
    /// Whether the device has brought the end of the stream, whatever is unread before it.
    fn is_over(&self, _slot: SlotId) -> bool {
        false
    }
    /// Spins as long as that pays; true as soon as `probe` is.
    fn spin(&self, probe: &mut dyn FnMut() -> bool, slots: &[SlotId]) -> bool;
    /// Changes whenever `ask` or `on_device` changes.
    fn mode_epoch(&self, slot: SlotId) -> u32;
    /// Whether any direction is no longer the kernel's alone.
    fn on_device(&self, slot: SlotId) -> bool;
    /// How far the two directions have come, for edge triggering.
    fn progress(&self, slot: SlotId) -> Progress;

    /// A waker for one wait, which stands at `frame` on its thread's stack and may be left by a
    /// jump.
    fn borrow_waker(&self, frame: usize) -> Option<Self::Waker>;
    /// Sleeps until this socket alone has something to read, where the last such sleeps were brief.
    /// It does so without a waker and without the kernel's word on the socket, for `limit` at most,
    /// and some milliseconds. Whether the peer woke it; `None` where a whole sleep is due.
    ///
    /// # Errors
    /// `EINTR` after a handler.
    fn sleep_briefly(
        &self,
        _slot: SlotId,
        _epoch: u32,
        _limit: Option<Duration>,
    ) -> Option<Result<bool, Failure>> {
        None
    }
    /// A whole sleep on this socket alone lasted so many nanoseconds; `woken` by the peer alone.
    fn slept(&self, _slot: SlotId, _ns: u64, _woken: bool) {}
    /// Returns it.
    fn give_back_waker(&self, waker: Self::Waker);
    /// A waker for the life of an epoll set.
    fn borrow_set_waker(&self) -> Option<Self::Waker>;
    /// Returns it.
    fn give_back_set_waker(&self, waker: Self::Waker);
    /// Closes a set's waker without returning it: in a forked child, where it is the parent's.
    fn forget_waker(&self, waker: Self::Waker);
    /// Signals a waker of this process, to pass the word on to another thread.
    fn wake(&self, waker: u64);

    /// Before a sleep in the kernel on a socket that is TCP's alone, which it then stays until
    /// [`Source::leave_wait`]. False: it is not.
    fn enter_wait(&self, _slot: SlotId) -> bool {
        true
    }
    /// After it.
    fn leave_wait(&self, _slot: SlotId) {}
    /// A wait that would hear of the socket was seen.
    fn waited(&self, _slot: SlotId) {}

    /// Goes on with pairings that a process without TCP waits for; how soon the next look is due.
    fn attaching(&self) -> Option<Duration> {
        None
    }

    /// [`Source::look`] uses up what makes the kernel speak: the kernel's next word is news,
    /// whichever waiter wanted the last one.
    fn consumes(&self, _slot: SlotId) -> bool {
        false
    }

    /// A further descriptor that becomes readable when the socket may be ready; to be slept on
    /// after [`Source::arm`] where the waker is not a set's.
    fn events(&self, _slot: SlotId) -> Option<RawFd> {
        None
    }

    /// The longest that one sleep over sockets may last.
    fn wake_up_interval(&self) -> Option<Duration> {
        None
    }

    /// The kernel alone cannot answer for this socket.
    fn special(&self, slot: SlotId) -> bool {
        self.on_device(slot) || self.recheck_after(slot).is_some()
    }
}

/// The sockets of this process.
#[derive(Clone, Copy, Debug)]
pub struct Sockets;

impl Source for Sockets {
    type Waker = WakerRef;

    #[inline]
    fn look(&self, slot: SlotId, fd: RawFd) -> Look {
        socket::look(slot, fd)
    }
    #[inline]
    fn foresee(&self, slot: SlotId) {
        socket::foresee(slot);
    }
    fn heard(&self, slot: SlotId, fd: RawFd, kernel: Events) -> Events {
        socket::heard(slot, fd, kernel)
    }
    fn arm(&self, slot: SlotId, interest: Events, waker: u64, mark_ready: bool) -> bool {
        socket::arm(slot, interest, waker, mark_ready)
    }
    fn arm_edge(&self, slot: SlotId, seen: u64, waker: u64, mark_ready: bool) -> bool {
        socket::arm_edge(slot, seen, waker, mark_ready)
    }
    fn disarm(&self, slot: SlotId, waker: u64) {
        socket::disarm(slot, waker);
    }
    fn collect_ready(&self, f: &mut dyn FnMut(SlotId, Meant<'_>)) {
        socket::collect_ready(f);
    }
    fn bits_serve(&self) -> u64 {
        socket::bits_serve()
    }
    fn hear(&self) {
        socket::hear();
    }
    fn heed(&self) {
        own_news::heed();
    }
    #[inline]
    fn own_news(&self) -> u64 {
        own_news::last()
    }
    fn sets_may_be_deaf(&self, slot: SlotId) -> bool {
        socket::sets_may_be_deaf(slot)
    }
    fn settled(&self, slot: SlotId) -> bool {
        socket::settled(slot)
    }
    fn recheck_after(&self, slot: SlotId) -> Option<Duration> {
        socket::recheck_after(slot)
    }
    fn may_be_taken(&self, slot: SlotId) -> bool {
        socket::may_be_taken(slot)
    }
    fn another_name(&self, slot: SlotId, closing: RawFd) -> Option<RawFd> {
        fork_group::another_name(slot, closing)
    }
    fn enter_wait(&self, slot: SlotId) -> bool {
        socket::enter_wait(slot)
    }
    fn leave_wait(&self, slot: SlotId) {
        socket::leave_wait(slot);
    }
    fn waited(&self, slot: SlotId) {
        socket::waited(slot);
    }
    fn attaching(&self) -> Option<Duration> {
        soon::attaching()
    }
    fn consumes(&self, slot: SlotId) -> bool {
        crate::datagram::is(slot)
    }
    fn events(&self, slot: SlotId) -> Option<RawFd> {
        if crate::datagram::is(slot) { crate::datagram::ready::events(slot) } else { None }
    }
    fn wake_up_interval(&self) -> Option<Duration> {
        policy::wake_up_interval()
    }
    fn spin(&self, probe: &mut dyn FnMut() -> bool, slots: &[SlotId]) -> bool {
        socket::spin(probe, slots)
    }
    #[inline]
    fn mode_epoch(&self, slot: SlotId) -> u32 {
        socket::mode_epoch(slot)
    }
    #[inline]
    fn on_device(&self, slot: SlotId) -> bool {
        socket::on_device(slot)
    }
    #[inline]
    fn progress(&self, slot: SlotId) -> Progress {
        socket::progress(slot)
    }
    fn arrived(&self, slot: SlotId, fd: RawFd, before: bool) -> u64 {
        socket::arrived(slot, fd, before)
    }
    fn astray(&self, slot: SlotId) -> bool {
        socket::astray(slot)
    }
    fn is_over(&self, slot: SlotId) -> bool {
        socket::is_over(slot)
    }
    fn sleep_briefly(
        &self,
        slot: SlotId,
        epoch: u32,
        limit: Option<Duration>,
    ) -> Option<Result<bool, Failure>> {
        let ns = limit.map_or(u64::MAX, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
        socket::brief::poll_sleep(slot, epoch, ns)
    }
    fn slept(&self, slot: SlotId, ns: u64, woken: bool) {
        socket::brief::poll_slept(slot, ns, woken);
    }
    fn borrow_waker(&self, frame: usize) -> Option<WakerRef> {
        socket::waker_of_wait(frame)
    }
    fn give_back_waker(&self, waker: WakerRef) {
        socket::give_back_waker_of_wait(waker);
    }
    fn borrow_set_waker(&self) -> Option<WakerRef> {
        waker::borrow_for_set()
    }
    fn give_back_set_waker(&self, waker: WakerRef) {
        waker::give_back(waker);
    }
    fn forget_waker(&self, waker: WakerRef) {
        waker::forget(waker);
    }
    fn wake(&self, waker: u64) {
        waker::wake(waker);
    }
}
