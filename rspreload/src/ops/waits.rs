//! Waits that are made by number, through libc's `syscall`, and so past the hooks on `poll`,
//! `select` and `epoll_wait`. Such a wait does not end where bytes come by a device, and is told of
//! an epoll set's tokens. The sockets that it names are on TCP from then on; from the first wait
//! for an epoll set on, the process is. A program that waits by instructions of its own is found
//! out by [`rsocket_edge::attach::own_waits`]. Must not know how a connection goes back.

use core::ffi::{c_int, c_long};

use rsocket_edge::attach::own_waits;
use rsocket_edge::{readiness, socket};
use rsocket_host::given::{In, Places, Polled};
use rsocket_host::probe;
use rsocket_host::reason::Reason;
use rsocket_host::sys::sandbox;

use crate::edge::keeping_errno;
use crate::shadow::{self, Entry};

/// One more than the largest of the numbers.
pub(crate) const END: c_long = 448;

/// The numbers, one bit each.
#[cfg(target_arch = "x86_64")]
pub(crate) static NUMBERS: [u64; END as usize / 64] =
    [word(0), word(1), word(2), word(3), word(4), word(5), word(6)];

/// The bits of the numbers from 64 times `index` on.
#[cfg(target_arch = "x86_64")]
const fn word(index: c_long) -> u64 {
    let mut list: &[c_long] = &[
        libc::SYS_poll,
        libc::SYS_select,
        libc::SYS_io_submit,
        libc::SYS_epoll_wait,
        libc::SYS_pselect6,
        libc::SYS_ppoll,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
    ];
    let mut bits = 0;
    while let [number, rest @ ..] = list {
        if *number / 64 == index {
            bits |= 1 << (*number % 64);
        }
        list = rest;
    }
    bits
}

/// Requests of one `io_submit` that are looked at.
const MOST: usize = 4096;
/// Descriptors of one `poll` or `select`.
const FDS: usize = 1 << 20;

/// What a call that waits names.
#[derive(Clone, Copy)]
pub(crate) enum Named<'a> {
    /// A list of descriptors.
    List(Polled<'a>),
    /// Sets of the descriptors below the number.
    Sets(c_long, [Places<'a, u64>; 3]),
    /// Requests of `io_submit`.
    Requests(Places<'a, In<'a, Request>>),
    /// An epoll set.
    Set,
}

/// How many of so many things a call is taken to name.
pub(crate) fn some(count: c_long) -> usize {
    // The kernel refuses more than the program may have.
    usize::try_from(count).unwrap_or(0).min(FDS)
}

/// Whether there is anything for [`before`] to do.
#[inline]
pub(crate) fn concern() -> bool {
    shadow::any() && shadow::mine() && !sandbox::inside()
}

/// Before a call that waits is made by number.
pub(crate) fn before(named: Named<'_>) {
    keeping_errno(|| match named {
        Named::Requests(list) => submits(list),
        Named::Sets(end, sets) => sets.into_iter().for_each(|set| selects(end, set)),
        Named::List(list) => polls(list),
        Named::Set if own_waits::seen() => all_back(),
        Named::Set => {}
    });
}

#[cfg(target_arch = "x86_64")]
pub(crate) fn is_select(number: c_long) -> bool {
    number == libc::SYS_select || number == libc::SYS_pselect6
}

#[cfg(target_arch = "x86_64")]
pub(crate) fn is_poll(number: c_long) -> bool {
    number == libc::SYS_poll || number == libc::SYS_ppoll
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn is_select(number: c_long) -> bool {
    number == libc::SYS_pselect6
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn is_poll(number: c_long) -> bool {
    number == libc::SYS_ppoll
}

/// What such a wait names is the kernel's: a connection, or an epoll set with all that may be in
/// it.
fn back(fd: c_int) {
    if let Entry::Connection(slot) = shadow::entry(fd) {
        socket::give_away(slot, fd, Reason::UnseenWait);
    } else if readiness::epoll::is_set(fd) && own_waits::seen() {
        all_back();
    }
}

/// Without descriptors it is a sleep.
fn polls(list: Polled<'_>) {
    if probe::present(list.as_ptr(), list.len()) {
        (0..list.len()).filter_map(|i| list.fd(i)).for_each(back);
    }
}

/// One of the sets of `select`; the kernel reads whole words of it.
fn selects(end: c_long, set: Places<'_, u64>) {
    if !probe::present(set.as_ptr(), set.len()) {
        return;
    }
    for i in 0..set.len() {
        let mut bits = set.get(i).unwrap_or(0);
        while bits != 0 {
            let fd = c_long::try_from(i * 64).unwrap_or(c_long::MAX)
                + c_long::from(bits.trailing_zeros());
            bits &= bits - 1;
            if fd < end {
                back(c_int::try_from(fd).unwrap_or(-1));
            }
        }
    }
}

/// Everything goes back to TCP, and the kernel answers for every set again.
fn all_back() {
    for fd in 0..shadow::end() {
        if let Entry::Connection(slot) = shadow::entry(fd) {
            socket::give_away(slot, fd, Reason::UnseenWait);
        }
    }
    readiness::epoll::leave_to_kernel();
}

/// The kernel's `struct iocb`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Request {
    data: u64,
    key: u32,
    flags: u32,
    operation: u16,
    priority: i16,
    fd: u32,
    _rest: [u64; 5],
}

/// The sockets that the requests name are the kernel's: to wait for, to read or to write.
fn submits(list: Places<'_, In<'_, Request>>) {
    let count = list.len().min(MOST);
    if !probe::present(list.as_ptr(), count) {
        return;
    }
    for i in 0..count {
        // A bad pointer is for the kernel to refuse.
        let Some(request) = list.get(i).filter(|at| probe::present(at.as_ptr(), 1)) else { return };
        let Some(request) = request.get() else { return };
        back(request.fd.cast_signed());
    }
}

const _: () = assert!(size_of::<Request>() == 64);

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_waits() {
        let named = |n: c_long| NUMBERS[n as usize / 64] >> (n % 64) & 1 == 1;
        let all: Vec<c_long> = (0..END).filter(|n| named(*n)).collect();
        assert_eq!(all.len(), 8);
        assert!(
            named(libc::SYS_poll) && named(libc::SYS_epoll_pwait2) && named(libc::SYS_io_submit)
        );
        assert!(!named(libc::SYS_read) && !named(libc::SYS_futex));
    }
}
