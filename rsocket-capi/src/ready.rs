//! What is ready: rsockets and any other descriptors together, in one wait.

use core::ffi::c_int;
use core::time::Duration;

use libc::{fd_set, nfds_t, pollfd, timeval};
use rsocket_edge::edge::{done, leave_rest, micros, millis, nowhere, small};
use rsocket_edge::{descriptors, readiness};
use rsocket_host::failure::Failure;
use rsocket_host::given::{In, Place, Polled, Sets};
use rsocket_host::sys;

fn poll(list: Polled<'_>, n: nfds_t, timeout: Option<Duration>) -> Result<usize, Failure> {
    match usize::try_from(n) {
        Ok(n) if n <= sys::MAX_FDS => {}
        _ => return Err(Failure::Invalid),
    }
    if n > 0 && nowhere(list.as_ptr()) {
        return Err(Failure::BadAddress);
    }
    readiness::poll::poll(list, timeout, core::ptr::null(), descriptors::find)
}

call! {
    fn rpoll(list: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
        let all = Polled::new(list, usize::try_from(n).unwrap_or(0));
        small(poll(all, n, millis(timeout)))
    }

    fn rselect(
        n: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *mut timeval,
    ) -> c_int {
        let given = match micros(In::new(timeout)) {
            Ok(given) => given,
            Err(e) => return done(Err(e)),
        };
        let begun = sys::now_ns();
        let mut left = given;
        let none = core::ptr::null();
        let sets = Sets::new(n, [read, write, except]);
        let result = readiness::select::select(sets, left.as_mut(), none, descriptors::find);
        leave_rest(Place::new(timeout), given, sys::now_ns().saturating_sub(begun));
        small(result)
    }
}
