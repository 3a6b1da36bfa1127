//! Where TCP's first packet may not carry the program's bytes, and a `connect` that would wait for
//! them (tcp(7): `TCP_FASTOPEN_CONNECT`).
//!
//! Entry points: [`no_early_bytes`], [`connect_first`].

use core::ffi::c_int;

use libc::socklen_t;
use rsocket_edge::config::policy;
use rsocket_host::facts::kernel;

use crate::real;

/// Whether TCP's first packet may not carry the program's bytes.
pub(crate) fn no_early_bytes() -> bool {
    policy::strict() || policy::fork_safe() || policy::native_rdma()
}

/// Before connect(2): a first packet that waits for bytes would wait for ever where they go another
/// way.
pub(crate) fn connect_first(fd: c_int) {
    let off: c_int = 0;
    if no_early_bytes()
        && kernel::integer(fd, libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT)
            .is_some_and(|on| on != 0)
    {
        // SAFETY: the option's value is an integer that lives for the call.
        unsafe {
            let size = size_of::<c_int>() as socklen_t;
            real::setsockopt(
                fd,
                libc::IPPROTO_TCP,
                libc::TCP_FASTOPEN_CONNECT,
                (&raw const off).cast(),
                size,
            );
        }
    }
}
