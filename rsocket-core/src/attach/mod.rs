//! What a TCP connection needs to have a device beside it: the memory that both ends map, words in
//! it, proofs of who is at the other end, and residual bytes on the fallback.
//!
//! Must not know which step of a pairing comes next ([`crate::pairing`]), nor bridges.

pub mod arenas;
pub(crate) mod arenas_lock;
#[cfg(test)]
mod arenas_tests;
pub mod broken;
pub mod gone;
pub mod guard;
pub mod hello;
pub mod io_uring;
pub mod own_waits;
pub mod permit;
pub mod phase;
pub mod reach;
pub mod rendezvous;
pub mod residual;
pub mod room;
pub mod said;
pub mod trust;

pub(crate) mod connect_requests;
pub(crate) mod evidence;
pub mod fd_stash;
pub mod fingerprint;
pub mod handover_state;
pub(crate) mod held;
pub mod link;
mod loan;
pub(crate) mod mail;
mod mapping;
pub mod meet;
pub mod proof;
pub mod proving;
pub mod remote;
mod retired;
pub mod retry;
mod search;
pub mod spare;
pub(crate) mod switch;
pub(crate) mod unread;
pub mod waiters;
