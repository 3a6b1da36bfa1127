//! How a TCP connection comes to have a device beside it, and goes back to TCP.

pub mod arenas;
#[cfg(test)]
mod arenas_tests;
pub mod awaited;
pub mod broken;
pub mod guard;
pub mod hello;
pub mod io_uring;
pub mod own_waits;
pub mod permit;
pub mod phase;
pub mod reach;
pub mod rendezvous;
pub mod residual;
pub mod said;
pub mod trust;

pub mod detach;
mod evidence;
mod greeting;
pub mod heirs;
mod held;
pub mod link;
mod loan;
mod mail;
mod mapping;
pub mod marks;
pub mod meet;
pub mod pairing;
pub mod proof;
pub mod proving;
pub mod remote;
mod retired;
pub mod retry;
mod search;
pub mod spare;
mod switch;
pub(crate) mod unread;
pub mod vault;
mod visitors;
pub mod witness;
