//! The C-ABI functions, by family. Each is a few lines: look up, route, call.
//!
//! Must not know anything of the protocol, the device or how a connection attaches. `calls.txt`
//! names every function of libc's that can come near a socket: which are defined here, which are
//! not, and why. Tests compare it with the library and with libc; `docs/calls.md` is made from it.
//!
//! What libc and the kernel call back stands here too: `streams`, `handlers`, `first_bytes_tap`.
//! The constructor says where those functions are, so that nothing below has to know them.

mod aio;
mod aliases64;
mod by_number;
mod dup;
mod epoll;
mod exec;
mod files;
pub(crate) mod first_bytes_tap;
pub(crate) mod handlers;
mod io_uring;
mod life;
mod load;
mod memory;
mod name;
mod option;
mod position;
mod process;
mod ready;
mod recv;
mod send;
mod signal;
mod stdio;
pub(crate) mod streams;
mod syscall_number;
mod transfer;
