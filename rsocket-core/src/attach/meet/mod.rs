//! What two ends of one TCP connection know of each other's handshake, whatever stands between
//! them.
//!
//! The SYN of a connection carries a timestamp: a clock, and an offset that the kernel draws for
//! each connection. Address translation leaves it alone. The end that accepted reads it out of the
//! SYN ([`saved`]); the end that connected knows, to some milliseconds, what it must have been
//! ([`dialled`]). Neither asks `sock_diag`, and nothing is added to the stream.
//!
//! Costs nothing where there is no directory to meet in ([`place`]). Must not know how two ends
//! meet. Entry points: [`Handshake`], in each connection's slot; [`place::find_out`].

pub mod dialled;
pub mod handshake;
pub mod offsets;
pub mod place;
pub mod saved;

pub use handshake::Handshake;
