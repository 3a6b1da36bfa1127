//! How long a call may wait, and what ends it before: its time-out, a signal handler, the closing
//! of its descriptor.
//!
//! signal(7) says which handlers end which calls; which of them ran, `sync::signals` knows. Must
//! not know what is waited for. Entry point: [`CallDeadline`], one for each call.

use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

use super::close_while_blocked::{self, Entered};
use crate::config::policy;
use crate::conn::option_cache::Fact;
use crate::conn::slot::{Slot, SlotId, flag};
use crate::failure::Failure;
use crate::host::kernel;
use crate::sync::signals::{self, Seen, Since};
use crate::sys::{self, descriptor, sandbox};

/// How long one call may wait, in all its sleeps together.
pub struct CallDeadline {
    option: i32,
    /// Monotonic nanoseconds; 0 before the first sleep, `u64::MAX` for ever.
    deadline: u64,
    /// What handlers had run when the call began to wait.
    seen: Option<Seen>,
    /// Which connection has the slot, when the call began.
    generation: u32,
    /// The call has moved bytes already: an interruption ends it, whatever its handler's flags say.
    moved: bool,
    /// The call has slept on this connection, and [`close_while_blocked`] knows of it.
    slept: Option<Entered>,
}

/// The bit of [`Slot::unwaiting`] for this time-out.
pub(crate) fn unwaiting(option: i32) -> u32 {
    if option == libc::SO_RCVTIMEO { 1 } else { 2 }
}

impl CallDeadline {
    /// `option` is `SO_RCVTIMEO` or `SO_SNDTIMEO`.
    #[must_use]
    #[inline]
    pub fn new(s: &Slot, option: i32) -> Self {
        // Acquire: pairs with the release of a slot that is given up.
        let generation = s.generation.load(Ordering::Acquire);
        Self { option, deadline: 0, seen: None, generation, moved: false, slept: None }
    }

    /// Until then, in monotonic nanoseconds, whatever the socket's options say.
    #[must_use]
    pub fn until(s: &Slot, deadline: u64) -> Self {
        Self { deadline, ..Self::new(s, 0) }
    }

    /// Which connection had the slot when the call began.
    #[inline]
    pub(crate) fn born(&self) -> u32 {
        self.generation
    }

    /// The call is about to sleep on this connection.
    #[cold]
    pub(crate) fn sleeps(&mut self, id: SlotId) {
        if self.entered().is_none() {
            self.slept = close_while_blocked::asleep(id, core::ptr::from_ref(self).addr());
        }
    }

    /// What [`close_while_blocked`] knows the call by, if it does.
    pub(crate) fn entered(&self) -> Option<Entered> {
        self.slept.filter(|call| call.stands())
    }

    /// The descriptor by which a call goes on that has waited: another one if the program has
    /// closed its own.
    #[inline]
    pub(crate) fn descriptor(&self, fd: RawFd) -> RawFd {
        self.slept.map_or(fd, |call| call.descriptor(fd))
    }

    /// The call is over. Each call that waits by [`readable`](crate::socket::wait::readable) and
    /// its like must say so, or others that sleep on the connection will never close it. (A
    /// destructor would be in the way of a thread that is cancelled.)
    #[inline]
    pub(crate) fn over(&self) {
        if let Some(call) = self.slept {
            call.awake();
        }
    }

    /// Nanoseconds left; `None` for ever.
    pub(crate) fn left(&mut self, s: &Slot, fd: RawFd) -> Result<Option<u64>, Failure> {
        if self.deadline == 0 {
            let fact = if self.option == libc::SO_RCVTIMEO {
                Fact::WaitsForData
            } else {
                Fact::WaitsForRoom
            };
            let mut limit = None;
            // In a sandbox the kernel is not asked, which is no answer for siblings that are in
            // none.
            if !sandbox::inside() {
                s.option_cache.holds(fact, s.has(flag::RSOCKET), || {
                    limit = kernel::timeout(fd, self.option);
                    limit.is_none()
                });
            }
            // Relaxed: as in timeout_set.
            let unwaiting = s.unwaiting.load(Ordering::Relaxed) & unwaiting(self.option) != 0;
            self.deadline = match limit {
                None if unwaiting => 1,
                None => u64::MAX,
                Some(ns) => sys::now_ns().saturating_add(ns),
            };
        }
        if self.deadline == u64::MAX {
            return Ok(None);
        }
        match self.deadline.checked_sub(sys::now_ns()) {
            Some(ns) if ns > 0 => Ok(Some(ns)),
            _ => Err(Failure::Blocked),
        }
    }

    /// How long a spin may last, in nanoseconds: no longer than the call may wait, where that could
    /// matter.
    pub(crate) fn spin(&mut self, s: &Slot, fd: RawFd) -> Result<u32, Failure> {
        let cap = polling();
        if cap <= SHORT_SPIN_NS {
            return Ok(cap);
        }
        Ok(self.left(s, fd)?.map_or(cap, |left| cap.min(u32::try_from(left).unwrap_or(u32::MAX))))
    }

    /// Whether nothing limits the call's waiting, as far as that is known without asking the
    /// kernel.
    #[inline]
    pub(crate) fn has_all_time(&self, s: &Slot) -> bool {
        // Relaxed: as in timeout_set.
        (self.deadline == 0 || self.deadline == u64::MAX)
            && s.unwaiting.load(Ordering::Relaxed) == 0
    }

    fn limited(&self) -> bool {
        self.deadline != u64::MAX && self.deadline != 0
    }

    /// Says whether the call has moved bytes already.
    pub(crate) fn moved(&mut self, so: bool) {
        self.moved = so;
    }

    /// Whether the call has moved bytes already.
    pub(crate) fn has_moved(&self) -> bool {
        self.moved
    }

    /// The call waits from here on, or goes on waiting: what handlers do is its business. One that
    /// ran before and ends the call still does.
    pub(crate) fn begin(&mut self) {
        let now = signals::seen();
        if !self.ends(now) {
            self.seen = Some(now);
        }
    }

    /// As [`Self::begin`].
    ///
    /// # Errors
    /// `EINTR` if the call is over.
    pub(crate) fn waits(&mut self, s: &Slot) -> Result<(), Failure> {
        self.begin();
        if self.broken() {
            return Err(Failure::Interrupted);
        }
        self.still(s)
    }

    /// `EBADF` if the connection was closed since the call began: by a handler, or by another
    /// thread.
    pub(crate) fn still(&self, s: &Slot) -> Result<(), Failure> {
        if self.gone(s) { Err(Failure::BadDescriptor) } else { Ok(()) }
    }

    /// Whether the connection has been closed since the call began.
    #[cold]
    pub(crate) fn gone(&self, s: &Slot) -> bool {
        s.generation.load(Ordering::Acquire) != self.generation
    }

    /// `EBADF` if the connection is closed, or about to be: nothing of its slot is this call's any
    /// more.
    #[inline]
    pub(crate) fn may_go_on(&self, s: &Slot) -> Result<(), Failure> {
        if s.has(flag::OVER) || s.generation.load(Ordering::Acquire) != self.generation {
            return Err(Failure::BadDescriptor);
        }
        Ok(())
    }

    /// Why the call fails: a closed connection's slot says anything, a closed descriptor one thing.
    /// (It may have been closed before this call looked at its slot, by a handler that interrupted
    /// the way here.)
    pub(crate) fn why(&self, s: &Slot, fd: RawFd, e: Failure) -> Failure {
        if matches!(e, Failure::Blocked | Failure::Interrupted) {
            return e;
        }
        let closed = || fd >= 0 && !descriptor::is_open(fd);
        if self.gone(s) || closed() { Failure::BadDescriptor } else { e }
    }

    /// Whether a handler ran while the call waited that ends it. Any handler does if the call has
    /// moved bytes or has a time-out set, else one without `SA_RESTART`.
    fn ends(&self, now: Seen) -> bool {
        match self.seen.map_or(Since::Nothing, |seen| seen.until(now)) {
            Since::Nothing => false,
            Since::Restarting => self.moved || self.limited(),
            Since::Breaking => true,
        }
    }

    /// The same, now.
    pub(crate) fn broken(&self) -> bool {
        self.ends(signals::seen())
    }

    /// Whether a call that has moved bytes is over, because a handler ran since it first had to
    /// wait. To be asked in a section, so that what that handler sent or received itself comes
    /// after what this call did.
    #[inline]
    pub(crate) fn cut_short(&self) -> bool {
        self.moved && self.broken()
    }

    /// Whether a call goes on whose sleep was interrupted (signal(7)).
    pub(crate) fn goes_on(&self) -> bool {
        if self.moved || self.limited() {
            return false;
        }
        self.seen.map_or_else(signals::restarts, signals::goes_on)
    }
}

/// A spin of at most so long delays no time-out noticeably, in nanoseconds.
pub(crate) const SHORT_SPIN_NS: u32 = 50_000;

/// `polling_time`, in nanoseconds.
pub(crate) fn polling() -> u32 {
    u32::try_from(policy::polling_ns()).unwrap_or(u32::MAX)
}
