//! A descriptor that is closed while another thread of the process sleeps in a call on it. The
//! kernel leaves that thread asleep and the connection open until its call is over, and so do we.
//!
//! The closing thread lends the sleepers a private copy of the descriptor, which counts as the
//! program's in place of the one that it closes. The last sleeper to finish closes the copy, and
//! with it the connection. Every sleeping call is entered here. A thread may leave its call by a
//! jump out of a signal handler, or end in it. So an entry counts only while the kernel says that
//! the thread sleeps with the very memory that it said.
//!
//! For the same reason what a sleep has borrowed, a waker and a pin, is noted in its entry. A wait
//! on any number of descriptors has an entry for that alone. Which calls were left is told by where
//! they stood on their thread's stack: one that lives is above whatever the thread does next. A
//! thread that gives something back takes it out of the entry first. So a call that was believed to
//! be over, and is not, does no harm.
//!
//! Must not know what is waited for. Entry points: [`asleep`] and [`Entered::awake`] around a
//! call's sleeps, [`descriptor`] after each, [`borrow_waker`] and [`pin`] and their opposites in
//! them, [`waker_of_wait`] for a wait on several, [`lend`] before a descriptor is closed.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::os::fd::RawFd;

use crate::channel::waiters;
use crate::conn::fork_group;
use crate::conn::listener::Listener;
use crate::conn::slot::{Slot, SlotId};
use crate::device::shm::waker::{self, WakerRef};
use crate::host::whereabouts::{Whereabouts, whereabouts};
use crate::sync::lock::{Holding, OwnedLock};
use crate::sync::signals;
use crate::sync::thread::{self, tid};
use crate::sys::settle::Settle;
use crate::sys::thread_end::ThreadEnd;
use crate::sys::{self, clock};

/// Calls that may be entered at a time. Any other is as one on a descriptor that was closed before
/// it: it ends.
const CALLS: usize = 256;
/// Descriptors that may be lent at a time.
const LOANS: usize = 16;

/// How long a close waits for a call that is awake, in nanoseconds. The thread of such a call was
/// woken, or its sleep is over. On a busy machine it waits so long for a CPU before it sleeps again
/// or is done.
const AWAKE: u64 = 20_000_000;

/// In [`Call::who`]: no loan is for this call, which was found to be elsewhere.
const STRUCK: u64 = 1 << 31;

/// A call. Relaxed throughout: entries come and go by [`CallsGuard`], and what a call has borrowed
/// is its thread's own business while it lives.
struct Call {
    /// Slot, or 0 for a wait on several, above thread. 0 is free.
    who: AtomicU64,
    /// Where it stands on its thread's stack.
    frame: AtomicUsize,
    /// With what memory it sleeps in the kernel (an array, or a word), with the slot pinned. 0: it
    /// does not.
    at: AtomicUsize,
    /// The waker that it has borrowed. 0: none.
    waker: AtomicU64,
}

static SLEEPERS: [Call; CALLS] = [const {
    Call {
        who: AtomicU64::new(0),
        frame: AtomicUsize::new(0),
        at: AtomicUsize::new(0),
        waker: AtomicU64::new(0),
    }
}; CALLS];
/// How many of them were ever used, from the first on: most processes need few, and every close
/// looks at them.
static USED: AtomicUsize = AtomicUsize::new(0);
/// A loan: slot above descriptor. 0 is free.
static LENT: [AtomicU64; LOANS] = [const { AtomicU64::new(0) }; LOANS];
/// How many loans there are, for threads that look without the lock.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// What is to be done before a loan is closed, as before the program's own descriptor.
static CLOSING: Listener<fn(SlotId, RawFd)> = Listener::nobody();
static LOCK: OwnedLock = OwnedLock::new();

/// The entries and the loans, whose lock this thread holds.
struct CallsGuard {
    _held: Holding<'static>,
}

/// `None` from a signal handler that interrupted a holder of the lock.
fn locked<R>(f: impl FnOnce(&CallsGuard) -> R) -> Option<R> {
    Some(f(&CallsGuard { _held: LOCK.hold()? }))
}

fn word(id: SlotId, low: u32) -> u64 {
    u64::from(id.raw()) << 32 | u64::from(low)
}

/// Whether the word is about this slot.
fn is_of(word: u64, id: SlotId) -> bool {
    (word >> 32) as u32 == id.raw()
}

/// The calls, with what is free between them.
fn calls() -> &'static [Call] {
    // Relaxed: a thread that has not the lock may miss a call that is just being entered.
    SLEEPERS.get(..USED.load(Ordering::Relaxed)).unwrap_or(&SLEEPERS)
}

impl Call {
    fn thread(&self) -> u32 {
        (self.who.load(Ordering::Relaxed) & !STRUCK) as u32
    }

    fn slot(&self) -> Option<SlotId> {
        SlotId::from_raw((self.who.load(Ordering::Relaxed) >> 32) as u32)
    }

    /// Whether a loan of this slot is for this call too.
    fn shares(&self, id: SlotId) -> bool {
        let who = self.who.load(Ordering::Relaxed);
        is_of(who, id) && who & STRUCK == 0
    }

    /// Whether its thread has left it, which is in another one at `frame` now.
    fn is_over(&self, frame: usize, apart: &core::ops::Range<usize>) -> bool {
        let mine = self.frame.load(Ordering::Relaxed);
        match (apart.contains(&mine), apart.contains(&frame)) {
            (true, false) => true,
            (false, true) => false,
            _ => mine <= frame,
        }
    }

    /// Takes its pin away, if it has one.
    fn unpin(&self, s: &Slot) {
        if self.at.swap(0, Ordering::Relaxed) != 0 {
            s.pins.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Whether its thread is inside the kernel in its sleep.
    fn sleeps(&self) -> bool {
        let at = self.at.load(Ordering::Relaxed);
        whereabouts(self.thread()) == Some(Whereabouts::Asleep(at))
    }

    /// Whether its thread may be on its way into its sleep or out of it.
    fn is_awake(&self) -> bool {
        whereabouts(self.thread()) == Some(Whereabouts::Awake)
    }
}

/// A call that is entered.
#[derive(Clone, Copy)]
pub(crate) struct Entered {
    /// With its thread: [`Call::who`].
    who: u64,
    frame: usize,
    place: usize,
}

impl Entered {
    /// Its entry, unless the call was believed to be over.
    fn call(self) -> Option<&'static Call> {
        let call = SLEEPERS.get(self.place)?;
        let who = call.who.load(Ordering::Relaxed) & !STRUCK;
        (who == self.who && call.frame.load(Ordering::Relaxed) == self.frame).then_some(call)
    }

    /// Whether it still is.
    pub(crate) fn stands(self) -> bool {
        self.call().is_some()
    }

    /// The descriptor by which the call goes on.
    #[inline]
    pub(crate) fn descriptor(self, fd: RawFd) -> RawFd {
        SlotId::from_raw((self.who >> 32) as u32).map_or(fd, |id| descriptor(id, fd))
    }

    /// The call is over: the last one closes what was lent.
    #[inline(never)]
    pub(crate) fn awake(self) {
        leave(|| self.call());
    }
}

/// `None` if there is no room.
fn enter(_held: &CallsGuard, who: u64, frame: usize) -> Option<Entered> {
    let place = SLEEPERS.iter().position(|c| c.who.load(Ordering::Relaxed) == 0)?;
    let call = SLEEPERS.get(place)?;
    call.frame.store(frame, Ordering::Relaxed);
    call.who.store(who, Ordering::Relaxed);
    USED.fetch_max(place + 1, Ordering::Relaxed);
    Some(Entered { who, frame, place })
}

/// A call of this thread, at this place of its stack, is about to sleep on the connection.
/// [`Entered::awake`] must be called when it is over.
#[must_use]
pub(crate) fn asleep(id: SlotId, frame: usize) -> Option<Entered> {
    enters(word(id, tid()), frame)
}

fn enters(who: u64, frame: usize) -> Option<Entered> {
    if !watch_thread() {
        return None;
    }
    clear_away(frame);
    locked(|held| enter(held, who, frame)).flatten()
}

/// Ends what this thread has left by a jump: it is at `frame` now.
fn clear_away(frame: usize) {
    let me = tid();
    // No other thread enters a call of this one.
    let mine = || calls().iter().filter(|c| c.thread() == me);
    if mine().next().is_some() {
        let apart = signals::own_stack();
        while leave(|| mine().find(|c| c.is_over(frame, &apart))) {}
    }
}

/// Takes a call out, with what it has left behind: the last one closes what was lent. False if
/// there is none.
fn leave(find: impl FnOnce() -> Option<&'static Call>) -> bool {
    // No handler comes between, which might jump away; here and below.
    thread::enter();
    let left = locked(|held| {
        let call = find()?;
        let id = call.slot();
        let slot = id.and_then(fork_group::slot);
        if let Some(s) = slot {
            call.unpin(s);
        }
        if let Some(waker) = waker::find(call.waker.swap(0, Ordering::Relaxed)) {
            match slot {
                Some(s) => disarm(s, waker),
                // Which ones it waited on is no longer known.
                None => fork_group::each_local(|_, s| disarm(s, waker)),
            }
            waker::give_back(waker);
        }
        let lent = id.filter(|id| call.shares(*id));
        call.who.store(0, Ordering::Relaxed);
        let last = lent.filter(|id| !calls().iter().any(|c| c.shares(*id)));
        Some(last.and_then(|id| Some((id, take_back(held, id)?))))
    });
    thread::leave();
    let Some(Some(loan)) = left else { return false };
    if let Some((id, fd)) = loan {
        close(id, fd);
    }
    true
}

fn disarm(s: &Slot, waker: WakerRef) {
    let _ = waiters::disarm(s, waker.id());
}

/// A waker for one sleep of a call, from `lender`.
pub(crate) fn borrow_waker(
    call: Option<Entered>,
    lender: fn() -> Option<WakerRef>,
) -> Option<WakerRef> {
    thread::enter();
    let waker = lender();
    if let (Some(call), Some(waker)) = (call.and_then(Entered::call), waker) {
        call.waker.store(waker.id(), Ordering::Relaxed);
    }
    thread::leave();
    waker
}

/// After the sleep.
pub(crate) fn give_back_waker(call: Option<Entered>, waker: WakerRef) {
    thread::enter();
    if call.is_none_or(|c| c.call().is_some_and(|c| c.waker.swap(0, Ordering::Relaxed) != 0)) {
        waker::give_back(waker);
    }
    thread::leave();
}

/// A waker for a wait on several descriptors, which stands at this place of its thread's stack;
/// until [`give_back_waker_of_wait`].
pub(crate) fn waker_of_wait(frame: usize) -> Option<WakerRef> {
    let call = enters(u64::from(tid()), frame);
    let waker = borrow_waker(call, waker::borrow_front);
    if let (None, Some(call)) = (waker, call) {
        call.awake();
    }
    waker
}

/// The wait is over, and its waker is in no word any more.
pub(crate) fn give_back_waker_of_wait(waker: WakerRef) {
    let me = tid();
    // No other thread has an entry with it.
    let call =
        calls().iter().find(|c| c.thread() == me && c.waker.load(Ordering::Relaxed) == waker.id());
    thread::enter();
    if call.is_none_or(|c| c.waker.swap(0, Ordering::Relaxed) != 0) {
        waker::give_back(waker);
    }
    thread::leave();
    leave(|| call);
}

/// The call goes to sleep in the kernel: the pin keeps the slot from being given to another
/// connection meanwhile.
pub(crate) fn pin(call: Option<Entered>, s: &Slot, at: usize) {
    thread::enter();
    s.pins.fetch_add(1, Ordering::AcqRel);
    if let Some(call) = call.and_then(Entered::call) {
        call.at.store(at, Ordering::Relaxed);
    }
    thread::leave();
}

/// After the sleep.
pub(crate) fn unpin(call: Option<Entered>, s: &Slot) {
    thread::enter();
    match call {
        None => {
            s.pins.fetch_sub(1, Ordering::AcqRel);
        }
        Some(call) => {
            if let Some(call) = call.call() {
                call.unpin(s);
            }
        }
    }
    thread::leave();
}

/// Makes sure that [`thread_ends`] is called when this thread does, be it cancelled in its call.
/// False if that cannot be had without allocating, which this may not: it may be a signal handler's
/// call.
fn watch_thread() -> bool {
    static END: ThreadEnd = ThreadEnd::new(thread_ends);
    END.watch()
}

/// The thread ends: what it was inside, it is so no more.
extern "C" fn thread_ends(_: *mut core::ffi::c_void) {
    clear_away(usize::MAX);
}

/// What was lent of the slot, which is so no more.
fn take_back(_held: &CallsGuard, id: SlotId) -> Option<RawFd> {
    let loan =
        LENT.iter().find(|w| is_of(w.load(Ordering::Relaxed), id))?.swap(0, Ordering::Relaxed);
    COUNT.fetch_sub(1, Ordering::Relaxed);
    Some(loan as u32 as RawFd)
}

fn close(id: SlotId, fd: RawFd) {
    sys::keeping_errno(|| {
        if let Some(closing) = CLOSING.get() {
            closing(id, fd);
        }
        sys::close_private(fd);
    });
}

/// By which descriptor a call that has slept goes on: the program's own, or what was lent for it.
#[inline]
fn descriptor(id: SlotId, fd: RawFd) -> RawFd {
    // Relaxed: a sleeper that does not see the loan was not waited for, and finds its connection
    // ended.
    if COUNT.load(Ordering::Relaxed) == 0 {
        return fd;
    }
    let loan = LENT.iter().map(|w| w.load(Ordering::Relaxed)).find(|w| is_of(*w, id));
    loan.map_or(fd, |loan| loan as u32 as RawFd)
}

/// Before the program's descriptor is closed: whether others sleep in calls on it. Then it counts
/// as open, and the loan in its place, which is closed after `closing` has been called.
#[must_use]
pub(crate) fn lend(id: SlotId, fd: RawFd, closing: fn(SlotId, RawFd)) -> bool {
    if calls().is_empty() || fd < 0 {
        return false;
    }
    CLOSING.install(closing);
    // One of several: it lives on, but the number by which they go on may be another file's.
    let last = fork_group::descriptors(id) <= 1;
    // Its pins are in the way of the slot's next connection.
    clear_away(core::ptr::from_ref(&fd).addr());
    await_sleep(id);
    let lent = locked(|held| lend_held(held, id, fd, last)).unwrap_or(false);
    if lent {
        wake(id);
    }
    lent
}

/// As [`lend`]; `last`: no other descriptor of the program's is left.
fn lend_held(_held: &CallsGuard, id: SlotId, fd: RawFd, last: bool) -> bool {
    let me = tid();
    if LENT.iter().any(|w| is_of(w.load(Ordering::Relaxed), id)) {
        return false;
    }
    let mut any = false;
    for call in calls().iter().filter(|c| c.shares(id) && c.thread() != me) {
        match call.sleeps() {
            true => any = true,
            false if !last => {}
            // It has left its call, if it lives at all. (If it has only been awake for that
            // long, it finds the connection ended, and its pin was for nothing.)
            false => {
                call.who.fetch_or(STRUCK, Ordering::Relaxed);
                if let Some(s) = fork_group::slot(id) {
                    call.unpin(s);
                }
            }
        }
    }
    if !any {
        return false;
    }
    let Ok(copy) = sys::private_copy(sys::borrow(fd)) else { return false };
    let Some(loan) = LENT.iter().find(|w| w.load(Ordering::Relaxed) == 0) else {
        sys::close_private(copy);
        return false;
    };
    loan.store(word(id, copy as u32), Ordering::Relaxed);
    COUNT.fetch_add(1, Ordering::Relaxed);
    if last || fork_group::descriptor(id) == fd {
        fork_group::moved_to(id, copy);
    }
    true
}

/// Waits until each other call on the connection sleeps or is done, for [`AWAKE`] at most: one that
/// was left by a jump does neither.
fn await_sleep(id: SlotId) {
    let awake = || calls().iter().any(|c| c.shares(id) && c.thread() != tid() && c.is_awake());
    let until = sys::now_ns().saturating_add(AWAKE);
    while awake() && sys::now_ns() < until {
        // A signal may cut it short.
        clock::pause(100_000);
    }
}

/// Wakes the sleepers to which something was lent. ppoll(2) looks its numbers up anew whenever it
/// is woken, and by then this one may be another file's. A wake too many does no harm.
fn wake(id: SlotId) {
    let me = tid();
    for call in calls().iter().filter(|c| c.shares(id) && c.thread() != me) {
        waker::wake(call.waker.load(Ordering::Relaxed));
    }
}

/// In the child of a fork: the calls were those of the parent's threads, and what was lent to them
/// is closed here.
pub(crate) fn fork_child() {
    LOCK.reset();
    for call in calls() {
        call.who.store(0, Ordering::Relaxed);
        call.at.store(0, Ordering::Relaxed);
        call.waker.store(0, Ordering::Relaxed);
    }
    USED.settle(0);
    for w in &LENT {
        let loan = w.load(Ordering::Relaxed);
        w.settle(0);
        if let Some(id) = SlotId::from_raw((loan >> 32) as u32) {
            COUNT.fetch_sub(1, Ordering::Relaxed);
            close(id, loan as u32 as RawFd);
        }
    }
}

#[cfg(test)]
mod tests;
