//! What is ready: rsockets and any other descriptors together, in one wait.

use core::ffi::c_int;
use core::time::Duration;

use libc::{fd_set, nfds_t, pollfd, timeval};
use rsocket_edge::edge::{done, leave_rest, micros, millis, nowhere, small};
use rsocket_edge::readiness::select::Sets;
use rsocket_edge::{descriptors, readiness};
use rsocket_host::failure::Failure;
use rsocket_host::given::{In, Place};
use rsocket_host::sys;

/// # Safety
/// `list` is null or points to `n` entries.
unsafe fn poll(list: *mut pollfd, n: nfds_t, timeout: Option<Duration>) -> Result<usize, Failure> {
    let n = usize::try_from(n).ok().filter(|n| *n <= sys::MAX_FDS).ok_or(Failure::Invalid)?;
    let fds = match n {
        0 => &mut [],
        _ if nowhere(list) => return Err(Failure::BadAddress),
        // SAFETY: the caller's promise.
        _ => unsafe { core::slice::from_raw_parts_mut(list, n) },
    };
    readiness::poll::poll(fds, timeout, core::ptr::null(), descriptors::find)
}

call! {
    fn rpoll(list: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
        small(poll(list, n, millis(timeout)))
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
