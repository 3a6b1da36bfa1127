//! Where TCP's first packet may not carry the program's bytes, and a `connect` that would wait for
//! them (tcp(7): `TCP_FASTOPEN_CONNECT`).
//!
//! Entry points: [`no_early_bytes`], [`connect_first`].

use core::ffi::c_int;

use rsocket_edge::config::policy;
use rsocket_host::facts::kernel;

/// Whether TCP's first packet may not carry the program's bytes.
pub(crate) fn no_early_bytes() -> bool {
    policy::strict() || policy::fork_safe() || policy::native_rdma()
}

/// Before connect(2): a first packet that waits for bytes would wait for ever where they go another
/// way.
pub(crate) fn connect_first(fd: c_int) {
    if no_early_bytes()
        && kernel::integer(fd, libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT)
            .is_some_and(|on| on != 0)
    {
        kernel::connect_at_once(fd);
    }
}
