//! What the hooks call, by family: which way a call goes, and what C's arguments mean on the way.
//!
//! Works on descriptors, pointers and C's return values, and may call the next definitions
//! ([`crate::real`]). Must not know a hook, nor a byte of protocol: what a connection is stands in
//! `rsocket_core`. Each function takes the arguments of the calls that it serves, under the
//! contract of their manual pages.

pub(crate) mod aio;
pub(crate) mod dup;
pub(crate) mod epoll;
pub(crate) mod exec;
pub(crate) mod fastopen;
pub(crate) mod first_packet;
pub(crate) mod io_uring;
pub(crate) mod life;
pub(crate) mod load;
pub(crate) mod memory;
pub(crate) mod messages;
pub(crate) mod name;
pub(crate) mod option;
pub(crate) mod passing;
pub(crate) mod position;
pub(crate) mod process;
pub(crate) mod ready;
pub(crate) mod recv;
pub(crate) mod send;
pub(crate) mod signal;
pub(crate) mod standard;
pub(crate) mod stdio;
pub(crate) mod transfer;
pub(crate) mod waits;
