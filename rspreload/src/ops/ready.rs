//! What is ready: `poll`, `select` and their relatives.
//!
//! While every connection of the set is plain TCP the kernel knows the answer. The hook then only
//! counts the thread as a waiter of each, so that no direction switches under a sleeper. Once one
//! connection is on a device, the readiness layer does the call.

use core::ffi::c_int;
use core::time::Duration;

use libc::{nfds_t, pollfd, sigset_t, size_t, timeval};
use rsocket_edge::conn::slot::SlotId;
use rsocket_edge::{readiness, socket};
use rsocket_host::array::Few;
use rsocket_host::failure::Failure;
use rsocket_host::given::{Bits, Place, Polled, Sets};
use rsocket_host::probe::{present, signals_are_nowhere};
use rsocket_host::reason::Reason;
use rsocket_host::sys;

use super::name::about_to_wait;
use crate::edge::{keeping_errno, leave_rest, small};
use crate::shadow::{self, Entry};

/// The most waiters that one call counts.
const MOST_COUNTED: usize = 256;
/// How many of them stand on the stack.
const FEW_COUNTED: usize = 32;

/// The connections that the calling thread is counted as a waiter of. Without a destructor: the
/// thread may be cancelled while it sleeps.
struct Counted(Few<SlotId, FEW_COUNTED, MOST_COUNTED>);

impl Counted {
    const fn new() -> Self {
        Self(Few::new())
    }

    /// Counts the thread in; false if the connection is on a device now. Beyond what has room the
    /// connection stays on TCP: a set that large is for epoll.
    fn enter(&mut self, slot: SlotId, fd: c_int) -> bool {
        if !self.0.has_room() {
            socket::refuse(slot, fd, Reason::OddUse);
            return !socket::on_device(slot);
        }
        socket::enter_wait(slot) && self.0.add(slot)
    }

    fn leave(&mut self) {
        self.0.empty(socket::leave_wait);
    }
}

/// Whether the kernel or this library does a call on a set of descriptors.
enum Set {
    /// Nothing of ours in it, or only plain TCP.
    Kernel,
    /// At least one is on a device, or waits to be.
    Device,
}

/// Looks at a set; if the kernel is to do the call and may sleep in it, counts the thread in.
fn survey(fds: impl Iterator<Item = c_int> + Clone, sleeps: bool, counted: &mut Counted) -> Set {
    if fds.clone().any(|fd| shadow::entry(fd) == Entry::Set && readiness::epoll::polled(fd)) {
        return Set::Device;
    }
    if sleeps && socket::attaching().is_some() {
        return Set::Device;
    }
    if sleeps && socket::fingerprints() {
        fds.clone().for_each(about_to_wait);
    }
    let ours = fds.filter_map(|fd| shadow::connection(fd).map(|slot| (fd, slot)));
    if ours
        .clone()
        .any(|(_, slot)| socket::on_device(slot) || socket::recheck_after(slot).is_some())
    {
        return Set::Device;
    }
    if !sleeps {
        ours.for_each(|(_, slot)| socket::waited(slot));
    } else {
        for (fd, slot) in ours {
            if !counted.enter(slot, fd) {
                counted.leave();
                return Set::Device;
            }
        }
    }
    Set::Kernel
}

/// A `poll` of any spelling on a process that has sockets of ours: `real` passes it on.
pub(crate) fn poll(
    list: Polled<'_>,
    timeout: Result<Option<Duration>, Failure>,
    mask: *const sigset_t,
    real: impl FnOnce() -> c_int,
) -> c_int {
    let (Ok(timeout), false) = (timeout, list.as_ptr().is_null()) else { return real() };
    let is_there = present(list.as_ptr(), list.len()) && !signals_are_nowhere(mask);
    if list.len() > sys::MAX_FDS || !is_there {
        return real();
    }
    let mut counted = Counted::new();
    let fds = (0..list.len()).filter_map(|i| list.fd(i));
    match survey(fds, timeout != Some(Duration::ZERO), &mut counted) {
        Set::Kernel => {
            let r = real();
            keeping_errno(|| counted.leave());
            r
        }
        Set::Device => small(readiness::poll::poll(list, timeout, mask, shadow::find)),
    }
}

/// What a `select` has answered, and, where the kernel did not do it, how long that took in
/// nanoseconds.
pub(crate) struct Selected {
    pub(crate) result: c_int,
    taken: Option<u64>,
}

/// A `select` of either spelling on a process that has sockets of ours; `real` passes it on.
pub(crate) fn select(
    sets: Sets<'_>,
    timeout: Result<Option<Duration>, Failure>,
    mask: *const sigset_t,
    real: impl FnOnce() -> c_int,
) -> Selected {
    let passed_on = |result| Selected { result, taken: None };
    let Ok(mut left) = timeout else { return passed_on(real()) };
    // The kernel reads whole words of them.
    let is_there = |set: &Bits<'_>| present(set.as_ptr(), set.words());
    if sets.nfds() < 0 || !sets.each().iter().all(is_there) || signals_are_nowhere(mask) {
        return passed_on(real());
    }
    let mut counted = Counted::new();
    // Nothing at or above shadow::end() is ours, which also bounds a nonsensical number.
    let fds = sets.members(shadow::end());
    match survey(fds, left != Some(Duration::ZERO), &mut counted) {
        Set::Kernel => {
            let r = real();
            keeping_errno(|| counted.leave());
            passed_on(r)
        }
        Set::Device => {
            let begun = sys::now_ns();
            let result = readiness::select::select(sets, left.as_mut(), mask, shadow::find);
            let taken = sys::now_ns().saturating_sub(begun);
            Selected { result: small(result), taken: Some(taken) }
        }
    }
}

/// What `select` is to say: `pselect` leaves the time as it was, `select` what is left of it.
/// `given` was read at `timeout`.
pub(crate) fn say_rest(
    selected: Selected,
    timeout: Place<'_, timeval>,
    given: Result<Option<Duration>, Failure>,
) -> c_int {
    if let Some(taken) = selected.taken {
        leave_rest(timeout, given.ok().flatten(), taken);
    }
    selected.result
}

/// A length beyond the buffer is for libc's fortified function to complain about.
#[inline(always)]
pub(crate) fn fits(length: nfds_t, room: size_t) -> bool {
    length <= (room / size_of::<pollfd>()) as nfds_t
}
