//! What the hooks call, by family: which way a call goes, and what C's arguments mean on the way.
//!
//! Works on descriptors and C's return values. What C's pointers mean comes as types whose making
//! was the promise (`rsocket_host::given`, `rsocket_edge::message`), and the call that is passed on
//! comes as a closure, by convention `real`. So nothing here is unsafe, or says why it is. Must not
//! know a hook, nor a next definition, nor a byte of protocol: what a connection is stands in
//! `rsocket_core`.
#![deny(unsafe_code)]

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
