//! What a TCP connection needs to have a device beside it: the memory that both ends map, words in
//! it, proofs of who is at the other end, and residual bytes on the way back.
//!
//! Must not know which step of a pairing comes next ([`crate::pairing`]), nor relays.

pub mod arenas;
pub(crate) mod arenas_lock;
#[cfg(test)]
mod arenas_tests;
pub mod broken;
pub mod gone;
pub mod guard;
pub mod hello;
pub mod identity;
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

pub(crate) mod evidence;
pub(crate) mod held;
pub mod link;
mod loan;
pub(crate) mod mail;
mod mapping;
pub mod marks;
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
pub mod vault;
pub(crate) mod visitors;
pub mod waiters;
pub mod witness;
