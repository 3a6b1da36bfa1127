//! How descriptors come and go: `socket`, `close`, and the calls that hand out numbers. What they
//! do is [`crate::ops::life`]'s.

use core::ffi::{c_int, c_uint};

use libc::sigset_t;
use rsocket_host::given::Place;
use rsocket_host::sys;

use crate::ops::life as ops;
use crate::room::with_room;
use crate::{real, shadow};

hook! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        ops::socket(domain, kind, protocol, || real::socket(domain, kind, protocol))
    }

    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, pair: *mut c_int) -> c_int {
        let made = with_room(|| real::socketpair(domain, kind, protocol, pair));
        ops::plain_pair(made, Place::new(pair.cast()))
    }

    fn pipe(pair: *mut c_int) -> c_int {
        let made = with_room(|| real::pipe(pair));
        ops::plain_pair(made, Place::new(pair.cast()))
    }

    fn pipe2(pair: *mut c_int, flags: c_int) -> c_int {
        let made = with_room(|| real::pipe2(pair, flags));
        ops::plain_pair(made, Place::new(pair.cast()))
    }

    fn eventfd(value: c_uint, flags: c_int) -> c_int {
        ops::plain(with_room(|| real::eventfd(value, flags)))
    }

    fn timerfd_create(clock: c_int, flags: c_int) -> c_int {
        ops::plain(with_room(|| real::timerfd_create(clock, flags)))
    }

    fn signalfd(fd: c_int, mask: *const sigset_t, flags: c_int) -> c_int {
        // With a descriptor it changes that one and gives it back; a signalfd never has an entry.
        ops::plain(with_room(|| real::signalfd(fd, mask, flags)))
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        let real = |from, to, flags| real::close_range(from, to, flags);
        ops::close_range_by(first, last, flags, real)
    }

    fn closefrom(first: c_int) {
        let close_range = |from, to| real::close_range(from, to, 0);
        ops::closefrom(first, close_range, |rest| real::closefrom(rest))
    }
}

hook! {
    fn shutdown(fd: c_int, how: c_int) -> c_int, when shadow::tracked(fd) => {
        ops::shutdown(fd, how, || real::shutdown(fd, how))
    }

    fn close(fd: c_int) -> c_int, when shadow::tracked(fd) || sys::is_private(fd) => {
        ops::close_by(fd, || real::close(fd))
    }
}
