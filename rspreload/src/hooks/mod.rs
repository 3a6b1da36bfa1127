//! The C-ABI functions, by family. Each is a few lines: look up, route, call.
//!
//! Must not know anything of the protocol, the device or how a connection attaches. `calls.txt` names every function of
//! libc's that can come near a socket: which are defined here, which are not, and why. Tests compare it with the library
//! and with libc; `docs/calls.md` is made from it.

pub(crate) mod aio;
pub(crate) mod dup;
pub(crate) mod epoll;
pub(crate) mod exec;
mod fastopen;
mod files;
mod first_packet;
pub(crate) mod life;
pub(crate) mod load;
mod memory;
pub(crate) mod name;
pub(crate) mod number;
pub(crate) mod option;
mod passing;
pub(crate) mod position;
pub(crate) mod process;
pub(crate) mod ready;
pub(crate) mod recv;
mod replaced;
pub(crate) mod rings;
pub(crate) mod send;
pub(crate) mod signal;
pub(crate) mod standard;
pub(crate) mod stdio;
pub(crate) mod streams;
pub(crate) mod transfer;
pub(crate) mod twins;
mod waits;
