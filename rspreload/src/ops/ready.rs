//! What is ready: `poll`, `select` and their relatives.
//!
//! While every connection of the set is plain TCP the kernel knows the answer. The hook then only
//! counts the thread as a waiter of each, so that no direction switches under a sleeper. Once one
//! connection is on a device, the readiness layer does the call.

use core::ffi::{c_int, c_long};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::time::Duration;

use libc::{fd_set, nfds_t, pollfd, sigset_t, size_t, timeval};
use rsocket_edge::conn::slot::SlotId;
use rsocket_edge::readiness::select::Sets;
use rsocket_edge::{readiness, socket};
use rsocket_host::failure::Failure;
use rsocket_host::given::Place;
use rsocket_host::probe::present;
use rsocket_host::reason::Reason;
use rsocket_host::stack;
use rsocket_host::sys;

use super::name::about_to_wait;
use crate::edge::{keeping_errno, leave_rest, small};
use crate::shadow::{self, Entry};

/// The most waiters that one call counts.
const MOST_COUNTED: usize = 256;
/// How many of them stand on the stack.
const FEW_COUNTED: usize = 32;
const _: () = assert!((MOST_COUNTED - FEW_COUNTED) * size_of::<SlotId>() <= stack::LENT);

/// The connections that the calling thread is counted as a waiter of. Without a destructor: the
/// thread may be cancelled while it sleeps.
struct Counted {
    few: [MaybeUninit<SlotId>; FEW_COUNTED],
    /// Lent, or null.
    more: *mut SlotId,
    n: usize,
}

impl Counted {
    const fn new() -> Self {
        Self { few: [const { MaybeUninit::uninit() }; FEW_COUNTED], more: null_mut(), n: 0 }
    }

    /// Where the place of this number is, if there is one.
    fn place(&mut self, n: usize) -> Option<*mut SlotId> {
        if let Some(place) = self.few.get_mut(n) {
            return Some(place.as_mut_ptr());
        }
        if self.more.is_null() {
            self.more = stack::lend()?.cast();
        }
        (n < MOST_COUNTED).then(|| self.more.wrapping_add(n - FEW_COUNTED))
    }

    /// Counts the thread in; false if the connection is on a device now. Beyond what has room the
    /// connection stays on TCP: a set that large is for epoll.
    fn enter(&mut self, slot: SlotId, fd: c_int) -> bool {
        let Some(place) = self.place(self.n) else {
            socket::refuse(slot, fd, Reason::OddUse);
            return !socket::on_device(slot);
        };
        if !socket::enter_wait(slot) {
            return false;
        }
        // SAFETY: a place of ours, aligned and with room for it.
        unsafe { place.write(slot) };
        self.n += 1;
        true
    }

    fn leave(&mut self) {
        for n in 0..self.n {
            if let Some(place) = self.place(n) {
                // SAFETY: the first n places were written by enter().
                socket::leave_wait(unsafe { place.read() });
            }
        }
        self.n = 0;
        if !self.more.is_null() {
            stack::take_back(core::mem::replace(&mut self.more, null_mut()).cast());
        }
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
///
/// # Safety
/// `list` points to `length` entries, `mask` is null or valid.
pub(crate) unsafe fn poll(
    list: *mut pollfd,
    length: nfds_t,
    timeout: Result<Option<Duration>, Failure>,
    mask: *const sigset_t,
    real: impl FnOnce() -> c_int,
) -> c_int {
    let (Ok(timeout), Ok(n), false) = (timeout, usize::try_from(length), list.is_null()) else {
        return real();
    };
    if n > sys::MAX_FDS || !present(list, n) {
        return real();
    }
    // SAFETY: not null, and valid for its length by the caller's promise.
    let fds = unsafe { core::slice::from_raw_parts_mut(list, n) };
    let mut counted = Counted::new();
    match survey(fds.iter().map(|p| p.fd), timeout != Some(Duration::ZERO), &mut counted) {
        Set::Kernel => {
            let r = real();
            keeping_errno(|| counted.leave());
            r
        }
        Set::Device => small(readiness::poll::poll(fds, timeout, mask, shadow::find)),
    }
}

/// The descriptors that stand in any of three sets, below `n`.
///
/// # Safety
/// Each set is null or has room for `n` bits, as long as the iterator lives.
unsafe fn members(n: c_int, sets: [*const fd_set; 3]) -> impl Iterator<Item = c_int> + Clone {
    const BITS: c_int = c_long::BITS as c_int;
    // Nothing at or above shadow::end() is ours, which also bounds a nonsensical n.
    (0..n.min(shadow::end())).filter(move |fd| {
        sets.iter().any(|set| {
            // SAFETY: fd < n, so that its word is inside the set.
            !set.is_null()
                && unsafe { set.cast::<u64>().add((fd / BITS) as usize).read_unaligned() }
                    >> (fd % BITS)
                    & 1
                    == 1
        })
    })
}

/// What a `select` has answered, and, where the kernel did not do it, how long that took in
/// nanoseconds.
pub(crate) struct Selected {
    pub(crate) result: c_int,
    taken: Option<u64>,
}

/// A `select` of either spelling on a process that has sockets of ours.
///
/// # Safety
/// The contract of `pselect`; `real` passes the call on.
pub(crate) unsafe fn select(
    n: c_int,
    sets: [*mut fd_set; 3],
    timeout: Result<Option<Duration>, Failure>,
    mask: *const sigset_t,
    real: impl FnOnce() -> c_int,
) -> Selected {
    let passed_on = |result| Selected { result, taken: None };
    let Ok(mut left) = timeout else { return passed_on(real()) };
    // The kernel reads whole words of them.
    let words = (n.cast_unsigned() as usize).div_ceil(64);
    if n < 0
        || sets.iter().any(|set| !set.is_null() && !present(set.cast::<u64>().cast_const(), words))
    {
        return passed_on(real());
    }
    let mut counted = Counted::new();
    // SAFETY: the sets have room for n bits, by the contract of select.
    let fds = unsafe { members(n, sets.map(<*mut fd_set>::cast_const)) };
    match survey(fds, left != Some(Duration::ZERO), &mut counted) {
        Set::Kernel => {
            let r = real();
            keeping_errno(|| counted.leave());
            passed_on(r)
        }
        Set::Device => {
            // SAFETY: the sets have room for n bits, by the contract of select.
            let sets = unsafe { Sets::new(n, sets) };
            let begun = sys::now_ns();
            let result = readiness::select::select(sets, left.as_mut(), mask, shadow::find);
            let taken = sys::now_ns().saturating_sub(begun);
            Selected { result: small(result), taken: Some(taken) }
        }
    }
}

/// What `select` is to say: `pselect` leaves the time as it was, `select` what is left of it.
///
/// # Safety
/// `timeout` is null or the caller's, from which `given` was read.
pub(crate) unsafe fn say_rest(
    selected: Selected,
    timeout: *mut timeval,
    given: Result<Option<Duration>, Failure>,
) -> c_int {
    if let Some(taken) = selected.taken {
        // SAFETY: the caller's promise.
        let timeout = unsafe { Place::new(timeout) };
        leave_rest(timeout, given.ok().flatten(), taken);
    }
    selected.result
}

/// A length beyond the buffer is for libc's fortified function to complain about.
#[inline(always)]
pub(crate) fn fits(length: nfds_t, room: size_t) -> bool {
    length <= (room / size_of::<pollfd>()) as nfds_t
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_any_set_are_found() {
        // SAFETY: an fd_set is plain bits, for which zero is a value; FD_SET stays inside it.
        let (mut a, mut b) =
            unsafe { (core::mem::zeroed::<fd_set>(), core::mem::zeroed::<fd_set>()) };
        // SAFETY: as above.
        unsafe {
            libc::FD_SET(3, &raw mut a);
            libc::FD_SET(64, &raw mut a);
            libc::FD_SET(130, &raw mut b);
            libc::FD_SET(200, &raw mut b);
        }
        shadow::put(700_000, Entry::Set);
        // SAFETY: both sets have room for 150 bits.
        let found: Vec<c_int> =
            unsafe { members(150, [&raw const a, core::ptr::null(), &raw const b]) }.collect();
        assert_eq!(found, [3, 64, 130]);
    }
}
