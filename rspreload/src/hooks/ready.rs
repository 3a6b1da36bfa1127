//! What is ready: `poll`, `select` and their relatives. What they do is [`crate::ops::ready`]'s.

use core::ffi::c_int;
use core::ptr::null;

use libc::{fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use rsocket_host::given::{In, Place, Polled, Sets};

use crate::edge::{micros, millis, span};
use crate::ops::ready as ops;
use crate::{real, shadow};

// Until the first socket is tracked, all of these pass on with one test.
hook! {
    fn poll(list: *mut pollfd, length: nfds_t, timeout: c_int) -> c_int, when shadow::any() => {
        let all = Polled::new(list, length as usize);
        ops::poll(all, Ok(millis(timeout)), null(), || real::poll(list, length, timeout))
    }

    fn ppoll(
        list: *mut pollfd,
        length: nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int, when shadow::any() => {
        let (all, time) = (Polled::new(list, length as usize), span(In::new(timeout)));
        ops::poll(all, time, mask, || real::ppoll(list, length, timeout, mask))
    }

    fn __poll_chk(
        list: *mut pollfd,
        length: nfds_t,
        timeout: c_int,
        room: size_t,
    ) -> c_int, when shadow::any() && ops::fits(length, room) => {
        poll(list, length, timeout)
    }

    fn __ppoll_chk(
        list: *mut pollfd,
        length: nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t,
        room: size_t,
    ) -> c_int, when shadow::any() && ops::fits(length, room) => {
        ppoll(list, length, timeout, mask)
    }

    fn select(
        n: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *mut timeval,
    ) -> c_int, when shadow::any() => {
        let given = micros(In::new(timeout));
        let pass = || real::select(n, read, write, except, timeout);
        let taken = ops::select(Sets::new(n, [read, write, except]), given, null(), pass);
        ops::say_rest(taken, Place::new(timeout), given)
    }

    fn pselect(
        n: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int, when shadow::any() => {
        let pass = || real::pselect(n, read, write, except, timeout, mask);
        let sets = Sets::new(n, [read, write, except]);
        ops::select(sets, span(In::new(timeout)), mask, pass).result
    }
}
