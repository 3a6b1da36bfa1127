//! Waits that are made by number, through libc's `syscall`, and so past the hooks on `poll`,
//! `select` and `epoll_wait`. Such a wait does not end where bytes come by a device, and is told of
//! an epoll set's tokens. The sockets that it names are on TCP from then on; from the first wait
//! for an epoll set on, the process is. A program that waits by instructions of its own is found
//! out by [`rsocket_edge::attach::own_waits`]. Must not know how a connection goes back.

use core::ffi::{c_int, c_long, c_void};

use rsocket_edge::attach::own_waits;
use rsocket_edge::{readiness, socket};
use rsocket_host::probe;
use rsocket_host::reason::Reason;
use rsocket_host::sys::sandbox;

use crate::edge::keeping_errno;
use crate::real;
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

/// `syscall(NUMBER, …)` of a call that waits.
pub(crate) unsafe extern "C-unwind" fn by_number(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    if shadow::any() && shadow::mine() && !sandbox::inside() {
        keeping_errno(|| {
            if number == libc::SYS_io_submit {
                submits(b, c as *const *const Request);
            } else if is_select(number) {
                [b, c, d].into_iter().for_each(|set| selects(a, set as *const u64));
            } else if is_poll(number) {
                polls(a as *const libc::pollfd, b);
            } else if own_waits::seen() {
                all_back();
            }
        });
    }
    // SAFETY: the arguments are the caller's.
    unsafe { real::syscall_by_number()(number, a, b, c, d, e, f) }
}

#[cfg(target_arch = "x86_64")]
fn is_select(number: c_long) -> bool {
    number == libc::SYS_select || number == libc::SYS_pselect6
}

#[cfg(target_arch = "x86_64")]
fn is_poll(number: c_long) -> bool {
    number == libc::SYS_poll || number == libc::SYS_ppoll
}

#[cfg(not(target_arch = "x86_64"))]
fn is_select(number: c_long) -> bool {
    number == libc::SYS_pselect6
}

#[cfg(not(target_arch = "x86_64"))]
fn is_poll(number: c_long) -> bool {
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
fn polls(list: *const libc::pollfd, count: c_long) {
    // The kernel refuses more than the program may have.
    let count = usize::try_from(count).unwrap_or(0).min(FDS);
    if probe::present(list, count) {
        for i in 0..count {
            // SAFETY: the list is there.
            back(unsafe { (&raw const (*list.add(i)).fd).read_unaligned() });
        }
    }
}

/// One of the sets of `select`; the kernel reads whole words of it.
fn selects(end: c_long, set: *const u64) {
    let words = usize::try_from(end).unwrap_or(0).min(FDS).div_ceil(64);
    if set.is_null() || !probe::present(set, words) {
        return;
    }
    for i in 0..words {
        // SAFETY: the set is there.
        let mut bits = unsafe { set.add(i).read_unaligned() };
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

/// The beginning of the kernel's `struct iocb`.
#[repr(C)]
struct Request {
    data: u64,
    key: u32,
    flags: u32,
    operation: u16,
    priority: i16,
    fd: u32,
    _rest: [u64; 5],
}

/// The sockets that the requests name are the kernel's: to wait for, to read or to write.
fn submits(count: c_long, list: *const *const Request) {
    let count = usize::try_from(count).unwrap_or(0).min(MOST);
    if !probe::present(list, count) {
        return;
    }
    for i in 0..count {
        // SAFETY: the list is there; the caller's promise is the kernel's to check.
        let request = unsafe { list.add(i).read_unaligned() };
        if request.is_null() || !probe::present(request, 1) {
            return;
        }
        // SAFETY: it is there.
        back(unsafe { (&raw const (*request).fd).read_unaligned() }.cast_signed());
    }
}

const _: () = assert!(size_of::<Request>() == 64 && size_of::<*const c_void>() == 8);

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
