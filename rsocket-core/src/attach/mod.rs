//! How two ends of a TCP connection find each other, and prove that they have it. Here are
//! messages, proofs, visitors, and whether the process may attach at all.
//!
//! Must not know which step of a pairing comes next ([`crate::pairing`]), what is in a channel, nor
//! bridges.

pub mod hello;
pub mod io_uring;
mod looked_at;
pub mod own_waits;
pub mod permit;
pub mod phase;
pub mod reach;
pub mod rendezvous;
pub mod trust;

pub(crate) mod connect_requests;
pub(crate) mod evidence;
pub mod fingerprint;
pub(crate) mod held;
pub(crate) mod mail;
pub mod meet;
pub mod proof;
pub mod proving;
pub mod remote;
pub mod retry;
